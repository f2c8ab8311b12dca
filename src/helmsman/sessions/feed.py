"""Live events of a session: a ring of its newest events, and readers.

The ring holds the newest events (never deltas: those are folded into their item), each with its number in the log, so that a
reader can ask for the events after N. Each live reader has its own queue, in which a run of deltas of one item is joined. A
reader that falls behind reads the missed events from the log. Where the log cannot be read, it loses the oldest events, and
knows how many. Ring and queue are limited both in size and in number: a few events can be as large as many.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias

import anyio

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
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence


_MOST_CHARS: Final = 32 * 1024 * 1024
"""Maximum number of characters in a ring, or in the queue of one reader. The newest event is kept whatever its size."""
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
        """Append an event of this size. Return how many were dropped for it."""
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
        """Join a delta with the last one. Return False if it needs its own entry."""
        last = self.events[-1] if self.events else None
        # Only neighbours are joined, so that deltas of two items keep their order.
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


class LoggedEvents(Protocol):
    """Events of a log, oldest first, and the number of the last one."""

    @property
    def events(self) -> Sequence[Event]: ...
    @property
    def cursor(self) -> int: ...


ReadLog: TypeAlias = "Callable[[int], Awaitable[LoggedEvents]]"
"""Returns the events of a log after a cursor. Does not raise."""


class Feed:
    """Events of one session. `read_log` reads those that have left the ring."""

    def __init__(self, size: int, read_log: ReadLog | None = None) -> None:
        self._size = size
        self.read_log = read_log
        self._ring = _Queue(size)
        self._cursor = 0
        self._readers: set[Reader] = set()
        self._changed: anyio.Event | None = None
        """Created by a waiting reader only: most events come while no reader waits."""
        self.closed = False
        """Set when no more events will be published. Wakes all waiting readers."""

    @property
    def cursor(self) -> int:
        """Number of events stored so far."""
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
        """Skip `count` events that never arrived here. Do nothing if `count` is not positive."""
        if count > 0:
            self._cursor += count
            # The ring must have no gap: the numbers of its events are counted back from the last one.
            self._ring = _Queue(self._size)
            for reader in self._readers:
                if self.read_log is not None:
                    reader.fall_behind()
                else:
                    reader.missed += count

    def renumber(self, cursor: int) -> None:
        """Give the newest event the number `cursor`."""
        for reader in self._readers:
            reader.shift(cursor - self._cursor)
        self._cursor = cursor

    def rename(self, session_id: str) -> None:
        """Rename the session in its events. Some agents name a session only with its first turn."""
        for place, event in enumerate(self._ring.events):
            if event.session_id != session_id:
                self._ring.events[place] = event.changed(session_id=session_id)

    def since(self, cursor: int) -> Page:
        kept = self._ring.events
        first = self._cursor - len(kept)
        # A cursor of another log may lie beyond either end.
        start = min(max(cursor, first), self._cursor)
        return Page(tuple(kept)[start - first :], self._cursor, max(0, first - max(cursor, 0)))

    async def changed(self) -> None:
        """Wait for the next event, or for the end of the feed."""
        await self.next_change().wait()

    def next_change(self) -> anyio.Event:
        """Return the event that is set by the next change, or by the end of the feed."""
        if self._changed is None:
            self._changed = anyio.Event()
        if self.closed:
            self._changed.set()
        return self._changed

    def close(self) -> None:
        """Stop publishing and wake all readers. The session itself may continue elsewhere."""
        self.closed = True
        self.wake()
        for reader in self._readers:
            reader.wake()

    def wake(self) -> None:
        """Wake all callers of `changed`, also without a new event."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def read(self, *, since: int | None = None) -> Reader:
        """Return a live reader; `since` gives it the events after that cursor first. Close it when done.

        0 means the first event of the ring.
        """
        page = self.since(self._cursor if since is None else since)
        if since and page.missed and self.read_log is not None:
            reader = Reader(self, self._size, since)
            reader.fall_behind()
        else:
            reader = Reader(self, self._size, self._cursor - len(page.events))
            for event in page.events:
                reader.put(event, _size(event))
            reader.missed += page.missed
        self._readers.add(reader)
        return reader

    def forget(self, reader: Reader) -> None:
        self._readers.discard(reader)


class Reader:
    """Live view of a feed, and a context manager that ends it."""

    def __init__(self, feed: Feed, size: int, cursor: int) -> None:
        self._feed = feed
        self._size = size
        self._queue = _Queue(size)
        self._ready = anyio.Event()
        self._cursor = cursor
        """Number of the last event that `next` returned."""
        self._is_behind = False
        self._logged: deque[Event] = deque()
        """Events of the log that come before those of the queue."""
        self.missed = 0
        """Number of events that this reader lost because it did not read in time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._feed.forget(self)

    def put(self, event: Event, size: int) -> None:
        if not self._is_behind and not (isinstance(event, ItemDelta) and self._queue.join(event)):
            dropped = self._queue.append(event, size)
            if dropped and self._feed.read_log is not None:
                self.fall_behind()
            else:
                self.missed += dropped
        self._ready.set()

    def shift(self, count: int) -> None:
        """Count the events from another number on."""
        self._cursor += count

    def fall_behind(self) -> None:
        """Mark the reader as behind. It reads the events after its last one from the log when it reads again."""
        # The log has the queued events as well.
        self._is_behind = True
        self._queue = _Queue(self._size)

    async def _catch_up(self) -> None:
        assert self._feed.read_log is not None
        logged = await self._feed.read_log(self._cursor)
        if logged.events:
            # The log may have lost its oldest events.
            first = logged.cursor - len(logged.events)
            self.missed += first - self._cursor
            self._cursor = first
            self._logged.extend(logged.events)
        page = self._feed.since(self._cursor + len(self._logged))
        if page.missed and logged.events:
            return  # many events arrived during the read: the log is read again after these
        self._is_behind = False
        self.missed += page.missed
        self._cursor += page.missed
        for event in page.events:
            self._queue.append(event, _size(event))

    def wake(self) -> None:
        self._ready.set()

    async def next(self) -> Event | None:
        """Return the next event, or None after the last one."""
        while not self._logged and not self._queue.events:
            if self._is_behind:
                await self._catch_up()
            elif self._feed.closed:
                return None
            else:
                # Replaced without a wait in between, so no event can slip through.
                self._ready = anyio.Event()
                await self._ready.wait()
        event = self._logged.popleft() if self._logged else self._queue.popleft()
        # Deltas have no number in the log.
        if not isinstance(event, ItemDelta):
            self._cursor += 1
        return event

    def pending(self) -> bool:
        return self._is_behind or bool(self._logged or self._queue.events)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self.next()) is not None:
            yield event
