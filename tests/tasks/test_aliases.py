from __future__ import annotations

import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.tasks.model import alias_stem, make_alias, new_task_id


def nothing_is_taken(_name: str) -> bool:
    return False


@pytest.mark.parametrize(
    ("instruction", "alias"),
    [
        ("Fix the login test", "fix-login-test"),
        ("Please could you fix the failing login test in the billing module?", "fix-failing-login-test"),
        ("Don't touch the API", "dont-touch-api"),
        ("Überprüfe die Änderungen", "uberprufe-die-anderungen"),
        ("continue", "continue-task"),
        ("fix src/app/main.py", "fix-src-app-main"),
        ("42 tests fail, fix issue 17", "tests-fail-fix-issue"),
        ("修复登录测试", "task-1"),
        ("🚀🚀", "task-1"),
        ("", "task-1"),
        ("12345", "task-1"),
        ("T-local-0123456789ab", "task-1"),
        ("continue edfddbeb-aaca-adff-ffbb-adddddedddcc", "continue-task"),
        ("revert commit 3f2a9bc", "revert-commit"),
        ("use the key [redacted] to log in", "use-key-log"),
    ],
)
def test_an_alias_says_what_the_task_is_about(instruction: str, alias: str) -> None:
    assert make_alias(instruction, nothing_is_taken) == alias


def test_an_alias_that_is_taken_gets_a_number() -> None:
    assert make_alias("Fix the login test", {"fix-login-test"}.__contains__) == "fix-login-test-2"
    assert make_alias("Fix the login test", {"fix-login-test", "fix-login-test-2"}.__contains__) == "fix-login-test-3"
    assert make_alias("…", {"task-1", "task-2"}.__contains__) == "task-3"


@pytest.mark.parametrize(("instruction", "first"), [("Fix the login test", 2), ("…", 1)])
def test_tasks_that_say_the_same_are_numbered_in_order(instruction: str, first: int) -> None:
    taken: list[str] = []
    for _ in range(100):
        taken.append(make_alias(instruction, taken.__contains__))
    stem = alias_stem(instruction)
    numbers = taken if first == 1 else taken[1:]
    assert numbers == [f"{stem}-{number}" for number in range(first, first + len(numbers))]


def test_a_number_is_found_among_many_with_few_looks() -> None:
    looked_at: list[str] = []

    def is_taken(name: str) -> bool:
        looked_at.append(name)
        return int(name.removeprefix("task-")) <= 100_000

    assert make_alias("…", is_taken) == "task-100001"
    assert len(looked_at) < 50


@given(st.text(max_size=200), st.sets(st.sampled_from(["task-1", "fix-it-task"])))
def test_any_text_gives_a_safe_alias(instruction: str, taken: set[str]) -> None:
    alias = make_alias(instruction, taken.__contains__)
    assert re.fullmatch(r"[a-z][a-z0-9]+(-[a-z0-9]+)+", alias)
    assert len(alias) <= 50
    assert alias not in taken
    assert alias.startswith(alias_stem(instruction))


@given(st.sampled_from(["local", "cloud"]), st.uuids())
def test_an_alias_is_never_taken_for_an_id(origin: str, session: uuid.UUID) -> None:
    for instruction in (new_task_id("local"), f"T-{origin}-{session.hex[:12]}", str(session), f"resume {session}"):
        alias = make_alias(instruction, nothing_is_taken)
        assert not alias.startswith("t-")
        assert not re.fullmatch(r"[0-9a-f]{8}-.*", alias)
