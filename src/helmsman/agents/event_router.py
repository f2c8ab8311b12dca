"""Deliver each event to the sink of its session, in order.

An agent may mention a session before Helmsman has read the answer that names it, and sub-agents before it says which
session they belong to. Such events wait here, within limits, until a client attaches to the session or a parent adopts
the sub-agent.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from helmsman.agents.protocol import Engine
from helmsman.errors import EngineLost
from helmsman.model.events import EngineGone, Event, Failure, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


log = logging.getLogger(__name__)

EARLY_EVENTS_PER_SESSION: Final = 1000
EARLY_SESSIONS: Final = 1000


class OutputPosition:
    """Line of a supervised process that is being handled. Its events name it as their source."""

    def __init__(self, process: str = "") -> None:
        """`process` is the id of the supervised process; one without an id has no log of its output."""
        self._process = process
        self.offset: int | None = None
        """Offset of the line; None while none is handled."""

    def stamp(self, event: Event) -> None:
        """Name the line as the source of an event that has none yet."""
        # An event that is handled later keeps the line that it came from.
        if self._process and self.offset is not None and event.source is None:
            event.with_source(Source(self._process, self.offset))

    @contextmanager
    def at(self, offset: int | None) -> Iterator[None]:
        """Handle the line at an offset, for the length of the block."""
        before, self.offset = self.offset, offset
        try:
            yield
        finally:
            self.offset = before

    def bound(self, call: Callable[[], object]) -> Callable[[], object]:
        """Return a call that handles the current line later."""
        offset = self.offset

        def handle() -> object:
            with self.at(offset):
                return call()

        return handle


class EventRouter:
    """Router of one engine. All methods are synchronous and called from the event loop."""

    def __init__(self) -> None:
        self.position = OutputPosition()
        """Position in the output, for an engine with a single process."""
        self._sinks: dict[str, Callable[[Event], None]] = {}
        self._early: dict[str, deque[Event]] = {}
        self._parents: dict[str, str] = {}

    def attach(self, session_id: str, sink: Callable[[Event], None]) -> None:
        """Deliver the session's events to `sink`, first those that came before."""
        self._sinks[session_id] = sink
        for event in self._early.pop(session_id, ()):
            self._call(sink, event)

    def detach(self, session_id: str) -> None:
        self._sinks.pop(session_id, None)
        # Sub-agents end with their session; otherwise their events would wait for ever.
        for child in self.children(session_id):
            del self._parents[child]

    def rename(self, session_id: str, name: str) -> None:
        """Deliver the waiting events of a session under the name that its agent has given it."""
        for event in self._early.pop(session_id, ()):
            self.deliver(event.changed(session_id=name))

    def owner(self, session_id: str) -> str | None:
        """Return the session that receives the events: their own, or that of the sub-agent."""
        if session_id in self._sinks:
            return session_id
        parent = self._parents.get(session_id)
        return parent if parent in self._sinks else None

    def parent(self, agent_id: str) -> str | None:
        """Return the session of a sub-agent, whether or not it has a sink."""
        return self._parents.get(agent_id)

    def children(self, session_id: str) -> list[str]:
        """Return the known sub-agents of a session."""
        return [child for child, parent in self._parents.items() if parent == session_id]

    def adopt(self, agent_id: str, parent_id: str) -> None:
        """Deliver the events of a sub-agent to the session that started it, directly or through another sub-agent, from
        now on.
        """
        # A sub-agent of a sub-agent belongs to the session as well.
        session_id = self._parents.get(parent_id, parent_id)
        if agent_id == session_id or agent_id in self._sinks or self._parents.get(agent_id) == session_id:
            return
        self._parents[agent_id] = session_id
        # Its events were kept until now, when the parent is known.
        for event in self._early.pop(agent_id, ()):
            self.deliver(event)

    def deliver(self, event: Event) -> None:
        self.position.stamp(event)
        sink = self._sinks.get(event.session_id)
        if sink is None and (parent := self._parents.get(event.session_id)) is not None:
            # The session's reader gets them, marked with the agent.
            event = event.changed(session_id=parent, agent_id=event.session_id)
            sink = self._sinks.get(parent)
        if sink is None:
            self._keep(event)
        else:
            self._call(sink, event)

    def engine_gone(self, failure: Failure) -> None:
        """Tell every session that its engine is no more, and forget them all."""
        sinks, self._sinks = self._sinks, {}
        self._early.clear()
        self._parents.clear()
        for session_id, sink in sinks.items():
            self._call(sink, EngineGone(session_id=session_id, failure=failure))

    def _keep(self, event: Event) -> None:
        waiting = self._early.get(event.session_id)
        if waiting is None:
            # The oldest is dropped: an agent must not fill the memory with unknown sessions.
            if len(self._early) >= EARLY_SESSIONS:
                self._early.pop(next(iter(self._early)))
            waiting = self._early[event.session_id] = deque(maxlen=EARLY_EVENTS_PER_SESSION)
        waiting.append(event)

    def _call(self, sink: Callable[[Event], None], event: Event) -> None:
        try:
            sink(event)
        except Exception:  # one session's trouble must not stop the reader that serves them all
            log.exception("a sink failed on %s of session %s", type(event).__name__, event.session_id)


class RoutedEngine(Engine):
    """Engine with its own router for events."""

    def __init__(self) -> None:
        self._router = EventRouter()

    def attach(self, session_id: str, sink: Callable[[Event], None]) -> None:
        self._check()
        self._router.attach(session_id, sink)

    def detach(self, session_id: str) -> None:
        self._router.detach(session_id)

    def _check(self) -> None:
        """Raise if the engine is lost."""
        if (lost := self.lost) is not None:
            raise lost.again()


def engine_closed() -> EngineLost:
    """Why an engine is lost that was closed."""
    return EngineLost("The engine was closed. Open another one; sessions continue from disk.")
