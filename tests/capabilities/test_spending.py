"""Tests that each turn counts once, with several sources."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.agents.codex.storage import CodexSessions
from helmsman.agents.spending import SessionSpending, TurnSpending
from helmsman.capabilities import usage_report
from helmsman.capabilities.usage_report import Spending
from helmsman.model.events import Usage
from helmsman.tasks.registry import TurnUsage

all_spendings = partial(
    usage_report.all_spendings, names_turn=lambda _agent, turn_id: CodexSessions(Path()).names(turn_id)
)
T1 = "0199a0f2-7c11-7d20-9f0a-3b2d5c8e1f01"
T2 = "0199a0f2-7c11-7d20-9f0a-3b2d5c8e1f02"


def turn(turn_id: str | None, tokens: int, at: float = 0.0) -> TurnSpending:
    return TurnSpending(turn_id, at, "gpt-5.5", tokens, 0, 0, 0)


def session(
    session_id: str, *turns: TurnSpending, parent: str | None = None, fork: str | None = None
) -> SessionSpending:
    return SessionSpending("codex", session_id, "/src", 100.0, parent, fork, turns)


def task(session_id: str | None, turn_id: str | None, tokens: int, before: int = 0) -> TurnUsage:
    return TurnUsage(
        session_id=session_id,
        turn_id=turn_id,
        directory="/src",
        model="gpt-5.5",
        began_at=datetime(2026, 11, 15, tzinfo=UTC),
        usage=Usage(tokens),
        before=Usage(before),
    )


def spent(spendings: list[Spending]) -> list[tuple[str | None, int]]:
    return [(spending.session_id, spending.input_tokens) for spending in spendings]


def test_a_turn_in_a_file_and_in_the_registry_counts_once() -> None:
    assert spent(all_spendings([session("s", turn(T1, 10))], [task("s", T1, 10)])) == [("s", 10)]


def test_a_turn_that_only_the_registry_knows_counts() -> None:
    tasks = [task("gone", T1, 10), task("s", T2, 5), task(None, None, 1)]
    assert spent(all_spendings([session("s", turn(T1, 7))], tasks)) == [("s", 7), ("gone", 10), ("s", 5), (None, 1)]


def test_of_a_task_that_continues_only_its_new_turn_may_be_missing_in_the_file() -> None:
    file = session("s", turn(T1, 10))
    assert spent(all_spendings([file], [task("s", T2, 10, before=10)])) == [("s", 10)]
    assert spent(all_spendings([file], [task("s", T2, 13, before=10)])) == [("s", 10), ("s", 3)]
    assert spent(all_spendings([], [task("s", T2, 13, before=10)])) == [("s", 13)]


def test_the_larger_count_of_a_running_turns_tokens_wins() -> None:
    file = session("s", turn(T1, 10))
    assert spent(all_spendings([file], [], running={T1: Usage(12)})) == [("s", 12)]
    assert spent(all_spendings([file], [], running={T1: Usage(9), T2: Usage(5)})) == [("s", 10)]


@pytest.mark.parametrize("own_id", [None, "0", "8a83845f-cc98-4778-b364-3e6bdb8dcea5"])
def test_a_task_with_an_unlisted_id_is_found_in_the_file_of_its_session(own_id: str | None) -> None:
    """Codex 0.93 numbers turns anew after each resume; `codex exec` does not say what it calls them."""
    assert spent(all_spendings([session("s", turn(None, 10))], [task("s", own_id, 10)])) == [("s", 10)]


def test_the_turns_that_a_fork_copied_count_for_its_parent() -> None:
    parent, fork = session("p", turn(T1, 10)), session("f", turn(T1, 10), turn(T2, 4), fork="p")
    assert spent(all_spendings([parent, fork], [])) == [("p", 10), ("f", 4)]
    assert spent(all_spendings([fork], [])) == [("f", 10), ("f", 4)]  # the parent was deleted


def test_copied_turns_without_ids_are_known_by_what_they_spent() -> None:
    parent = session("p", turn(None, 10, at=1), turn(None, 20, at=2), turn(None, 30, at=200))
    fork = session("f", turn(None, 10, at=99), turn(None, 20, at=99), turn(None, 30, at=120), fork="p")
    assert spent(all_spendings([parent, fork], [])) == [("p", 10), ("p", 20), ("p", 30), ("f", 30)]


def test_a_sub_agents_turns_are_spent_for_the_session_that_a_person_knows() -> None:
    family = [
        session("top", turn("a", 1)),
        session("mid", turn("b", 2), parent="top"),
        session("low", turn("c", 3), parent="mid"),
    ]
    assert spent(all_spendings(family, [])) == [("top", 1), ("top", 2), ("top", 3)]
    assert spent(all_spendings(family[1:], [])) == [("top", 2), ("top", 3)]
    circle = [session("x", turn("a", 1), parent="y"), session("y", turn("b", 2), parent="x")]
    assert sum(tokens for _, tokens in spent(all_spendings(circle, []))) == 3


def test_a_session_that_is_there_twice_counts_once() -> None:
    older, newer = session("s", turn(None, 10)), session("s", turn(None, 10), turn(None, 5))
    assert spent(all_spendings([newer, older], [])) == [("s", 10), ("s", 5)]


def test_a_session_that_was_taken_back_counts_with_both_its_files() -> None:
    begun, taken_back = session("s", turn(T1, 10), turn(T2, 5)), session("s", turn("T3", 7))
    assert spent(all_spendings([begun, taken_back], [])) == [("s", 10), ("s", 5), ("s", 7)]
    assert spent(all_spendings([begun, begun, taken_back], [])) == [("s", 10), ("s", 5), ("s", 7)]


def test_work_counts_for_the_place_it_belongs_to() -> None:
    (spending,) = all_spendings([session("s", turn(T1, 1))], [], lambda directory: f"home of {directory}")
    assert spending.directory == "home of /src"


IDS = st.sampled_from([f"0199a0f2-7c11-7d20-9f0a-3b2d5c8e1f{number:02x}" for number in range(12)])


@given(st.dictionaries(IDS, st.integers(1, 1000)), st.data())
def test_however_turns_are_spread_over_files_and_tasks_each_counts_once(
    turns: dict[str, int], data: st.DataObject
) -> None:
    """A turn is in one session's file, in the registry, or in both; and forks may repeat it."""
    files: dict[str, list[TurnSpending]] = {"a": [], "b": [], "c": []}
    tasks: list[TurnUsage] = []
    for turn_id, tokens in turns.items():
        where = data.draw(st.sampled_from(["file", "registry", "both"]))
        home = data.draw(st.sampled_from(sorted(files)))
        if where != "registry":
            for name in {home, *data.draw(st.lists(st.sampled_from(sorted(files))))}:
                files[name].append(turn(turn_id, tokens))
        if where != "file":
            tasks.append(task(home, turn_id, tokens))
    sessions = data.draw(st.permutations([session(name, *of_it) for name, of_it in files.items()]))
    told = all_spendings(sessions, data.draw(st.permutations(tasks)))
    assert sum(spending.input_tokens for spending in told) == sum(turns.values())
    assert len(told) == len(turns)
