"""Tests that each event reaches its session, in order."""

from __future__ import annotations

import pytest

from helmsman.agents import event_router
from helmsman.agents.event_router import EventRouter
from helmsman.model.events import EngineGone, Event, Failure, Notice, TurnStarted


def note(session: str, text: str = "x") -> Notice:
    return Notice(session_id=session, kind="warning", message=text)


def test_events_that_come_early_are_kept_and_come_first() -> None:
    router, got = EventRouter(), list[Event]()
    router.deliver(note("not yet named", "1"))
    router.rename("not yet named", "a")
    router.deliver(note("a", "2"))
    router.attach("a", got.append)
    router.deliver(note("a", "3"))
    assert [event.message for event in got if isinstance(event, Notice)] == ["1", "2", "3"]
    assert {event.session_id for event in got} == {"a"}


def test_early_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_router, "EARLY_EVENTS_PER_SESSION", 2)
    monkeypatch.setattr(event_router, "EARLY_SESSIONS", 2)
    router, got = EventRouter(), list[Event]()
    for text in "123":
        router.deliver(note("b", text))
    router.deliver(note("c"))
    router.attach("b", got.append)
    assert [event.message for event in got if isinstance(event, Notice)] == ["2", "3"]
    router.deliver(note("d"))
    router.deliver(note("e"))
    router.deliver(note("f"))  # pushes the oldest stranger out
    late: list[Event] = []
    router.attach("c", late.append)
    router.attach("d", late.append)
    router.attach("f", late.append)
    assert [event.session_id for event in late] == ["f"]


def test_a_sub_agents_events_go_to_the_session_that_started_it() -> None:
    router, got = EventRouter(), list[Event]()
    router.attach("parent", got.append)
    router.deliver(TurnStarted(session_id="child", turn_id="t"))
    router.adopt("child", "parent")
    router.deliver(TurnStarted(session_id="child", turn_id="u"))
    assert got == [
        TurnStarted(session_id="parent", turn_id="t", agent_id="child"),
        TurnStarted(session_id="parent", turn_id="u", agent_id="child"),
    ]


def test_a_grandchild_belongs_to_the_session_at_the_root() -> None:
    router, got = EventRouter(), list[Event]()
    router.attach("root", got.append)
    router.adopt("child", "root")
    router.adopt("grandchild", "child")
    router.deliver(note("grandchild"))
    assert [(event.session_id, event.agent_id) for event in got] == [("root", "grandchild")]
    assert router.owner("grandchild") == "root"
    assert sorted(router.children("root")) == ["child", "grandchild"]


def test_no_callback_runs_after_detaching() -> None:
    router, got = EventRouter(), list[Event]()
    router.attach("a", got.append)
    router.adopt("child", "a")
    router.detach("a")
    router.deliver(note("a"))
    assert got == []
    assert router.owner("child") is None


def test_a_failing_sink_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    router, got = EventRouter(), list[Event]()

    def broken(event: Event) -> None:
        raise ZeroDivisionError

    router.attach("broken", broken)
    router.attach("fine", got.append)
    router.deliver(note("broken"))
    router.deliver(note("fine"))
    assert len(got) == 1
    assert "a sink failed" in caplog.text


def test_every_session_learns_that_the_engine_is_gone() -> None:
    router, got = EventRouter(), list[Event]()
    router.attach("a", got.append)
    router.attach("b", got.append)
    failure = Failure(code="engine_lost", message="gone")
    router.engine_gone(failure)
    router.engine_gone(failure)
    assert got == [EngineGone(session_id="a", failure=failure), EngineGone(session_id="b", failure=failure)]
