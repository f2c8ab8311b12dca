"""Stream of changes: server-sent events for each reader.

There are no queues. One table holds the last change of each session, in order of change. A few times per second at
most, a reader gets everything newer than its last event. So five hundred streaming sessions need one small message, a
slow or reconnecting reader misses nothing, and no reader delays another.
"""

from __future__ import annotations

import logging
import secrets
from collections import OrderedDict
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import anyio
from starlette.responses import StreamingResponse

from helmsman._version import __version__
from helmsman.errors import HelmsmanError
from helmsman.model import events
from helmsman.shapes.rendering import json_line

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from starlette.types import Send

    from helmsman.service import HelmsmanService
    from helmsman.sessions.session import Session

log = logging.getLogger(__name__)

LIVE_PATH: Final = "/api/live"
HEARTBEAT_SECONDS: Final = 15.0
_MIN_INTERVAL: Final = 0.25
_WATCH_SECONDS: Final = 1.0
_LIST_EVERY: Final = 5
"""Looks at the registry for each look at the sessions on disk, which costs more."""
_LIST_WATCHED: Final = 50
_MAX_SESSIONS: Final = 10_000
# Each reader keeps a connection and a task.
_MAX_READERS: Final = 100
_EVERYBODY: Final = ""
"""Key for changes that concern no single session."""

_KINDS: Final = (
    (events.ItemDelta, "text"),
    (events.ItemStarted | events.ItemUpdated | events.ItemEnded | events.DiffUpdated, "items"),
    (events.TurnRequested | events.TurnStarted | events.TurnEnded | events.EngineGone, "status"),
    (events.QuestionAsked | events.QuestionClosed, "question"),
)


class TooManyStreams(HelmsmanError):
    """Maximum number of browsers is connected."""

    retryable = True


class Live:
    """Changes of one Helmsman's sessions and of its registry."""

    def __init__(self, helm: HelmsmanService, *, heartbeat: float = HEARTBEAT_SECONDS) -> None:
        self._helm = helm
        self._heartbeat = heartbeat
        # Numbers of another run mean nothing here.
        self._run = secrets.token_hex(4)
        self._count = 0
        self._oldest = 0
        self._changes: OrderedDict[str, dict[str, int]] = OrderedDict()
        self._changed = anyio.Event()
        self._readers = 0
        self._watching = False
        self.on_reader: Callable[[], None] = lambda: None
        """Called when a reader connects."""
        helm.listen(self._on_event)

    # --- what changed ------------------------------------------------------------------------------------------------

    def _on_event(self, session: Session, event: events.Event) -> None:
        self._mark(session.id, next((kind for types, kind in _KINDS if isinstance(event, types)), "details"))

    def _mark(self, session_id: str, kind: str) -> None:
        self._count += 1
        kinds = self._changes.setdefault(session_id, {})
        kinds[kind] = self._count
        self._changes.move_to_end(session_id)
        if len(self._changes) > _MAX_SESSIONS:
            _, forgotten = self._changes.popitem(last=False)
            # A reader at an older place may have missed a change, and reads everything anew.
            self._oldest = max(forgotten.values())
        self._changed.set()
        # Replaced, because an event stays set.
        self._changed = anyio.Event()

    def _since(self, count: int) -> list[dict[str, Any]]:
        """Return everything that changed after `count`, oldest first."""
        found: list[dict[str, Any]] = []
        # From the newest, so that a reader who is up to date costs nothing.
        for session_id, kinds in reversed(self._changes.items()):
            newer = sorted(kind for kind, number in kinds.items() if number > count)
            # The table is in the order of the changes.
            if not newer:
                break
            found.append(self._change(session_id, newer))
        return found[::-1]

    def _change(self, session_id: str, kinds: list[str]) -> dict[str, Any]:
        if session_id == _EVERYBODY:
            return {"kinds": kinds}
        # A key that ends with a colon is a machine.
        if session_id.endswith(":"):
            return {"host": session_id[:-1], "kinds": kinds}
        session = self._helm.sessions.get(session_id)
        now = {} if session is None else {"status": session.status, "cursor": session.feed.cursor}
        return {"sessionId": session_id, "kinds": kinds, **now}

    # --- readers -----------------------------------------------------------------------------------------------------

    def stream(self, last_event_id: str | None, may_read: Callable[[], bool] = lambda: True) -> EventStream:
        """Return a response with the changes after an event, for as long as `may_read` returns true.

        Raises:
            TooManyStreams: The limit is reached.
        """
        if self._readers >= _MAX_READERS:
            raise TooManyStreams("Too many browsers listen already. Close some of the dashboard's windows.")
        return EventStream(self._messages(last_event_id, may_read))

    async def _messages(
        self, last_event_id: str | None, may_read: Callable[[], bool] = lambda: True
    ) -> AsyncGenerator[bytes]:
        self._readers += 1
        self._watch()
        try:
            told = self._known_place(last_event_id)
            hello = {"resumed": told is not None, "version": __version__}
            told = self._count if told is None else told
            yield _message("hello", hello, self._id(told))
            while may_read():
                # Before the comparison, so that no change in between is missed.
                changed = self._changed
                if told == self._count:
                    with anyio.move_on_after(self._heartbeat) as waiting:
                        # The heartbeat keeps proxies from closing a silent connection.
                        await changed.wait()
                    if waiting.cancelled_caught:
                        yield b": still here\n\n"
                    continue
                changes, told = self._since(told), self._count
                yield _message("changes", {"changes": changes}, self._id(told))
                # Changes gather during the pause, and go out as one message.
                await anyio.sleep(_MIN_INTERVAL)
        finally:
            self._readers -= 1

    def mark(self, session_id: str, kinds: Iterable[str]) -> None:
        """Note what no event tells: a change of a session, also on another machine (`NAME:ID`), or of that one (`NAME:`)."""
        for kind in kinds:
            self._mark(session_id, kind)

    @property
    def has_readers(self) -> bool:
        """Return whether a page listens."""
        return self._readers > 0

    def _id(self, count: int) -> str:
        return f"{self._run}-{count}"

    def _known_place(self, last_event_id: str | None) -> int | None:
        run, _, count = (last_event_id or "").partition("-")
        if run != self._run or not (count.isascii() and count.isdigit() and len(count) < 20):
            return None
        # Older than the table: something may be missing.
        return int(count) if self._oldest <= int(count) <= self._count else None

    # --- what others do ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self.on_reader()
        if not self._watching:
            self._watching = True
            self._helm.in_background(self._watch_others)

    async def _watch_others(self) -> None:
        """While there are readers, look for changes by other processes."""
        version: Any = None
        told = self._helm.notices.revision
        listed: Any = None
        rounds = 0
        try:
            while self._readers:
                try:
                    now = await self._helm.task_writer.registry(lambda registry: registry.database.version())
                    if now != version:
                        # The first look only finds out where things are.
                        if version is not None:
                            self._mark(_EVERYBODY, "tasks")
                        version = now
                    if told != self._helm.notices.revision:
                        told = self._helm.notices.revision
                        self._mark(_EVERYBODY, "notices")
                    # Reading the sessions on disk costs more than a look at the registry.
                    if rounds % _LIST_EVERY == 0:
                        found = await self._sessions_of_others()
                        if listed not in (None, found):
                            self._mark(_EVERYBODY, "sessions")
                        listed = found
                except HelmsmanError as error:
                    # The next look may work.
                    log.debug("others cannot be watched: %s", error)
                rounds += 1
                await anyio.sleep(_WATCH_SECONDS)
        finally:
            self._watching = False

    async def _sessions_of_others(self) -> tuple[tuple[str, object], ...]:
        found, _ = await self._helm.list(limit=_LIST_WATCHED)
        running = {session.id for session in self._helm.sessions.values() if session.state.is_running}
        # Sessions that run here report their changes themselves.
        return tuple((info.session_id, info.updated_at) for info in found if info.session_id not in running)


class EventStream(StreamingResponse):
    """Server-sent events, which end when their reader goes away."""

    def __init__(self, messages: AsyncGenerator[bytes]) -> None:
        # The second header keeps nginx from holding events back.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}
        super().__init__(messages, headers=headers, media_type="text/event-stream")
        self._messages = messages

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._messages):  # wherever it is stopped: a reader counts until then
            await super().stream_response(send)


def _message(name: str, data: dict[str, Any], event_id: str) -> bytes:
    return f"event: {name}\nid: {event_id}\ndata: {json_line(data)}\n\n".encode("ascii")
