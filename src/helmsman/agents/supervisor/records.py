"""Records of supervised processes, the same for every agent: `<state directory>/engines/<id>/process.json`.

Every hub reads the records as it starts, so this imports little.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.supervisor.directory import (
    WAKE,
    forget,
    is_attached,
    is_draining,
    mark_draining,
    mark_needed,
    read_content,
)
from helmsman.agents.supervisor.process import stop_supervised
from helmsman.agents.supervisor.relay import Activity
from helmsman.base.files import replace_file
from helmsman.base.json_values import json_object_in
from helmsman.base.process_ending import send_signal
from helmsman.base.processes import Process
from helmsman.errors import EngineError, EngineLost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ASK_SECONDS: Final = 5.0


def ask_supervisor(address: Path) -> Activity:
    """Return what runs in the agent.

    Raises:
        EngineLost: The supervisor does not answer.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ASK_SECONDS)
            connection.connect(str(address))
            connection.sendall(b"?\n")
            with connection.makefile("rb") as answer:
                working, waiting = json.loads(answer.readline())
        return Activity(tuple(map(str, working)), tuple(map(str, waiting)))
    except (OSError, ValueError, TypeError) as error:
        raise EngineLost(
            f"The supervisor at {address} does not answer: {error}. Look at `helmsman hub engines`."
        ) from error


ENGINES: Final = "engines"
"""Directory of all supervised processes, in the state directory."""
_STARTING_SECONDS: Final = 300.0
_NOTES: Final = "notes.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """Supervised process. `engine_id` is the engine that it belongs to, and `place` where it works or has its files.

    `listens_at` is the socket of an agent that can be joined from a terminal. `about` is the whole record, with the
    fields that only the agent's own package reads.
    """

    directory: Path
    socket: Path
    supervisor: Process
    child: Process
    agent: str
    engine_id: str
    place: str
    started_at: float
    idle: float
    listens_at: Path | None = None
    about: Mapping[str, Any]

    @property
    def id(self) -> str:
        return self.directory.name

    @property
    def state_dir(self) -> Path:
        return self.directory.parents[1]

    @property
    def session_id(self) -> str:
        """Session of a process with one session. An agent that chooses the id reports it after its start."""
        return str(self.about.get("session_id") or self.notes().get("session_id") or "")

    @property
    def is_supervised(self) -> bool:
        """True if the supervisor runs. Without one, nothing would ever end the agent."""
        # Such a process is ended by the next hub.
        return self.supervisor.is_alive()

    @property
    def is_running(self) -> bool:
        return self.child.is_alive()

    @property
    def is_draining(self) -> bool:
        return is_draining(self.directory)

    @property
    def sockets(self) -> tuple[Path, ...]:
        return (self.socket,) if self.listens_at is None else (self.socket, self.listens_at)

    def need(self, *, needed: bool) -> None:
        """Set whether an owner must be attached. If none is, the supervisor starts the next hub."""
        # Woken, since it otherwise looks only once a minute.
        if mark_needed(self.directory, needed=needed) and needed:
            send_signal(self.supervisor, WAKE)

    def drain(self) -> None:
        """Give the process no new work. It ends when no client is attached and nothing runs in it."""
        mark_draining(self.directory)
        send_signal(self.supervisor, WAKE)

    def activity(self) -> Activity:
        """Return what runs in the process.

        Raises:
            EngineLost: Its supervisor does not answer.
        """
        return ask_supervisor(self.socket)

    def stop(self) -> None:
        """End the process and all that it has started. Blocks for a bounded time."""
        stop_supervised(self.directory, self.sockets, self.supervisor, self.child)

    def overview(self) -> dict[str, Any]:
        """Return the process for `helmsman hub engines`. Blocks for a few seconds if the supervisor does not answer."""
        try:
            activity = self.activity()
        except EngineError:
            activity = None
        if not self.is_supervised:
            status = "orphaned"
        elif activity is None:
            status = "not answering"
        elif self.is_draining:
            status = "draining"
        else:
            status = "in use" if is_attached(self.directory) else "unattended"
        path = self.about.get("path")
        return {
            "id": self.id,
            "agent": self.agent,
            "status": status,
            "running": None if activity is None else len(activity.working),
            "waiting": None if activity is None else len(activity.waiting),
            "version": self.about.get("version") or self.notes().get("version"),
            "place": self.place,
            "pid": self.child.pid,
            "supervisorPid": self.supervisor.pid,
            "startedAt": datetime.fromtimestamp(self.started_at, UTC).isoformat(timespec="seconds"),
            "idleSeconds": self.idle,
            "sessions": [] if activity is None else [*activity.working, *activity.waiting],
            **({} if path is None else {"path": path}),
        }

    def notes(self) -> dict[str, Any]:
        """Return the notes of earlier owners."""
        return json_object_in(self.directory / _NOTES) or {}

    def note(self, **notes: Any) -> None:
        """Write a note for the next owner. Not durable: it is of no use once the machine has restarted."""
        with contextlib.suppress(FileNotFoundError):  # the process has just ended
            replace_file(self.directory / _NOTES, json.dumps({**self.notes(), **notes}), durable=False)


def read_record(directory: Path) -> ProcessRecord | None:
    """Return the record in a directory, or None if it is missing or invalid."""
    try:
        content = read_content(directory)
        supervisor, child, listens_at = content["supervisor"], content["child"], content.get("listens_at")
        return ProcessRecord(
            directory=directory,
            # Records of other versions may lack anything, so any error makes the record unreadable.
            socket=Path(content["socket"]),
            supervisor=Process(int(supervisor[0]), str(supervisor[1])),
            child=Process(int(child[0]), str(child[1])),
            agent=str(content["agent"]),
            engine_id=str(content["engine_id"]),
            place=str(content["place"]),
            started_at=float(content["started_at"]),
            idle=float(content["idle"]),
            listens_at=None if listens_at is None else Path(listens_at),
            about=dict(content),
        )
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def directories(state_dir: Path) -> list[Path]:
    """Return the directories of supervised processes, oldest first, also of those that ended or never started."""
    try:
        entries = [entry for entry in (state_dir / ENGINES).iterdir() if entry.is_dir() and not entry.is_symlink()]
        # Time may be equal, so the name makes the order certain.
        return sorted(entries, key=lambda entry: (entry.stat().st_mtime, entry.name))
    except OSError:
        return []


def read_records(state_dir: Path, agent: str | None = None) -> list[ProcessRecord]:
    """Return the processes that run, of an agent or of all, oldest first. Some may have lost their supervisor."""
    records = _readable(state_dir)
    return [one for one in records if agent in (None, one.agent) and (one.is_supervised or one.is_running)]


def _readable(state_dir: Path) -> Iterable[ProcessRecord]:
    return (record for directory in directories(state_dir) if (record := read_record(directory)) is not None)


def forget_abandoned(directory: Path) -> None:
    """Remove a directory without a record, unless a process may still be starting in it."""
    with contextlib.suppress(OSError):
        # Its supervisor writes the record only after the child was started.
        if time.time() - directory.stat().st_mtime > _STARTING_SECONDS:
            forget(directory)


def clear_away(state_dir: Path) -> None:
    """End the processes whose supervisors were killed. Blocks."""
    for record in _readable(state_dir):
        if not record.is_supervised:
            record.stop()


def end_left(state_dir: Path, agent: str, session_id: str) -> None:
    """End the processes of a session that earlier owners left, and in which nothing runs. Blocks."""
    for record in read_records(state_dir, agent):
        # A process with a client is not left behind.
        if record.session_id == session_id and not is_attached(record.directory):
            with contextlib.suppress(EngineLost):
                # Without a supervisor nothing else ends it.
                if not record.is_supervised or not any(record.activity()):
                    record.stop()
