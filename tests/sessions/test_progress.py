from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    FileChange,
    Item,
    ItemStatus,
    McpToolCall,
    PathChange,
    PlanStep,
    Reasoning,
    StepStatus,
    TodoList,
    UserMessage,
    WebSearch,
)
from helmsman.sessions.progress import Now, infer_progress, read_tally


def _plan(*statuses: StepStatus) -> TodoList:
    return TodoList(id="plan", steps=tuple(PlanStep(f"step {n}", status) for n, status in enumerate(statuses)))


def _command(output: str, status: ItemStatus = "in_progress", name: str = "c") -> CommandExecution:
    return CommandExecution(id=name, status=status, command="make test", output=output)


# --- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_is_counted_in_its_own_steps() -> None:
    progress = infer_progress([_plan("completed", "completed", "in_progress", "pending", "pending")])
    assert (progress.done, progress.total, progress.unit, progress.text) == (2, 5, "steps", "2 of 5 steps")
    assert progress.eta_seconds is None


def test_a_plan_and_the_time_it_took_so_far_give_the_time_left() -> None:
    assert infer_progress([_plan("completed", "in_progress", "pending")], turn_seconds=30).eta_seconds == 60


def test_a_plan_of_which_nothing_is_done_gives_no_time_left() -> None:
    assert infer_progress([_plan("in_progress", "pending")], turn_seconds=30).eta_seconds is None


def test_a_finished_plan_has_no_time_left() -> None:
    assert infer_progress([_plan("completed", "completed")], turn_seconds=30).eta_seconds is None


def test_the_newest_plan_counts() -> None:
    assert infer_progress([_plan("pending"), _plan("completed", "pending")]).text == "1 of 2 steps"


def test_a_plan_without_steps_is_no_plan() -> None:
    assert infer_progress([TodoList(id="plan")]).total is None


def test_a_plan_comes_before_a_tally_and_names_both() -> None:
    progress = infer_progress([_plan("completed", "pending"), _command("87/132 passed")], command_seconds=5)
    assert (progress.done, progress.total) == (1, 2)
    assert progress.text == "1 of 2 steps, 87 of 132 tests"


# --- counts ----------------------------------------------------------------------------------------------------------


def test_without_plan_and_tally_finished_items_are_counted_and_no_total_is_made_up() -> None:
    items: list[Item] = [
        UserMessage(id="u", text="go"),
        Reasoning(id="r", text="hm"),
        _command("", "completed", "1"),
        _command("", "failed", "2"),
        FileChange(id="f"),
        McpToolCall(id="m", server="lab", tool="write"),
        WebSearch(id="w", query="x"),
        WebSearch(id="v", query="y"),
        AgentMessage(id="a", text="…", status="in_progress"),
    ]
    progress = infer_progress(items, turn_seconds=100)
    assert (progress.done, progress.total, progress.unit) == (6, None, "items")
    assert progress.text == "2 commands, 1 file change, 1 tool call, 2 searches"
    assert progress.eta_seconds is None


def test_an_empty_turn_has_finished_nothing() -> None:
    progress = infer_progress([])
    assert (progress.done, progress.total, progress.text) == (0, None, "nothing finished yet")


# --- tallies ---------------------------------------------------------------------------------------------------------

_PYTEST_HALF_WAY = """\
============================= test session starts ==============================
collected 132 items

tests/test_a.py ............................................              [ 33%]
tests/test_b.py ....F...........                                          [ 45%]
tests/test_c.py ...."""
_CARGO = """\
   Compiling thing v0.1.0
running 3 tests
test tests::one ... ok
test tests::two ... FAILED
"""


@pytest.mark.parametrize(
    ("output", "done", "total", "text"),
    [
        pytest.param(_PYTEST_HALF_WAY, 59, 132, "59 of 132 tests", id="pytest running"),
        pytest.param("collected 132 items\n\n", 0, 132, "0 of 132 tests", id="pytest has only collected"),
        pytest.param(
            "collected 132 items / 3 deselected / 129 selected\n", 0, 129, "0 of 129 tests", id="pytest deselected"
        ),
        pytest.param(".......... [ 45%]\n....", 45, 100, "45 % of the tests", id="pytest -q"),
        pytest.param("....... [ 87/132]\n....", 87, 132, "87 of 132 tests", id="pytest counting"),
        pytest.param(
            "8 workers [40 items]\n[gw0] [ 50%] PASSED tests/a.py::b \n", 20, 40, "20 of 40 tests", id="pytest-xdist"
        ),
        pytest.param(
            "==== 2 failed, 85 passed, 1 skipped, 3 warnings in 1.20s ====\n",
            88,
            88,
            "88 of 88 tests, 2 failed",
            id="pytest done",
        ),
        pytest.param("87 passed in 61.02s (0:01:01)", 87, 87, "87 of 87 tests", id="pytest -q done"),
        pytest.param(
            "\x1b[32m\x1b[1m87 passed\x1b[0m\x1b[32m in 0.10s\x1b[0m", 87, 87, "87 of 87 tests", id="coloured"
        ),
        pytest.param(
            "Ran 12 tests in 0.003s\n\nFAILED (failures=2, errors=1, skipped=4, expected failures=5)\n",
            12,
            12,
            "12 of 12 tests, 3 failed",
            id="unittest",
        ),
        pytest.param(
            "Test Suites: 1 failed, 3 passed, 4 total\nTests:       2 failed, 80 passed, 87 total\n",
            82,
            87,
            "82 of 87 tests, 2 failed",
            id="jest",
        ),
        pytest.param(
            " Test Files  3 passed (3)\n      Tests  1 failed | 86 passed (87)\n",
            87,
            87,
            "87 of 87 tests, 1 failed",
            id="vitest",
        ),
        pytest.param(_CARGO, 2, 3, "2 of 3 tests, 1 failed", id="cargo"),
        pytest.param("test lost ... ok\n" * 9 + _CARGO, 2, 3, "2 of 3 tests, 1 failed", id="cargo, beginning lost"),
        pytest.param(
            "    Starting 9 tests across 2 binaries\n        PASS [   0.004s] a b\n        FAIL [   0.1s] a c\n",
            2,
            9,
            "2 of 9 tests, 1 failed",
            id="nextest",
        ),
        pytest.param(
            "--- PASS: TestA (0.00s)\n--- FAIL: TestB (0.00s)\n", 2, None, "2 tests, 1 failed", id="go test -v"
        ),
        pytest.param("ok  \tgo.dev/a\t0.01s\n", 1, None, "1 package", id="go test"),
        pytest.param(" 87/132 Test  #87: parser ......   Passed    0.01 sec", 87, 132, "87 of 132 tests", id="ctest"),
        pytest.param("checks: 87/132 passed", 87, 132, "87 of 132 tests", id="plain"),
        pytest.param("12 of 40 tests passed so far", 12, 40, "12 of 40 tests", id="words"),
        pytest.param("10/40 passed\r20/40 passed\r30/40 passed", 30, 40, "30 of 40 tests", id="a line written over"),
    ],
)
def test_a_test_runner_is_believed_about_itself(output: str, done: int, total: int | None, text: str) -> None:
    progress = infer_progress([_command(output)])
    assert (progress.done, progress.total, progress.text) == (done, total, text)


@pytest.mark.parametrize(
    ("output", "passed", "failed", "skipped"),
    [
        pytest.param("== 2 failed, 85 passed, 1 skipped, 2 xfailed in 1.20s ==\n", 85, 2, 3, id="pytest"),
        pytest.param("Ran 12 tests in 0.003s\n\nFAILED (failures=2, errors=1, skipped=4)\n", 5, 3, 4, id="unittest"),
        pytest.param("Ran 3 tests in 0.003s\n\nOK (skipped=1)\n", 2, 0, 1, id="unittest that is fine"),
        pytest.param("Tests:       2 failed, 5 skipped, 80 passed, 87 total\n", 80, 2, 5, id="jest"),
        pytest.param("      Tests  1 failed | 80 passed | 6 skipped (87)\n", 80, 1, 6, id="vitest"),
        pytest.param("running 2 tests\ntest a ... ok\ntest b ... ignored\n", 1, 0, 1, id="cargo"),
        pytest.param("--- PASS: TestA (0.00s)\n--- SKIP: TestB (0.00s)\n", 1, 0, 1, id="go"),
    ],
)
def test_skipped_tests_count_as_neither_passed_nor_failed(output: str, passed: int, failed: int, skipped: int) -> None:
    tally = read_tally(output)
    assert tally is not None
    assert (tally.passed, tally.failed, tally.skipped) == (passed, failed, skipped)


@pytest.mark.parametrize(
    "output",
    [
        "",
        "[ 45%] Building CXX object src/main.o",
        "downloaded 45% of 12 MB",
        "2026/11/15 passed by",
        "132/87 passed",
        "see page 3 of 7",
        "passed",
        "0.5/1 tests",
    ],
)
def test_an_invalid_tally_is_not_taken_for_one(output: str) -> None:
    assert read_tally(output) is None


def test_the_time_left_of_a_test_run_comes_from_its_own_time() -> None:
    running = _command("33/132 passed")
    assert infer_progress([running], turn_seconds=1000, command_seconds=10).eta_seconds == 30
    assert infer_progress([running], turn_seconds=1000).eta_seconds is None


def test_a_finished_test_run_has_no_time_left() -> None:
    assert infer_progress([_command("33/132 passed", "failed")], command_seconds=10).eta_seconds is None


def test_only_the_newest_command_is_asked_for_a_tally() -> None:
    tests = _command("87 passed in 1.0s", "completed", "1")
    assert infer_progress([tests, _command("clean", "completed", "2")]).text == "2 commands"


def test_a_running_command_is_newer_than_one_that_ended_after_it_began() -> None:
    tests = _command("33/132 passed", "in_progress", "1")
    assert infer_progress([tests, _command("clean", "completed", "2")]).text == "33 of 132 tests"


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan, 1e300])
def test_a_time_that_makes_no_sense_gives_no_time_left(seconds: float) -> None:
    assert infer_progress([_plan("completed", "pending")], turn_seconds=seconds).eta_seconds is None


# --- properties ------------------------------------------------------------------------------------------------------

_FRAGMENTS = st.sampled_from(
    [
        "collected ",
        " items",
        "[ 45%]",
        " passed",
        " failed",
        ", ",
        " in ",
        "1.0s",
        "Tests: ",
        " total",
        "running ",
        " tests",
        "test x ... ok",
        "--- PASS: ",
        "ok  \tp\t",
        "/",
        " of ",
        "\n",
        "\r",
        "\x1b[31m",
        "999999999999",
        "7",
        "132",
        " ",
        "|",
        "(3)",
    ]
)
_OUTPUTS = st.one_of(st.text(), st.lists(_FRAGMENTS, max_size=30).map("".join))
_STATUSES: st.SearchStrategy[ItemStatus] = st.sampled_from(["started", "in_progress", "completed", "failed"])
_STEPS = st.builds(PlanStep, st.text(), st.sampled_from(["pending", "in_progress", "completed"]))
_ITEMS = st.one_of(
    st.builds(CommandExecution, id=st.text(), status=_STATUSES, output=_OUTPUTS),
    st.builds(TodoList, id=st.text(), status=_STATUSES, steps=st.lists(_STEPS, max_size=5).map(tuple)),
    st.builds(AgentMessage, id=st.text(), status=_STATUSES, text=st.text()),
)
_SECONDS = st.one_of(st.none(), st.floats())


@given(st.lists(_ITEMS, max_size=8), _SECONDS, _SECONDS)
def test_progress_never_raises_and_never_exceeds_its_total(
    items: list[Item], turn_seconds: float | None, command_seconds: float | None
) -> None:
    progress = infer_progress(items, turn_seconds=turn_seconds, command_seconds=command_seconds)
    assert progress.done >= 0
    assert progress.total is None or progress.done <= progress.total
    assert progress.text
    assert progress.eta_seconds is None or (progress.eta_seconds >= 0 and progress.total is not None)


def test_the_current_step_is_the_newest_unfinished_item() -> None:
    plan = _plan("completed", "in_progress", "pending")
    items: list[Item] = [plan, _command("ok", "completed", "1"), _command("…", "in_progress", "2")]
    progress = infer_progress(items)
    assert progress.now.command == "make test"
    assert progress.now.step == plan.steps[1].text
    assert progress.now.in_words().startswith("running ")
    change = FileChange(id="3", status="in_progress", changes=(PathChange(path="a.py", kind="update"),))
    assert infer_progress([*items, change]).now.file == "a.py"
    assert infer_progress([_command("ok", "completed")]).now == Now()


def test_steps_are_reported_where_there_is_a_plan_and_a_percentage_where_something_supports_it() -> None:
    progress = infer_progress([_plan("completed", "in_progress", "pending")])
    assert [(step.key, step.done) for step in progress.steps] == [("1", True), ("2", False), ("3", False)]
    assert progress.percent == 33
    assert infer_progress([_command("33/132 passed")]).percent == 25
    nothing = infer_progress([_command("building")])
    assert (nothing.percent, nothing.steps) == (None, ())


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        ("== 2 passed, 1 failed, 3 skipped in 0.1s ==", (2, 1, 3)),
        ("Ran 5 tests in 0.1s\n\nFAILED (failures=1, skipped=2)", (2, 1, 2)),
        ("Ran 5 tests in 0.1s\n\nOK (skipped=2)", (3, 0, 2)),
        ("Tests:       1 failed, 2 skipped, 4 passed, 7 total", (4, 1, 2)),
        ("running 3 tests\ntest a ... ok\ntest b ... ignored\ntest c ... FAILED\n", (1, 1, 1)),
        ("--- PASS: A (0s)\n--- SKIP: B (0s)\n", (1, 0, 1)),
    ],
)
def test_passed_failed_and_skipped_are_distinguished(output: str, counts: tuple[int, int, int]) -> None:
    tally = read_tally(output)
    assert tally is not None
    assert (tally.passed, tally.failed, tally.skipped) == counts
