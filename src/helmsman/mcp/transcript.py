"""A session's history as Markdown, for people and agents who read the resource `codex://sessions/{id}`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.events import (
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
        state = session.state
        is_running = turn.id == state.turn_id and state.is_running
        items = state.items_and_decisions if is_running else (*turn.items, *state.decisions(turn.id))
        parts.append(f"## Turn {number} ({turn.status})")
        parts += [text for text in map(_section, items) if text]
    if session.state.timed_out_note is not None:
        parts.append(f"**{session.state.timed_out_note}**")
    for question in session.questions:
        parts.append(
            f"**Waiting for an answer** ({question.id}): " + "; ".join(prompt.text for prompt in question.prompts)
        )
    if session.error is not None:
        parts.append(f"**Error** ({session.error.code}): {session.error.message}")
    return "\n\n".join(parts) + "\n"


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
            cut = (
                [f"… {len(lines) - _OUTPUT_LINES} lines", *lines[-_OUTPUT_LINES:]]
                if len(lines) > _OUTPUT_LINES
                else lines
            )
            return _fenced("\n".join([f"$ {item.command}" + (f"  ({code})" if code else ""), *cut]), "console")
        case FileChange():
            diffs = "\n".join(f"{change.kind} {change.path}\n{change.diff or ''}".rstrip() for change in item.changes)
            return _fenced(diffs, "diff")
        case Decision():
            return f"**Question:** {item.question}\n\n**Answer:** {item.outcome}"
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
