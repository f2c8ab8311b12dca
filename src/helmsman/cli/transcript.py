"""Convert the events of a session to readable lines.

Events go in one by one, and finished lines come out; `TranscriptPrinter.unfinished` is the message being written. The
module does not depend on a screen and also serves log files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.text import Text

from helmsman.base.sanitize import one_line, plain_output, shell_script, visible
from helmsman.base.structs import replace
from helmsman.base.truncate import counted
from helmsman.model import events
from helmsman.model.answered_by import HANDLER, PERSON_AT_TERMINAL, in_words
from helmsman.model.options import DEFAULT_AGENT
from helmsman.model.questions import REFUSALS, Question
from helmsman.shapes.sub_agents import sub_agent_word
from helmsman.terminal.diffs import change_lines
from helmsman.terminal.layout import INDENT, crop, fold, fold_all
from helmsman.terminal.question_view import question_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console


OUTPUT_LINES: Final = 8
_FAILED_LINES: Final = 5  # output lines kept for a failed command
DIFF_LINES: Final = 40
_SCRIPT_LINES: Final = 12
_PROMPT_LINES: Final = 12
_RESULT_LINES: Final = 4
_MOST_DRAWN: Final = 4000  # maximum characters of an unfinished block that are rendered
_ASKED_HERE: Final = (str(PERSON_AT_TERMINAL), PERSON_AT_TERMINAL.through)

_OTHER_MARK: Final = Text("◦ ", "bold cyan")
_STEP_MARKS: Final = {"completed": ("✓", "green"), "in_progress": ("▸", "cyan"), "pending": ("○", "dim")}


@dataclass(slots=True)
class _Message:
    """Message being written: its text, and the length already printed."""

    text: str = ""
    given: int = 0

    @property
    def rest(self) -> str:
        return self.text[self.given :]


class TranscriptPrinter:
    """Formats the transcript of one session.

    Args:
        console: Console whose width folds the lines.
        announce: Also show commands when they start, for logs without a live view.
        asked_here: Questions are asked on the same screen, so they are not repeated.
        answered_by: Who answers questions otherwise, as a remark after the answer.
        hold_messages: Hold each message until another event follows; the last one is returned by `rest`.
        folded: Show a finished command on one line, because its output was live. A failed one keeps its last lines.
        markdown: Render Markdown, for a terminal, instead of printing its source.
    """

    def __init__(
        self,
        console: Console,
        *,
        announce: bool = False,
        asked_here: bool = False,
        answered_by: str = "",
        hold_messages: bool = False,
        folded: bool = False,
        markdown: bool = False,
    ) -> None:
        self._console = console
        self._folded = folded
        self._markdown = markdown
        self.directory: str | None = None  # directory of the session; paths below it are shown relative
        self.agent = DEFAULT_AGENT  # agent of the session; shown unless it is Codex
        self.answered_here: set[str] = set()
        self._announce = announce
        self._asked_here = asked_here
        self._answered_by = answered_by
        self._hold_messages = hold_messages
        self._messages: dict[str, _Message] = {}
        self._held: str | None = None
        self._prompt: str | None = None
        self._failed: str | None = None
        self._settings: tuple[str, ...] | None = None
        self._steps: tuple[events.PlanStep, ...] = ()
        self._questions: dict[str, Question] = {}
        self._judged: set[str] = set()
        self._last_question: str | None = None
        self._open: dict[str, events.CommandExecution | events.FileChange] = {}
        self._below: str | None = None
        self._cut_off: set[str] = set()

    @property
    def unfinished(self) -> list[Text]:
        """Lines of the paragraph being written."""
        # The newest message is the one that grows.
        for message in reversed(self._messages.values()):
            if not message.rest.strip():
                continue
            if len(message.rest) > _MOST_DRAWN:  # it is drawn ten times a second
                return [
                    crop(self._console, Text(visible(line))) for line in message.rest[-_MOST_DRAWN:].split("\n")[1:]
                ]
            return self._message(message.rest, begins=message.given == 0)
        return []

    def lines(self, event: events.Event) -> list[Text]:
        """Return the lines that an event adds."""
        # Questions of sub-agents are asked like all others.
        if event.agent_id is not None and not isinstance(event, events.QuestionAsked | events.QuestionClosed):
            lines = self._of_sub_agent(event)
        else:
            lines = self._of(event)
        if not lines:
            return []
        if self._held is not None and not self._keeps_held(event):
            held, self._held = self._held, None
            lines = [*self._message_lines(held), *lines]
        # The heading of a command is still directly above if nothing was printed since.
        if not isinstance(event, events.ItemStarted | events.QuestionClosed):
            self._below = None
        return lines

    def rest(self, result: str | None) -> list[Text]:
        """Return the lines of the held message, unless it is the session's result."""
        held, self._held = self._held, None
        return self._message_lines(held) if held is not None and held != result else []

    def puts_to_person(self, question_id: str) -> None:
        """Mark a question as asked in its own dialog: the results of others do not belong below it."""
        self._last_question, self._below = question_id, None

    # --- events ------------------------------------------------------------------------------------------------------

    def _of(self, event: events.Event) -> list[Text]:
        match event:
            case events.TurnRequested():
                return self._turn_requested(event.text)
            case events.SettingsApplied():
                return self._settings_applied(event)
            case events.ItemDelta() if event.item_type == events.AgentMessage.type and not self._hold_messages:
                return self._write(event.item_id, event.text)
            case events.ItemStarted():
                return self._started(event.item)
            case events.ItemUpdated(item=events.TodoList() as plan):
                return self._plan(plan)
            case events.ItemEnded():
                return self._ended(event.item)
            case events.QuestionAsked():
                return self._question_asked(event.question)
            case events.QuestionClosed():
                return self._question_closed(event)
            case events.Notice():
                loud = event.kind in ("warning", "rate_limit")
                return self._remark(event.message, "yellow" if loud else "dim")
            # Printed with the next attempt, or as the outcome of the step.
            case events.TurnEnded(outcome="failed"):
                self._failed = event.failure.message if event.failure is not None else "The agent gave no reason."
                return self._flush()
            case events.TurnEnded(outcome="interrupted", continues=False):
                return [*self._flush(), *self._stopped(), Text(), Text("■ Interrupted", "yellow")]
            case events.TurnEnded():
                return [*self._flush(), *self._left_running()]
            case events.EngineGone():
                self._failed = event.failure.message
                return self._flush()
            case _:
                return []

    def _turn_requested(self, text: str) -> list[Text]:
        lines: list[Text] = []
        # A retry continues in the same session.
        if self._failed is not None:
            lines += [Text(), *self._remark(f"The turn failed: {self._failed} Trying again.", "yellow")]
        self._failed, self._prompt, self._steps = None, text, ()
        self._messages.clear()
        self._open.clear()
        return lines + self._user_lines(text)

    def _user_lines(self, text: str) -> list[Text]:
        shown = _limited(visible(text.strip()).split("\n"), _PROMPT_LINES)
        return [Text(), *fold(self._console, Text("\n".join(shown), "bold"), lead=Text("› ", "bold cyan"))]

    def _settings_applied(self, event: events.SettingsApplied) -> list[Text]:
        asks = None if event.approval_policy is None else f"approval {event.approval_policy}"
        applied = tuple(part for part in (event.model, event.sandbox, asks) if part)
        shown = applied
        if self._settings is None:  # agent and directory do not change, so they are shown once
            who = () if self.agent == DEFAULT_AGENT else (self.agent,)
            shown = (*who, *applied, *([] if self.directory is None else [self.directory]))
        # Some agents report the same settings before each turn.
        if not shown or applied == self._settings:
            return []
        self._settings = applied
        return fold(self._console, Text(" · ".join(map(one_line, shown)), "dim"))

    def _of_sub_agent(self, event: events.Event) -> list[Text]:
        if not isinstance(event, events.ItemEnded) or isinstance(event.item, events.UserMessage | events.Reasoning):
            return []
        summary = one_line(event.item.summary())
        if not summary:
            return []
        return [
            crop(
                self._console,
                Text.assemble(
                    ("↳ ", "cyan"),
                    (f"{one_line(event.agent_id or '')[-8:]} ", "cyan"),
                    (f"{event.item.type.replace('_', ' ')}: ", "dim"),
                    summary,
                ),
            )
        ]

    def _remark(self, message: str, style: str) -> list[Text]:
        return fold(self._console, Text(visible(message.strip()), style), lead=Text("! ", style))

    # --- messages ----------------------------------------------------------------------------------------------------

    def _keeps_held(self, event: events.Event) -> bool:
        """Return whether a held message may still become the result."""
        if isinstance(event, events.TurnEnded):
            # Only the last message of a turn that completed is its result.
            return event.outcome == "completed"
        return (
            isinstance(event, events.ItemEnded)
            and isinstance(event.item, events.AgentMessage)
            and event.agent_id is None
        )

    def _message_lines(self, text: str, *, begins: bool = True) -> list[Text]:
        apart = begins or self._markdown  # otherwise blank lines between paragraphs are part of the text
        return [*([Text()] if apart else []), *self._message(text, begins=begins)]

    def _message(self, text: str, *, begins: bool) -> list[Text]:
        """Return the lines of a message, or of the rest of a partly printed one."""
        lead = Text("• " if begins else "  ", "bold")
        if self._markdown:
            return self._meaning(text, lead)
        text = text.strip("\n") if begins else text.rstrip("\n")
        return fold(self._console, Text(visible(text)), lead=lead)

    def _meaning(self, text: str, lead: Text | None = None) -> list[Text]:
        """Render Markdown, if enabled."""
        if not self._markdown:
            return fold(self._console, Text(visible(text)), lead=lead)
        from helmsman.terminal.markdown import markdown_lines

        return markdown_lines(self._console, text, lead=lead, indent=INDENT)

    def _write(self, item_id: str, text: str) -> list[Text]:
        """Return completed lines, or completed blocks of Markdown."""
        message = self._messages.setdefault(item_id, _Message())
        seen = message.rest.rfind("\n") + 1
        message.text += text
        begins = message.given == 0
        if self._markdown:
            from helmsman.terminal.markdown import finished

            ready = message.rest[: finished(message.rest, seen)]
            message.given += len(ready)
        else:
            # blank lines are printed with the text that follows
            written = message.text[: message.text.rfind("\n") + 1].rstrip("\n")
            ready = written[message.given :]
            if ready.strip():
                message.given = len(written) + 1
        return self._message_lines(ready, begins=begins) if ready.strip() else []

    def _message_ended(self, item: events.AgentMessage) -> list[Text]:
        if self._hold_messages:
            earlier, self._held = self._held, item.text
            return [] if earlier is None else self._message_lines(earlier)
        message = self._messages.pop(item.id, _Message())
        # Models may correct the beginning of a message at its end.
        if not item.text.startswith(message.text[: message.given]):
            return []  # the final text differs from the streamed text; keep the shown text
        rest = item.text[message.given :]
        return self._message_lines(rest, begins=message.given == 0) if rest.strip() else []

    def _flush(self) -> list[Text]:
        """Return the messages that were unfinished when the turn ended."""
        lines: list[Text] = []
        for message in self._messages.values():
            if message.rest.strip():
                lines += self._message_lines(message.rest, begins=message.given == 0)
        self._messages.clear()
        return lines

    # --- items -------------------------------------------------------------------------------------------------------

    def _started(self, item: events.Item) -> list[Text]:
        if isinstance(item, events.CommandExecution | events.FileChange):
            self._open[item.id] = item
        match item:
            case events.CommandExecution() if self._announce:
                self._below = item.id
                return self._command_heading(item)
            case events.TodoList():
                return self._plan(item)
            case _:
                return []

    def _stopped(self) -> list[Text]:
        """Return commands that the end of the turn cut off. Codex reports the end of only a few, later."""
        commands = [item for item in self._open.values() if isinstance(item, events.CommandExecution)]
        self._open.clear()
        # Codex may report their end later, which must not be shown again.
        self._cut_off.update(item.id for item in commands)
        return [line for item in commands for line in self._command(replace(item, status="failed"))]

    def _left_running(self) -> list[Text]:
        """Return commands that continue after the turn, or whose end Codex reports too late."""
        commands = [item for item in self._open.values() if isinstance(item, events.CommandExecution)]
        self._open.clear()
        remark = Text("  … had not ended when the turn did", "yellow")
        return [line for item in commands for line in [*self._command_heading(item), remark]]

    def _ended(self, item: events.Item) -> list[Text]:
        self._open.pop(item.id, None)
        match item:
            case events.UserMessage():
                # The prompt is shown when the turn is requested.
                return [] if item.text == self._prompt else self._user_lines(item.text)  # otherwise it steered the turn
            case events.AgentMessage():
                return self._message_ended(item)
            case events.Reasoning():
                return self._reasoning(item)
            case events.CommandExecution():
                return [] if item.id in self._cut_off else self._command(item)
            case events.FileChange():
                return self._file_change(item)
            case events.TodoList():
                return self._plan(item)
            case events.ProposedPlan():
                return [Text(), Text("Plan", "bold"), *self._meaning(item.text.strip())]
            case events.McpToolCall() | events.DynamicToolCall():
                return self._tool_call(item)
            case events.ErrorItem():
                return self._remark(item.message, "yellow")
            case _:
                return self._other(item)

    def _reasoning(self, item: events.Reasoning) -> list[Text]:
        # Codex sets headings of its reasoning in bold.
        text = visible(item.text.strip()).replace("**", "")
        return [Text(), *fold(self._console, Text(text, "dim italic"))] if text else []

    def _command_heading(self, item: events.CommandExecution) -> list[Text]:
        script = _limited(visible(shell_script(item.command)).split("\n"), _SCRIPT_LINES)
        return [Text(), *fold(self._console, Text("\n".join(script), "bold"), lead=Text("$ ", "bold cyan"))]

    def _command(self, item: events.CommandExecution) -> list[Text]:
        output = plain_output(item.output).rstrip().split("\n") if item.output.strip() else []
        if self._folded:
            return self._folded_command(item, output)
        lines = [] if self._below == item.id else self._command_heading(item)
        return [*lines, *self._tail(output, OUTPUT_LINES), *fold(self._console, _verdict(item))]

    def _folded_command(self, item: events.CommandExecution, output: list[str]) -> list[Text]:
        """Return a command and its outcome on one line, or two on a narrow screen."""
        verdict = _verdict(item)
        if output:
            verdict.append(f", {counted(len(output), 'line')}", "dim")
        # The output of a failed command is what the user looks for.
        failed = [] if item.exit_code in (0, None) or item.declined else self._tail(output, _FAILED_LINES)
        if self._below == item.id:
            return [*fold(self._console, verdict), *failed]
        heading = Text.assemble(("$ ", "bold cyan"), (one_line(shell_script(item.command)), "bold"))
        room = self._console.width - verdict.cell_len - 2
        # Cut the command rather than break the line, unless there is hardly any room.
        if heading.cell_len <= room or room >= self._console.width // 2:
            heading.truncate(room, overflow="ellipsis")
            return [Text(), Text.assemble(heading, "  ", verdict), *failed]
        return [Text(), crop(self._console, heading, indent=0), *fold(self._console, verdict), *failed]

    def _tail(self, output: list[str], most: int) -> list[Text]:
        lines: list[Text] = []
        # Leaving out a single line would take as much room as the line.
        if len(output) > most + 1:
            lines.append(crop(self._console, Text(f"… {len(output) - most} lines above", "dim")))
            output = output[-most:]
        return lines + [crop(self._console, Text(line, "dim")) for line in output]

    def _file_change(self, item: events.FileChange) -> list[Text]:
        lines: list[Text] = []
        for change in item.changes:
            heading, *body = change_lines(change, self.directory)
            lines += [Text(), *fold(self._console, heading, lead=Text("± ", "bold cyan"))]
            if not (self._asked_here and item.id in self._judged):  # the user has seen it in the question
                shown = body if len(body) <= DIFF_LINES + 1 else body[:DIFF_LINES]
                lines += fold_all(self._console, shown)
                if len(shown) < len(body):
                    lines.append(Text(f"  … {len(body) - len(shown)} more lines", "dim"))
        if item.declined or item.status == "failed":
            lines.append(Text("  ✗ declined" if item.declined else "  ✗ not applied", "red"))
        return lines

    def _plan(self, plan: events.TodoList) -> list[Text]:
        """Return all steps of a new plan, later only changed steps."""
        old = {step.text: step.status for step in self._steps}
        # An agent may reword its plan: then it is a new one.
        is_new = not old or [step.text for step in plan.steps] != [step.text for step in self._steps]
        changed = [step for step in plan.steps if is_new or old.get(step.text) != step.status]
        self._steps = plan.steps
        if not changed:
            return []
        lines = [Text(), Text.assemble(("Plan", "bold"), f"  {plan.summary().partition(':')[0]}")]
        for step in changed:
            mark, style = _STEP_MARKS[step.status]
            lines += fold(self._console, Text(one_line(step.text)), lead=Text.assemble("  ", (f"{mark} ", style)))
        return lines

    def _tool_call(self, item: events.McpToolCall | events.DynamicToolCall) -> list[Text]:
        name = f"{item.server}/{item.tool}" if isinstance(item, events.McpToolCall) else item.tool
        call = Text.assemble(("called ", "dim"), (one_line(name), "bold"))
        if item.arguments:
            call.append(f" {one_line(json.dumps(item.arguments, ensure_ascii=False, default=str))}", "dim")
        lines = [Text(), crop(self._console, _OTHER_MARK + call, indent=0)]
        error = item.error if isinstance(item, events.McpToolCall) else None
        if error:
            return lines + fold(self._console, Text(f"✗ {visible(error.strip())}", "red"))
        result = plain_output(item.result or "").strip().split("\n")
        shown = _limited(result, _RESULT_LINES) if any(result) else []
        return lines + [crop(self._console, Text(line, "dim")) for line in shown]

    def _other(self, item: events.Item) -> list[Text]:
        match item:
            case events.WebSearch():
                label, text = "searched the web for ", item.query
            case events.ImageView():
                label, text = "looked at ", item.path
            case events.ContextCompaction():
                label, text = "compacted the context", ""
            case events.CollabToolCall():
                return self._sub_agents(item)
            case events.Review() if item.finished and self._markdown:
                return [Text(), _OTHER_MARK + Text("review", "dim"), *self._meaning(item.text.strip())]
            case events.Review():
                label, text = ("review: " if item.finished else "reviewing "), item.text
            case _:
                return []
        return [Text(), *fold(self._console, Text.assemble((label, "dim"), visible(text.strip())), lead=_OTHER_MARK)]

    def _sub_agents(self, item: events.CollabToolCall) -> list[Text]:
        """Return a call about sub-agents, and below it each of them with its session and status."""
        about = Text.assemble(("sub-agents: ", "dim"), visible(item.summary().strip()))
        lines = [Text(), *fold(self._console, about, lead=_OTHER_MARK)]
        for agent in item.agents:
            said = f": {one_line(agent.message)}" if agent.message else ""
            state = (f" {sub_agent_word(agent.status)}{said}", "dim")
            lines.append(crop(self._console, Text.assemble(("↳ ", "cyan"), (one_line(agent.id[-8:]), "cyan"), state)))
        return lines

    # --- questions ---------------------------------------------------------------------------------------------------

    def _question_asked(self, question: Question) -> list[Text]:
        self._questions[question.id] = question
        if question.item_id is not None:
            self._judged.add(question.item_id)
        return [] if self._asked_here else self._question(question)

    def _question(self, question: Question) -> list[Text]:
        self._last_question = question.id
        lines, _ = question_lines(self._console, question, directory=self.directory)
        return lines

    def _question_closed(self, event: events.QuestionClosed) -> list[Text]:
        question = self._questions.pop(event.question_id, None)
        if question is None:
            return []
        is_last = event.question_id == self._last_question
        self._below = question.item_id if is_last else None  # its result follows directly
        answered_here = event.question_id in self.answered_here and (event.by, event.via) == _ASKED_HERE
        if self._asked_here and (answered_here or event.answer is None):
            # The dialog has shown the question and its answer.
            return []
        if event.by == str(HANDLER) and self._answered_by:
            outcome = f"{event.answer} ({self._answered_by})"
        else:
            # The question was answered elsewhere, so it is named.
            outcome = in_words(event.answer, event.by, event.via, event.reason)
        refused = event.answer is not None and event.answer.partition(":")[0] in REFUSALS
        style = "yellow" if event.answer is None else "red" if refused else "green"
        self._below = question.item_id
        # a rule or another client answered first, or other questions followed
        shown = [] if is_last else self._question(question)
        return shown + fold(self._console, Text(f"→ {one_line(outcome)}", style))


def _verdict(item: events.CommandExecution) -> Text:
    """Return how a command ended."""
    if item.declined:
        return Text("✗ declined, not run", "red")
    took = "" if item.duration_ms is None else f" ({item.duration_ms / 1000:.1f} s)"
    # Some agents report no exit code.
    if item.exit_code is None:
        return Text(f"✗ did not finish{took}", "red") if item.status == "failed" else Text(f"✓ done{took}", "dim green")
    ok = item.exit_code == 0
    return Text(f"{'✓' if ok else '✗'} exit {item.exit_code}{took}", "green" if ok else "red")


def _limited(lines: Sequence[str], most: int) -> list[str]:
    if len(lines) <= most + 1:
        return list(lines)
    return [*lines[:most], f"… {len(lines) - most} more lines"]
