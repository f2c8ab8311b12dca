"""Calls that change something, by the number that a client gave them. Repeated to a new hub, each is done once.

The hub records a call before it runs it, and its result before it answers. A hub that finds a call with an answer returns
that. A call without an answer was begun by a hub that is gone. If it was to begin a turn, the task has its outcome
(`call_key` is its idempotency key). Otherwise the outcome is unknown, and the call is not repeated. All clients of a hub use
this: pipes, programs and commands.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import anyio

from helmsman.base.json_values import json_object, mapping
from helmsman.base.processes import Process
from helmsman.errors import EngineLost, EngineTimeout, IdempotencyKeyReused, OutcomeUnknown
from helmsman.tasks.call_key import CallKey, call_key
from helmsman.tasks.rows import clean_key, task_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helmsman.errors import HelmsmanError
    from helmsman.store.connection import StoreConnection
    from helmsman.tasks.writer import TaskWriter

ResultT = TypeVar("ResultT")

_KEPT_BEHIND: Final = 100
"""Number of answers kept for a client. It does not repeat older calls."""
_KEPT_SECONDS: Final = 24 * 3600
"""Seconds for which answers are kept for a client on another machine, because the hub cannot tell whether it lives."""
ELSEWHERE: Final = Process(0, "")
"""Process of a client on another machine. Its connection may break during a call; it reconnects and repeats the call."""
_MAY_BE_DONE: Final = (EngineLost, EngineTimeout, OutcomeUnknown)
"""Errors after which an agent may or may not have received the call. They are its answer, and it is not repeated."""


class CallId(NamedTuple):
    """Key of a call: the id of its client, the number that the client gave it, and the client's process."""

    client: str
    number: int
    process: Process


class AnsweredBefore(Exception):
    """Raised if an earlier hub has carried out the call. Holds its answer."""

    def __init__(self, answer: str) -> None:
        super().__init__(answer)
        self.answer = answer


@dataclass(slots=True)
class _UnderWay:
    request: str
    ended: anyio.Event = field(default_factory=anyio.Event)


def _require_same(known: str, request: str, name: str) -> None:
    if known != request:
        raise IdempotencyKeyReused(
            f"This idempotency key belongs to an earlier call of {name} with another content. Use a new key for a new call."
        )


class CallLog:
    """Calls of all clients, in the registry's file. Results are written together with the changes of the writer."""

    def __init__(self, writer: TaskWriter) -> None:
        self._writer = writer
        self._under_way: dict[tuple[str, int], _UnderWay] = {}

    async def once(
        self,
        call: CallId,
        name: str,
        do: Callable[[], Awaitable[ResultT]],
        *,
        repeatable: bool,
        request: str = "",
        stored: Callable[[ResultT], str | None],
        restored: Callable[[str], ResultT],
        failed: Callable[[HelmsmanError], ResultT],
    ) -> ResultT:
        """Run a call, or return its result if an earlier hub has done it. A call that did nothing may be repeated.

        `stored` serialises the result, or returns None to store nothing. `restored` makes a result from that, and `failed`
        makes one from an error. See also `begin`.
        """
        try:
            key = await self.begin(call, name, repeatable=repeatable, request=request)
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
            # A refused call did nothing, so it may be repeated.
            await self.answer(call, None)
            raise
        else:
            return result
        finally:
            call_key.reset(current)
            self._ended(call)

    async def begin(self, call: CallId, name: str, *, repeatable: bool, request: str = "") -> CallKey:
        """Record a call before it runs, and return the key for the work it begins. If it is already running, wait for its
        end: it came on another connection, which broke.

        A call that an earlier hub had begun is run again only if it is `repeatable`: it looks up its outcome, or does no
        harm when it is done twice. `request` is the digest of the call's content, where clients choose the keys of calls.

        Raises:
            AnsweredBefore: It was done.
            IdempotencyKeyReused: The call with this key has another content.
            OutcomeUnknown: An earlier hub had begun it, and its outcome is unknown.
            RegistryUnavailable: It cannot be recorded.
        """
        key, place = f"{call.client}:{call.number}", (call.client, call.number)

        def work(connection: StoreConnection) -> CallKey:
            known = connection.execute("SELECT answer, request FROM calls WHERE pipe = ? AND seq = ?", place).fetchone()
            if known is not None:
                _require_same(known["request"], request, name)
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
                (call.client, call.number - _KEPT_BEHIND),
            )
            connection.execute(
                "INSERT INTO calls (pipe, seq, pid, started, begun_at, request) VALUES (?, ?, ?, ?, ?, ?)",
                (*place, call.process.pid, call.process.started, int(time.time() * 1_000_000), request),
            )
            return CallKey(key)

        while (under_way := self._under_way.get(place)) is not None:
            _require_same(under_way.request, request, name)
            await under_way.ended.wait()
        self._under_way[place] = _UnderWay(request)
        try:
            return await self._writer.database.write_soon(work)
        except BaseException:
            # Or the next call with this key would wait for ever.
            self._ended(call)
            raise

    def _ended(self, call: CallId) -> None:
        if (under_way := self._under_way.pop((call.client, call.number), None)) is not None:
            under_way.ended.set()

    async def answer(self, call: CallId, answer: str | None) -> None:
        """Record the result of a call; None if it did nothing, and may run when it is repeated.

        Raises:
            RegistryUnavailable: It cannot be written.
        """

        def work(connection: StoreConnection) -> None:
            place = (call.client, call.number)
            if answer is None:
                connection.execute("DELETE FROM calls WHERE pipe = ? AND seq = ?", place)
            else:
                connection.execute("UPDATE calls SET answer = ? WHERE pipe = ? AND seq = ?", (answer, *place))

        try:
            await self._writer.write(work)
        finally:
            self._ended(call)

    async def sessions_of(self, client: str) -> list[str]:
        """Return the sessions that calls of a client started or continued, according to their answers."""

        def work(connection: StoreConnection) -> list[str]:
            rows = connection.execute("SELECT answer FROM calls WHERE pipe = ? AND answer IS NOT NULL", (client,))
            # The answer of a tool names its session there.
            contents = (mapping((json_object(row["answer"]) or {}).get("structuredContent")) for row in rows)
            found = (content.get("sessionId") for content in contents)
            return list(dict.fromkeys(session_id for session_id in found if isinstance(session_id, str)))

        return await self._writer.database.read_soon(work)

    async def forget_gone(self) -> None:
        """Forget the calls of clients that are gone: they cannot be repeated.

        Raises:
            RegistryUnavailable: The file cannot be written.
        """

        def work(connection: StoreConnection) -> None:
            # Clients on other machines have no process here. They are forgotten after a time.
            pipes = connection.execute("SELECT DISTINCT pipe, pid, started FROM calls WHERE pid != 0").fetchall()
            gone = [(row["pipe"],) for row in pipes if not Process(row["pid"], row["started"]).is_alive()]
            connection.executemany("DELETE FROM calls WHERE pipe = ?", gone)
            old = int((time.time() - _KEPT_SECONDS) * 1_000_000)
            connection.execute("DELETE FROM calls WHERE pid = 0 AND begun_at < ?", (old,))

        await self._writer.database.write_soon(work)
