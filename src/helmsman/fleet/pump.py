"""Write the events of a task to the log of its session: in batches, in order, and without delaying the agent.

Events only go into a buffer. While the database is unavailable, the buffer grows up to a limit; beyond it the oldest
events are dropped, and readers learn how many. Text that is being written is not in the log: the finished item contains it.
It is sent to the clients that follow the task, in whole words, because a secret may be split between two chunks. For the
same reason an unfinished item is stored without text that may still grow.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.base.redaction import RedactedStream
from helmsman.base.structs import replace
from helmsman.fleet.values import CLIENTS
from helmsman.model.codec import encode
from helmsman.model.events import (
    ItemDelta,
    ItemEnded,
    ItemStarted,
    ItemUpdated,
    Notice,
    QuestionAsked,
    TurnEnded,
    UserMessage,
)
from helmsman.store.log import NewEvent

if TYPE_CHECKING:
    from helmsman.fleet.owned_task import OwnedTask
    from helmsman.model.events import Event, Item

BATCH_SECONDS: Final = 0.1
_MOST_EVENTS: Final = 50_000
_MOST_CHARS: Final = 64 * 1024 * 1024
_BATCH_CHARS: Final = 1024 * 1024
_TEXT_CHARS: Final = 1000
"""Characters per notification, which has at most 8000 bytes."""
_GROWING: Final[dict[str, Any]] = {"text": "", "output": "", "result": None, "payload": {}}
"""Fields of items that agents fill piece by piece, and what they are while empty."""


class EventPump:
    """Stores the events of one task. `run` does so until `close`."""

    def __init__(self, owned: OwnedTask) -> None:
        self._owned = owned
        self._buffer: deque[NewEvent] = deque()
        self._size = 0
        self._lost = 0
        self._being_written: dict[str, RedactedStream] = {}
        self._written: dict[str, ItemDelta] = {}
        """Text of each item that was written since the last batch."""
        self._wake = anyio.Event()
        self._is_closing = False
        self.stored = anyio.Event()
        """Set once everything reported before `close` is stored."""

    def put(self, event: Event) -> None:
        """Take in what has happened. Does not wait, and does not raise."""
        # Clients know the session by the fleet's id, not by the agent's.
        event = event.changed(session_id=self._owned.session_id)
        if isinstance(event, ItemDelta):
            # Only whole words are passed on: a secret may be split between two chunks.
            text = self._being_written.setdefault(event.item_id, RedactedStream()).feed(event.text)
            before = self._written.get(event.item_id)
            self._written[event.item_id] = replace(event, text=text if before is None else before.text + text)
            self._wake.set()
            return
        if isinstance(event, QuestionAsked):
            event = event.changed(question=replace(event.question, session_id=event.session_id))
        elif isinstance(event, ItemStarted | ItemUpdated):
            event = event.changed(item=_without_unfinished(event.item))
        elif isinstance(event, ItemEnded):
            # The finished item has the whole text.
            self._being_written.pop(event.item.id, None)
            self._written.pop(event.item.id, None)
        elif isinstance(event, TurnEnded):
            self._being_written.clear()
        self._append(NewEvent.of(event))

    def note(self, message: str) -> None:
        """Take in a remark of the fleet's own."""
        self.put(Notice(session_id=self._owned.session_id, kind="engine", message=message))

    def _append(self, event: NewEvent) -> None:
        self._buffer.append(event)
        self._size += len(event.body)
        # The newest events matter most to a reader that comes back after an outage.
        while len(self._buffer) > _MOST_EVENTS or self._size > _MOST_CHARS:
            self._size -= len(self._buffer.popleft().body)
            self._lost += 1
        self._wake.set()

    async def run(self) -> None:
        """Store events until it is closed and everything is stored.

        Raises:
            NotOwner: Another worker has the task.
        """
        database = self._owned.database
        while True:
            await self._wake.wait()
            if not self._is_closing:
                # A pause before each write collects what happens at the same time.
                await anyio.sleep(BATCH_SECONDS)
            self._wake = anyio.Event()
            while self._buffer or self._lost:
                # Taken from the buffer before writing, so the batch is held here until it is stored.
                await database.keep_trying(partial(self._owned.add_events, self._take()), "an event")
            written, self._written = self._written, {}
            # Text in progress is only sent, never stored, so a lost notification costs nothing.
            await database.notify(
                *(
                    (
                        CLIENTS,
                        f"{self._owned.id} {encode(replace(delta, text=delta.text[start : start + _TEXT_CHARS]))}",
                    )
                    for delta in written.values()
                    for start in range(0, len(delta.text), _TEXT_CHARS)
                )
            )
            if self._is_closing:
                self.stored.set()
                return

    def _take(self) -> list[NewEvent]:
        batch: list[NewEvent] = []
        if self._lost:
            lost, self._lost = f"{self._lost} events are not stored: the database was away for too long.", 0
            batch.append(NewEvent.of(Notice(session_id=self._owned.session_id, kind="engine", message=lost)))
        size = 0
        # At least one event, however large.
        while self._buffer and (size < _BATCH_CHARS or not batch):
            batch.append(self._buffer.popleft())
            size += len(batch[-1].body)
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
