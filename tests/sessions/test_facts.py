"""Every fact of a session is an event: a session that is loaded from its log has the same facts, and no secrets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast
from unittest import mock

import pytest

from helmsman.base.clients import McpClient
from helmsman.base.files import DirectoryIdentity
from helmsman.errors import OutcomeUnknown
from helmsman.git.worktree import Worktree
from helmsman.model.codec import decode
from helmsman.model.events import (
    AnswerGiven,
    CommandExecution,
    Event,
    Failure,
    GoalChanged,
    HandedOver,
    InterruptFailed,
    InterruptRequested,
    ItemEnded,
    MessageDelayed,
    MessageQueued,
    MessageUnqueued,
    OptionsChanged,
    OwnerChanged,
    PlaceRecorded,
    QuestionAsked,
    RuleAdded,
    SteerFailed,
    SteerRequested,
    TurnEnded,
    TurnRequested,
    UserMessage,
    WorktreeAssigned,
)
from helmsman.model.options import SessionOptions, TurnLimits
from helmsman.model.questions import Prompt, own_question
from helmsman.model.rules import Rule
from helmsman.service import HelmsmanService
from helmsman.sessions.feed import Feed
from helmsman.sessions.history import items_with_prompt, turns_of
from helmsman.sessions.session import Session, Verbs
from helmsman.sessions.state import SessionState
from helmsman.store.log import NewEvent
from helmsman.tasks.call_key import CallKey, call_key
from tests.played import PlayedAgent, PlayedEngine
from tests.sessions.test_service_properties import unhurried

S = "s-1"
SECRET = "sk-abcdefghijklmnopqrstuvwxyz0123456789"
TREE = Worktree(
    path=Path("/state/worktrees/a"),
    directory=Path("/state/worktrees/a/part"),
    branch="helmsman/a",
    base="0123",
    repository=Path("/repo"),
    git_dir=Path("/repo/.git/worktrees/a"),
    repository_git_dir=Path("/repo/.git"),
    session_id=S,
    owner_pid=1,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)
OPTIONS = SessionOptions(
    cwd=Path("/repo"), writes="workspace", asks="when_needed", writable_roots=(Path("/more"),), config={"a": {"b": 1}}
)


class Logged:
    """A session whose events are stored as the log stores them."""

    def __init__(self) -> None:
        self.log: list[NewEvent] = []
        self.session = Session(SessionState(S), Feed(100), cast("Verbs", None), [self._append])

    def _append(self, _session: Session, event: Event) -> None:
        self.log.append(NewEvent.of(event))

    def loaded(self) -> Session:
        """Return the session as another process loads it."""
        session = Session(SessionState(S), Feed(100), cast("Verbs", None))
        stored = [one.redacted() for one in self.log]
        events = [decode(one.kind, one.body).with_time(datetime.fromtimestamp(one.at / 1e6, UTC)) for one in stored]
        session.replay(events, len(events))
        return session


@pytest.fixture
def logged() -> Logged:
    return Logged()


def facts(session: Session) -> tuple[object, ...]:
    return (
        *(
            session.options,
            session.state.limits,
            session.worktree,
            session.state.place,
            session.opened_by,
            session.notes,
        ),
        *(
            session.state.goal,
            session.state.rules,
            session.state.handed_over_from,
            tuple(session.task_ids),
            tuple(session.queue),
        ),
        *(
            session.state.output_schema,
            session.state.turn_kind,
            dict(session.state.asked_at),
        ),
        session.state.changed_at,
    )


def test_a_loaded_session_has_the_same_facts(logged: Logged) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    session = logged.session
    for event in (
        OptionsChanged(session_id=S, options=OPTIONS, limits=TurnLimits(first_event=3.0, on_limit="wait")),
        WorktreeAssigned(session_id=S, worktree=TREE),
        PlaceRecorded(session_id=S, place=DirectoryIdentity(1, 2)),
        OwnerChanged(session_id=S, owner=McpClient("c", "claude")),
        HandedOver(session_id=S, from_session="other"),
        GoalChanged(session_id=S, goal="green tests"),
        RuleAdded(session_id=S, rule=Rule(effect="allow", command=("make", "test"))),
        TurnRequested(session_id=S, text="go", task_id="T-1", kind="plan", output_schema={"type": "object"}),
        MessageQueued(session_id=S, task_id="T-2", text="then"),
        MessageQueued(session_id=S, task_id="T-3", text="never"),
        MessageQueued(session_id=S, task_id="T-4", text="first", first=True),
        MessageDelayed(session_id=S, task_id="T-2", not_before=later),
        MessageUnqueued(session_id=S, task_id="T-3"),
        QuestionAsked(session_id=S, question=own_question(S, None, Prompt(text="Go on?"), {})),
    ):
        session.apply(event)
    session.remark("one")
    session.remark("two")
    loaded = logged.loaded()
    assert [queued.task_id for queued in loaded.queue] == ["T-4", "T-2"]
    assert loaded.notes == ("one", "two")
    assert facts(loaded) == facts(session)
    assert loaded.state.created_at == datetime.fromtimestamp(logged.log[0].at / 1e6, UTC)
    assert loaded.turn_seconds is not None
    assert loaded.turn_seconds < 60


def test_a_message_that_is_sent_does_not_wait_any_longer(logged: Logged) -> None:
    session = logged.session
    session.apply(MessageQueued(session_id=S, task_id="T-1", text="go"))
    session.apply(TurnRequested(session_id=S, text="go", task_id="T-1"))
    assert (session.queue, logged.loaded().queue, session.task_ids) == ((), (), ("T-1",))


def test_a_queued_message_cannot_run_before_it_is_attached(logged: Logged) -> None:
    logged.session.apply(MessageQueued(session_id=S, task_id="T-1", text="go"))
    loaded = logged.loaded()
    (queued,) = loaded.queue
    assert loaded.is_away(queued)
    assert not loaded.has_queued_turns


def test_options_that_hold_a_secret_are_left_out_of_the_log(logged: Logged) -> None:
    held = SessionOptions(writes="nothing", config={"key": SECRET, "a": 1}, developer_instructions=f"Use {SECRET}.")
    logged.session.apply(OptionsChanged(session_id=S, options=held))
    assert logged.session.options == held
    assert logged.loaded().options == SessionOptions(writes="nothing")
    assert SECRET not in str([one.redacted() for one in logged.log])


def test_a_rule_with_a_secret_is_not_half_stored(logged: Logged) -> None:
    logged.session.apply(
        RuleAdded(session_id=S, rule=Rule(effect="allow", command=("curl", "-u", "me:hunter2hunter2")))
    )
    assert len(logged.session.state.rules) == 1
    assert logged.loaded().state.rules == ()


def test_a_schema_with_a_secret_is_not_half_stored(logged: Logged) -> None:
    schema = {"type": "object", "default": SECRET}
    logged.session.apply(TurnRequested(session_id=S, text=f"Use {SECRET}", output_schema=schema))
    loaded = logged.loaded()
    assert (loaded.state.output_schema, loaded.state.prompt) == (None, "Use [redacted]")


def test_options_that_make_no_sense_take_earlier_ones_away(logged: Logged) -> None:
    session = logged.session
    session.apply(OptionsChanged(session_id=S, options=SessionOptions(cwd=Path("/repo"), writes="anything")))
    session.apply(TurnEnded(session_id=S, outcome="completed"))
    session.apply(decode("options_changed", '{"sessionId": "s-1", "options": {"writes": "all"}}'))
    assert session.options == SessionOptions(cwd=Path("/repo"))


@pytest.mark.anyio
async def test_a_session_of_a_killed_process_has_its_facts(tmp_path: Path) -> None:
    agent = PlayedAgent()
    async with HelmsmanService(unhurried(tmp_path), agents=[agent]) as killed:
        session = await killed.start("go", cwd=tmp_path, agent=agent.name, approval_policy="untrusted")
        session.apply(RuleAdded(session_id=session.id, rule=Rule(effect="allow", command=("make",))))
        session.apply(GoalChanged(session_id=session.id, goal="green tests"))
        session.remark("Look at this.")
        await killed.say(session.id, "later", when_busy="queue")
        await killed.task_writer.write()
        async with HelmsmanService(unhurried(tmp_path), agents=[agent]) as helm:
            loaded = await helm.session(session.id)
            assert facts(loaded) == facts(session)
            assert [queued.text for queued in loaded.queue] == ["later"]


def test_a_turn_that_was_about_to_be_stopped_is_still_being_stopped_after_a_restart(logged: Logged) -> None:
    silent = Failure(code="turn_timed_out", message="Silent for too long.")
    session = logged.session
    session.apply(TurnRequested(session_id=S, text="go"))
    session.apply(InterruptRequested(session_id=S, failure=silent))
    loaded = logged.loaded()
    assert (loaded.state.is_interrupting, loaded.state.end_as) == (True, silent)
    loaded.apply(TurnEnded(session_id=S, outcome="interrupted"))
    assert (loaded.status, loaded.error) == ("error", silent)
    assert (loaded.state.is_interrupting, loaded.state.end_as) == (False, None)


def test_an_answer_that_was_given_before_a_hub_was_killed_is_in_the_history_unless_its_agent_asks_again(
    logged: Logged,
) -> None:
    question = own_question(S, None, Prompt(text="Run it?"), {})
    given = AnswerGiven(session_id=S, question_id=question.id, answer="approve", by="person", about="Run it?")
    logged.session.apply(TurnRequested(session_id=S, text="go"))
    logged.session.apply(QuestionAsked(session_id=S, question=question))
    logged.session.apply(given)
    answered, asked_again = logged.loaded(), logged.loaded()
    asked_again.apply(QuestionAsked(session_id=S, question=question))
    for session in (answered, asked_again):
        session.apply(ItemEnded(session_id=S, item=CommandExecution(id="1", command="make")))
        session.apply(TurnEnded(session_id=S, outcome="completed"))
    (turn,) = turns_of(S, answered.feed.since(0).events)
    assert [item.type for item in turn.items] == ["user_message", "decision", "command_execution"]
    assert answered.state.decisions(None)[0].outcome == "approved by you"
    assert asked_again.state.decisions(None) == ()


def test_a_turn_that_could_not_be_stopped_ends_as_it_ends(logged: Logged) -> None:
    session = logged.session
    session.apply(TurnRequested(session_id=S, text="go"))
    session.apply(InterruptRequested(session_id=S, failure=Failure(code="x", message="x")))
    session.apply(InterruptFailed(session_id=S))
    session.apply(TurnEnded(session_id=S, outcome="interrupted"))
    assert (session.status, logged.loaded().status) == ("interrupted", "interrupted")


@pytest.mark.anyio
async def test_an_interrupt_and_a_steer_are_logged_before_the_agent_receives_them(tmp_path: Path) -> None:
    agent = PlayedAgent()
    async with HelmsmanService(unhurried(tmp_path), agents=[agent]) as helm:
        session = await helm.start("go", cwd=tmp_path, agent=agent.name)
        engine = cast("PlayedEngine", session.engine)
        heard: list[list[str]] = []

        async def hear(*_: object) -> None:
            heard.append([type(event).__name__ for event in session.feed.since(0).events])

        with mock.patch.object(engine, "steer", hear), mock.patch.object(engine, "interrupt", hear):
            await session.steer("faster")
            await session.interrupt()
        assert [names[-1] for names in heard] == ["SteerRequested", "InterruptRequested"]


def test_a_message_into_a_turn_stands_where_it_was_sent_also_after_a_restart(logged: Logged) -> None:
    session = logged.session
    session.apply(TurnRequested(session_id=S, text="go"))
    session.apply(ItemEnded(session_id=S, item=CommandExecution(id="1", command="make")))
    session.apply(SteerRequested(session_id=S, text="faster"))
    for loaded in (session, logged.loaded()):
        assert [item.summary() for item in items_with_prompt(loaded.state)] == ["go", "make", "faster"]
        assert loaded.state.items_and_decisions[-1].status == "in_progress"
    session.apply(ItemEnded(session_id=S, item=CommandExecution(id="2", command="make test")))
    session.apply(ItemEnded(session_id=S, item=UserMessage(id="3", text="faster")))
    session.apply(SteerRequested(session_id=S, text="too late"))
    session.apply(SteerRequested(session_id=S, text="refused"))
    session.apply(TurnEnded(session_id=S, outcome="completed"))
    session.apply(SteerFailed(session_id=S, text="refused"))
    for events in (session.feed.since(0).events, logged.loaded().feed.since(0).events):
        (turn,) = turns_of(S, events)
        assert [(item.summary(), item.status) for item in turn.items] == [
            *(("go", "completed"), ("make", "completed"), ("faster", "completed"), ("make test", "completed")),
            ("too late", "failed"),
        ]


@pytest.mark.anyio
async def test_a_repeated_message_into_a_turn_is_sent_unless_a_hub_was_about_to_send_it(tmp_path: Path) -> None:
    agent = PlayedAgent()
    async with HelmsmanService(unhurried(tmp_path), agents=[agent]) as helm:
        session = await helm.start("go", cwd=tmp_path, agent=agent.name)
        sent: list[str] = []

        async def hear(_session_id: str, text: str) -> None:
            sent.append(text)

        call_key.set(CallKey("client:7", is_repeated=True))
        with mock.patch.object(session.engine, "steer", hear):
            await helm.say(session.id, "faster", when_busy="steer")
            await helm.task_writer.write()
            with pytest.raises(OutcomeUnknown):
                await helm.say(session.id, "faster", when_busy="steer")
        call_key.set(None)
        assert sent == ["faster"]
        (steered,) = [event for event in session.feed.since(0).events if isinstance(event, SteerRequested)]
        assert (steered.text, steered.call) == ("faster", "client:7")
