"""Write the events of a task to the database: in batches, in order, and without delaying the agent.

Events only go into a buffer. While the database is unavailable, the buffer grows up to a limit. Beyond it, streamed
text is dropped first, because the finished item contains it, then the oldest events, and readers learn how many.
Streamed text is stored in whole words, because a secret may be split between two chunks. For the same reason an
unfinished item is stored without text that may still grow.
"""

from __future__ import annotations

import json
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.base.redaction import RedactedStream
from helmsman.base.structs import pack, replace
from helmsman.model.events import ItemDelta, ItemEnded, ItemStarted, ItemUpdated, TurnEnded, UserMessage

if TYPE_CHECKING:
    from helmsman.fleet.owned_task import OwnedTask
    from helmsman.model.events import Event, Item

BATCH_SECONDS: Final = 0.1
_MOST_EVENTS: Final = 50_000
_MOST_CHARS: Final = 64 * 1024 * 1024
_BATCH_CHARS: Final = 1024 * 1024
_GROWING: Final[dict[str, Any]] = {"text": "", "output": "", "result": None, "payload": {}}
"""Fields of items that agents fill piece by piece, and what they are while empty."""


class EventPump:
    """Stores the events of one task. `run` does so until `close`."""

    def __init__(self, owned: OwnedTask) -> None:
        self._owned = owned
        self._buffer: deque[tuple[Any, int, bool]] = deque()
        self._size = 0
        self._lost = 0
        self._being_written: dict[str, RedactedStream] = {}
        self._wake = anyio.Event()
        self._is_closing = False
        self.stored = anyio.Event()
        """Set once everything reported before `close` is stored."""

    def put(self, event: Event) -> None:
        """Take in what has happened. Does not wait, and does not raise."""
        if isinstance(event, ItemDelta):
            text = self._being_written.setdefault(event.item_id, RedactedStream()).feed(event.text)
            if text:
                self._append(pack(replace(event, text=text)), True)
            return
        if isinstance(event, ItemStarted | ItemUpdated):
            event = replace(event, item=_without_unfinished(event.item))
        elif isinstance(event, ItemEnded):
            self._being_written.pop(event.item.id, None)
        elif isinstance(event, TurnEnded):
            self._being_written.clear()
        self._append(pack(event), False)

    def note(self, fact: str, **more: Any) -> None:
        """Take in a fact of the fleet's own."""
        self._append({"fleet": fact, **more}, False)

    def _append(self, content: Any, is_delta: bool) -> None:
        size = len(json.dumps(content))
        self._buffer.append((content, size, is_delta))
        self._size += size
        if len(self._buffer) > _MOST_EVENTS or self._size > _MOST_CHARS:
            self._make_room()
        self._wake.set()

    def _make_room(self) -> None:
        kept = deque(part for part in self._buffer if not part[2])
        while kept and (len(kept) > _MOST_EVENTS // 2 or sum(part[1] for part in kept) > _MOST_CHARS // 2):
            kept.popleft()
            self._lost += 1
        self._buffer, self._size = kept, sum(part[1] for part in kept)

    async def run(self) -> None:
        """Store events until it is closed and everything is stored.

        Raises:
            NotOwner: Another worker has the task.
        """
        while True:
            await self._wake.wait()
            if not self._is_closing:
                await anyio.sleep(BATCH_SECONDS)
            self._wake = anyio.Event()
            while self._buffer or self._lost:
                await self._owned.database.keep_trying(partial(self._owned.add_events, self._take()), "an event")
            if self._is_closing:
                self.stored.set()
                return

    def _take(self) -> list[Any]:
        batch: list[Any] = []
        if self._lost:
            batch, self._lost = [{"fleet": "lost", "events": self._lost}], 0
        size = 0
        while self._buffer and (size < _BATCH_CHARS or not batch):
            content, length, _ = self._buffer.popleft()
            batch.append(content)
            size += length
        self._size -= size
        return batch

    async def close(self) -> None:
        """Accept no more events, and wait until all are stored."""
        self._is_closing = True
        self._wake.set()
        await self.stored.wait()


def _without_unfinished(item: Item) -> Item:
    if isinstance(item, UserMessage):
        return item
    return replace(item, **{name: empty for name, empty in _GROWING.items() if hasattr(item, name)})
