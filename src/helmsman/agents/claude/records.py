"""What is known on disk of the Claude Codes in keepers (`helmsman.agents.keeper.places`).

Every hub looks at it as it begins, so it imports little.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.keeper.places import mark_needed, read_content
from helmsman.agents.keeper.process import WAKE
from helmsman.agents.keeper.starting import read_processes, send_signal, stop_kept

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.base.processes import Process

KEPT: Final = "claude"
"""Where in the state directory what is kept of Claude Code is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRecord:
    """A Claude Code in a keeper, as its directory says: of which engine it is, and whose session it has."""

    directory: Path
    socket: Path
    keeper: Process
    child: Process
    engine_id: str
    session_id: str
    place: str
    about: Mapping[str, Any]

    @property
    def is_kept(self) -> bool:
        return self.keeper.is_alive()

    def need(self, *, needed: bool) -> None:
        """Say whether somebody has to follow it: if nobody does, its keeper starts the next hub."""
        if mark_needed(self.directory, needed=needed) and needed:
            send_signal(self.keeper, WAKE)

    def stop(self) -> None:
        """End it. Blocks for a bounded time; afterwards no process is left."""
        stop_kept(self.directory, self.socket, self.keeper, self.child)


def read_record(directory: Path) -> KeptRecord | None:
    processes = read_processes(directory)
    try:
        content = read_content(directory)
        if processes is None:
            return None
        return KeptRecord(
            directory=directory,
            socket=Path(content["socket"]),
            keeper=processes[0],
            child=processes[1],
            engine_id=str(content["engine_id"]),
            session_id=str(content["session_id"]),
            place=str(content["place"]),
            about=content,
        )
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def read_records(state_dir: Path) -> list[KeptRecord]:
    """Those of which something runs, oldest first. What a keeper that was killed has left is cleared away."""
    try:
        places = sorted(
            (entry for entry in (state_dir / KEPT).iterdir() if entry.is_dir() and not entry.is_symlink()),
            key=lambda entry: entry.stat().st_mtime,
        )
    except OSError:
        return []
    return [record for place in places if (record := read_record(place)) is not None]


def clear_away(state_dir: Path) -> None:
    """End what keepers that were killed have left. Blocks."""
    for record in read_records(state_dir):
        if not record.is_kept:
            record.stop()
