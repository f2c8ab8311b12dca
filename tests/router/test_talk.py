"""Short requests in five languages: what is work runs, what is a command is done, and talk about running work is asked back.

`ASKED` starts nothing and changes nothing, whether or not a task runs or asks something.
"""

from __future__ import annotations

import time
import tomllib
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.base.structs import replace
from helmsman.router.intent import Hints, parse
from helmsman.router.route import Place, Route, route
from tests.router.shelf import ASKING, NOW, SHELF

PLACE = Place(repository=True, cloud_environment="main")
TASK = "T-local-3f9a1c0b7d2e"
SESSION = "0199a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"


def phrases(text: str) -> list[str]:
    return [request.strip() for line in text.strip().splitlines() for request in line.split(" / ")]


TABLES = tomllib.loads((Path(__file__).parent / "talk.toml").read_text(encoding="utf-8"))
COMMANDS = {operation: phrases(text) for operation, text in TABLES["commands"].items()}
DENIALS = phrases(TABLES["denials"])
APPROVALS = phrases(TABLES["approvals"])
NO_APPROVALS = phrases(TABLES["no_approvals"])
ASKED = phrases(TABLES["asked"])
NAMES_A_TASK = phrases(TABLES["names_a_task"])
TAKEN_BACK = (
    "approve it\n\n> no",
    "approve it\n> no",
    "> no\napprove it",
    "approve it\n```\nno\n```",
    "approve it ```no```",
    "```\napprove it\n```",
    "> approve it",
    "approve\n>no",
    f"approve {TASK}\n\n> no",
    f"apply {TASK}\n\n> no",
    f"cancel {TASK}\n\n> no",
    "cancel it\n\n> no",
    "apply it\n\n> no",
    "deny it\n\n> ok",
    "yes\n\n> no",
    "go ahead\n> no",
    "do it\n> run rm",
    "> may I run ls?\n\nyes",
    "> may I run ls?\n\nno",
    "> may I run ls?\n\napprove it",
    "approve it\n\nOn Monday you wrote:\n> may I?",
    "<p>approve it</p>\n> no",
)
"""Orders and answers beside text that was pasted: they may have been taken back."""
SHORT_ANSWERS = phrases(TABLES["short_answers"])
ANSWERS_ABROAD = phrases(TABLES["answers_abroad"])
WORK = phrases(TABLES["work"])


def routed(request: str, *, asking: bool = False, empty: bool = False, hints: Hints | None = None) -> Route:
    tasks = () if empty else ASKING if asking else SHELF
    return route(parse(request, hints or Hints()), tasks, NOW, PLACE)


def answer_of(found: Route) -> str | None:
    return found.answer.kind if found.action == "respond" and found.answer is not None else None


@pytest.mark.parametrize(("operation", "requests"), COMMANDS.items())
def test_a_command_is_understood_in_five_languages(operation: str, requests: list[str]) -> None:
    assert {request: routed(request).action for request in requests} == dict.fromkeys(requests, operation)


def test_a_no_with_a_reason_denies_what_is_asked_and_is_no_work() -> None:
    assert {request: answer_of(routed(request, asking=True)) for request in DENIALS} == dict.fromkeys(DENIALS, "deny")
    assert {request for request in DENIALS if routed(request).action == "run"} == set()


def test_the_reason_of_a_no_is_passed_on() -> None:
    found = routed("no because it touches production", asking=True)
    assert found.answer is not None
    assert found.answer.text == "it touches production"


def test_a_mere_yes_or_no_shows_the_question_again() -> None:
    for request in phrases("yes / ok / Sure! / no / nope / yes please / y / n / oui / non / si"):
        found = routed(request, asking=True)
        assert (found.action, found.task_id) in (("check", TASK), ("choose", None)), request
        assert routed(request).action in ("none", "choose"), request


def test_an_approval_to_the_letter_is_one() -> None:
    given = {request: answer_of(routed(request, asking=True)) for request in APPROVALS}
    assert given == dict.fromkeys(APPROVALS, "approve")


@pytest.mark.parametrize("asking", [True, False])
def test_an_approval_with_anything_left_over_is_none(asking: bool) -> None:
    assert {request for request in NO_APPROVALS if answer_of(routed(request, asking=asking)) == "approve"} == set()
    hinted = {request: routed(request, asking=asking, hints=Hints(operation="respond")) for request in NO_APPROVALS}
    assert {request for request, found in hinted.items() if answer_of(found) == "approve"} == set()


def test_an_approval_in_disguise_starts_no_work() -> None:
    unseen = "\u200b\u00ad\u0336\u0338\u202e\u2060\ufe0f\ufeff\u0301"
    assert routed("\N{CYRILLIC SMALL LETTER A}pprove it").action == "choose"
    for char in f"{unseen}\N{THUMBS DOWN SIGN}\N{CROSS MARK}":
        inside = [f"appr{char}ove it"] if char in unseen else []
        for request in (f"approve{char} it", f"{char}approve it", f"approve it{char}", f"{char} approve it", *inside):
            for asking in (True, False):
                assert routed(request, asking=asking).action in ("check", "choose"), ascii(request)


@given(st.sampled_from(APPROVALS), st.text(min_size=1, max_size=8), st.integers(0, 100))
def test_any_insertion_into_an_approval_makes_it_another_one_or_none(approval: str, more: str, place: int) -> None:
    at = place % (len(approval) + 1)
    changed = approval[:at] + more + approval[at:]
    if answer_of(routed(changed, asking=True)) == "approve":
        assert changed.isascii()
        assert not set(changed) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-#_ ,.!\t\r\n")


@given(st.sampled_from(APPROVALS), st.characters(exclude_categories=["Zs", "Cc"], min_codepoint=0x80))
def test_a_character_that_is_not_plain_is_never_in_an_approval(approval: str, char: str) -> None:
    for changed in (f"{approval} {char}", f"{char}{approval}", approval.replace(" ", char, 1) + char):
        assert answer_of(routed(changed, asking=True)) != "approve"


@pytest.mark.parametrize("state", ["none", "running", "asking"])
def test_talk_about_running_work_starts_and_changes_nothing(state: str) -> None:
    found = {request: routed(request, asking=state == "asking", empty=state == "none") for request in ASKED}
    assert {request for request, one in found.items() if one.action not in ("choose", "check", "none")} == set()
    assert {request for request, one in found.items() if one.task_id is not None and one.action != "check"} == set()


@pytest.mark.parametrize("request_", NAMES_A_TASK)
def test_a_request_that_names_a_task_is_about_it_or_asked_back(request_: str) -> None:
    for asking in (False, True):
        found = routed(request_.format(TASK), asking=asking)
        assert found.action != "run", found.trace
        assert {*[task.id for task in found.choices], found.task_id} <= {TASK, None}


def test_a_short_request_that_names_an_unknown_task_is_an_error() -> None:
    for request in NAMES_A_TASK:
        found = routed(request.format("T-local-000000000000"))
        assert found.action != "run" or found.error is not None, request


def of_session(request: str, *, asking: bool = False) -> Route:
    tasks = [replace(task, session_id=SESSION if task.id == TASK else None) for task in (ASKING if asking else SHELF)]
    return route(parse(request), tasks, NOW, PLACE)


@pytest.mark.parametrize(
    "request_", [*NAMES_A_TASK, *phrases("({}) status / #{} / codex:{} / {} approve / is {} done?")]
)
def test_a_request_that_names_a_session_is_about_its_task_or_asked_back(request_: str) -> None:
    for asking in (False, True):
        found = of_session(request_.format(SESSION), asking=asking)
        assert found.action != "run", found.trace
        assert {*[task.id for task in found.choices], found.task_id} <= {TASK, None}


def test_an_order_or_an_answer_that_names_a_session_is_for_its_task() -> None:
    for request in ("approve {}", "approve session {}", "approve the command of session {}", "APPROVE {}"):
        found = of_session(request.format(SESSION), asking=True)
        assert (answer_of(found), found.task_id) == ("approve", TASK), request
    for request in ("deny {}: touches production", "reject session {}"):
        assert answer_of(of_session(request.format(SESSION), asking=True)) == "deny"
    for action, request in (
        ("apply", "apply {}"),
        ("apply", "apply the changes of session {}"),
        ("cancel", "cancel {}"),
    ):
        found = of_session(request.format(SESSION.upper()))
        assert (found.action, found.task_id) == (action, TASK), request
    going_on = of_session(f"continue with {SESSION}: add a test")
    assert (going_on.action, going_on.task_id, going_on.instruction) == ("run", TASK, "add a test")
    for left_over in ("approve ({})", "approve {} 👎", "approve {}?", "approve {}\n\n> no", "never approve {}"):
        assert of_session(left_over.format(SESSION), asking=True).action in ("check", "choose"), left_over


def test_of_two_tasks_of_a_session_the_one_that_asks_is_answered() -> None:
    tasks = [replace(task, session_id=SESSION) for task in ASKING]
    assert route(parse(f"approve {SESSION}"), tasks, NOW, PLACE).task_id == TASK


def test_an_unknown_session_is_an_error_or_asked_back_and_work_may_have_such_an_id() -> None:
    for request in ("approve {}", "apply {}", "cancel session {}"):
        assert routed(request.format(SESSION)).error is not None, request
    for request in ("retry {}", "{}", "status of {}", "delete user {}"):
        assert routed(request.format(SESSION)).action == "choose", request
    assert routed(f"find out why request {SESSION} failed in production and add a test").action == "run"


@pytest.mark.parametrize("asking", [False, True])
def test_an_order_beside_pasted_text_is_asked_back(asking: bool) -> None:
    found = {request: routed(request, asking=asking).action for request in TAKEN_BACK}
    assert found == dict.fromkeys(TAKEN_BACK, "choose")


def test_work_on_pasted_text_runs() -> None:
    for request in (
        "fix this\n```\nTypeError\n```",
        "> no\nexplain this error",
        "apply this\n```diff\n-a\n```",
        "```\nx\n```",
    ):
        assert routed(request).action == "run", request


@pytest.mark.parametrize("asking", [False, True])
def test_a_few_words_that_judge_start_nothing_and_grant_nothing(asking: bool) -> None:
    found = {request: routed(request, asking=asking).action for request in SHORT_ANSWERS}
    assert {request: action for request, action in found.items() if action not in ("choose", "check", "none")} == {}


def test_while_a_question_is_open_a_few_words_of_any_language_may_be_an_answer() -> None:
    found = {request: routed(request, asking=True).action for request in ANSWERS_ABROAD}
    assert found == dict.fromkeys(ANSWERS_ABROAD, "choose")


def test_a_text_that_is_nearly_talk_is_read_at_once() -> None:
    began = time.process_time()
    for text in (
        "\u597d\u4e86\u597d\u7684" * 29 + "x",
        "\u4e0d\u884c\u4e0d\u8981" * 29 + "x",
        "the " * 29 + "x",
        "a-" * 59 + "!",
    ):
        routed(text, asking=True)
        routed(f"approve {text}", asking=True)
    assert time.process_time() - began < 0.1


def test_work_in_any_language_runs() -> None:
    assert {request for request in WORK if routed(request).action != "run"} == set()
    assert {request for request in WORK if routed(request, asking=True).action not in ("run", "choose")} == set()


def test_the_table_is_large_and_each_phrase_is_in_it_once() -> None:
    table = [*WORK, *ASKED, *DENIALS, *APPROVALS, *NAMES_A_TASK]
    table += [request for requests in COMMANDS.values() for request in requests]
    assert len(table) >= 350
    known = [unicodedata.normalize("NFC", request).casefold() for request in table]
    assert [request for request in set(known) if known.count(request) > 1] == ["continue"]  # as in French


def test_a_request_is_understood_in_well_under_a_millisecond() -> None:
    table = [*WORK, *ASKED, *DENIALS, *APPROVALS, *NO_APPROVALS]
    best = min(_seconds(table) for _ in range(3))
    assert best / len(table) < 0.0005


def _seconds(table: list[str]) -> float:
    began = time.process_time()
    for request in table:
        routed(request, asking=True)
    return time.process_time() - began
