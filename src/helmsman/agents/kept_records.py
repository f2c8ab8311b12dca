"""What is known on disk of the agents that run in keepers, a process for each session (`helmsman.agents.keeper.places`).

Every hub looks at it as it begins, so it imports little.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.keeper.places import is_attached, mark_needed, read_content
from helmsman.agents.keeper.process import WAKE
from helmsman.agents.keeper.starting import read_processes, stop_kept
from helmsman.base.files import replace_file
from helmsman.base.json_values import json_object_in
from helmsman.base.process_ending import send_signal
from helmsman.base.surroundings import UMASK
from helmsman.errors import EngineLost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.base.processes import Process

KEPT: Final = "kept"
"""Where in the state directory they are."""
_NOTES: Final = "notes.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRecord:
    """An agent in a keeper, as its directory says: of which engine it is, and where it works."""

    directory: Path
    socket: Path
    keeper: Process
    child: Process
    agent: str
    engine_id: str
    place: str
    started_at: float
    idle: float
    about: Mapping[str, Any]

    @property
    def id(self) -> str:
        return self.directory.name

    @property
    def state_dir(self) -> Path:
        return self.directory.parents[1]

    @property
    def session_id(self) -> str:
        """Of which session; an agent that names its sessions itself says it later than its record is written."""
        return str(self.about.get("session_id") or self.notes().get("session_id") or "")

    @property
    def is_kept(self) -> bool:
        return self.keeper.is_alive()

    def need(self, *, needed: bool) -> None:
        """Say whether somebody has to follow it: if nobody does, its keeper starts the next hub."""
        if mark_needed(self.directory, needed=needed) and needed:
            send_signal(self.keeper, WAKE)

    @property
    def is_running(self) -> bool:
        return self.child.is_alive()

    def overview(self) -> dict[str, Any]:
        """What people are shown of it. Blocks for a few seconds where it does not answer."""
        from helmsman.agents.engine_overview import engine_overview
        from helmsman.agents.keeper.asking import ask_keeper

        return engine_overview(
            self.directory,
            agent=self.agent,
            version=self.about.get("version") or self.notes().get("version"),
            place=self.place,
            keeper=self.keeper,
            child=self.child,
            started_at=self.started_at,
            idle=self.idle,
            ask=lambda: ask_keeper(self.socket),
        )

    def stop(self) -> None:
        """End it. Blocks for a bounded time; afterwards no process is left."""
        stop_kept(self.directory, self.socket, self.keeper, self.child)

    def notes(self) -> dict[str, Any]:
        """What its owners have noted for the next one."""
        return json_object_in(self.directory / _NOTES) or {}

    def note(self, **notes: Any) -> None:
        """Note something for the next owner. Not durable: it is of no use once the machine has restarted."""
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            replace_file(self.directory / _NOTES, json.dumps({**self.notes(), **notes}), durable=False)


def read_record(directory: Path) -> KeptRecord | None:
    """What a directory says; None where it says nothing that can be understood."""
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
            agent=str(content["agent"]),
            engine_id=str(content["engine_id"]),
            place=str(content["place"]),
            started_at=float(content["started_at"]),
            idle=float(content["idle"]),
            about=content,
        )
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def read_records(state_dir: Path, agent: str | None = None) -> list[KeptRecord]:
    """Those of an agent, or of all, oldest first; also what a keeper that was killed has left."""
    try:
        places = sorted(
            (entry for entry in (state_dir / KEPT).iterdir() if entry.is_dir() and not entry.is_symlink()),
            key=lambda entry: entry.stat().st_mtime,
        )
    except OSError:
        return []
    records = [record for place in places if (record := read_record(place)) is not None]
    return [record for record in records if agent in (None, record.agent)]


def clear_away(state_dir: Path) -> None:
    """End what keepers that were killed have left. Blocks."""
    for record in read_records(state_dir):
        if not record.is_kept:
            record.stop()


def end_left(state_dir: Path, agent: str, session_id: str) -> None:
    """End what earlier owners have left of a session, and in which nothing runs. Blocks."""
    from helmsman.agents.keeper.asking import ask_keeper

    for record in read_records(state_dir, agent):
        if record.session_id == session_id and not is_attached(record.directory):
            with contextlib.suppress(EngineLost):
                if not any(ask_keeper(record.socket)):
                    record.stop()


# --- the environment -------------------------------------------------------------------------------------------------

_NAMES: Final = frozenset({UMASK, "HOME", "PATH", "SHELL", "TMPDIR", "USER", "VIRTUAL_ENV"})
_PREFIXES: Final = ("AWS_", "AZURE_", "GOOGLE_", "SSL_CERT_", "NODE_EXTRA_", "XDG_")
_NO_PREFIXES: Final = ("XDG_SESSION_", "XDG_RUNTIME_", "XDG_CURRENT_", "XDG_SEAT", "XDG_VTNR", "XDG_MENU_")
"""Another for every login."""
_SUFFIXES: Final = ("_API_KEY", "_BASE_URL", "_PROXY")


def digest_of(env: Mapping[str, str], prefixes: tuple[str, ...], *more: object) -> str:
    """What an agent is started with, as a fingerprint: work that was asked for with something else is none for its engine.

    Of the environment that counts by which programs, files, accounts and the network are found, and what begins with
    `prefixes`; the rest differs from window to window.
    """
    chosen = {name: value for name, value in env.items() if _matters(name.upper(), prefixes)}
    told = json.dumps([chosen, *more], sort_keys=True, default=str)
    return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()


def _matters(name: str, prefixes: tuple[str, ...]) -> bool:
    if name.startswith(_NO_PREFIXES):
        return False
    return name in _NAMES or name.startswith((*_PREFIXES, *prefixes)) or name.endswith(_SUFFIXES)
