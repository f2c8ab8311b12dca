"""Which task a request means, when it has to ask, and where work runs."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.base.structs import replace
from helmsman.router.intent import Action, Hints, Mode, PlainAnswer, parse
from helmsman.router.route import MOST_CHOICES, Offer, Place, Route, route
from helmsman.tasks.model import Task
from tests.router.shelf import NOW, SHELF, shelf_task

HERE = Place(repository=True)
NEW = shelf_task("T-local-aaaaaaaaaaaa", "new", "working", "Fix the login", minutes=2)
OLD = shelf_task("T-local-bbbbbbbbbbbb", "old", "working", "Port to Go", minutes=60)
DONE = shelf_task("T-local-cccccccccccc", "done", "completed", "Write docs", minutes=90)
LOST = shelf_task("T-cloud-dddddddddddd", "lost", "unknown", "Bump deps", minutes=120)


def routed(
    request: str,
    *tasks: Task,
    offered: tuple[str, ...] = (),
    hints: Hints | None = None,
    last: Action = "none",
    work: str = "",
) -> Route:
    return route(parse(request, hints or Hints()), tasks, NOW, HERE, offered=Offer(last, offered, work))


# --- without a name --------------------------------------------------------------------------------------------------


def test_the_only_task_of_the_last_ten_minutes_is_meant() -> None:
    found = routed("status", OLD, NEW, DONE)
    assert found.task_id == NEW.id
    assert [choice.id for choice in found.alternatives] == [OLD.id, DONE.id]


def test_else_the_only_task_at_work() -> None:
    assert routed("status", OLD, DONE, LOST).task_id == OLD.id


def test_else_the_caller_is_asked() -> None:
    older = shelf_task("T-local-eeeeeeeeeeee", "older", "working", minutes=70)
    found = routed("cancel it", OLD, older, DONE)
    assert (found.task_id, found.error) == (None, None)
    assert [choice.id for choice in found.choices] == [OLD.id, older.id]


def test_two_recent_tasks_are_a_question() -> None:
    one, two = (shelf_task(f"T-local-{n:012x}", f"job-{n}", "completed", minutes=n) for n in (3, 5))
    assert [choice.alias for choice in routed("results", two, one, DONE).choices] == ["job-3", "job-5"]


def test_of_two_recent_tasks_the_one_at_work_is_meant_and_the_other_named() -> None:
    ended = shelf_task("T-local-ffffffffffff", "ended", "completed", minutes=1)
    found = routed("status", NEW, ended)
    assert found.task_id == NEW.id
    assert [choice.id for choice in found.alternatives] == [ended.id]


def test_a_recently_reported_task_counts_as_recent() -> None:
    busy = shelf_task("T-local-eeeeeeeeeeee", "busy", "working", minutes=60, updated=1)
    assert len(routed("cancel it", busy, NEW).choices) == 2


def test_ended_tasks_are_neither_cancelled_nor_waited_for_while_another_works() -> None:
    ended = shelf_task("T-local-ffffffffffff", "ended", "completed", minutes=1)
    assert routed("cancel it", OLD, ended).task_id == OLD.id
    assert routed("wait", OLD, ended).task_id == OLD.id
    assert routed("results", OLD, ended).task_id == ended.id


def test_the_only_task_there_is_is_meant_however_old() -> None:
    assert routed("results", DONE).task_id == DONE.id


def test_without_tasks_there_is_nothing_to_ask_about() -> None:
    found = routed("status")
    assert found.error is not None
    assert found.error.endswith("Say what is to be done to start one.")


def test_at_most_three_choices_are_offered_newest_first() -> None:
    many = [shelf_task(f"T-local-{n:012x}", f"job-{n}", "working", minutes=n) for n in range(1, 8)]
    found = routed("cancel it", *reversed(many))
    assert [choice.alias for choice in found.choices] == ["job-1", "job-2", "job-3"]


# --- with a name -----------------------------------------------------------------------------------------------------


def test_an_id_matches_exactly_or_not_at_all() -> None:
    assert routed(f"cancel {OLD.id}", OLD, NEW).task_id == OLD.id
    for wrong in (OLD.id[:-1], OLD.id.upper(), OLD.id + "b"):
        found = routed(f"cancel {wrong}", OLD, NEW)
        assert (found.action, found.task_id) == ("cancel", None)
        assert found.error is not None
        assert OLD.id in found.error


def test_an_alias_names_its_task() -> None:
    assert routed("cancel fix-login-test", *SHELF).task_id == "T-local-3f9a1c0b7d2e"


def test_an_alias_that_is_nearly_right_is_an_error_with_what_was_meant() -> None:
    found = routed("cancel fix-login-tests", *SHELF)
    assert found.task_id is None
    assert found.error is not None
    assert "Did you mean fix-login-test?" in found.error


def test_a_word_that_only_looks_like_an_alias_is_work() -> None:
    found = routed("stop auto-save", *SHELF)
    assert (found.action, found.instruction, found.mode, found.error) == ("run", "stop auto-save", "local", None)


def test_of_two_tasks_with_one_alias_the_newer_is_meant() -> None:
    twins = [shelf_task(f"T-local-{n:012x}", "fix-login", "completed", minutes=n) for n in (50, 5)]
    assert routed("show fix-login", *twins).task_id == f"T-local-{5:012x}"


def test_the_last_task_is_the_newest_and_the_others_are_named() -> None:
    found = routed("cancel the last task", OLD, NEW)
    assert found.task_id == NEW.id
    assert [choice.id for choice in found.alternatives] == [OLD.id]


def test_a_number_means_that_choice() -> None:
    asked = routed("cancel it", NEW, shelf_task("T-local-111111111111", "second", "working", minutes=4), OLD)
    second = asked.choices[1]
    assert routed("check 2", NEW, shelf_task(second.id, "second", "working", minutes=4), OLD).task_id == second.id


def test_a_number_of_nothing_that_was_offered_cancels_and_answers_nothing() -> None:
    """A new hub does not know what an earlier one had offered, and the order may be another by now."""
    for words, tasks in (("cancel 2", (NEW, OLD)), ("approve 1", (ASKS, NEW))):
        found = routed(words, *tasks)
        assert (found.task_id, bool(found.choices)) == (None, True), words


def test_a_number_means_what_was_offered_even_when_a_newer_task_came_up() -> None:
    newer = shelf_task("T-local-999999999999", "newer", "working", minutes=0)
    offered = (NEW.id, OLD.id)
    assert routed("cancel the second one", newer, NEW, OLD, offered=offered).task_id == OLD.id


def test_a_number_whose_task_is_gone_is_an_error_and_means_no_other() -> None:
    found = routed("cancel 1", OLD, NEW, offered=("T-local-000000000000", OLD.id))
    assert found.task_id is None
    assert found.error is not None


def test_a_number_too_high_is_an_error() -> None:
    found = routed("cancel 7", NEW, OLD, offered=(NEW.id, OLD.id))
    assert found.error is not None
    assert "no choice 7" in found.error


def test_several_ids_are_a_choice_between_them() -> None:
    found = routed(f"cancel {NEW.id} and {OLD.id}", NEW, OLD, DONE)
    assert [choice.id for choice in found.choices] == [NEW.id, OLD.id]


def test_all_tasks_are_never_one_chosen_silently() -> None:
    assert len(routed("cancel all", NEW, OLD).choices) == 2
    assert routed("cancel all", NEW).task_id == NEW.id


def test_the_cloud_task_is_looked_for_in_the_cloud() -> None:
    assert routed("status of my cloud task", *SHELF).task_id == "T-cloud-c51d07e9ab34"
    found = routed("cancel the cloud task", NEW)
    assert found.error is not None
    assert "no cloud task" in found.error


def test_a_question_that_describes_a_task_in_words_of_its_work_is_asked_back() -> None:
    for request in ("how is the changelog going?", "is the login fix done?", "status of the typescript port"):
        found = routed(request, *SHELF)
        assert (found.action, bool(found.choices)) == ("choose", True), request


def test_a_question_about_what_no_task_does_is_asked_back_and_not_started() -> None:
    found = routed("is the whatsit done?", NEW, OLD)
    assert (found.action, found.instruction) == ("choose", "is the whatsit done?")
    assert [task.id for task in found.choices] == [NEW.id, OLD.id]


def test_a_task_hint_on_work_says_what_it_follows_on() -> None:
    assert routed("now add docs", OLD, hints=Hints(task_id=OLD.id)).task_id == OLD.id
    assert routed("now add docs", OLD, hints=Hints(task_id="T-local-000000000000")).error is not None


def test_work_that_follows_on_a_task_runs_where_its_session_is() -> None:
    nowhere = Place(repository=False, cloud_environment="main")
    assert route(parse("now add docs", Hints(task_id=OLD.id)), [OLD], NOW, nowhere).mode == "local"


# --- answers ---------------------------------------------------------------------------------------------------------

ASKS = replace(OLD, input_required=True)
ASKS_TOO = replace(NEW, input_required=True)


def test_an_answer_goes_to_the_only_task_that_asks() -> None:
    found = routed("approve it", NEW, ASKS, DONE)
    assert (found.action, found.task_id, found.answer) == ("respond", ASKS.id, PlainAnswer("approve"))


def test_of_two_tasks_that_ask_neither_is_answered_without_a_name() -> None:
    for words in ("approve it", "approve", "approve all", "deny them", "answer: blue"):
        found = routed(words, ASKS, ASKS_TOO)
        assert (found.task_id, len(found.choices)) == (None, 2), words
    assert routed(f"approve {ASKS.id}", ASKS, ASKS_TOO).task_id == ASKS.id
    assert routed("approve 2", ASKS, ASKS_TOO, offered=(ASKS_TOO.id, ASKS.id)).task_id == ASKS.id


def test_an_answer_to_tasks_that_are_named_goes_to_no_other() -> None:
    found = routed(f"approve {NEW.id} and {OLD.id}", NEW, OLD, ASKS)
    assert (found.task_id, found.choices) == (None, (NEW, OLD))
    assert routed("approve the cloud task", LOST, ASKS).error is not None
    assert routed("approve the local task", LOST, ASKS).task_id == ASKS.id


@pytest.mark.parametrize(
    "request_", ["cancel {}", "approve {}", "apply {}", "check {}", "continue with {}: add a test"]
)
def test_a_hint_that_names_another_task_than_the_words_is_asked_about(request_: str) -> None:
    words = request_.format(ASKS.id)
    found = routed(words, NEW, ASKS, hints=Hints(task_id=NEW.id))
    assert (found.task_id, {task.id for task in found.choices}) == (None, {NEW.id, ASKS.id})
    for same in (ASKS.id, ASKS.alias):
        assert routed(words, NEW, ASKS, hints=Hints(task_id=same)).task_id == ASKS.id


def test_a_number_before_many_is_so_many_and_no_choice() -> None:
    offered = (OLD.id, NEW.id)
    assert len(routed("cancel 2 tasks", NEW, OLD, offered=offered).choices) == 2
    for words in ("cancel no 2", "cancel no. 2", "cancel number 2", "cancel task 2"):
        assert routed(words, NEW, OLD, offered=offered).task_id == NEW.id, words


def test_an_answer_without_an_open_question_does_nothing() -> None:
    assert routed("approve it", NEW, OLD).error is not None
    assert routed("answer: why does the build fail?", NEW, OLD).action == "choose"


def test_words_that_may_be_an_answer_are_asked_back_only_during_a_question() -> None:
    for words in ("accept dark mode", "reject usernames that are too long"):
        assert routed(words, NEW, ASKS).action == "choose", words
        assert routed(words, NEW, OLD).action == "run", words
    for words in ("do it", "go ahead", "let it run"):  # which are no work either
        assert routed(words, NEW, ASKS).choices == (ASKS,), words
        assert routed(words, NEW, OLD).action == "choose", words
    assert routed("run the tests", NEW, ASKS).action == "run"


def test_an_approval_for_more_than_one_question_is_known_as_such() -> None:
    for words in (
        "always approve it",
        "approve it for this session",
        "allow it forever",
        "approve all future requests",
    ):
        answer = routed(words, ASKS).answer
        assert answer is not None, words
        assert answer.wide, words


# --- choices ---------------------------------------------------------------------------------------------------------


def test_switching_asks_again_for_another_and_changes_nothing() -> None:
    offered = (NEW.id, OLD.id)
    for last, again in (
        ("results", "results"),
        ("wait", "wait"),
        ("cancel", "check"),
        ("respond", "check"),
        ("run", "check"),
    ):
        found = routed("switch to #2", NEW, OLD, offered=offered, last=cast("Action", last))
        assert (found.action, found.task_id) == (again, OLD.id)


def test_the_number_after_the_tasks_runs_the_words_as_work() -> None:
    found = routed("3", NEW, OLD, offered=(NEW.id, OLD.id), work="is it used?")
    assert (found.action, found.instruction, found.mode) == ("run", "is it used?", "local")
    for other in ("cancel 3", "approve 3", "results 3"):
        assert routed(other, NEW, OLD, offered=(NEW.id, OLD.id), work="is it used?").action != "run"
    for asked in ("how is 3 doing?", "is 3 done?", "status 3", "check 3", "3?", "task 3"):
        assert routed(asked, NEW, OLD, offered=(NEW.id, OLD.id), work="is it used?").error is not None, asked


def test_all_tasks_are_shown_when_all_are_asked_for() -> None:
    assert [task.id for task in routed("check all", OLD, NEW, DONE).all or ()] == [NEW.id, OLD.id, DONE.id]
    assert [task.id for task in routed("list cloud tasks", *SHELF).all or ()] == ["T-cloud-c51d07e9ab34"]


# --- where work runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_text", "mode", "place", "expected"),
    [
        ("fix the tests", None, Place(repository=True), "local"),
        ("fix the tests", None, Place(repository=True, cloud_environment="main"), "local"),
        ("fix the tests", None, Place(repository=False), "local"),
        ("fix the tests", None, Place(repository=False, cloud_environment="main"), "cloud"),
        ("fix the tests", "local", Place(repository=False, cloud_environment="main"), "local"),
        ("fix the tests", "cloud", Place(repository=True), "cloud"),
        ("in the cloud: fix it", None, Place(repository=True), "cloud"),
        ("in the cloud: fix it", "local", Place(repository=True), "local"),
        ("locally: fix it", None, Place(repository=False, cloud_environment="main"), "local"),
    ],
)
def test_work_runs_where_it_should(request_text: str, mode: Mode | None, place: Place, expected: str) -> None:
    assert route(parse(request_text, Hints(mode=mode)), (), NOW, place).mode == expected


@pytest.mark.parametrize(
    ("request_text", "long"),
    [
        ("Run the full integration tests across all databases", True),
        ("run the whole test suite on every platform", True),
        ("fuzz the parser overnight", True),
        ("run the tests", False),
        ("fix all typos", False),
    ],
)
def test_long_work_runs_in_the_cloud_if_the_settings_say_so(request_text: str, long: bool) -> None:
    place = Place(cloud_environment="main", long_work_in_cloud=True)
    assert route(parse(request_text), (), NOW, place).mode == ("cloud" if long else "local")
    assert route(parse(f"locally: {request_text}"), (), NOW, place).mode == "local"
    assert route(parse(request_text), (), NOW, Place(long_work_in_cloud=True)).mode == "local"


@pytest.mark.parametrize(
    ("request_text", "long"),
    [
        ("Run the full integration tests across all databases", True),
        ("run the whole test suite on every platform", True),
        ("fuzz the parser overnight", True),
        ("run the tests", False),
        ("fix all typos", False),
    ],
)
def test_work_that_may_take_long_is_known_where_there_is_a_cloud(request_text: str, long: bool) -> None:
    assert route(parse(request_text), (), NOW, Place(cloud_environment="main")).may_take_long is long
    assert route(parse(request_text), (), NOW, HERE).may_take_long is False
    assert route(parse(f"locally: {request_text}"), (), NOW, Place(cloud_environment="main")).may_take_long is False


# --- whatever the shelf holds ----------------------------------------------------------------------------------------

shelves = st.lists(
    st.builds(
        shelf_task,
        st.integers(0, 15).map(lambda n: f"T-local-{n:012x}") | st.integers(0, 15).map(lambda n: f"T-cloud-{n:012x}"),
        st.sampled_from(["a", "fix-login", "old-one"]),
        st.sampled_from(["pending", "working", "completed", "failed", "canceled", "unknown"]),
        minutes=st.integers(0, 90),
    ),
    max_size=6,
    unique_by=lambda task: task.id,
)
requests = st.sampled_from(
    ["status", "cancel it", "cancel 2", "results of fix-login", "wait", "cancel all", "show the last one"]
)


@given(requests, shelves, st.booleans())
def test_a_command_has_exactly_one_answer(request: str, tasks: list[Task], backwards: bool) -> None:
    found = routed(request, *tasks)
    assert found == routed(request, *(reversed(tasks) if backwards else tasks))
    if found.action == "run":
        return
    assert sum(map(bool, (found.task_id is not None, found.choices, found.error is not None, found.all))) == 1
    assert len(found.choices) <= MOST_CHOICES
    assert found.task_id is None or found.task_id in {task.id for task in tasks}
    assert found.task_id not in {choice.id for choice in found.alternatives}


@given(shelves)
def test_a_cancel_without_a_name_never_picks_one_of_two_at_work_lately(tasks: list[Task]) -> None:
    lately = [t for t in tasks if t.status in ("pending", "working") and NOW - t.updated_at <= timedelta(minutes=10)]
    if len(lately) >= 2:
        assert routed("cancel it", *tasks).task_id is None
