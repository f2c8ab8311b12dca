"""Who is told what happened: a ring of past events with a cursor, and live readers.

The ring holds the last events (never deltas: those are folded into their item), each with a number that only grows, so
that a reader can ask for what came since N and is told how many fell off the end. A live reader has a queue of its own,
in which a run of deltas of one item is joined; one that does not read loses the oldest and is told so too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import anyio
import anyio.lowlevel

from helmsman.events import Event, ItemDelta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass(frozen=True, slots=True)
class Page:
    """Events since a cursor, the cursor to ask with next time, and how many were lost in between."""

    events: tuple[Event, ...]
    cursor: int
    missed: int


class Feed:
    """The events of one session."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ring: deque[Event] = deque(maxlen=size)
        self._cursor = 0
        self._readers: set[Reader] = set()
        self._changed: anyio.Event | None = None
        """Made by whoever waits: most events come while nobody does."""
        self.closed = False
        """Nobody will publish here any more: whoever waits goes on."""

    @property
    def cursor(self) -> int:
        """The number of events stored so far."""
        return self._cursor

    def publish(self, event: Event) -> None:
        if not isinstance(event, ItemDelta):
            self._ring.append(event)
            self._cursor += 1
        for reader in self._readers:
            reader.put(event)
        self._wake()

    def since(self, cursor: int) -> Page:
        first = self._cursor - len(self._ring)
        start = min(max(cursor, first), self._cursor)
        return Page(tuple(self._ring)[start - first :], self._cursor, max(0, first - max(cursor, 0)))

    async def changed(self) -> None:
        """Wait for the next event, or for the end of the feed."""
        if self.closed:
            await anyio.lowlevel.checkpoint()
            return
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    def close(self) -> None:
        """What happens from now on is not seen here any more, though it may go on."""
        self.closed = True
        self._wake()
        for reader in self._readers:
            reader.wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def read(self, *, since: int | None = None) -> Reader:
        """A live reader; `since` gives it the stored events from that cursor first. Close it when done."""
        reader = Reader(self, self._size)
        if since is not None:
            page = self.since(since)
            for event in page.events:
                reader.put(event)
            reader.missed += page.missed
        self._readers.add(reader)
        return reader

    def forget(self, reader: Reader) -> None:
        self._readers.discard(reader)


class Reader:
    """A live view of a feed, and a context manager that ends it."""

    def __init__(self, feed: Feed, size: int) -> None:
        self._feed = feed
        self._size = size
        self._queue: deque[Event] = deque()
        self._ready = anyio.Event()
        self.missed = 0
        """How many events this reader lost by not reading in time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._feed.forget(self)

    def put(self, event: Event) -> None:
        last = self._queue[-1] if self._queue else None
        if isinstance(event, ItemDelta) and isinstance(last, ItemDelta) and last.item_id == event.item_id:
            self._queue[-1] = replace(last, text=last.text + event.text)
        else:
            if len(self._queue) >= self._size:
                self._queue.popleft()
                self.missed += 1
            self._queue.append(event)
        self._ready.set()

    def wake(self) -> None:
        self._ready.set()

    async def next(self) -> Event | None:
        """The next event; None when there will be none any more."""
        while not self._queue:
            if self._feed.closed:
                return None
            self._ready = anyio.Event()
            await self._ready.wait()
        return self._queue.popleft()

    def pending(self) -> bool:
        return bool(self._queue)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self.next()) is not None:
            yield event
