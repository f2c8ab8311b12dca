"""Copies of sessions in other processes. Each copy is a fold over the events of the same log.

The hub sends a copy (`copy_of`) and then every event. The program applies them, and remembers the cursor up to which the log
has them for good. After a reconnect, or when it fell behind, it gets the events after its cursor (`catch_up`) from any hub:
the numbers of the log are the same for all. A copy also carries data that is not an event: the facts, and the state with the
text that is being written.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from helmsman.approvals.deadline import TimeLeft
from helmsman.base.structs import Value, replace
from helmsman.model.codec import decode, encode
from helmsman.sessions.session import repeat_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helmsman.model.events import Event
    from helmsman.sessions.session import Session


EventOnWire: TypeAlias = Sequence[str]
"""Event between processes: its kind and its text (`helmsman.model.codec`), and when it happened."""


def to_wire(event: Event) -> EventOnWire:
    """Return an event as it is sent."""
    return event.event_type(), encode(event), "" if event.at is None else event.at.isoformat()


def from_wire(sent: EventOnWire) -> Event:
    """Return the event that was sent."""
    kind, body, at = sent
    return decode(kind, body).with_time(datetime.fromisoformat(at) if at else None)


class SessionFacts(Value, frozen=True, kw_only=True):
    """Facts of the process that serves a session, which come with no event: clocks, and connections.

    Times are by the clock that all processes of a machine share. `away` are the tasks of queued messages whose client is
    not connected.
    """

    turn_began_at: float | None = None
    turn_cursor: int = 0
    elsewhere: str | None = None
    away: tuple[str, ...] = ()
    deadlines: Mapping[str, TimeLeft] = {}

    def shifted(self, ahead: float) -> SessionFacts:
        """Return the facts by our clock, which is `ahead` seconds ahead of that of their machine."""
        if not ahead:
            return self
        began = self.turn_began_at
        if began is not None:
            began = min(began + ahead, time.monotonic())  # clocks are compared over a line that takes its time
        deadlines = {question_id: left.shifted(ahead) for question_id, left in self.deadlines.items()}
        return replace(self, turn_began_at=began, deadlines=deadlines)


class SessionCopy(Value, frozen=True):
    """Facts and state of a session, its events after some cursor, and the number of the last of them."""

    facts: SessionFacts
    state: Mapping[str, Any]
    events: tuple[EventOnWire, ...]
    cursor: int


def copy_of(session: Session, events: Iterable[Event]) -> SessionCopy:
    """Return the session as it is now, with its newest events."""
    return SessionCopy(facts_of(session), session.state.snapshot(), tuple(map(to_wire, events)), session.feed.cursor)


def facts_of(session: Session) -> SessionFacts:
    """Return the facts of the process that serves a session."""
    return SessionFacts(
        turn_began_at=session.turn_began_at,
        turn_cursor=session.turn_cursor,
        elsewhere=session.elsewhere,
        away=tuple(queued.task_id for queued in session.queue if session.is_away(queued)),
        deadlines={question_id: deadline.time_left for question_id, deadline in session.deadlines.items()},
    )


def apply_facts(session: Session, facts: SessionFacts) -> None:
    """Give a copy what its original reports of clocks and connections."""
    session.become_copy(elsewhere=facts.elsewhere, away=facts.away)
    session.began(facts.turn_began_at, facts.turn_cursor)


def catch_up(session: Session, copy: SessionCopy) -> None:
    """Apply the events that a copy has and the session does not, and take over the state and facts of the original.

    A hub that was killed may have sent events that it never committed. The next hub gives their numbers to other events, or
    reads the same ones from the agent again: those that the session has already are not applied twice.
    """
    # The events between the two are not available, so their numbers are skipped.
    first = copy.cursor - len(copy.events)
    session.feed.miss(first - session.feed.cursor)
    # Counted, since one turn may have several equal events.
    known = Counter(map(repeat_key, session.feed.since(first).events))
    for event in map(from_wire, copy.events):
        key = repeat_key(event)
        if known[key]:
            known[key] -= 1
        else:
            session.apply(event)
    session.feed.renumber(copy.cursor)
    session.restore(copy.state)
    apply_facts(session, copy.facts)
