"""Hints, references, markers, and what holds for any text whatever."""

from __future__ import annotations

import random
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helmsman.errors import InvalidInput
from helmsman.router.intent import Hints, Reference, parse
from helmsman.router.vocabulary import SLIPS, RouterVerb, v
from tests.router.shelf import labelled_requests

ID = "T-local-3f9a1c0b7d2e"
OTHER_ID = "T-cloud-c51d07e9ab34"
TWENTY_MEGABYTES = 20 * 1024 * 1024

command_words = st.sampled_from(sorted(v.known | {ID, OTHER_ID, "2", "fix-login-test", "\n", ",", "```", ">", ":"}))
anything = st.one_of(st.text(max_size=60), st.lists(command_words, max_size=12).map(" ".join))


# --- hints -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", get_args(RouterVerb))
def test_an_operation_hint_wins_over_the_words(operation: RouterVerb) -> None:
    for request in ("cancel it", "status?", "fix the tests"):
        assert parse(request, Hints(operation=operation)).action == operation


def test_an_empty_task_hint_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"hints\.taskId"):
        parse("status", Hints(task_id=" "))


def test_a_task_hint_names_the_task() -> None:
    assert parse("cancel it", Hints(task_id=ID)).reference == Reference("id", ID)
    assert parse("cancel it", Hints(task_id="fix-login-test")).reference == Reference("alias", "fix-login-test")
    assert parse(f"cancel {ID}", Hints(task_id=ID)).reference == Reference("id", ID)


def test_a_task_hint_without_words_asks_how_it_is() -> None:
    assert parse("", Hints(task_id=ID)).action == "check"


def test_a_job_with_a_task_hint_stays_a_job_on_that_task() -> None:
    found = parse("now add docs", Hints(task_id=ID))
    assert (found.action, found.reference, found.instruction) == ("run", Reference("id", ID), "now add docs")


def test_an_operation_hint_takes_the_task_from_the_words() -> None:
    assert parse(f"that thing {ID} is odd", Hints(operation="cancel")).reference == Reference("id", ID)


def test_a_run_hint_makes_any_words_the_work() -> None:
    found = parse("status of my cloud task", Hints(operation="run"))
    assert (found.action, found.instruction, found.mode) == ("run", "status of my cloud task", None)


def test_a_mode_hint_wins_and_auto_decides_nothing() -> None:
    assert parse("run in the cloud: lint", Hints(mode="local")).mode == "local"
    assert parse("run in the cloud: lint", Hints(mode="auto")).mode == "cloud"
    assert parse("lint", Hints(mode="auto")).mode is None


def test_there_is_nothing_to_run_without_words() -> None:
    for empty in ("", "  \n", "\u3000"):
        assert parse(empty).action == "none"
        assert parse(empty, Hints(operation="run")).action == "none"


def test_times_come_from_the_hint_or_the_words() -> None:
    assert parse("wait for it", Hints(timeout_ms=5000, poll_frequency_ms=700)).timeout_ms == 5000
    assert parse("wait for it", Hints(timeout_ms=5000, poll_frequency_ms=700)).poll_frequency_ms == 700
    assert parse("wait 2 minutes").timeout_ms == 120_000
    assert parse(f"wait up to 30s for {ID}").timeout_ms == 30_000
    assert parse("wait 2 minutes", Hints(timeout_ms=1)).timeout_ms == 1


# --- references ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_text", "reference"),
    [
        (f"cancel {ID}", Reference("id", ID)),
        (f"cancel {ID.upper()}", Reference("id", ID.upper())),
        (f"cancel {ID} and {OTHER_ID}", Reference("several", f"{ID} {OTHER_ID}")),
        ("cancel t-3f9a", Reference("id", "t-3f9a")),
        ("cancel fix-login-test", Reference("alias", "fix-login-test", sure=False)),
        ("cancel 2", Reference("number", "2")),
        ("cancel the second one", Reference("number", "2")),
        ("cancel number 3", Reference("number", "3")),
        ("cancel the last task", Reference("last")),
        ("cancel the current task", Reference("running")),
        ("cancel all tasks", Reference("several")),
        ("cancel it", None),
    ],
)
def test_a_reference_is_read_as_it_is_meant(request_text: str, reference: Reference | None) -> None:
    assert parse(request_text).reference == reference


def test_an_id_is_not_found_inside_a_path_or_a_longer_word() -> None:
    for text in (f"/tasks/{ID}", f"x{ID}", f"{ID}/cancel", f"{ID}@host", f"{ID}.log"):
        reference = parse(f"cancel {text}").reference
        assert reference is None or not reference.sure, text


def test_a_request_that_may_be_a_job_keeps_its_words() -> None:
    assert parse("check pre-commit").instruction == "check pre-commit"


# --- work ------------------------------------------------------------------------------------------------------------


def test_work_is_passed_on_to_the_letter() -> None:
    request = "  Fix the tests,\n\n\tplease!  "
    assert parse(request).instruction == request


def test_a_marker_is_taken_off_and_the_rest_kept_to_the_letter() -> None:
    assert parse("Please run in the cloud:  Cancel it\n  now ").instruction == "Cancel it\n  now "


def test_a_request_of_20_megabytes_is_work_and_kept_whole() -> None:
    for begin in ("cancel it ", "status? ", "> ", "```", "in the cloud: "):
        request = begin + "x " * (TWENTY_MEGABYTES // 2)
        found = parse(request)
        assert found.action == "run"
        assert len(found.instruction) >= TWENTY_MEGABYTES


def test_20_megabytes_of_nothing_ask_for_nothing() -> None:
    assert parse(" " * TWENTY_MEGABYTES).action == "none"


def test_the_trace_says_why_in_sentences() -> None:
    for request in ("cancel it", "status", "fix it", "", "cloud: fix it", f"how is {ID}", "x" * 5000):
        trace = parse(request).trace
        assert trace
        assert all(line[0].isupper() and line.endswith(".") for line in trace)


# --- typing errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word", ["about", "cancer", "candle", "step", "shop", "stoop", "post", "skill", "cancels", "stops"]
)
def test_a_word_that_means_something_else_is_not_mended_into_a_cancel(word: str) -> None:
    assert SLIPS.get(word) not in v.cancel_verbs
    assert parse(f"{word} it").action != "cancel"


@pytest.mark.parametrize("word", ["cancle", "canecl", "cancell", "sotp", "abrot"])
def test_a_slip_of_the_finger_is_mended(word: str) -> None:
    assert parse(f"{word} it").action == "cancel"


# --- any text --------------------------------------------------------------------------------------------------------


@given(anything)
@example("\ud800 cancel")
@example("```" * 500)
@example(">" * 1500)
@example("please " * 200)
@example("in the " * 200)
@example("\x00<id>")
def test_no_text_raises_and_every_text_is_read_alike_twice(request: str) -> None:
    assert parse(request) == parse(request)


@given(st.sampled_from(sorted(v.work_verbs)), anything)
def test_a_prompt_that_begins_with_a_work_verb_is_never_a_cancel(verb: str, rest: str) -> None:
    assert parse(f"{verb} {rest}").action != "cancel"


@given(st.text(st.characters(categories=["Ll"], max_codepoint=0x7F), min_size=4, max_size=10), st.integers(0, 3))
@example("gone", 0)
def test_a_word_left_over_makes_a_cancel_a_job_or_a_question_back(word: str, place: int) -> None:
    if word in v.known or word in SLIPS:
        return
    said = ["stop", "the", "task", "now"]
    said.insert(place + 1, word)
    assert parse(" ".join(said)).action in ("run", "choose")


def test_the_order_of_requests_does_not_matter() -> None:
    requests = [entry.request for entry in labelled_requests()]
    before = {request: parse(request) for request in requests}
    random.Random(7).shuffle(requests)
    assert all(parse(request) == before[request] for request in requests)


@pytest.mark.parametrize(
    ("request_", "action"),
    [
        ("is Claude Code done?", "check"),
        ("is claude done?", "check"),
        ("Claude, cancel my task", "cancel"),
        ("what files did claude change?", "choose"),
        ("make the claude client faster", "run"),
    ],
)
def test_another_agent_is_spoken_to_by_its_names_as_codex_is_by_its_own(request_: str, action: str) -> None:
    found = parse(request_, called=("Claude Code", "claude"))
    to_codex = parse(request_.replace("Claude Code", "Codex").replace("laude", "odex"))
    assert (found.action, found.reference, found.trace) == (action, to_codex.reference, to_codex.trace)
    assert found.instruction == (request_ if action in ("run", "choose") else ""), "work is told to the letter"
