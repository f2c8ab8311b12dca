"""The engines that outlive the processes using them, with what goes on in each, for people who look after them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helmsman.agents.codex.binary import CODEX
from helmsman.agents.codex.detached.activity import read_activity
from helmsman.agents.codex.detached.records import EngineRecord, read_records
from helmsman.agents.engine_overview import engine_overview
from helmsman.agents.keeper.asking import ask_keeper

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
    return engine_overview(
        record.directory,
        agent=CODEX,
        version=record.binary.version,
        place=record.codex_home,
        keeper=record.keeper,
        child=record.codex,
        started_at=record.started_at,
        idle=record.idle,
        ask=lambda: activity_of(record),
        path=record.binary.path,
    )
