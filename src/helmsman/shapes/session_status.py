"""Status of a session for `codex_status` and `codex_wait`, and in full for the dashboard."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from helmsman.approvals.deadline import in_words as spoken
from helmsman.base.json_values import iso_time, present, read_output
from helmsman.base.sanitize import exact, shell_script
from helmsman.base.truncate import (
    MESSAGE_CHARS,
    TEXT_CHARS,
    counted,
    cut,
    last_lines,
    session_file,
)
from helmsman.model.events import (
    AgentMessage,
    CollabToolCall,
    CommandExecution,
    ErrorItem,
    FileChange,
    ItemEnded,
    ItemStarted,
    ItemUpdated,
    ProposedPlan,
    Review,
    Usage,
    UserMessage,
)
from helmsman.sessions.progress import Now, infer_progress
from helmsman.shapes.contract import (
    ChangedFile,
    ErrorOutput,
    ItemEvent,
    ProgressOutput,
    StartOutput,
    StatusOutput,
    UsageOutput,
    Waits,
    WorktreeOutput,
)
from helmsman.shapes.questions import pending_question, question_in_full, question_in_words
from helmsman.shapes.rendering import waits
from helmsman.shapes.safe_values import safe
from helmsman.shapes.sub_agents import sub_agents_output
from helmsman.tasks.outcome import changed_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.git.diff import FileStat
    from helmsman.model.events import Failure, Item
    from helmsman.sessions.session import Session
    from helmsman.steering.core import Steering
    from helmsman.tasks.prices import Prices

# A question is answered by a person soon, so it is worth looking more often. An ended turn needs no polling.
_POLL_MS: Final = {"active": 5000, "awaiting_approval": 2000}
_COMMAND_LINES: Final = 10  # lines of one command's output among the recent lines; the end matters most
# The newest ones: a turn may have thousands, and each call would repeat them.
_ITEM_EVENTS: Final = 200


def session_status(session: Session, *, output_lines: int = 50, since_cursor: int | None = None) -> StatusOutput:
    """Return the current status of a session."""
    state = session.state
    questions = session.questions
    items = _items_since(session, since_cursor)
    whole = session_file(session.id, session.options.agent)
    result = session.result
    is_cut = result is not None and len(result) > TEXT_CHARS
    return StatusOutput(
        session_id=session.id,
        agent=session.options.agent,
        handed_over_from=session.state.handed_over_from,
        status=session.status,
        **waits(*session.waiting),
        result=None if result is None else cut(result, TEXT_CHARS, whole),
        output=None if is_cut else session.output,  # a cut JSON object cannot be parsed
        error=error_output(state.error) if state.error is not None else None,
        recent_output=last_lines(_lines_of(session.items, output_lines), output_lines),
        pending_question=pending_question(session, questions[0]) if questions else None,
        # Only the first is sent in full, because its diff alone may fill the answer.
        more_questions=len(questions) - 1 if len(questions) > 1 else None,
        item_events=[
            ItemEvent(item_type=item.type, status=item.status, summary=item.summary() or None)
            for item in items[-_ITEM_EVENTS:]
        ],
        files_changed=files_output(changed_files(session.items, state.diff, session.directory)),
        usage=usage_output(session.usage),
        turn_count=session.turn_count,
        progress=_progress(session),
        note=_note(session, max(0, len(items) - _ITEM_EVENTS)),
        timed_out=list(state.timed_out) or None,
        # Taken with the items above, without an await between, so that no event falls between two calls.
        cursor=session.feed.cursor,
        recommended_poll_ms=_POLL_MS.get(session.status, 0),
        working_directory=session.directory,
        enforced=state.enforced,
        model=session.model,
        worktree=worktree(session),
    )


async def session_in_full(helm: Steering, prices: Prices, session: Session, *, output_lines: int) -> dict[str, Any]:
    """Return all that a page shows of a session, sanitized. `helmsman.web.api` documents the fields."""
    state, agent = session.state, session.options.agent
    # Start at the cursor to skip the items: the transcript shows them, and summarizing ten thousand takes long.
    known = session_status(session, output_lines=output_lines, since_cursor=session.feed.cursor)
    status = known.as_dict()
    # The page reads items from the transcript.
    status["itemEvents"] = []
    question = status.pop("pendingQuestion", None)
    info = None if session.engine is not None else await helm.agent_records.find(session.id)
    more = {
        "name": state.name,
        "prompt": None if state.prompt is None else cut(state.prompt, TEXT_CHARS),
        "agentTitle": helm.agents.title(agent),
        "sandbox": state.sandbox,
        "approvalPolicy": state.approval_policy,
        "can": None if session.engine is None else session.engine.capabilities.as_dict()["can"],
        "client": None if session.opened_by is None else session.opened_by.title,
        "elsewhere": session.elsewhere if state.is_running else None,
        "archived": info is not None and info.archived,
        # The prompt that waits for a usage limit is queued as well, but the page shows it as a wait.
        "queued": len(session.queue) - (session.resumes_at is not None),
        "taskIds": list(session.task_ids),
        "waitingTaskId": next((one.task_id for one in session.queue if one.not_before is not None), None),
        "createdAt": iso_time(session.state.created_at),
        "changedAt": iso_time(session.state.changed_at),
        "turnSeconds": round(session.turn_seconds, 1) if session.turn_seconds is not None else None,
        "costUsd": prices.cost_of(state.usage_by_model),
        "subAgents": sub_agents_output(session, prices),
        "hasDiff": bool(state.diff),
        "repository": None if session.worktree is None else str(session.worktree.repository),
    }
    questions = [question_in_full(session, one) for one in session.questions]
    # Not through `safe`: options and details of a question go back to the agent exactly as they are.
    return present({**safe({**status, **more}), "pendingQuestion": question, "questions": questions})


def how_long(status: Waits) -> str | None:
    """Return a sentence about the usage limit, or None if the session does not wait for it."""
    if status.resumes_in_sec is None:
        return None
    at = datetime.fromisoformat(status.resumes_at or "").astimezone()
    return f"Usage limit reached. Resumes at {at:%Y-%m-%d %H:%M} (in {spoken(status.resumes_in_sec)})."


def started(session: Session) -> StartOutput:
    """Return the answer of a call that started a turn."""
    return StartOutput(
        session_id=session.id,
        status=session.status,
        task_id=session.task_id,
        worktree=worktree(session),
        note=" ".join(session.notes) or None,
    )


def error_output(failure: Failure) -> ErrorOutput:
    return ErrorOutput(code=failure.code, message=cut(failure.message, MESSAGE_CHARS), retryable=failure.retryable)


def worktree(session: Session) -> WorktreeOutput | None:
    tree = session.worktree
    return None if tree is None else WorktreeOutput(path=str(tree.path), branch=tree.branch)


def in_words(status: StatusOutput) -> str:
    """Render the status as text, for clients that ignore structured content."""
    lines = [f"{status.session_id}: {status.status}"]
    if status.progress is not None:
        lines.append(exact(progress_line(status.progress)))
    if status.note:
        lines.append(exact(status.note))
    if (waiting := how_long(status)) is not None:
        lines.append(waiting)
    if status.pending_question is not None:
        lines += question_in_words(status.pending_question)
    if status.error is not None:
        lines.append(f"{status.error.code}: {exact(status.error.message)}")
    if status.files_changed:
        lines.append(f"Changed: {', '.join(map(_file_in_words, status.files_changed[:_FILES_NAMED]))}")
        if (more := len(status.files_changed) - _FILES_NAMED) > 0:
            lines[-1] += f" and {more} more"
    others = [f"{one.session_id} {one.status}" for one in status.sessions or () if one.session_id != status.session_id]
    if others:
        lines.append(f"The others: {', '.join(others)}")
    if status.result is not None:
        lines.append(f"Result:\n{status.result}")  # last, because everything after the label is the agent's text
    return "\n".join(lines)


_FILES_NAMED: Final = 20


def _file_in_words(file: ChangedFile) -> str:
    counts = "" if file.added is None else f" (+{file.added} -{file.removed or 0})"
    return f"{exact(file.path)}{counts}"


def _items_since(session: Session, cursor: int | None) -> list[Item]:
    """Return the turn's items, or those changed since the cursor. All of them may have, if the cursor is old."""
    shown: list[Item] = [item for item in session.items if not isinstance(item, UserMessage)]
    if cursor is None:
        return shown
    page = session.feed.since(cursor)
    if page.missed:
        return shown
    # Items of sub-agents are not among the session's own.
    changed = {
        event.item.id
        for event in page.events
        if isinstance(event, ItemStarted | ItemUpdated | ItemEnded) and event.agent_id is None
    }
    # Its output may have grown: deltas are not among these events.
    return [item for item in shown if item.id in changed or item.status == "in_progress"]


def _note(session: Session, left_out: int) -> str | None:
    state = session.state
    notes = [cut(note, MESSAGE_CHARS) for note in (state.note, state.timed_out_note, state.left_running_note) if note]
    # A schema that was not met must not look like success without a result.
    if state.output_schema is not None and session.status == "done":
        _, problem = read_output(session.result or "", state.output_schema)
        if problem is not None:
            notes.append(cut(f"The result {problem}.", MESSAGE_CHARS))
    if left_out:
        notes.append(f"Left out of itemEvents: {counted(left_out, 'older item')} of this turn.")
    if session.queue:
        count = len(session.queue) - (session.resumes_at is not None)
        if count:
            notes.append(f"{counted(count, 'message')} {'is' if count == 1 else 'are'} queued.")
        # The first message blocks those behind it.
        if session.is_away(session.queue[0]):
            notes.append("They wait for a client with the same environment and settings as the one that sent them.")
    return " ".join(notes) or None


def usage_output(usage: Usage | None) -> UsageOutput | None:
    # No usage yet, or an agent that reports zeros: unknown in both cases.
    return None if usage in (None, Usage()) else UsageOutput.model_validate(usage, from_attributes=True)


def progress_line(progress: ProgressOutput) -> str:
    """Return the progress, the current activity and the elapsed time in one line."""
    now = "" if progress.now is None else Now(**progress.now.model_dump()).in_words()
    so_far = "" if progress.elapsed_seconds is None else f"{progress.elapsed_seconds} s so far"
    return "; ".join(filter(None, (progress.text, now, so_far)))


def files_output(files: Sequence[FileStat]) -> list[ChangedFile] | None:
    """Return changed files, or None if there are none."""
    return [ChangedFile.model_validate(file, from_attributes=True) for file in files] or None


def _progress(session: Session) -> ProgressOutput | None:
    if not session.state.is_running:
        return None
    progress = infer_progress(session.items, turn_seconds=session.turn_seconds)
    shown = ProgressOutput.model_validate(progress, from_attributes=True)
    shown.elapsed_seconds = None if session.turn_seconds is None else int(session.turn_seconds)
    return shown


def _lines_of(items: Sequence[Item], count: int) -> list[str]:
    """Return the lines of the newest items, stopping once there are `count`."""
    # From the end, because only the last lines are wanted and early items can be large.
    lines: list[str] = []
    for item in reversed(items):
        if len(lines) >= count:
            break
        lines[:0] = item_lines(item)
    return lines


def item_lines(item: Item) -> list[str]:
    """Render an item as lines."""
    match item:
        case AgentMessage() | ProposedPlan() | Review():
            return item.text.splitlines()
        case CommandExecution():
            code = "" if item.exit_code is None else f"  (exit {item.exit_code})"
            output = item.output.splitlines()
            left_out = len(output) - _COMMAND_LINES
            shown = [f"… {counted(left_out, 'line')}", *output[-_COMMAND_LINES:]] if left_out > 0 else output
            return [f"$ {shell_script(item.command)}{' (declined)' if item.declined else code}", *shown]
        case FileChange() | ErrorItem():
            return [f"[{item.type}] {item.summary()}"]
        case CollabToolCall():
            return [f"[sub-agents] {item.summary()}"]
        case UserMessage():
            # The caller wrote it.
            return []
        case _:
            # Items without a summary, e.g. empty reasoning, say nothing.
            summary = item.summary()
            return [f"[{item.type}] {summary}"] if summary else []
