"""What runs in a keeper, of whatever agent, with what goes on in it, for people who look after it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from helmsman.agents.keeper.places import is_attached, is_draining
from helmsman.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from helmsman.agents.keeper.watcher import Activity
    from helmsman.base.processes import Process


def engine_overview(
    directory: Path,
    *,
    agent: str,
    version: str | None,
    place: str,
    keeper: Process,
    child: Process,
    started_at: float,
    idle: float,
    ask: Callable[[], Activity],
    **more: Any,
) -> dict[str, Any]:
    """One of them. `ask` says what is under way, or raises `EngineError`. Blocks for a few seconds where nobody answers."""
    try:
        activity = ask()
    except EngineError:
        activity = None
    if not keeper.is_alive():
        status = "orphaned"
    elif activity is None:
        status = "not answering"
    elif is_draining(directory):
        status = "draining"
    else:
        status = "in use" if is_attached(directory) else "unattended"
    return {
        "id": directory.name,
        "agent": agent,
        "status": status,
        "running": None if activity is None else len(activity.working),
        "waiting": None if activity is None else len(activity.waiting),
        "version": version,
        "place": place,
        "pid": child.pid,
        "keeperPid": keeper.pid,
        "startedAt": datetime.fromtimestamp(started_at, UTC).isoformat(timespec="seconds"),
        "idleSeconds": idle,
        "sessions": [] if activity is None else [*activity.working, *activity.waiting],
        **more,
    }
