"""Which sessions a Claude Code has open now, whoever started it.

Each one that runs writes down its session in `sessions/<pid>.json`. Of one that was killed the file stays, so a file counts
only while its process runs. Claude Code itself lets two write to one session, which then goes two ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from helmsman.base.json_values import integer, json_object_in, text
from helmsman.base.processes import running_process
from helmsman.errors import SessionLocked

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROGRAM: Final = "sdk-cli"
"""Begun by a program, as ours are; in a person's terminal it is `cli`."""
_ENDING_SECONDS: Final = 3.0
"""How long a process of a Helmsman's may still have a session that it is about to let go of."""
_POLL: Final = 0.02


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session that a process has. `by_a_person` is one in a terminal or an editor."""

    session_id: str
    pid: int
    by_a_person: bool


def open_sessions(home: Path) -> Iterator[OpenSession]:
    """Those of all processes that run here. Of one in another sandbox or container nobody can tell, so it is left out."""
    for path in home.glob("sessions/*.json"):
        about = json_object_in(path) or {}
        pid = integer(about.get("pid")) or 0
        if _is_here(text(about.get("pidDomain"))) and _runs(pid, text(about.get("procStart"))):
            yield OpenSession(
                session_id=text(about.get("sessionId")),
                pid=pid,
                by_a_person=about.get("entrypoint") != _PROGRAM,
            )


def _is_here(domain: str) -> bool:
    """Whether its pid is one of ours: in a namespace of its own it would name another process here."""
    if ":pid:[" not in domain:
        return True
    try:
        return domain.endswith(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        return False


def _runs(pid: int, started: str) -> bool:
    found = running_process(pid)
    # It counts as Linux does, in ticks since the start of the system. Elsewhere the pid has to do.
    return found is not None and (not started.isdecimal() or found.started.endswith(f":{started}"))


async def refuse_if_open(home: Path, session_id: str) -> None:
    """Go on only if no process has the session.

    Raises:
        SessionLocked: One has.
    """

    def found() -> OpenSession | None:
        return next((one for one in open_sessions(home) if one.session_id == session_id), None)

    until = anyio.current_time() + _ENDING_SECONDS
    while (other := await anyio.to_thread.run_sync(found)) is not None:
        if other.by_a_person or anyio.current_time() > until:
            raise SessionLocked(
                f"Session {session_id} is open in another Claude Code (process {other.pid}), and would go two ways. "
                "Close it there, or fork the session."
            )
        await anyio.sleep(_POLL)
