"""Displays of a running step: `HumanDisplay` for people, `JsonDisplay` for programs.

The result goes to stdout, everything else to stderr. If both are the same terminal, the final message is already on
screen and is not repeated. Otherwise stdout receives only the final message.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import anyio.to_thread
from rich.text import Text

from helmsman.base.json_values import present
from helmsman.base.sanitize import one_line, plain_output, shell_script, visible
from helmsman.cli.consoles import is_terminal, logs_wanted, message_console
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.on_session import short_id
from helmsman.cli.output import dollars, page_diff, print_json, print_markdown
from helmsman.cli.screen import InputLine, Screen, StatusLine, Typing, duration
from helmsman.cli.transcript import TranscriptPrinter
from helmsman.errors import HelmsmanError, StepInterrupted
from helmsman.model import events
from helmsman.model.events import (
    Event,
    ModelUsage,
    QuestionAsked,
    TurnEnded,
    TurnRequested,
    Usage,
    UserMessage,
)
from helmsman.model.questions import ACCEPT, APPROVE, Question, refusal
from helmsman.shapes.rendering import fields_as_dict
from helmsman.terminal import ask_on_terminal, has_terminal
from helmsman.terminal.layout import crop, fold

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
    from pathlib import Path

    from rich.console import Console

    from helmsman.sessions.session import QuestionHandler, Reply, Session
    from helmsman.settings import Settings
    from helmsman.step import StepResult
    from helmsman.tasks.prices import Prices

# --- Latest output of the running commands, for the live part of the screen -------------------------------------------

_TAIL_LINES: Final = 6
_LOOKED_AT: Final = 8000  # only this tail of the output is searched for lines: it is drawn ten times a second
_COMMANDS: Final = 3
_SHARE: Final = 3  # maximum share of the screen: one third


def running_lines(console: Console, session: Session) -> list[Text]:
    """Return each running command with the end of its output."""
    commands = [
        item
        for item in session.items
        if isinstance(item, events.CommandExecution) and item.status == "in_progress" and not item.announced
    ]
    shown = commands[-_COMMANDS:]
    # The screen is shared by all running commands.
    most = max(1, min(_TAIL_LINES, console.height // _SHARE) // max(1, len(shown)))
    lines: list[Text] = []
    for item in shown:
        script = Text(one_line(shell_script(item.command)), "bold")
        lines.append(crop(console, Text.assemble(("$ ", "bold cyan"), script), indent=0))
        # Only the end, because the output may be megabytes.
        tail = plain_output(item.output[-_LOOKED_AT:]).rstrip()
        lines += [crop(console, Text(line, "dim")) for line in tail.split("\n")[-most:] if tail]
    return lines


_UNFINISHED_LINES: Final = 8
_IN_STEP_SECONDS: Final = 1.0
_HISTORY: Final = "typed"  # history file of typed input, in the state directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a step: a result or an error, with its session if one was started.

    `seconds` is None for a turn that was joined midway. `goes_on` is set if the user left a running turn.
    """

    result: StepResult | None
    error: HelmsmanError | None
    session: Session | None
    seconds: float | None
    exit_code: int
    goes_on: bool = False


class Display(ABC):
    """Base class of displays. Use it as a context manager around the step."""

    on_question: QuestionHandler
    stays = False
    """True if the user can type a further message after the turn."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def on_event(self, session: Session, event: Event) -> None:
        """Handle an event of the session."""

    @abstractmethod
    def finish(self, outcome: Outcome) -> None:
        """Show the outcome of the step."""

    async def animate(self) -> None:
        """Run the display's continuous updates; cancelled when the step ends."""
        return

    def interrupting(self) -> None:
        """Show that the turn is being interrupted."""
        return

    def remark(self, message: str, style: str = "yellow") -> None:
        """Show a remark about typed input."""
        return

    async def page(self, patch: bytes) -> None:
        """Show a diff in the pager."""
        return

    @property
    def line(self) -> InputLine | None:
        """Input line, while it is open."""
        return None

    @asynccontextmanager
    async def typing(self, typing: Typing) -> AsyncIterator[None]:
        """Open the input line for the block, if the display has one."""
        yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark the block as idle: no turn runs, and the next message can be typed."""
        yield

    def close(self) -> None:
        """Restore the terminal immediately."""
        return


async def refuse(_session: Session, question: Question, /) -> Sequence[str] | None:
    """Refuse the question, for use without a user."""
    return refusal(question)


async def approve(_session: Session, question: Question, /) -> Sequence[str] | None:
    """Approve approvals and leave other questions open, for the demo."""
    # A question for words or with several parts needs a person.
    options = question.prompts[0].options if len(question.prompts) == 1 else ()
    return next(([option] for option in (APPROVE, ACCEPT) if option in options), None)


async def _ask_on_terminal(session: Session, question: Question, /) -> Reply:
    return await _unless_gone(ask_on_terminal(session, question))


async def _unless_gone(asking: Awaitable[Reply]) -> Reply:
    """Return the user's answer, or None if the terminal was closed while asking.

    None leaves the question to other clients. An exception would count as a refusal, which the user did not give.
    """
    try:
        return await asking
    except Exception:
        if has_terminal():
            raise
        return None


class HumanDisplay(Display):
    """Show a transcript: with a live line on a terminal, as plain text in a log.

    Args:
        answer: Answers questions automatically. Without it the user is asked, if there is a terminal.
        remark: The reason for automatic answers.
        live: Whether the live line may be drawn; log lines would break it.
        lasting: Whether the session can be continued later.
        history: File for the history of typed input.
        prices: Prices of models, for the cost of the turn.
    """

    def __init__(
        self,
        *,
        history: Path,
        answer: QuestionHandler | None = None,
        remark: str = "",
        live: bool = True,
        lasting: bool = True,
        prices: Prices | None = None,
    ) -> None:
        # Without a terminal a question would hang, so it is refused, and the remark says what to do instead.
        if answer is None and not has_terminal():
            answer, remark = refuse, "there is no terminal to ask on; helmsman run --detach lets questions wait"
        self.on_question = answer or self._ask
        self._console = message_console()
        self._lasting = lasting
        self._prices = prices
        on_terminal = is_terminal(self._console)
        # Stdout elsewhere gets the result alone; on the same terminal it was already shown.
        self._result_apart = not (on_terminal and sys.stdout.isatty())
        self._session: Session | None = None
        self._transcript = TranscriptPrinter(
            self._console,
            announce=not on_terminal,
            asked_here=answer is None,
            answered_by=remark,
            hold_messages=self._result_apart,
            folded=live and on_terminal,
            markdown=on_terminal,
        )
        self._status = StatusLine(self._console)
        self._screen = Screen(self._console, self._changing if live and on_terminal else None)
        self._line = InputLine(history, self._screen.refresh, self._screen.step_aside) if live and on_terminal else None
        # One event for each question: set when the question was shown.
        self._shown: dict[str, anyio.Event] = {}
        # The line and questions share the keyboard.
        self._asking = anyio.Lock()
        self._turn_ended = self._is_idle = False

    def __enter__(self) -> Self:
        self._status = StatusLine(self._console)
        self._screen.__enter__()
        return self

    @contextmanager
    def waiting(self) -> Iterator[None]:
        # Between turns nothing changes, so nothing is drawn below.
        self._is_idle = True
        try:
            with self._screen:
                yield
        finally:
            self._is_idle = False

    async def _ask(self, session: Session, question: Question, /) -> Reply:
        # Bounded: a question must appear even if an event is missing.
        with anyio.move_on_after(_IN_STEP_SECONDS):  # show events that precede the question first
            await self._shown.setdefault(question.id, anyio.Event()).wait()
        return await _unless_gone(self._ask_now(session, question))

    async def _ask_now(self, session: Session, question: Question) -> Reply:
        keys_free = nullcontext() if self._line is None else self._line.suspended()
        async with keys_free, self._asking:  # ignore keys typed between two questions
            with self._screen.paused():
                self._transcript.puts_to_person(question.id)
                answered = await ask_on_terminal(session, question)
        if answered is not None:
            self._transcript.answered_here.add(question.id)
        return answered

    def on_event(self, session: Session, event: Event) -> None:
        # Only a session in the hub can be left running.
        can_leave = session.goes_on_alone and session.state.is_running
        if self._session is None and can_leave and self.line is None and is_terminal(self._console):
            self._screen.print([Text("Ctrl-C stops it, Ctrl-\\ leaves it running.", "dim")])
        self._session = session
        if isinstance(event, TurnRequested | TurnEnded):  # a command may end after its turn
            self._turn_ended = isinstance(event, TurnEnded)
        self._transcript.directory, self._transcript.agent = session.directory, session.options.agent
        self._status.note(event)
        self._screen.print(self._transcript.lines(event))
        if isinstance(event, TurnEnded):
            self._print_unread(session, event)
        if isinstance(event, QuestionAsked):
            self._shown.setdefault(event.question.id, anyio.Event()).set()

    def _print_unread(self, session: Session, event: TurnEnded) -> None:
        """Print the messages that the agent has not read in its turn, and put them back into the line."""
        for item in session.state.items_and_decisions:
            if isinstance(item, UserMessage) and item.status == "failed":
                was_read = event.outcome == "completed"  # not all agents tell
                self._screen.print(self._message(item.text, "" if was_read else "  not read: the turn ended first"))
                # Typed text must not get lost.
                if not was_read and self.line is not None:
                    self.line.put(item.text)

    def _message(self, text: str, remark: str) -> list[Text]:
        """Return a message of the user that the agent does not have yet, with a remark."""
        said = Text.assemble((visible(text.strip()), "bold"), (remark, "yellow"))
        return fold(self._console, said, lead=Text("› ", "bold cyan"))

    async def animate(self) -> None:
        await self._screen.animate()

    def _changing(self) -> list[Text]:
        if self._is_idle:
            return []
        # A long message has its end on screen.
        unfinished = self._transcript.unfinished[-_UNFINISHED_LINES:]
        running = [] if self._session is None else running_lines(self._console, self._session)
        return [*unfinished, *running, *self._waiting_messages(), self._status.text(self._session)]

    def _waiting_messages(self) -> list[Text]:
        """Return the messages that the agent does not have yet: those put into the turn, and those for afterwards."""
        session = self._session
        if session is None:
            return []
        items, queue = session.state.items_and_decisions, session.queue
        unread = [item for item in items if isinstance(item, UserMessage) and item.status == "in_progress"]
        lines = [line for item in unread for line in self._message(item.text, "  not read yet")]
        for number, queued in enumerate(queue, 1):
            lead = Text.assemble((f"{number} ", "bold cyan"), one_line(queued.text))
            lines.append(crop(self._console, lead, indent=0))
        if queue:
            remark = "  sent after this turn" + ("; /queue changes that" if self.line is not None else "")
            lines.append(Text(remark, "dim"))
        return lines

    @property
    def line(self) -> InputLine | None:
        return self._line if self._line is not None and self._line.is_open else None

    @asynccontextmanager
    async def typing(self, typing: Typing) -> AsyncIterator[None]:
        if self._line is None:
            yield
            return
        self._screen.line = self._line
        async with self._line.opened(typing):
            yield

    def remark(self, message: str, style: str = "yellow") -> None:
        self._screen.print(fold(self._console, Text(visible(message), style), indent=0))

    async def page(self, patch: bytes) -> None:
        keys_free = nullcontext() if self._line is None else self._line.suspended()
        async with keys_free, self._asking:
            with self._screen.paused():
                # In a thread: the pager waits for keys while the session continues.
                await anyio.to_thread.run_sync(page_diff, patch, self._console)

    def interrupting(self) -> None:
        self._screen.print([Text("Interrupting the turn. Ctrl-C now leaves at once.", "yellow")])

    def close(self) -> None:
        self._screen.close()
        if self._line is not None:
            self._line.release()

    def finish(self, outcome: Outcome) -> None:
        self._screen.close()
        result = outcome.result.text if outcome.result is not None else None
        lines = self._transcript.rest(result)
        error = outcome.error
        if outcome.goes_on and outcome.session is not None:
            back = Text.assemble(
                "It keeps running without you. Come back with ",
                (f"helmsman watch {short_id(outcome.session.id)}", "bold"),
            )
            self._screen.print([*lines, Text(), *fold(self._console, back)])
            return
        if isinstance(error, StepInterrupted) and self._turn_ended:
            pass  # the transcript shows it
        elif error is not None:
            lines += self._error_lines(error, outcome.session)
        else:
            took = "" if outcome.seconds is None else f" in {duration(outcome.seconds)}"
            missed = outcome.session.state.timed_out_note if outcome.session is not None else None
            mark, style = (
                ("✓ Done", "green") if missed is None else ("! Done, but not everything was answered", "yellow")
            )
            lines += [Text(), Text(f"{mark}{took}", style)]
            left = outcome.session.state.left_running_note if outcome.session is not None else None
            for note in (missed, left):
                lines += [] if note is None else fold(self._console, Text(visible(note), "yellow"))
        if outcome.session is not None:
            lines += self._closing(outcome.session, error)
        self._screen.print(lines)
        if result is not None and self._result_apart:
            print_markdown(result)

    def _error_lines(self, error: HelmsmanError, session: Session | None) -> list[Text]:
        if session is None:  # nothing was shown above, so no separator is needed
            text = Text(f"Error: {visible(error.message)}", "red")
            return fold(self._console, text, indent=0) if is_terminal(self._console) else [text]
        # A result that begins with FAILED is the message and the error at once.
        said = error.message == session.result
        message = "The agent says that it failed." if said else visible(error.message)
        return [Text(), *fold(self._console, Text(message, "red"), lead=Text("✗ ", "red"))]

    def _closing(self, session: Session, error: HelmsmanError | None) -> list[Text]:
        parts = [Text(self._spent(session), "dim")]
        later = None if error is None else error.details.get("goes_on")
        # Without an id, because the next message can be typed here.
        stays = self.line is not None and (self.stays or self.line.was_used)
        if later is not None:
            parts.append(Text.assemble(("resume now with ", "dim"), f"helmsman tasks resume {later}"))
        elif self._lasting and not stays:
            command = f'helmsman run --session {short_id(session.id)} "…"'
            parts.append(Text.assemble(("continue with ", "dim"), command))
        return [line for part in parts for line in fold(self._console, part)]

    def _spent(self, session: Session) -> str:
        """Return the tokens and cost of the turn, and those of the session if it has had others."""
        state = session.state
        turn = state.turn_usage + state.sub_agents_usage
        shown = tokens(turn) + self._cost([ModelUsage(session.model, turn)])
        # A single turn is the session's whole cost.
        if state.turn_count < 2 or not sum(turn.counts):
            # The agent may report usage for the session only.
            return shown if sum(turn.counts) else tokens(session.usage)
        whole = session.usage
        cost = self._cost(state.usage_by_model)
        return f"{shown} (session: {whole.input_tokens:,} in, {whole.output_tokens:,} out{cost})"

    def _cost(self, parts: Sequence[ModelUsage]) -> str:
        cost = None if self._prices is None else self._prices.cost_of(parts)
        return "" if cost is None else f", {dollars(cost)}"


class JsonDisplay(Display):
    """Print one JSON object per line: each event, then the result."""

    def __init__(self, *, answer: QuestionHandler | None = None) -> None:
        # A program on a terminal can still ask its user.
        self.on_question = answer or (_ask_on_terminal if has_terminal() else refuse)

    def on_event(self, session: Session, event: Event) -> None:
        print_json(event.to_json())

    def finish(self, outcome: Outcome) -> None:
        session, result, error = outcome.session, outcome.result, outcome.error
        usage = session.usage if session is not None else None
        shown: dict[str, Any] = {
            "type": "result",
            "status": "done" if error is None else "error",
            "sessionId": session.id if session is not None else None,
            "result": result.text if result is not None else None,
            "output": result.output if result is not None else None,
            "attempts": result.attempts if result is not None else None,
            "usage": fields_as_dict(usage) if usage is not None else None,
            "error": error.as_dict() if error is not None else None,
            "timedOut": list(session.state.timed_out) or None if session is not None else None,
            "exitCode": int(outcome.exit_code),
        }
        if outcome.goes_on:
            shown["status"] = "active"
        # Ended by the user, not by an error.
        if outcome.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
            shown["status"] = "interrupted"
        print_json(present(shown))


def tokens(usage: Usage) -> str:
    """Return token counts as text."""
    cached = f" ({usage.cached_input_tokens:,} cached)" if usage.cached_input_tokens else ""
    reasoning = f" ({usage.reasoning_output_tokens:,} reasoning)" if usage.reasoning_output_tokens else ""
    return f"{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out{reasoning}"


def new_display(
    settings: Settings, *, as_json: bool, answer: QuestionHandler | None = None, remark: str = "", lasting: bool = True
) -> Display:
    """Return the display for a program or a user; see `HumanDisplay` for `answer`, `remark` and `lasting`."""
    if as_json:
        return JsonDisplay(answer=answer)
    history = settings.state_dir / _HISTORY
    from helmsman.tasks.prices import Prices  # not needed by programs

    return HumanDisplay(
        history=history,
        answer=answer,
        remark=remark,
        live=not logs_wanted(settings),
        lasting=lasting,
        prices=Prices.load(settings.files),
    )
