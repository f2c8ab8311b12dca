"""Results as plain dictionaries, the same for every front door that speaks JSON; events and items know it themselves.

Keys are camelCase, as in the MCP tools; the names of events, items and their states are snake_case. What is None is
left out. `json_line` writes one such dictionary so that any consumer can read it: on one line and in plain ASCII,
which also keeps a hostile text from reaching a terminal.
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
    "waits",
]

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.capabilities.budgets import BudgetState
    from helmsman.capabilities.changes import AppliedSession, SessionDiff
    from helmsman.capabilities.usage_report import UsageGroup
    from helmsman.tasks.ledger import Ledger
    from helmsman.tasks.model import Task


def spent_as_dict(group: UsageGroup) -> dict[str, Any]:
    """What a day, a model, a directory or a session spent."""
    cost = {} if group.cost_usd is None else {"costUsd": round(group.cost_usd, 6)}
    unpriced = {"unpricedTokens": group.unpriced_tokens} if group.unpriced_tokens else {}
    return {"sessions": group.sessions, "turns": group.turns, **fields_as_dict(group.usage), **cost, **unpriced}


def diff_as_dict(changed: SessionDiff) -> dict[str, Any]:
    """What a session changed, whole."""
    diff = changed.diff
    about = {"sessionId": changed.session_id, "scope": changed.scope, "about": changed.about}
    shown = {"files": [fields_as_dict(file) for file in diff.files], "stat": diff.stat, "diff": diff.text}
    return present({**about, **shown, "digest": diff.digest, "nested": list(diff.nested) or None})


def applied_as_dict(applied: AppliedSession) -> dict[str, Any]:
    """What was brought from a session's worktree into its repository."""
    return present(fields_as_dict(applied) | {"ended": list(applied.ended) or None})


def task_as_dict(task: Task, ledger: Ledger | None = None) -> dict[str, Any]:
    """A task as listings show it. Its engine and its metadata are the registry's own business.

    With the `ledger` of whoever shows it, also whether only another process can stop it (`elsewhere`).
    """
    is_elsewhere = ledger is not None and task.is_running and task.origin == "local" and ledger.is_elsewhere(task)
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
        "url": task.metadata.get("url"),
        "elsewhere": is_elsewhere or None,
    }
    return present(shown)


def waits(waiting_for: str | None, resumes_at: datetime | None) -> dict[str, Any]:
    """What a task, or the session it is a turn of, waits for, until when, and how long that is from now."""
    if resumes_at is None:
        return {} if waiting_for is None else {"waiting_for": waiting_for}
    left = max(0, round((resumes_at - datetime.now(UTC)).total_seconds()))
    return {"waiting_for": waiting_for, "resumes_at": iso_time(resumes_at), "resumes_in_sec": left}


def budget_as_dict(state: BudgetState) -> dict[str, Any]:
    """How much of a budget is used."""
    return {**fields_as_dict(state), "used": round(state.used, 6), "unit": state.unit, "isUsedUp": state.is_used_up}


def json_line(value: Mapping[str, Any]) -> str:
    """The dictionary as one line of JSON, whatever it holds."""
    return json.dumps(value, default=str)
