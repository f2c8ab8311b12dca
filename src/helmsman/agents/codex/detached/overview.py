"""The engines that outlive the processes using them, with what goes on in each, for people who look after them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from helmsman.agents.codex.detached.activity import read_activity
from helmsman.agents.codex.detached.records import EngineRecord, read_records
from helmsman.agents.keeper.asking import ask_keeper
from helmsman.agents.keeper.places import is_attached
from helmsman.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.agents.keeper.watcher import Activity


def engine_overviews(state_dir: Path) -> list[dict[str, Any]]:
    """The engines that run, oldest first. Blocks for a few seconds where one does not answer."""
    return [_overview(record) for record in read_records(state_dir)]


def activity_of(record: EngineRecord) -> Activity:
    """What runs in an engine.

    Raises:
        EngineError: It does not answer.
    """
    return ask_keeper(record.socket) if record.on_pipe else read_activity(record.socket)


def _overview(record: EngineRecord) -> dict[str, Any]:
    try:
        activity = activity_of(record)
    except EngineError:
        activity = None
    if not record.is_kept:
        status = "orphaned"
    elif activity is None:
        status = "not answering"
    elif record.is_draining:
        status = "draining"
    else:
        status = "in use" if is_attached(record.directory) else "unattended"
    return {
        "id": record.id,
        "status": status,
        "running": None if activity is None else len(activity.working),
        "waiting": None if activity is None else len(activity.waiting),
        "codexVersion": record.binary.version,
        "codexPath": record.binary.path,
        "codexHome": record.codex_home,
        "pid": record.codex.pid,
        "keeperPid": record.keeper.pid,
        "startedAt": datetime.fromtimestamp(record.started_at, UTC).isoformat(timespec="seconds"),
        "idleSeconds": record.idle,
        "sessions": [] if activity is None else [*activity.working, *activity.waiting],
    }
