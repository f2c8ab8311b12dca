"""The state of a session is a fold over its events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.base.truncate import KEPT_CHARS
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    DiffUpdated,
    EngineGone,
    Event,
    Failure,
    Item,
    ItemDelta,
    ItemEnded,
    ItemStarted,
    ItemUpdated,
    ModelUsage,
    Notice,
    QuestionAsked,
    QuestionClosed,
    Reasoning,
    SessionRenamed,
    SettingsApplied,
    TodoList,
    TurnEnded,
    TurnRequested,
    TurnsForgotten,
    TurnStarted,
    Unknown,
    Usage,
    UsageReported,
    UserMessage,
)
from helmsman.model.questions import Prompt, Question
from helmsman.sessions.state import SessionState

S = "session"


def state_after(*events: Event) -> SessionState:
    state = SessionState(S)
    for event in events:
        state.apply(event)
    return state


def requested(text: str = "do it") -> TurnRequested:
    return TurnRequested(session_id=S, text=text)


def started(turn: str = "t1") -> TurnStarted:
    return TurnStarted(session_id=S, turn_id=turn)


def ended(turn: str | None = "t1", *, failure: Failure | None = None, interrupted: bool = False) -> TurnEnded:
    outcome = "interrupted" if interrupted else "failed" if failure else "completed"
    return TurnEnded(session_id=S, turn_id=turn, outcome=outcome, failure=failure)  # type: ignore[arg-type]


def item_started(item: Item, turn: str = "t1") -> ItemStarted:
    return ItemStarted(session_id=S, turn_id=turn, item=item)


def item_ended(item: Item, turn: str = "t1") -> ItemEnded:
    return ItemEnded(session_id=S, turn_id=turn, item=item)


def delta(item_id: str, text: str, kind: str = "agent_message") -> ItemDelta:
    return ItemDelta(session_id=S, turn_id="t1", item_id=item_id, item_type=kind, text=text)


def asked(question_id: str = "q", agent: str | None = None) -> QuestionAsked:
    question = Question(
        asker="Codex",
        id=question_id,
        type="command_approval",
        session_id=S,
        turn_id="t1",
        prompts=(Prompt(text="?", options=("approve",)),),
    )
    return QuestionAsked(session_id=S, turn_id="t1", agent_id=agent, question=question)


def closed(question_id: str = "q") -> QuestionClosed:
    return QuestionClosed(session_id=S, question_id=question_id, answer="approve", by="person")


def message(text: str, item_id: str = "m", phase: str | None = None) -> AgentMessage:
    return AgentMessage(id=item_id, text=text, phase=phase)


# --- turns -----------------------------------------------------------------------------------------------------------


def test_forgotten_turns_leave_what_was_before_them() -> None:
    state = state_after(
        requested(), started(), item_ended(message("first")), ended(), requested(), started("t2"),
        item_ended(message("second"), "t2"), ended("t2", failure=Failure(code="x", message="y")),
        TurnsForgotten(session_id=S, count=1, final_message="first"),
    )  # fmt: skip
    assert (state.status, state.result, state.error, state.items) == ("done", "first", None, [])
    assert state.turn_count == 1


def test_no_turns_are_forgotten_under_a_running_one() -> None:
    state = state_after(requested(), started(), TurnsForgotten(session_id=S, count=1))
    assert (state.status, state.turn_count) == ("active", 1)


def test_a_request_makes_a_session_active_before_codex_says_anything() -> None:
    state = state_after(requested())
    assert (state.status, state.turn_count, state.prompt) == ("active", 1, "do it")


def test_a_completed_turn_gives_the_last_message_as_its_result() -> None:
    state = state_after(
        requested(), started(), item_ended(message("one", "a")), item_ended(message("two", "b")), ended()
    )
    assert (state.status, state.result) == ("done", "two")


def test_a_message_marked_as_final_is_the_result_even_if_a_comment_follows() -> None:
    state = state_after(
        requested(),
        item_ended(message("answer", "a", "final_answer")),
        item_ended(message("by the way", "b", "commentary")),
        ended(),
    )
    assert state.result == "answer"


def test_a_failed_turn_keeps_the_reason_and_gives_no_result() -> None:
    failure = Failure(code="rate_limited", message="slow down", retryable=True)
    state = state_after(requested(), item_ended(message("half")), ended(failure=failure))
    assert (state.status, state.error, state.result) == ("error", failure, None)


def test_a_failure_without_a_reason_still_has_one() -> None:
    state = state_after(requested(), TurnEnded(session_id=S, turn_id="t1", outcome="failed"))
    assert state.error is not None


def test_the_next_message_makes_any_ended_session_active_again() -> None:
    for end in (ended(), ended(interrupted=True), ended(failure=Failure(code="x", message="y"))):
        state = state_after(requested(), started(), end, requested("more"), started("t2"))
        assert (state.status, state.turn_count, state.error, state.result, state.items) == ("active", 2, None, None, [])


def test_the_end_of_another_turn_changes_nothing() -> None:
    assert state_after(requested(), started("t2"), ended("t1")).status == "active"


def test_a_start_that_arrives_after_its_turns_end_does_not_revive_it() -> None:
    assert state_after(requested(), started(), ended(), started()).status == "done"


def test_a_turn_without_an_id_is_taken_in_too() -> None:
    """Codex 0.93 writes down no ids."""
    began = TurnStarted(session_id="s", turn_id=None)
    said = ItemEnded(session_id="s", turn_id=None, item=message("done"))
    assert state_after(began, said, ended(None)).result == "done"


def test_a_turn_that_another_program_began_is_followed() -> None:
    state = state_after(started("foreign"))
    assert (state.status, state.turn_id, state.turn_count) == ("active", "foreign", 1)


def test_the_loss_of_the_engine_ends_a_running_turn_as_an_error() -> None:
    failure = Failure(code="engine_lost", message="killed", retryable=True)
    state = state_after(requested(), started(), asked(), EngineGone(session_id=S, failure=failure))
    assert (state.status, state.error, state.questions) == ("error", failure, {})


def test_the_loss_of_the_engine_does_not_change_what_has_ended() -> None:
    gone = EngineGone(session_id=S, failure=Failure(code="engine_lost", message="killed"))
    assert state_after(requested(), ended(None), gone).status == "done"


# --- items -----------------------------------------------------------------------------------------------------------


def test_deltas_are_folded_into_their_item() -> None:
    state = state_after(
        requested(), item_started(AgentMessage(id="m", status="started")), delta("m", "Hel"), delta("m", "lo")
    )
    assert state.items == [AgentMessage(id="m", status="in_progress", text="Hello")]


def test_a_delta_may_come_before_its_item() -> None:
    state = state_after(requested(), delta("c", "out", "command_execution"), delta("r", "hm", "reasoning"))
    assert state.items == [
        CommandExecution(id="c", status="in_progress", output="out"),
        Reasoning(id="r", status="in_progress", text="hm"),
    ]


def test_the_ends_own_text_wins_over_the_deltas() -> None:
    done = CommandExecution(id="c", command="seq 3", output="1\n2\n3\n", exit_code=0)
    state = state_after(
        requested(),
        item_started(CommandExecution(id="c", status="started", command="seq 3")),
        delta("c", "2\n3\n", "command_execution"),
        item_ended(done),
        delta("c", "late", "command_execution"),
    )
    assert state.items == [done]


def test_a_flood_of_output_is_kept_within_bounds() -> None:
    state = state_after(requested(), item_started(CommandExecution(id="c", status="started")))
    for _ in range(3000):
        state.apply(delta("c", "x" * 1000, "command_execution"))
    (item,) = state.items
    assert isinstance(item, CommandExecution)
    assert len(item.output) <= 64 * 1024
    assert state._written["c"].size <= 2 * 64 * 1024


@pytest.mark.parametrize(("kind", "most"), [("command_execution", 64 * 1024), ("agent_message", KEPT_CHARS)])
def test_one_line_of_any_length_is_kept_within_bounds_while_it_is_written(kind: str, most: int) -> None:
    state = state_after(requested(), delta("c", "x" * 50_000_000, kind), delta("c", "the end", kind))
    (item,) = state.items
    text = item.output if isinstance(item, CommandExecution) else getattr(item, "text", "")
    assert len(text) <= most
    assert text.endswith("the end")
    assert state._written["c"].size <= 2 * most


def test_items_open_at_the_end_are_closed_as_failed() -> None:
    state = state_after(
        requested(),
        item_started(CommandExecution(id="c", status="started")),
        delta("m", "half"),
        ended(interrupted=True),
    )
    assert [(item.type, item.status) for item in state.items] == [
        ("command_execution", "failed"),
        ("agent_message", "failed"),
    ]


def test_a_command_may_complete_after_its_turn() -> None:
    late = CommandExecution(id="c", status="failed", exit_code=-1)
    state = state_after(
        requested(), started(), item_started(CommandExecution(id="c", status="started")), ended(), item_ended(late)
    )
    assert (state.status, state.items) == ("done", [late])


def test_a_decline_reported_twice_counts_as_it_was_said_first() -> None:
    declined = CommandExecution(id="c", status="failed", declined=True)
    state = state_after(requested(), item_ended(declined), item_ended(CommandExecution(id="c", status="failed")))
    assert state.items == [declined]


def test_an_update_replaces_the_item() -> None:
    plan = TodoList(id="plan", status="in_progress")
    state = state_after(requested(), ItemUpdated(session_id=S, turn_id="t1", item=plan))
    assert state.items == [plan]


def test_late_items_of_an_earlier_turn_stay_out_of_the_current_one() -> None:
    state = state_after(requested(), started(), ended(), requested(), started("t2"), item_ended(message("old"), "t1"))
    assert state.items == []


# --- questions -------------------------------------------------------------------------------------------------------


def test_a_question_makes_the_session_wait_until_the_last_one_is_closed() -> None:
    events = [requested(), started(), asked("q1"), asked("q2"), closed("q1")]
    assert state_after(*events).status == "awaiting_approval"
    assert state_after(*events, closed("q2")).status == "active"


def test_the_end_of_the_turn_closes_its_questions() -> None:
    state = state_after(requested(), started(), asked(), ended(interrupted=True))
    assert (state.status, state.questions) == ("interrupted", {})


def test_a_question_after_the_end_is_not_open() -> None:
    assert state_after(requested(), ended(None), asked()).questions == {}


def test_a_sub_agents_question_is_the_sessions_but_its_turns_are_not() -> None:
    child_end = TurnEnded(session_id=S, turn_id="c1", agent_id="child", outcome="completed")
    child_item = ItemEnded(session_id=S, turn_id="c1", agent_id="child", item=message("child says"))
    state = state_after(requested(), started(), asked("q", agent="child"), child_item, child_end)
    assert (state.status, list(state.questions), state.items) == ("awaiting_approval", ["q"], [])


# --- the rest --------------------------------------------------------------------------------------------------------


def test_usage_is_the_sum_of_what_each_turn_has_added() -> None:
    part = UsageReported(session_id=S, last=Usage(10, 1, 2, 1))
    assert state_after(part, part).usage == Usage(20, 2, 4, 2)

    def total(tokens: int, last: int) -> UsageReported:
        return UsageReported(session_id=S, total=Usage(tokens), last=Usage(last))

    worked = delta("m", "at work")
    first = (requested(), total(100, 100), worked, total(107, 7), total(110, 3), ended())
    assert state_after(*first).usage == Usage(10), "a fork counts on from its parent"
    asking = (requested(), asked(), total(100, 7)), (requested(), asked(), closed(), total(100, 7))
    assert [state_after(*one, total(103, 3)).usage for one in asking] == [Usage(10)] * 2, "a question costs, too"
    assert state_after(*first, total(50, 50)).usage == Usage(10), "an engine that has loaded it repeats an old report"
    assert state_after(*first, requested(), worked, total(5, 5)).usage == Usage(15), "another engine counts from zero"
    kept = UsageReported(session_id=S, before=(ModelUsage("m", Usage(40)), ModelUsage("n", Usage(2))))
    assert state_after(*first, kept, requested(), worked, total(5, 5)).usage == Usage(47)
    assert state_after(*first, kept, kept).usage == Usage(42), "a sum takes the place of what was known"


def test_sub_agents_spend_for_their_session_each_call_once() -> None:
    def of_agent(name: str, tokens: int, last: int) -> UsageReported:
        return UsageReported(session_id=S, agent_id=name, total=Usage(tokens), last=Usage(last))

    first = (requested(), of_agent("a", 7, 7), of_agent("a", 9, 2), of_agent("b", 109, 9), of_agent("a", 9, 2))
    state = state_after(*first)
    assert (state.usage, state.turn_usage, state.sub_agents_usage) == (Usage(18), Usage(), Usage(18))
    state = state_after(*first, ended(), of_agent("a", 10, 1), requested(), of_agent("b", 110, 1))
    assert (state.usage, state.sub_agents_usage) == (Usage(20), Usage(1))


def test_newer_usage_of_a_turn_replaces_earlier_usage() -> None:
    def so_far(tokens: int, cost: float | None = None) -> UsageReported:
        return UsageReported(session_id=S, turn=Usage(tokens, 0, 0, 0, cost))

    first = (requested(), started(), so_far(10), so_far(30, 0.5), ended())
    assert state_after(*first).usage == Usage(30, 0, 0, 0, 0.5)
    assert state_after(*first, requested(), so_far(5)).usage == Usage(35)  # what all of it has cost is not known
    assert state_after(*first, requested(), so_far(5), so_far(7, 0.25)).usage == Usage(37, 0, 0, 0, 0.75)


def test_a_note_says_what_holds_it_up_until_it_continues() -> None:
    state = state_after(requested(), Notice(session_id=S, kind="network", message="waiting for the network"))
    assert state.note == "waiting for the network"
    state.apply(delta("m", "here we go"))
    assert state.note is None


def test_a_warning_is_no_hold_up() -> None:
    assert state_after(requested(), Notice(session_id=S, kind="warning", message="old model")).note is None


def test_settings_names_and_diffs_are_remembered() -> None:
    state = state_after(
        requested(),
        SettingsApplied(session_id=S, model="m", approval_policy="never", sandbox="read-only"),
        SettingsApplied(session_id=S, sandbox="workspace-write"),
        SettingsApplied(session_id=S, agent_id="a-sub-agent", model="its own", sandbox="danger-full-access"),
        SessionRenamed(session_id=S, name="fix"),
        DiffUpdated(session_id=S, turn_id="t1", diff="+x"),
    )
    assert (state.model, state.approval_policy, state.sandbox, state.name, state.diff) == (
        "m",
        "never",
        "workspace-write",
        "fix",
        "+x",
    )


TURNS = st.sampled_from([None, "t1", "t2"])
AGENTS = st.sampled_from([None, None, "child"])
ITEMS: st.SearchStrategy[Item] = st.builds(
    lambda kind, item_id, status: kind(id=item_id, status=status),
    st.sampled_from([AgentMessage, CommandExecution, Reasoning, TodoList, UserMessage]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["started", "in_progress", "completed", "failed"]),
)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.just(requested()),
    st.builds(lambda t, a: TurnStarted(session_id=S, turn_id=t, agent_id=a), TURNS, AGENTS),
    st.builds(
        lambda t, a, o: TurnEnded(session_id=S, turn_id=t, agent_id=a, outcome=o),
        TURNS,
        AGENTS,
        st.sampled_from(["completed", "failed", "interrupted"]),
    ),
    st.builds(
        lambda kind, t, a, item: kind(session_id=S, turn_id=t, agent_id=a, item=item),
        st.sampled_from([ItemStarted, ItemUpdated, ItemEnded]),
        TURNS,
        AGENTS,
        ITEMS,
    ),
    st.builds(
        delta, st.sampled_from(["a", "b", "c"]), st.text(max_size=3), st.sampled_from(["agent_message", "web_search"])
    ),
    st.builds(asked, st.sampled_from(["q1", "q2"]), AGENTS),
    st.builds(closed, st.sampled_from(["q1", "q2", "q3"])),
    st.just(EngineGone(session_id=S, failure=Failure(code="engine_lost", message="x"))),
    st.just(Notice(session_id=S, kind="retry", message="again")),
    st.just(Unknown(session_id=S, name="new")),
)


@given(st.lists(EVENTS, max_size=40))
def test_any_order_of_events_is_a_legal_state(events: list[Event]) -> None:
    state = SessionState(S)
    for event in events:
        state.apply(event)
        assert state.status in ("active", "awaiting_approval", "done", "error", "interrupted")
        assert bool(state.questions) == (state.status == "awaiting_approval")
        assert (state.error is not None) == (state.status == "error")
        if not state.is_running:
            assert state.note is None
            assert all(item.status in ("completed", "failed") for item in state.items)
        for item in state.items:
            item.summary()


@given(st.lists(EVENTS, max_size=30))
def test_the_same_events_give_the_same_state(events: list[Event]) -> None:
    def seen(state: SessionState) -> object:
        return state.status, state.items, state.questions, state.result, state.error, state.usage, state.turn_count

    assert seen(state_after(*events)) == seen(state_after(*events))
