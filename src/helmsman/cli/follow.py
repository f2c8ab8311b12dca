r"""Run a step interactively: show it, ask questions, read input and handle Ctrl-C.

The first Ctrl-C interrupts the turn, so that the session can be continued; the second exits immediately, as SIGTERM
does. In watch mode the first Ctrl-C exits and interrupts nothing. Ctrl-\ leaves a turn that continues without this
process and prints how to return. Typed messages go to the running turn or to the queue; afterwards the conversation can
continue.
"""

from __future__ import annotations

import os
import time
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import anyio.to_thread

from helmsman.base.concurrency import background_tasks
from helmsman.base.sanitize import one_line
from helmsman.capabilities.saved_prompts import expanded_prompt, folder_of_prompts, saved_prompts
from helmsman.cli.displays import Display, Outcome, tokens
from helmsman.cli.exit_codes import ExitCode, exit_code_of, in_words_of_shell
from helmsman.cli.output import session_word
from helmsman.cli.signals import exit_after, handle_signals
from helmsman.errors import (
    HelmsmanError,
    InvalidInput,
    SessionIdle,
    StepFailed,
    StepInterrupted,
    StepTimedOut,
    TurnTimedOut,
    Unsupported,
)
from helmsman.git.command import find_git
from helmsman.model.events import AgentMessage, ItemEnded, TurnEnded, TurnRequested

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from anyio.abc import TaskGroup

    from helmsman.capabilities.saved_prompts import SavedPrompt
    from helmsman.client import Helmsman
    from helmsman.model.events import Event
    from helmsman.sessions.session import QuestionHandler, Session
    from helmsman.step import StepResult
    from helmsman.tasks.model import Task

LEAVE_SECONDS: Final = 3.0
"""Time for Codex to exit on an immediate exit. Afterwards this process exits, and Codex ends when its input closes."""

_LEFT: Final = "Stopped before the turn had ended. Continue the session to finish it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """Options for messages to the session while its step is shown.

    `stay` waits for the next message after the turn. With `leaves`, Ctrl-C interrupts nothing. `options` apply to steps
    of further messages.
    """

    helm: Helmsman
    stay: bool = False
    leaves: bool = False
    options: Mapping[str, Any] | None = None

    def step(self, session: Session, text: str) -> TurnStep:
        """Return the step for the next message."""
        from helmsman.step import run_step

        given = dict(self.options or {})
        return partial(run_step, text, session_id=session.id, helm=self.helm, bound=not self.helm.asks_hub, **given)


async def follow(
    step: TurnStep,
    display: Display,
    *,
    session: Session | None = None,
    left: str = _LEFT,
    talk: Talk | None = None,
) -> Outcome:
    """Run the step and any further messages on the display, and return the last outcome, which has been shown.

    `session` is the session that Ctrl-C interrupts, if known in advance; `left` is the message for a user who leaves.
    """
    async with background_tasks() as tasks:
        follower = _Follower(display, session, left, talk, tasks)
        # Before the step starts, so that an early Ctrl-C is not lost.
        await tasks.start(handle_signals, follower.on_signal)
        if talk is None:
            return await follower.turn(step, joined=session is not None)
        async with display.typing(follower):
            return await follower.talk(await follower.turn(step, joined=session is not None))


async def talk_from_start(begin: Callable[[str], TurnStep], display: Display, *, talk: Talk) -> Outcome:
    """Run the step for the first typed message, and any further messages.

    Raises:
        InvalidInput: There is no input line.
    """
    async with background_tasks() as tasks:
        follower = _Follower(display, None, _LEFT, talk, tasks)
        await tasks.start(handle_signals, follower.on_signal)
        async with display.typing(follower):
            # A log or a program has no line to type into.
            if display.line is None:
                raise InvalidInput('Nothing can be typed here. Say what to do: helmsman run "…"')
            return await follower.first(begin)


@dataclass(frozen=True, slots=True)
class _Queued:
    """Message for a later turn: its task, and the number of the session's last event when it was queued."""

    text: str
    task_id: str | None
    cursor: int


class _Follower:
    """Tracks the running session and maps keys and signals to actions."""

    def __init__(
        self, display: Display, session: Session | None, left: str, talk: Talk | None, tasks: TaskGroup
    ) -> None:
        self._display = display
        display.stays = talk is not None and talk.stay
        self._left = left
        self._talk = talk
        self._tasks = tasks
        self._scope: anyio.CancelScope | None = None
        self._typed: anyio.Event | None = None
        self._next: str | None = None
        self._queued: list[_Queued] = []
        self._shown: set[str | None] = set()  # tasks of turns on the screen
        self._heard = 0
        self._session = session
        self._begun = anyio.Event()
        self._problem: HelmsmanError | None = None
        self._exit_code: int | None = None
        self._has_left = False
        self._commands = PromptCommands(self)

    # --- for commands at the prompt ----------------------------------------------------------------------------------

    @property
    def display(self) -> Display:
        return self._display

    @property
    def session(self) -> Session | None:
        return self._session

    @property
    def helm(self) -> Helmsman:
        assert self._talk is not None  # otherwise nothing can be typed
        return self._talk.helm

    def use_model(self, model: str) -> None:
        """Use this model from the next message on."""
        if self._talk is not None:
            self._talk = replace(self._talk, options={**(self._talk.options or {}), "model": model})

    def forget_queued(self, task_id: str) -> None:
        """Stop waiting for a queued message that was dropped."""
        self._queued = [one for one in self._queued if one.task_id != task_id]

    def in_background(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do work for a command while the turn runs or the next message is awaited."""

        async def contained() -> None:
            try:
                await work()
            except HelmsmanError as error:
                # Errors of a command are shown in the conversation, which continues.
                self._display.remark(error.message)

        self._tasks.start_soon(contained)

    # --- turns -------------------------------------------------------------------------------------------------------

    async def turn(self, step: TurnStep, *, joined: bool = False) -> Outcome:
        """Run one step and show its outcome. The duration of a joined turn is unknown."""
        # Ctrl-C counts for each turn anew.
        began, self._heard = anyio.current_time(), 0
        result: StepResult | None = None
        error: HelmsmanError | None = None
        with self._display:
            # Cancelled by `_leave`: the way out of a step that does not return.
            with anyio.CancelScope() as self._scope:
                async with background_tasks() as tasks:
                    tasks.start_soon(self._display.animate)
                    try:
                        result = await step(on_event=self._on_event, on_question=self._display.on_question)
                    except HelmsmanError as raised:
                        error = in_words_of_shell(raised)
            # The step was cancelled, so it has neither a result nor an error.
            if self._scope.cancelled_caught:
                error = self._problem or StepInterrupted(self._left)
            self._scope = None
            code = self._exit_code
            if code is None:
                code = ExitCode.OK if error is None else exit_code_of(error)
            # Leaving a turn that continues is no failure.
            if self._has_left:
                error = None
            outcome = Outcome(
                result=result,
                error=error,
                session=self._session,
                # The turn had begun before this process came.
                seconds=None if joined else anyio.current_time() - began,
                exit_code=code,
                goes_on=self._has_left and self._session is not None and self._session.state.is_running,
            )
            self._display.finish(outcome)
        return outcome

    async def first(self, begin: Callable[[str], TurnStep]) -> Outcome:
        """Run the first typed message and continue; without a message nothing is started."""
        text = await self._typed_message()
        if text is None:
            code = ExitCode.OK if self._exit_code is None else self._exit_code
            return Outcome(result=None, error=None, session=None, seconds=None, exit_code=code)
        return await self.talk(await self.turn(begin(text)))

    async def talk(self, outcome: Outcome) -> Outcome:
        """Run further messages and return the last outcome."""
        while (following := await self._next_step(outcome)) is not None:
            outcome = await self.turn(following)
        return outcome

    async def _next_step(self, outcome: Outcome) -> TurnStep | None:
        """Return the step for the next queued or typed message, or None at the end."""
        session, line = outcome.session, self._display.line
        if self._talk is None or session is None or self._exit_code is not None:
            return None
        while self._queued:
            queued = self._queued.pop(0)
            # Already shown: its turn began while another one ended.
            if queued.task_id in self._shown:
                continue
            not_sent = None
            with anyio.CancelScope() as self._scope:
                not_sent = await until_sent(self._talk.helm, session, queued.task_id)
            if self._scope.cancelled_caught:
                return None  # the message stays queued
            self._scope = None
            if not_sent is None:
                return followed(session, queued)
            # What was typed goes back into the line, so that it can be sent again.
            self._display.remark(f"Not sent: {queued.text}\n{not_sent.note or 'It was dropped.'}")
            if line is not None:
                line.put(queued.text, after=True)
        # A command with a prompt ends after its turn, unless the user has typed something.
        if line is None or not (self._talk.stay or line.was_used or line.text.strip()):
            return None
        text = await self._typed_message()
        return None if text is None else self._talk.step(session, text)

    async def _typed_message(self) -> str | None:
        """Return the next typed message, or None at the end."""
        self._typed = anyio.Event()
        with self._display.waiting():
            async with background_tasks() as tasks:
                tasks.start_soon(self._display.animate)
                await self._typed.wait()
        self._typed = None
        text, self._next = self._next, None
        return text

    def _on_event(self, session: Session, event: Event) -> None:
        self._session = session
        self._begun.set()
        if isinstance(event, TurnRequested) and event.task_id is not None:
            self._shown.add(event.task_id)
        self._display.on_event(session, event)

    # --- typed input -------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._typed is None

    @property
    def leaves(self) -> bool:
        return self._talk is not None and self._talk.leaves

    def send(self, text: str) -> None:
        message = self._commands.message(text)
        if message is None:
            return
        # No turn runs: the message is the next one.
        if self._typed is not None:
            self._next = message
            self._typed.set()
        else:
            self._tasks.start_soon(self._steer, message)

    def queue(self, text: str) -> None:
        if self._typed is not None:
            self.send(text)
        elif (message := self._commands.message(text)) is not None:
            self._tasks.start_soon(self._enqueue, message)

    def completions(self, text: str) -> Sequence[str]:
        return self._commands.completions(text)

    def interrupt(self) -> None:
        if self._is_at_work():
            # A Ctrl-C after this leaves.
            self._heard = 1
            self._display.interrupting()
            self._tasks.start_soon(self._interrupt)

    def leave(self) -> None:
        """Exit while the turn continues."""
        if self._typed is not None:
            self._typed.set()
        elif self.leaves or (self._session is not None and self._session.goes_on_alone):
            self._has_left = True
            self._leave(ExitCode.OK)
        elif self._display.line is not None:
            # Without a hub the turn ends with this process.
            self._display.line.hint("It ends with this command, so it cannot be left. Esc Esc stops it.")

    async def _steer(self, text: str) -> None:
        try:
            await (await self._started()).steer(text)
        except HelmsmanError as error:
            why = error.message
            # The agent takes no messages into a turn; the queue is the other way.
            if isinstance(error, Unsupported):
                why = f"Tab queues it, for it cannot be steered: {error.message}"
            elif isinstance(error, SessionIdle):
                why = "The turn has just ended. Enter sends it as the next message."
            self._give_back(text, why)

    async def _enqueue(self, text: str) -> None:
        assert self._talk is not None
        session = await self._started()
        # Taken before the message is sent: its turn may begin before `say` returns.
        cursor = session.feed.cursor
        try:
            sent = await self._talk.helm.say(session.id, text, when_busy="queue")
        except HelmsmanError as error:
            self._give_back(text, error.message)
            return
        self._queued.append(_Queued(text, sent.task_id, cursor))

    async def _started(self) -> Session:
        """Return the session when it has started."""
        # Typed before the session exists, which takes the agent some seconds to start.
        if self._session is None:
            if self._display.line is not None:
                self._display.line.hint("It is sent as soon as the agent has started.")
            await self._begun.wait()
        assert self._session is not None
        return self._session

    def _give_back(self, text: str, why: str) -> None:
        line = self._display.line
        if line is not None:
            line.put(text)
            line.hint(why)

    # --- signals -----------------------------------------------------------------------------------------------------

    def on_signal(self, code: ExitCode) -> None:
        line = self._display.line
        # With text in the line, Ctrl-C clears it, as in a shell.
        if code is ExitCode.INTERRUPTED and line is not None and line.clear():
            return
        if self._typed is not None:
            # Between turns Ctrl-C is the usual way to leave, and no error.
            self._exit_code = None if code in (ExitCode.OK, ExitCode.INTERRUPTED) else code
            self._typed.set()
            return
        # Ctrl-\ (`handle_signals` reports it as OK).
        if code is ExitCode.OK:
            if self._session is not None and self._session.goes_on_alone:
                self._has_left = True
                self._leave(code)
            return
        self._heard += 1
        if code is ExitCode.INTERRUPTED and self.leaves:
            self._has_left = True
            self._leave(code)
        elif code is ExitCode.INTERRUPTED and self._is_at_work() and self._heard == 1:
            self.interrupt()
        else:
            self._leave(code)

    def _is_at_work(self) -> bool:
        return self._session is not None and self._session.state.is_running

    async def _interrupt(self) -> None:
        assert self._session is not None
        try:
            await self._session.interrupt()
        except HelmsmanError as error:  # Codex no longer listens, or only to another process
            self._problem = error
            self._leave(ExitCode.INTERRUPTED)

    def _leave(self, code: ExitCode) -> None:
        self._exit_code = code
        # Restored first: whatever follows may hang.
        with suppress(OSError):  # a closed terminal cannot be restored
            self._display.close()
        if self._scope is not None:
            self._scope.cancel()
        # Codex may ignore the cancellation, so this process ends in any case.
        exit_after(LEAVE_SECONDS, code)


_LOOK_SECONDS: Final = 0.5


class TurnStep(Protocol):
    """`run_step` with all arguments bound except the callbacks."""

    async def __call__(
        self, *, on_event: Callable[[Session, Event], None], on_question: QuestionHandler
    ) -> StepResult: ...


def followed(session: Session, queued: _Queued | None = None) -> TurnStep:
    """Return a step for the running or last turn of a session, or for the turn of a message that was queued.

    That turn may have ended by now, and further messages may have been sent after it.
    """

    async def show(*, on_event: Callable[[Session, Event], None], on_question: QuestionHandler) -> StepResult:
        from helmsman.step import StepResult

        is_shown, text = queued is None, ""
        end: TurnEnded | None = None
        async with aclosing(session.events(since=session.turn_cursor if queued is None else queued.cursor)) as events:
            async for event in events:
                # With a queued message, earlier turns pass by until its own begins.
                if isinstance(event, TurnRequested) and queued is not None:
                    is_shown = event.task_id == queued.task_id
                    # The next turn begins: what was collected is the outcome of this one.
                    if end is not None and end.failure is not None:
                        raise StepFailed(end.failure.message, session_id=session.id, cause_code=end.failure.code)
                    if end is not None:
                        return StepResult(
                            text=text, output=None, session_id=session.id, usage=session.usage, attempts=1
                        )
                if is_shown:
                    on_event(session, event)
                    if isinstance(event, TurnEnded) and not event.continues:
                        end = event
                    elif isinstance(event, ItemEnded) and isinstance(event.item, AgentMessage) and not event.agent_id:
                        text = event.item.text
        return _ended(session)

    return show


async def until_sent(helm: Helmsman, session: Session, task_id: str | None) -> Task | None:
    """Wait until the agent has received a queued message. Return its task if it was withdrawn before.

    If the hub holds the queue, only the task of the message shows this.
    """
    while True:
        task = None if task_id is None else await helm.tasks.get(task_id)
        # A message that was never sent has no turn.
        if not session.queue and (task is None or task.status != "pending"):
            return task if task is not None and task.status == "canceled" and task.turn_id is None else None
        with anyio.move_on_after(_LOOK_SECONDS):
            await session.feed.changed()


def _ended(session: Session) -> StepResult:
    """Return the result of the session's turn.

    Raises:
        StepFailed: The turn failed, or its outcome is unknown.
        StepTimedOut: The turn was stopped after being idle for too long.
        StepInterrupted: The turn was interrupted.
    """
    from helmsman.step import StepResult

    # The events ended, but the turn did not: its process is gone.
    if session.state.is_running:
        raise StepFailed(
            "The process that ran this turn has ended, and the turn with it. Send the session a message to continue.",
            session_id=session.id,
        )
    if session.status == "interrupted":
        raise StepInterrupted(
            "The turn was interrupted. Send the session a message to continue.", session_id=session.id
        )
    if session.error is not None:
        kind = StepTimedOut if session.error.code == TurnTimedOut.code else StepFailed
        raise kind(session.error.message, session_id=session.id, cause_code=session.error.code)
    return StepResult(
        text=session.result or "", output=session.output, session_id=session.id, usage=session.usage, attempts=1
    )


_COMMANDS: Final = {
    "help": "this list",
    "status": "the session, its model, tokens and directory",
    "diff": "what the session changed",
    "model": "the model from the next message on: /model NAME",
    "queue": "messages for after the turn: /queue drop N, /queue edit N, /queue first N",
    "quit": "leave; the session stays",
}
_LEAVES: Final = frozenset(("quit", "exit", "q"))
# Typed without a slash by users of shells and editors.
_WORDS: Final = frozenset(("exit", "quit", "/exit", "/quit", "/q", ":q"))
_MOST_FILES: Final = 20_000
_MOST_OFFERED: Final = 50
_FILES_SECONDS: Final = 30.0  # maximum age of the list of files


class PromptCommands:
    """Commands of one conversation."""

    def __init__(self, conversation: _Follower) -> None:
        self._on = conversation
        self._prompts: dict[str, SavedPrompt] | None = None
        self._files: list[str] = []
        self._files_at = float("-inf")

    def message(self, typed: str) -> str | None:
        """Return the message to send for a typed line; None if it was a command, which is carried out."""
        text = typed.strip()
        # Sent to the model, these would cost a turn.
        if text in _WORDS:
            self._on.leave()
            return None
        if not typed.startswith("/") or "\n" in text or "/" in text[1:].split(" ")[0]:
            return typed  # a path is no command
        name, _, argument = text[1:].partition(" ")
        if name in _COMMANDS or name in _LEAVES:
            self._carry_out(name, argument.strip())
            return None
        prompt = expanded_prompt(text, self.prompts)
        if prompt is None:
            self._on.display.remark(
                f"There is no /{name}. /help lists what there is; a space before it sends it as it is."
            )
        return prompt

    @property
    def prompts(self) -> dict[str, SavedPrompt]:
        if self._prompts is None:
            self._prompts = saved_prompts()
        return self._prompts

    def completions(self, text: str) -> Sequence[str]:
        """Return what the last word can become: a command at the beginning, or a path after `@`."""
        word = text.split(" ")[-1]
        if word == text and word.startswith("/"):
            return [
                f"/{name}" for name in (*_COMMANDS, *self.prompts) if name.startswith(word[1:]) and name != word[1:]
            ]
        if not word.startswith("@"):
            return ()
        wanted = word[1:].casefold()
        files = self._known_files()
        # Paths that begin with the text before those that contain it.
        begin = [file for file in files if file.casefold().startswith(wanted)]
        inside = [file for file in files if wanted in file.casefold() and not file.casefold().startswith(wanted)]
        return [f"@{file}" for file in (*begin, *inside)[:_MOST_OFFERED] if f"@{file}" != word]

    # --- commands ----------------------------------------------------------------------------------------------------

    def _carry_out(self, name: str, argument: str) -> None:
        if name in _LEAVES:
            self._on.leave()
        elif name == "help":
            self._help()
        elif (session := self._on.session) is None:
            self._on.display.remark("Nothing has started yet.")
        elif name == "status":
            self._on.in_background(lambda: self._status(session))
        elif name == "diff":
            self._on.in_background(lambda: self._diff(session))
        elif name == "model":
            self._on.in_background(lambda: self._model(session, argument))
        else:
            self._on.in_background(lambda: self._queue(session, argument))

    def _help(self) -> None:
        shown = {f"/{name}": what for name, what in _COMMANDS.items()}
        shown |= {f"/{prompt.name}": prompt.title for prompt in self.prompts.values()}
        shown["@path"] = "Tab completes the path of a file"
        width = max(map(len, shown))
        lines = [f"{name:<{width}}  {one_line(what)}" for name, what in shown.items()]
        if not self.prompts:
            lines.append(f"Your own: {folder_of_prompts()}/NAME.md is /NAME.")
        self._on.display.remark("\n".join(lines), "")

    async def _status(self, session: Session) -> None:
        state = session.state
        shown = {
            "session": session.id,
            "status": session_word(session.status),
            "model": session.model,
            "directory": session.directory,
            "sandbox": state.sandbox,
            "tokens": tokens(session.usage),
        }
        lines = [f"{label:<10} {one_line(text)}" for label, text in shown.items() if text]
        self._on.display.remark("\n".join(lines), "")

    async def _diff(self, session: Session) -> None:
        changed = await self._on.helm.extras.changes.diff(session.id)
        if changed.diff.patch:
            await self._on.display.page(changed.diff.patch)
        else:
            self._on.display.remark("Nothing has changed.", "")

    async def _model(self, session: Session, name: str) -> None:
        models = await self._on.helm.extras.account.models(session.options.agent)
        if not name:
            listed = [f"{'›' if one.id == session.model else ' '} {one.id}" for one in models]
            self._on.display.remark("\n".join([*listed, "/model NAME uses one from the next message on."]), "")
            return
        # Without a list, the agent has to judge the name.
        if models and name not in [one.id for one in models]:
            raise InvalidInput(f"{session.options.agent} lists no model {name}. /model shows those there are.")
        self._on.use_model(name)
        self._on.display.remark(f"{name} is used from the next message on.", "")

    async def _queue(self, session: Session, argument: str) -> None:
        queue = list(session.queue)
        what, _, number = argument.partition(" ")
        if not what:
            lines = [f"{place} {one_line(one.text)}" for place, one in enumerate(queue, 1)]
            self._on.display.remark("\n".join(lines or ["No message is queued. Tab queues one while a turn runs."]), "")
            return
        if what not in ("drop", "edit", "first") or not number.isdigit() or not 0 < int(number) <= len(queue):
            raise InvalidInput(
                "Say /queue drop N, /queue edit N or /queue first N, with the number of a queued message."
            )
        queued = queue[int(number) - 1]
        if what == "first":
            await self._on.helm.extras.message_queue.move(session.id, queued.task_id, 1)
            return
        # Editing takes the message out first, so that it is not sent before it is edited.
        await self._on.helm.extras.message_queue.drop(session.id, queued.task_id)
        self._on.forget_queued(queued.task_id)
        line = self._on.display.line
        if what == "edit" and line is not None:
            line.put(queued.text)

    # --- files -------------------------------------------------------------------------------------------------------

    def _known_files(self) -> list[str]:
        """Return the files of the session's directory. They are read in the background; the first time there are none."""
        if time.monotonic() - self._files_at > _FILES_SECONDS:
            # Noted before reading, so that one slow read is not started twice.
            self._files_at = time.monotonic()
            session = self._on.session
            directory = Path(session.directory) if session is not None and session.directory else Path.cwd()
            self._on.in_background(lambda: self._read_files(directory))
        return self._files

    async def _read_files(self, directory: Path) -> None:
        state_dir = self._on.helm.settings.state_dir
        self._files = await anyio.to_thread.run_sync(files_below, directory, state_dir)
        if self._on.display.line is not None:
            # The completions that are shown were computed without these files.
            self._on.display.line.refresh()


def files_below(directory: Path, state_dir: Path) -> list[str]:
    """Return the paths of the files below a directory that git does not ignore; without git, all but hidden ones. Blocks."""
    try:
        git = find_git(directory, state_dir)
        if git is not None:
            # Relative to the session's directory, which may be below the repository's.
            top = os.path.relpath(git.work_tree, directory)
            names = git.names("ls-files", "-z", "--cached", "--others", "--exclude-standard")
            return sorted({os.path.normpath(os.path.join(top, name)) for name in names})[:_MOST_FILES]  # noqa: PTH118
    except HelmsmanError:
        pass
    found: list[str] = []
    for place, folders, names in os.walk(directory):
        folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
        found += [os.path.relpath(os.path.join(place, name), directory) for name in sorted(names)]  # noqa: PTH118
        # A walk of a home directory would not end soon.
        if len(found) > _MOST_FILES:
            break
    return found[:_MOST_FILES]
