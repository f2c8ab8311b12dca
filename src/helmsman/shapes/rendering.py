"""Results as plain dictionaries, shared by all front ends that speak JSON. Events and items serialize themselves.

Keys are camelCase, as in the MCP tools. Names of events, items and their states are snake_case. None is left out.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from helmsman.base.json_values import camel_case, iso_time, present
from helmsman.base.structs import fields_as_dict

__all__ = [
    "applied_as_dict",
    "budget_as_dict",
    "diff_as_dict",
    "fields_as_dict",
    "json_line",
    "spent_as_dict",
    "task_as_dict",
    "ttl_ms",
    "waits",
]

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.capabilities.budgets import BudgetState
    from helmsman.capabilities.changes import AppliedSession, SessionDiff
    from helmsman.capabilities.usage_report import UsageGroup
    from helmsman.tasks.model import Task
    from helmsman.tasks.writer import TaskWriter


def spent_as_dict(group: UsageGroup) -> dict[str, Any]:
    """Return the usage of a day, a model, a directory or a session."""
    # Sums of floats: more digits would be noise.
    cost = {} if group.cost_usd is None else {"costUsd": round(group.cost_usd, 6)}
    # Left out when zero, so that `costUsd` alone means the whole cost.
    unpriced = {"unpricedTokens": group.unpriced_tokens} if group.unpriced_tokens else {}
    return {"sessions": group.sessions, "turns": group.turns, **fields_as_dict(group.usage), **cost, **unpriced}


def diff_as_dict(changed: SessionDiff) -> dict[str, Any]:
    """Return a session's complete diff."""
    diff = changed.diff
    about = {"sessionId": changed.session_id, "scope": changed.scope, "about": changed.about}
    shown = {"files": [fields_as_dict(file) for file in diff.files], "stat": diff.stat, "diff": diff.text}
    return present({**about, **shown, "digest": diff.digest, "nested": list(diff.nested) or None})


def applied_as_dict(applied: AppliedSession) -> dict[str, Any]:
    """Return the changes that were applied from a session's worktree to its repository."""
    return present(
        fields_as_dict(applied)
        | {name: list(map(str, getattr(applied, name))) or None for name in ("ended", "others", "notes")}
    )


def task_as_dict(task: Task, writer: TaskWriter | None = None) -> dict[str, Any]:
    """Return a task as listings show it, without its engine and policy, which are internal to the registry.

    With a `writer`, include whether only another process can stop the task (`elsewhere`).
    """
    # A cloud task belongs to no process.
    is_elsewhere = writer is not None and task.is_running and task.origin == "local" and writer.is_elsewhere(task)
    shown = {
        "taskId": task.id,
        "alias": task.alias,
        "agent": task.agent,
        "mode": task.origin,
        "job": task.job,
        "status": task.status,
        "inputRequired": task.input_required or None,
        "instruction": task.instruction,
        "directory": task.directory,
        "sessionId": task.session_id,
        "externalId": task.external_id,
        "model": task.model,
        "enforced": False if task.is_unenforced else None,
        "createdAt": iso_time(task.created_at),
        "updatedAt": iso_time(task.updated_at),
        "completedAt": iso_time(task.completed_at),
        "expiresAt": iso_time(task.expires_at),
        **{camel_case(key): value for key, value in waits(task.waiting_for, task.resumes_at).items()},
        "progress": task.progress,
        "usage": None if task.usage is None else fields_as_dict(task.usage),
        "result": task.result,
        "error": task.error,
        "note": task.note,
        "cancelReason": task.cancel_reason,
        "timedOut": list(task.timed_out) or None,
        "url": task.url,
        "elsewhere": is_elsewhere or None,
    }
    return present(shown)


def waits(waiting_for: str | None, resumes_at: datetime | None) -> dict[str, Any]:
    """Return the wait reason of a task or session, the time it resumes, and the seconds until then."""
    if resumes_at is None:
        return {} if waiting_for is None else {"waiting_for": waiting_for}
    # A time that has just passed counts as now, not as a negative number of seconds.
    left = max(0, round((resumes_at - datetime.now(UTC)).total_seconds()))
    return {"waiting_for": waiting_for, "resumes_at": iso_time(resumes_at), "resumes_in_sec": left}


def ttl_ms(until: datetime) -> int:
    """Return how much longer something is kept, in milliseconds."""
    # A clock that was set back must not make it negative.
    return max(0, int((until - datetime.now(UTC)).total_seconds() * 1000))


def budget_as_dict(state: BudgetState) -> dict[str, Any]:
    """Return the used part of a budget."""
    # `is_used_up` is a property, so `fields_as_dict` does not have it.
    return {**fields_as_dict(state), "used": round(state.used, 6), "unit": state.unit, "isUsedUp": state.is_used_up}


def json_line(value: Mapping[str, Any]) -> str:
    """Return the dictionary as one line of ASCII JSON, which also keeps hostile text from reaching a terminal."""
    return json.dumps(value, default=str)
