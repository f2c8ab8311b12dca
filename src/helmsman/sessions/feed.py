"""Who is told what happened: a ring of past events with a cursor, and live readers.

The ring holds the last events (never deltas: those are folded into their item), each with a number that only grows, so
that a reader can ask for what came since N and is told how many fell off the end. A live reader has a queue of its own,
in which a run of deltas of one item is joined; one that does not read loses the oldest and is told so too. Both have a size
as well as a number: a few events can be as large as many.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Self

import anyio
import anyio.lowlevel

from helmsman.base.structs import Value, replace
from helmsman.model.codec import encode
from helmsman.model.events import (
    CommandExecution,
    DiffUpdated,
    DynamicToolCall,
    Event,
    FileChange,
    HistoryImported,
    ItemDelta,
    ItemEnded,
    ItemStarted,
    ItemUpdated,
    McpToolCall,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


_MOST_CHARS: Final = 32 * 1024 * 1024
"""So much text is kept in a ring, or for one reader. The newest event is kept whatever its size."""
_JOINED_CHARS: Final = 64 * 1024
"""Deltas are joined up to this; copying what came before for each new one must not take longer and longer."""


def _size(event: Event) -> int:
    """About how many characters an event holds."""
    match event:
        case ItemDelta():
            return len(event.text)
        case DiffUpdated():
            return len(event.diff)
        case HistoryImported():
            return len(encode(event))
        case ItemStarted() | ItemUpdated() | ItemEnded():
            match event.item:
                case CommandExecution() as command:
                    return len(command.command) + len(command.output)
                case FileChange() as change:
                    return sum(len(file.diff or "") for file in change.changes)
                case McpToolCall() | DynamicToolCall() as call:
                    return len(call.result or "")
                case item:
                    return len(getattr(item, "text", ""))
        case _:
            return 0


class _Queue:
    """Events, the oldest of which give way to the newest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self.events: deque[Event] = deque()
        self._sizes: deque[int] = deque()

    def append(self, event: Event, size: int) -> int:
        """Take an event of this size in; how many had to give way."""
        self.events.append(event)
        self._sizes.append(size)
        self._size += size
        dropped = 0
        while len(self.events) > 1 and (len(self.events) > self._most or self._size > _MOST_CHARS):
            self.popleft()
            dropped += 1
        return dropped

    def popleft(self) -> Event:
        self._size -= self._sizes.popleft()
        return self.events.popleft()

    def join(self, event: ItemDelta) -> bool:
        """Make a delta part of the last one; False if it must stand by itself."""
        last = self.events[-1] if self.events else None
        if not isinstance(last, ItemDelta) or last.item_id != event.item_id or len(last.text) > _JOINED_CHARS:
            return False
        self.events[-1] = replace(last, text=last.text + event.text)
        self._sizes[-1] += len(event.text)
        self._size += len(event.text)
        return True


class Page(Value, frozen=True):
    """Events since a cursor, the cursor to ask with next time, and how many were lost in between."""

    events: tuple[Event, ...]
    cursor: int
    missed: int


class Feed:
    """The events of one session."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ring = _Queue(size)
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
        size = _size(event)
        if not isinstance(event, ItemDelta):
            self._ring.append(event, size)
            self._cursor += 1
        for reader in self._readers:
            reader.put(event, size)
        self.wake()

    def start_at(self, cursor: int) -> None:
        """Number the next event `cursor` + 1."""
        self.miss(cursor - self._cursor)

    def miss(self, count: int) -> None:
        """So many events never came here; nothing if it is not more than none."""
        if count > 0:
            self._cursor += count
            self._ring = _Queue(self._size)
            for reader in self._readers:
                reader.missed += count

    def renumber(self, cursor: int) -> None:
        """Give the newest event the number `cursor`."""
        self._cursor = cursor

    def rename(self, session_id: str) -> None:
        """Some agents name a session only with its first turn: what was told of it before is of the same one."""
        for place, event in enumerate(self._ring.events):
            if event.session_id != session_id:
                self._ring.events[place] = replace(event, session_id=session_id)

    def since(self, cursor: int) -> Page:
        kept = self._ring.events
        first = self._cursor - len(kept)
        start = min(max(cursor, first), self._cursor)
        return Page(tuple(kept)[start - first :], self._cursor, max(0, first - max(cursor, 0)))

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
        self.wake()
        for reader in self._readers:
            reader.wake()

    def wake(self) -> None:
        """Wake those who wait for a change; there may be no new event."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def read(self, *, since: int | None = None) -> Reader:
        """A live reader; `since` gives it the stored events from that cursor first. Close it when done."""
        reader = Reader(self, self._size)
        if since is not None:
            page = self.since(since)
            for event in page.events:
                reader.put(event, _size(event))
            reader.missed += page.missed
        self._readers.add(reader)
        return reader

    def forget(self, reader: Reader) -> None:
        self._readers.discard(reader)


class Reader:
    """A live view of a feed, and a context manager that ends it."""

    def __init__(self, feed: Feed, size: int) -> None:
        self._feed = feed
        self._queue = _Queue(size)
        self._ready = anyio.Event()
        self.missed = 0
        """How many events this reader lost by not reading in time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._feed.forget(self)

    def put(self, event: Event, size: int) -> None:
        if not isinstance(event, ItemDelta) or not self._queue.join(event):
            self.missed += self._queue.append(event, size)
        self._ready.set()

    def wake(self) -> None:
        self._ready.set()

    async def next(self) -> Event | None:
        """The next event; None when there will be none any more."""
        while not self._queue.events:
            if self._feed.closed:
                return None
            self._ready = anyio.Event()
            await self._ready.wait()
        return self._queue.popleft()

    def pending(self) -> bool:
        return bool(self._queue.events)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self.next()) is not None:
            yield event
