"""What is concluded about a task from what its witnesses say: every combination of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.agents.protocol import RecordedTurn
from helmsman.base.processes import Process
from helmsman.base.structs import replace
from helmsman.model.events import Failure, Usage
from helmsman.service import HelmsmanService
from helmsman.settings import load_settings
from helmsman.steering.shared import Shared
from helmsman.steering.turn_recovery import GRACE, WAITING, WAITS, reconcile
from helmsman.store.database import Fence
from helmsman.tasks.model import Task, TaskChanges, TaskStatus, changed

BEGAN = datetime(2026, 11, 15, 12, tzinfo=UTC)
NOW = BEGAN + timedelta(hours=1)

OPEN = RecordedTurn(outcome="open", turn_id="t-1", began_at=BEGAN, last_written_at=BEGAN)
COMPLETED = RecordedTurn(
    outcome="completed",
    message="Done.",
    usage=Usage(10, 0, 2, 0),
    model="gpt-5.5",
    turn_id="t-1",
    began_at=BEGAN,
    ended_at=BEGAN + timedelta(minutes=1),
)
FAILED = replace(
    COMPLETED, outcome="failed", message=None, error=Failure(code="other", message="Broken.", retryable=True)
)
FAILED_UNSAID = replace(COMPLETED, outcome="failed", message=None)
INTERRUPTED = replace(COMPLETED, outcome="interrupted", message=None)


def task(status: TaskStatus = "working", **fields: Any) -> Task:
    about = {"id": "T-local-1", "origin": "local", "alias": "fix-it-task", "instruction": "Fix it"}
    about |= {"session_id": "s-1", "turn_id": "t-1"}
    return Task(**{**about, "status": status, "created_at": BEGAN, "updated_at": BEGAN, **fields})


def conclusion(
    task: Task, turn: RecordedTurn | None = None, now: datetime = NOW, *, engine_alive: bool | None = None
) -> Task:
    changes = reconcile(task, turn, now, "Codex", engine_alive=engine_alive)
    return task if changes is None else changed(task, changes, now)


RUNNING = ("pending", "working")
TURNS = {"none": None, "open": OPEN, "completed": COMPLETED, "failed": FAILED, "interrupted": INTERRUPTED}

EXPECTED = {
    # (engine, turn): what a running task becomes when its owner is dead
    (None, "none"): "unknown",
    (None, "open"): "failed",
    (False, "none"): "unknown",
    (False, "open"): "failed",
    (True, "none"): "working",  # its turn has an id, so the engine has taken it
    (True, "open"): "working",
    **{(engine, "completed"): "completed" for engine in (None, False, True)},
    **{(engine, "failed"): "failed" for engine in (None, False, True)},
    **{(engine, "interrupted"): "canceled" for engine in (None, False, True)},
}


@pytest.mark.parametrize("status", RUNNING)
@pytest.mark.parametrize(("engine", "turn"), EXPECTED)
def test_a_task_whose_owner_is_gone_becomes_what_is_true(status: TaskStatus, engine: bool | None, turn: str) -> None:
    assert conclusion(task(status), TURNS[turn], engine_alive=engine).status == EXPECTED[engine, turn]


def test_every_combination_is_reported() -> None:
    assert set(EXPECTED) == set(product((None, False, True), TURNS))


@pytest.mark.anyio
@pytest.mark.parametrize("status", get_args(TaskStatus))
async def test_a_living_owner_knows_best_and_nothing_else_is_asked(status: TaskStatus, tmp_path: Path) -> None:
    settings = load_settings({"state_dir": str(tmp_path / "state")}, {}, tmp_path)
    async with (
        Shared(settings.state_dir, fence=Fence(1, print)) as shared,
        HelmsmanService(settings, shared=shared) as helm,
    ):
        owned = task(status, owner=Process.me())
        assert (await helm.recovery.now(owned)).status == status


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
@pytest.mark.parametrize("status", ["completed", "failed", "canceled"])
def test_ended_tasks_stay(status: TaskStatus, turn: RecordedTurn | None) -> None:
    assert reconcile(task(status), turn, NOW, "Codex") is None


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_a_cloud_task_is_left_alone(turn: RecordedTurn | None) -> None:
    assert reconcile(task(origin="cloud"), turn, NOW, "Codex") is None


def test_a_turn_that_was_completed_brings_its_result() -> None:
    done = conclusion(task(turn_id=None), COMPLETED)
    assert (done.result, done.usage, done.model, done.turn_id) == ("Done.", Usage(10, 0, 2, 0), "gpt-5.5", "t-1")
    assert done.completed_at == COMPLETED.ended_at


def test_a_turn_that_failed_brings_its_error() -> None:
    failed = conclusion(task(), FAILED)
    assert failed.error == {"code": "other", "message": "Broken.", "retryable": True}
    without = conclusion(task(), replace(FAILED, error=None))
    assert without.error is not None
    assert without.error["code"] == "turn_failed"


def test_a_turn_that_nothing_can_finish_says_that_the_engine_was_lost_and_what_to_do() -> None:
    lost = conclusion(task(), OPEN, engine_alive=False)
    assert lost.error is not None
    assert lost.error["code"] == "engine_lost"
    assert lost.error["retryable"] is True
    assert "session s-1" in lost.error["message"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"session_id": None, "turn_id": None}, "before a session had begun"),
        ({"turn_id": None}, "before Codex had begun the turn"),
        ({}, "has no record of its turn"),
    ],
)
def test_an_unknown_end_says_what_is_known(fields: dict[str, Any], words: str) -> None:
    note = conclusion(task(**fields)).note
    assert note is not None
    assert words in note


def test_a_task_that_never_became_a_turn_does_not_wait_for_an_engine_that_runs_others() -> None:
    assert conclusion(task("pending", turn_id=None), engine_alive=True).status == "unknown"


def test_a_task_that_may_not_have_reached_its_agent_waits_for_the_next_hub_if_the_agent_can_be_asked() -> None:
    unsent = task("pending", turn_id=None, spec={"text": "Fix it"}, input_position="a1b2 3")
    assert not unsent.is_waiting
    assert conclusion(unsent, engine_alive=True) == unsent
    assert conclusion(unsent, engine_alive=False).status == "unknown"


def test_the_turn_before_is_not_taken_for_this_one() -> None:
    earlier = replace(COMPLETED, began_at=BEGAN - timedelta(minutes=1))
    assert conclusion(task(turn_id=None), earlier).status == "unknown"
    nameless = replace(earlier, turn_id=None)  # as 0.93 records it
    assert conclusion(task(), nameless).status == "unknown"
    assert conclusion(task(), replace(COMPLETED, turn_id=None)).status == "completed"


def test_a_codex_that_has_just_lost_its_parent_is_given_a_moment() -> None:
    just_now = task(updated_at=NOW - GRACE / 2)
    assert reconcile(just_now, OPEN, NOW, "Codex") is None
    assert conclusion(just_now, OPEN, NOW + GRACE).status == "failed"
    still_writing = replace(OPEN, last_written_at=NOW - GRACE / 2)
    assert reconcile(task(), still_writing, NOW, "Codex") is None
    # A detached engine that is gone finishes nothing.
    assert conclusion(just_now, OPEN, NOW, engine_alive=False).status == "failed"


def test_the_outcome_of_an_unknown_task_is_found_out_later() -> None:
    unknown = task("unknown", note="Nobody knows.")
    assert conclusion(unknown, COMPLETED).status == "completed"
    assert conclusion(unknown, OPEN, engine_alive=True).status == "working"
    assert conclusion(unknown, OPEN).status == "failed"
    assert reconcile(unknown, None, NOW, "Codex") is None


def test_the_agent_is_called_by_its_name() -> None:
    told = [
        reconcile(task(), FAILED_UNSAID, NOW, "Echo"),
        reconcile(task(), OPEN, NOW, "Echo", engine_alive=False),
        reconcile(task(turn_id=None), None, NOW, "Echo"),
        reconcile(task(), None, NOW, "Echo"),
    ]
    assert ["Echo" in str(changes) and "Codex" not in str(changes) for changes in told] == [True] * 4


times = st.integers(-120, 7200).map(lambda seconds: BEGAN + timedelta(seconds=seconds))
turns = st.none() | st.builds(
    RecordedTurn,
    outcome=st.sampled_from(["completed", "failed", "interrupted", "open"]),
    message=st.none() | st.just("Done."),
    turn_id=st.sampled_from([None, "t-1"]),
    began_at=st.none() | times,
    ended_at=st.none() | times,
    last_written_at=st.none() | times,
)


@given(
    st.sampled_from(get_args(TaskStatus)),
    st.sampled_from([None, "t-1"]),
    st.sampled_from([None, False, True]),
    turns,
    times,
)
def test_no_task_stays_working_without_a_hub_to_finish_it(
    status: TaskStatus, turn_id: str | None, engine: bool | None, turn: RecordedTurn | None, now: datetime
) -> None:
    before = task(status, turn_id=turn_id)
    after = conclusion(before, turn, now, engine_alive=engine)
    again: TaskChanges | None = reconcile(after, turn, now, "Codex", engine_alive=engine)
    assert again is None or changed(after, again, now) == after, "a second look concludes nothing else"
    if before.is_running and not engine:
        assert not conclusion(before, turn, BEGAN + timedelta(days=1), engine_alive=engine).is_running


@pytest.mark.parametrize("engine_alive", [None, False, True])
def test_a_task_that_reached_no_agent_waits_and_says_so_until_its_limit(
    engine_alive: bool | None,
) -> None:
    waiting = task("pending", session_id=None, turn_id=None, spec={"text": "Fix it"})
    shown = conclusion(waiting, engine_alive=engine_alive)
    assert (shown.status, shown.note, shown.spec) == ("pending", WAITING, waiting.spec)
    assert conclusion(shown) == shown
    given_up = conclusion(shown, now=BEGAN + WAITS + timedelta(seconds=1))
    assert (given_up.status, given_up.spec) == ("canceled", None)
    assert given_up.note is not None
    assert "Start it again" in given_up.note
