"""Calls that change something, by the number that a pipe gave them: asked again of a new hub, they are done once.

What is about to be done is entered before it is done, and what came of it before anybody is told. A hub that finds a call
with an answer gives that; one without an answer was begun by a hub that is gone. If it was to begin a turn, the task says
what became of it (`call_key` is its idempotency key); else nobody can tell, and it is not done a second time.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from helmsman.base.processes import Process
from helmsman.tasks.database import Database
from helmsman.tasks.registry import REGISTRY_NAME

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from helmsman.tasks.database import Fence
    from helmsman.tasks.model import Task

_KEPT_BEHIND: Final = 100
"""So many answers of a pipe are kept. It has long forgotten what it asked before."""


class CallKey:
    """The idempotency key of the first task that a call enters; what else it enters has none.

    `done_before` is the task that an earlier hub entered for the same call; `is_repeated` says that one had begun the call.
    """

    def __init__(self, key: str, done_before: Task | None = None, *, is_repeated: bool = False) -> None:
        self._key: str | None = key
        self.done_before = done_before
        self.is_repeated = is_repeated

    def take(self) -> str | None:
        key, self._key = self._key, None
        return key


call_key: Final[ContextVar[CallKey | None]] = ContextVar("call_key", default=None)


class CallLog:
    """The calls of all pipes, in the registry's file. `pipe` is the pipe's id, `process` who it is."""

    def __init__(self, state_dir: Path, fence: Fence | None = None) -> None:
        self._database = Database(state_dir / REGISTRY_NAME, fence=fence)
        self._one_at_a_time = anyio.CapacityLimiter(1)

    async def begin(self, pipe: str, seq: int, process: Process) -> tuple[bool, str | None]:
        """Enter a call, before anything of it is done; whether it was there already, and the answer it got.

        Raises:
            RegistryUnavailable: It cannot be entered.
        """

        def work(connection: sqlite3.Connection) -> tuple[bool, str | None]:
            known = connection.execute("SELECT answer FROM calls WHERE pipe = ? AND seq = ?", (pipe, seq)).fetchone()
            if known is not None:
                return True, known["answer"]
            connection.execute(
                "DELETE FROM calls WHERE pipe = ? AND seq < ? AND answer IS NOT NULL", (pipe, seq - _KEPT_BEHIND)
            )
            connection.execute(
                "INSERT INTO calls (pipe, seq, pid, started, begun_at) VALUES (?, ?, ?, ?, ?)",
                (pipe, seq, process.pid, process.started, int(time.time() * 1_000_000)),
            )
            return False, None

        return await anyio.to_thread.run_sync(self._database.write, work, limiter=self._one_at_a_time)

    async def answer(self, pipe: str, seq: int, answer: str | None) -> None:
        """Write down what a call gave; None if it did nothing, and may be done when it is asked again.

        Raises:
            RegistryUnavailable: It cannot be written down.
        """

        def work(connection: sqlite3.Connection) -> None:
            if answer is None:
                connection.execute("DELETE FROM calls WHERE pipe = ? AND seq = ?", (pipe, seq))
            else:
                connection.execute("UPDATE calls SET answer = ? WHERE pipe = ? AND seq = ?", (answer, pipe, seq))

        await anyio.to_thread.run_sync(self._database.write, work, limiter=self._one_at_a_time)

    async def sessions_of(self, pipe: str) -> list[str]:
        """The sessions that calls of a pipe began or went on with, as their answers say."""

        def work(connection: sqlite3.Connection) -> list[str]:
            path = "$.structuredContent.sessionId"
            rows = connection.execute(
                "SELECT DISTINCT json_extract(answer, ?) FROM calls WHERE pipe = ? AND answer IS NOT NULL", (path, pipe)
            )
            return [row[0] for row in rows if isinstance(row[0], str)]

        return await anyio.to_thread.run_sync(self._database.read, work, limiter=self._one_at_a_time)

    async def forget_gone(self) -> None:
        """Forget the calls of pipes that are gone: nobody will ask again.

        Raises:
            RegistryUnavailable: The file cannot be written.
        """

        def work(connection: sqlite3.Connection) -> None:
            pipes = connection.execute("SELECT DISTINCT pipe, pid, started FROM calls").fetchall()
            gone = [(row["pipe"],) for row in pipes if not Process(row["pid"], row["started"]).is_alive()]
            connection.executemany("DELETE FROM calls WHERE pipe = ?", gone)

        await anyio.to_thread.run_sync(self._database.write, work, limiter=self._one_at_a_time)
