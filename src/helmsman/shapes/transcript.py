"""Session's history as Markdown, for the resource `codex://sessions/{id}` and for `helmsman session export`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.base.sanitize import exact, named, plain_output, shell_script, visible
from helmsman.base.truncate import ANSWER_CHARS, TEXT_CHARS, counted, cut, last_lines, session_file
from helmsman.git.diff import read_change
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    Decision,
    FileChange,
    ProposedPlan,
    Reasoning,
    Review,
    TodoList,
    UserMessage,
)
from helmsman.model.question_text import describe, part_texts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helmsman.model.events import Item, PastTurn, PathChange
    from helmsman.sessions.session import Session

_OUTPUT_LINES: Final = 40
_STEP_MARKS: Final = {"completed": "x", "in_progress": "-", "pending": " "}


def transcript(session: Session, turns: Iterable[PastTurn]) -> str:
    """Render the session for an answer of limited size."""
    file = session_file(session.id, session.options.agent)
    # Each part is cut first, so that one long message cannot push all others out.
    parts = (cut(part, TEXT_CHARS, file) for part in transcript_parts(session, turns))
    return cut("\n\n".join(parts) + "\n", ANSWER_CHARS, file)


def transcript_parts(
    session: Session, turns: Iterable[PastTurn], *, output_lines: int | None = _OUTPUT_LINES
) -> list[str]:
    """Render the session turn by turn. Items of the running turn come from the session, which has the newest text.

    Of a command's output the last `output_lines` are shown; None means all.
    """
    facts = [f"- status: {session.status}"]
    facts += [f"- directory: {session.directory}"] if session.directory else []
    facts += [f"- model: {session.model}"] if session.model else []
    agent = session.options.agent.capitalize()
    parts = [f"# {agent} session {session.id}", "\n".join(facts)]
    for number, turn in enumerate(turns, 1):
        state = session.state
        is_running = turn.id == state.turn_id and state.is_running
        # A running turn is not yet complete in the agent's storage. Its decisions come in the order of its items.
        items = state.items_and_decisions if is_running else (*turn.items, *state.decisions(turn.id))
        parts.append(f"## Turn {number} ({turn.status})")
        parts += [text for text in (_section(item, agent, output_lines) for item in items) if text]
    for note in (session.state.timed_out_note, session.state.left_running_note):
        if note is not None:
            parts.append(f"**{note}**")
    for question in session.questions:
        # The first text of the parts is in the description already.
        asked = "\n".join([describe(question).text(diff_chars=TEXT_CHARS), *part_texts(question)[1:]])
        parts.append(f"**Waiting for an answer** ({question.id}):\n\n{_fenced(asked, 'text')}")
    if session.error is not None:
        parts.append(f"**Error** ({session.error.code}): {session.error.message}")
    return parts


def _section(item: Item, agent: str, output_lines: int | None) -> str:
    match item:
        case UserMessage():
            return "**User:**\n\n" + _quoted(item.text)
        case AgentMessage():
            return f"**{agent}:**\n\n" + _quoted(item.text)
        case ProposedPlan() | Review():
            return f"**{item.type.capitalize()}:**\n\n" + _quoted(item.text)
        case Reasoning():
            return "**Thinking:**\n\n" + _quoted(item.text) if item.text else ""
        case CommandExecution():
            code = "declined" if item.declined else "" if item.exit_code is None else f"exit {item.exit_code}"
            lines = plain_output(item.output).removesuffix("\n").split("\n") if item.output else []
            shown = lines if output_lines is None else last_lines(lines, output_lines)
            if output_lines is not None and len(lines) > output_lines:
                shown = [f"… {counted(len(lines) - output_lines, 'line')}", *shown]
            command = exact(shell_script(item.command))
            return _fenced("\n".join([f"$ {command}" + (f"  ({code})" if code else ""), *shown]), "console")
        case FileChange():
            return _fenced("\n".join(line for change in item.changes for line in _change_lines(change)), "diff")
        case Decision():
            return f"**Question:** {item.question}\n\n**Answer:** {item.outcome}"
        case TodoList():
            return "\n".join(f"- [{_STEP_MARKS[step.status]}] {exact(step.text)}" for step in item.steps)
        case _:
            summary = exact(item.summary())
            return f"*{item.type}*" + (f": {summary}" if summary else "")


def _quoted(text: str) -> str:
    # Every line gets the quote mark, so that a message cannot imitate headings of the transcript.
    return "\n".join(f"> {line}" for line in visible(text).split("\n"))


def _change_lines(change: PathChange) -> list[str]:
    moved = f" → {named(change.moved_to)}" if change.moved_to is not None else ""
    return [f"{change.kind} {named(change.path)}{moved}", *(visible(line.text) for line in read_change(change).lines)]


def _fenced(text: str, language: str) -> str:
    fence = "```"
    while fence in text:  # the output must not be able to close the block
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
