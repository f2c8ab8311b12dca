"""A session's history as Markdown, for people and agents who read the resource `codex://sessions/{id}`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.events import (
    AgentMessage,
    CommandExecution,
    FileChange,
    ProposedPlan,
    Reasoning,
    Review,
    TodoList,
    UserMessage,
)
from helmsman.shortening import ANSWER_CHARS, TEXT_CHARS, cut, last_lines, session_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helmsman.engine import PastTurn
    from helmsman.events import Item
    from helmsman.sessions.session import Session

_OUTPUT_LINES: Final = 40
_STEP_MARKS: Final = {"completed": "x", "in_progress": "-", "pending": " "}


def transcript(session: Session, turns: Iterable[PastTurn]) -> str:
    """The whole session, turn by turn; what is still being written in the running one comes from the session itself."""
    facts = [f"- status: {session.status}"]
    facts += [f"- directory: {session.directory}"] if session.directory else []
    facts += [f"- model: {session.model}"] if session.model else []
    parts = [f"# Codex session {session.id}", "\n".join(facts)]
    for number, turn in enumerate(turns, 1):
        items = session.items if turn.id == session.state.turn_id and session.state.is_running else turn.items
        parts.append(f"## Turn {number} ({turn.status})")
        parts += [cut(text, TEXT_CHARS, session_file(session.id)) for text in map(_section, items) if text]
    for question in session.questions:
        parts.append(
            f"**Waiting for an answer** ({question.id}): " + "; ".join(prompt.text for prompt in question.prompts)
        )
    if session.error is not None:
        parts.append(f"**Error** ({session.error.code}): {session.error.message}")
    return cut("\n\n".join(parts) + "\n", ANSWER_CHARS, session_file(session.id))


def _section(item: Item) -> str:
    match item:
        case UserMessage():
            return "**User:**\n\n" + _quoted(item.text)
        case AgentMessage() | ProposedPlan() | Review():
            return item.text
        case Reasoning():
            return f"*{item.text}*" if item.text else ""
        case CommandExecution():
            code = "declined" if item.declined else "" if item.exit_code is None else f"exit {item.exit_code}"
            lines = item.output.splitlines()
            shown = last_lines(lines, _OUTPUT_LINES)
            if len(lines) > _OUTPUT_LINES:
                shown = [f"… {len(lines) - _OUTPUT_LINES} lines", *shown]
            return _fenced("\n".join([f"$ {item.command}" + (f"  ({code})" if code else ""), *shown]), "console")
        case FileChange():
            diffs = "\n".join(f"{change.kind} {change.path}\n{change.diff or ''}".rstrip() for change in item.changes)
            return _fenced(diffs, "diff")
        case TodoList():
            return "\n".join(f"- [{_STEP_MARKS[step.status]}] {step.text}" for step in item.steps)
        case _:
            summary = item.summary()
            return f"*{item.type}*" + (f": {summary}" if summary else "")


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


def _fenced(text: str, language: str) -> str:
    fence = "```"
    while fence in text:  # what Codex printed must not end the block
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
