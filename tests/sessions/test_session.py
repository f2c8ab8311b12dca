"""What a session does with an event besides folding it: it tells its listeners, and keeps no more than it needs."""

from __future__ import annotations

from typing import Any, cast

from helmsman.model.events import AgentMessage, Event, ItemEnded, SettingsApplied, TurnRequested
from helmsman.sessions.feed import Feed
from helmsman.sessions.session import Session, Verbs
from helmsman.sessions.state import SessionState


def test_the_agents_own_message_reaches_listeners_and_is_not_kept() -> None:
    heard: list[Any] = []

    def listener(_session: Session, event: Event) -> None:
        heard.append(event.raw)

    session = Session(SessionState("s"), Feed(10), cast("Verbs", None), [listener])
    message = {"item": {"type": "agentMessage", "text": "hi"}}
    with session.feed.read() as reader:
        session.apply(TurnRequested(session_id="s", text="go"))
        session.apply(ItemEnded(session_id="s", item=AgentMessage(id="m", text="hi")).with_raw(message))
        assert reader.pending()
    assert heard == [None, message]
    assert [event.raw for event in session.feed.since(0).events] == [None, None]


def test_events_before_the_agent_names_the_session_carry_its_name() -> None:
    session = Session(SessionState("provisional"), Feed(10), cast("Verbs", None), None)
    session.apply(TurnRequested(session_id="provisional", text="go"))
    session.apply(SettingsApplied(session_id="s"))
    session.introduce([])
    assert [event.session_id for event in session.feed.since(0).events] == ["s", "s"]
