"""Calls that change something, by the number that a door gave them: asked again of a new hub, they are done once.

What is about to be done is entered before it is done, and what came of it before anybody is told. A hub that finds a call
with an answer gives that; one without an answer was begun by a hub that is gone. If it was to begin a turn, the task says
what became of it (`call_key` is its idempotency key); else nobody can tell, and it is not done a second time. All doors of
a hub use this: pipes, programs and commands.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import anyio

from helmsman.base.json_values import json_object, mapping
from helmsman.base.processes import Process
from helmsman.errors import EngineLost, EngineTimeout, OutcomeUnknown
from helmsman.tasks.rows import clean_key, task_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helmsman.errors import HelmsmanError
    from helmsman.store.connection import StoreConnection
    from helmsman.tasks.ledger import Ledger
    from helmsman.tasks.model import Task

ResultT = TypeVar("ResultT")

_KEPT_BEHIND: Final = 100
"""So many answers of a door are kept. It has long forgotten what it asked before."""
_KEPT_SECONDS: Final = 24 * 3600
"""For so long they are kept for a door on another machine, of which nobody knows whether it lives."""
ELSEWHERE: Final = Process(0, "")
"""The process of such a door. Its connection may break while a call is under way; it comes back and asks again."""
_MAY_BE_DONE: Final = (EngineLost, EngineTimeout, OutcomeUnknown)
"""Errors after which nobody can tell whether an agent has heard of it: they are the answer, and it is not done again."""


class CallId(NamedTuple):
    """A call: the id of its door, the number that the door gave it, and the door's process."""

    door: str
    number: int
    process: Process


class AnsweredBefore(Exception):
    """An earlier hub has done it, and gave this answer."""

    def __init__(self, answer: str) -> None:
        super().__init__(answer)
        self.answer = answer


class CallKey:
    """The idempotency key of the first task that a call enters; what else it enters has none.

    `name` tells calls apart. `done_before` is the task that an earlier hub entered for the same call; `is_repeated` says
    that one had begun the call.
    """

    def __init__(self, key: str, done_before: Task | None = None, *, is_repeated: bool = False) -> None:
        self._key: str | None = key
        self.name = key
        self._asked_elsewhere = 0
        self.done_before = done_before
        self.is_repeated = is_repeated

    def take(self) -> str | None:
        key, self._key = self._key, None
        return key

    def next_elsewhere(self) -> tuple[str, int]:
        """The id of what the call asks next of another machine's hub: the same when the call is asked again of a later
        hub here."""
        self._asked_elsewhere += 1
        return f"for {self.name}", self._asked_elsewhere


call_key: Final[ContextVar[CallKey | None]] = ContextVar("call_key", default=None)


def done_before() -> Task | None:
    """The task that this very call has begun already, when it was asked of an earlier hub."""
    called = call_key.get()
    return None if called is None else called.done_before


def is_repeated() -> bool:
    """Whether an earlier hub had begun this very call, and is gone."""
    called = call_key.get()
    return called is not None and called.is_repeated


class CallLog:
    """The calls of all doors, in the registry's file: what comes of one is written with what the ledger has to write."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._under_way: dict[tuple[str, int], anyio.Event] = {}

    async def once(
        self,
        call: CallId,
        name: str,
        do: Callable[[], Awaitable[ResultT]],
        *,
        repeatable: bool,
        stored: Callable[[ResultT], str | None],
        restored: Callable[[str], ResultT],
        failed: Callable[[HelmsmanError], ResultT],
    ) -> ResultT:
        """What a call gives; what it gave, if an earlier hub has done it. One that did nothing may be asked for again.

        `stored` makes what is written down of it, if anything is; `restored` makes a result of that, and `failed` of an
        error. See also `begin`.
        """
        try:
            key = await self.begin(call, name, repeatable=repeatable)
        except AnsweredBefore as known:
            return restored(known.answer)
        current = call_key.set(key)
        try:
            try:
                result = await do()
            except _MAY_BE_DONE as error:
                result = failed(error)
            await self.answer(call, stored(result))
        except Exception:
            await self.answer(call, None)
            raise
        else:
            return result
        finally:
            call_key.reset(current)
            self._ended(call)

    async def begin(self, call: CallId, name: str, *, repeatable: bool) -> CallKey:
        """Enter a call, before anything of it is done; the key of what it begins. Where it is under way, wait for its end:
        it was asked on another connection, which broke.

        One that an earlier hub had begun is done again only if it is `repeatable`: it finds out what came of it, or does no
        harm when it is done twice.

        Raises:
            AnsweredBefore: It was done.
            OutcomeUnknown: An earlier hub had begun it, and nobody can tell what came of it.
            RegistryUnavailable: It cannot be entered.
        """
        key, place = f"{call.door}:{call.number}", (call.door, call.number)

        def work(connection: StoreConnection) -> CallKey:
            known = connection.execute("SELECT answer FROM calls WHERE pipe = ? AND seq = ?", place).fetchone()
            if known is not None:
                if known["answer"] is not None:
                    raise AnsweredBefore(known["answer"])
                if not repeatable:
                    raise OutcomeUnknown(
                        f"{name} was begun by a hub that ended before it could tell what came of it. Look whether it was "
                        "done before you repeat it: the session's status, or the list of sessions, tasks, schedules or "
                        "worktrees, says so."
                    )
                row = connection.execute("SELECT * FROM tasks WHERE idempotency_key = ?", (clean_key(key),)).fetchone()
                return CallKey(key, None if row is None else task_of(row), is_repeated=True)
            connection.execute(
                "DELETE FROM calls WHERE pipe = ? AND seq < ? AND answer IS NOT NULL",
                (call.door, call.number - _KEPT_BEHIND),
            )
            connection.execute(
                "INSERT INTO calls (pipe, seq, pid, started, begun_at) VALUES (?, ?, ?, ?, ?)",
                (*place, call.process.pid, call.process.started, int(time.time() * 1_000_000)),
            )
            return CallKey(key)

        while (under_way := self._under_way.get(place)) is not None:
            await under_way.wait()
        self._under_way[place] = anyio.Event()
        try:
            return await self._ledger.registry(lambda registry: registry.write(work))
        except BaseException:
            self._ended(call)
            raise

    def _ended(self, call: CallId) -> None:
        if (under_way := self._under_way.pop((call.door, call.number), None)) is not None:
            under_way.set()

    async def answer(self, call: CallId, answer: str | None) -> None:
        """Write down what a call gave; None if it did nothing, and may be done when it is asked again.

        Raises:
            RegistryUnavailable: It cannot be written down.
        """

        def work(connection: StoreConnection) -> None:
            place = (call.door, call.number)
            if answer is None:
                connection.execute("DELETE FROM calls WHERE pipe = ? AND seq = ?", place)
            else:
                connection.execute("UPDATE calls SET answer = ? WHERE pipe = ? AND seq = ?", (answer, *place))

        try:
            await self._ledger.write(work)
        finally:
            self._ended(call)

    async def sessions_of(self, door: str) -> list[str]:
        """The sessions that calls of a door began or went on with, as their answers say."""

        def work(connection: StoreConnection) -> list[str]:
            rows = connection.execute("SELECT answer FROM calls WHERE pipe = ? AND answer IS NOT NULL", (door,))
            contents = (mapping((json_object(row["answer"]) or {}).get("structuredContent")) for row in rows)
            found = (content.get("sessionId") for content in contents)
            return list(dict.fromkeys(session_id for session_id in found if isinstance(session_id, str)))

        return await self._ledger.registry(lambda registry: registry.read(work))

    async def forget_gone(self) -> None:
        """Forget the calls of doors that are gone: nobody will ask again.

        Raises:
            RegistryUnavailable: The file cannot be written.
        """

        def work(connection: StoreConnection) -> None:
            pipes = connection.execute("SELECT DISTINCT pipe, pid, started FROM calls WHERE pid != 0").fetchall()
            gone = [(row["pipe"],) for row in pipes if not Process(row["pid"], row["started"]).is_alive()]
            connection.executemany("DELETE FROM calls WHERE pipe = ?", gone)
            old = int((time.time() - _KEPT_SECONDS) * 1_000_000)
            connection.execute("DELETE FROM calls WHERE pid = 0 AND begun_at < ?", (old,))

        await self._ledger.registry(lambda registry: registry.write(work))
