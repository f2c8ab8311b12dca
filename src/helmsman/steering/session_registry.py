"""Sessions of a process, which all its clients share, and the listeners to their events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from helmsman.base.concurrency import OnceEach
from helmsman.sessions.session import Session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helmsman.model.events import Event


class SessionRegistry:
    """Sessions of a process, for all clients, and the listeners to their events."""

    def __init__(self) -> None:
        self.by_id: dict[str, Session] = {}
        self.at_work: dict[str, Session] = {}
        """Sessions with a running turn or a queued message. Every start checks them, and they are few among many."""
        self.elsewhere: dict[str, Callable[[], Awaitable[None]]] = {}
        """Functions that refresh sessions with a turn in another process: only the store has the end of that turn."""
        self.has_elsewhere = anyio.Event()
        """Set when `elsewhere` gets an entry, for the task that waits for the first."""
        self.sending: set[str] = set()
        """Sessions with a first queued message that is about to be sent."""
        self.restored = OnceEach[Session]()
        self.listeners: list[Callable[[Session, Event], None]] = []

    def listen(self, listener: Callable[[Session, Event], None]) -> Callable[[], None]:
        """Call a listener for the events of all sessions, until the returned function is called. Calling it
        twice is safe.
        """

        def stop() -> None:
            if listener in self.listeners:
                self.listeners.remove(listener)

        self.listeners.append(listener)
        return stop

    def on_event(self, session: Session, _event: Event) -> None:
        """Keep `at_work` up to date."""
        if session.state.is_running or session.queue:
            self.at_work[session.id] = session
        else:
            self.at_work.pop(session.id, None)
