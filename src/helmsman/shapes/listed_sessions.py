"""Entries of session lists, merged from the agent's storage, this process and the task registry."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from helmsman.base.json_values import camel_case, iso_time, present
from helmsman.errors import TaskNotFound
from helmsman.git.worktree import places
from helmsman.shapes.rendering import waits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from helmsman.agents.protocol import SessionInfo
    from helmsman.capabilities.search import SearchResult
    from helmsman.capabilities.service import AgentService
    from helmsman.sessions.session import Session
    from helmsman.sessions.state import SessionStatus
    from helmsman.tasks.model import Task


async def listed_sessions(helm: AgentService, found: Sequence[SessionInfo]) -> list[dict[str, Any]]:
    """Return list entries, with status, for sessions found on disk."""
    # One query for all sessions, not one each: a list has up to 500.
    tasks = await helm.tasks.of_sessions([info.session_id for info in found])
    ended = await helm.last_statuses([(info, tasks[info.session_id]) for info in found])
    known = helm.sessions
    listed = [
        listed_session(
            helm.is_elsewhere, info, known.get(info.session_id), tasks[info.session_id], ended.get(info.session_id)
        )
        for info in found
    ]
    asked = await _asked_of_jobs(helm, tasks)
    return await with_repositories(helm, [one | asked.get(one["sessionId"], {}) for one in listed])


async def _asked_of_jobs(helm: AgentService, tasks: Mapping[str, Sequence[Task]]) -> dict[str, dict[str, str]]:
    """Return the summaries of sessions of jobs: what the user asked for. Their first prompts are Helmsman's own."""
    jobs = {session_id: own[-1].of_job for session_id, own in tasks.items() if own and own[-1].of_job is not None}
    asked: dict[str, str] = {}
    for job in set(jobs.values()):
        with suppress(TaskNotFound):  # it has expired
            asked[job] = (await helm.tasks.get(job)).instruction
    return {session_id: {"summary": asked[job]} for session_id, job in jobs.items() if job in asked}


async def with_repositories(helm: AgentService, listed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add `repository` to sessions in a worktree, because a worktree's path means nothing to a person."""
    place = await anyio.to_thread.run_sync(places, helm.settings.state_dir)
    found = [(one, place(one.get("directory"))) for one in listed]
    return [one if where == one.get("directory") else one | {"repository": where} for one, where in found]


async def found_sessions(helm: AgentService, result: SearchResult) -> list[dict[str, Any]]:
    """Return list entries for search results. In `excerpt`, every second part is a matched word."""
    listed = await listed_sessions(helm, [found.session for found in result.found])
    return [one | {"excerpt": list(found.excerpt)} for one, found in zip(listed, result.found, strict=True)]


def listed_session(
    is_elsewhere: Callable[[Task], bool],
    info: SessionInfo | None,
    session: Session | None,
    tasks: Sequence[Task],
    ended: SessionStatus | None = None,
) -> dict[str, Any]:
    """Return the list entry of one session. Texts are raw: each front end sanitizes them.

    Args:
        is_elsewhere: Tells whether another process runs a task.
        info: The session as stored on disk. Its fields take precedence over the other sources.
        session: The session itself, if this process has it.
        tasks: The session's tasks, newest first.
        ended: Status of the last turn according to the disk, used as a fallback.
    """
    status = _known_status(is_elsewhere, session, tasks) or ended
    # The agent's own program has it open, of which there is no task here.
    if info is not None and info.open_elsewhere and status != "awaiting_approval":
        status = "active"
    shown: dict[str, Any] = {}
    if tasks:
        # The newest task says where it is now, the oldest what it began with.
        shown |= {"sessionId": tasks[0].session_id, "agent": tasks[0].agent, "directory": tasks[0].directory}
        shown |= {"summary": tasks[-1].instruction, "timestamp": iso_time(tasks[0].updated_at)}
        shown |= {"handedOverFrom": tasks[-1].handed_over_from}
        shown |= {"enforced": False if tasks[0].is_unenforced else None}
    if session is not None:
        state = session.state
        shown |= present({"directory": session.directory, "name": state.name, "summary": state.about})
        shown |= present({"enforced": state.enforced})
        shown |= {"sessionId": session.id, "agent": session.options.agent, "model": session.model}
        shown |= {
            "timestamp": iso_time(session.state.changed_at.astimezone(UTC)),
            "questions": len(state.questions) or None,
        }
        shown |= {"note": state.note or state.timed_out_note or state.left_running_note}
    if info is not None:
        # The agent's own storage is right about names and times: its own program may have changed them since.
        shown |= present(
            {
                "sessionId": info.session_id,
                "agent": info.agent,
                "directory": info.directory,
                "name": info.name,
                "summary": info.about,
                "timestamp": iso_time(info.updated_at),
                "createdAt": iso_time(info.created_at),
                "source": info.source,
                "originator": info.originator,
                "model": info.model,
                "engineVersion": info.engine_version,
                "parentId": info.parent_id,
                "archived": info.archived,
            }
        )
    shown |= {"isActive": status in ("active", "awaiting_approval"), "status": status}
    shown |= {"timedOut": _timed_out(session, tasks) or None, "taskIds": [task.id for task in reversed(tasks)] or None}
    shown |= {camel_case(key): value for key, value in _waits(session, tasks).items()}
    return present(shown)


def _waits(session: Session | None, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the wait state, from the session if it is waiting and from its tasks otherwise."""
    known = (None, None) if session is None else session.waiting
    # Sessions of other processes are known by their tasks only.
    task = next((task for task in tasks if task.waiting_for is not None), None)
    return waits(*known) if known[0] is not None or task is None else waits(task.waiting_for, task.resumes_at)


def _known_status(
    is_elsewhere: Callable[[Task], bool], session: Session | None, tasks: Sequence[Task]
) -> SessionStatus | None:
    """Return the status of a turn that runs here or in another process, else the last known status."""
    if session is not None and session.state.is_running:
        return session.status
    # A waiting message is not yet a turn of the session.
    newest = next((task for task in tasks if not task.is_waiting), None)
    # A task without its session here runs in another process, whose registry entry is all there is.
    if newest is not None and newest.is_running and (session is None or is_elsewhere(newest)):
        return "awaiting_approval" if newest.input_required else "active"
    return None if session is None else session.status


def _timed_out(session: Session | None, tasks: Sequence[Task]) -> list[str]:
    """Return the last turn's questions that timed out. Turns of other processes are known only by their task."""
    # Without an engine the session may be a copy that was loaded before the other process's turn.
    if session is not None and (session.engine is not None or not tasks):
        return list(session.state.timed_out)
    return list(tasks[0].timed_out) if tasks else []
