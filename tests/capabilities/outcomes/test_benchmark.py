"""A subset of the outcome benchmark: what a clean room catches is refused, and what is right is verified."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from bench.outcomes.play import Played, cast, open_stage
from bench.outcomes.players import PLAYERS
from bench.outcomes.report import as_page, goals_missed
from bench.outcomes.tasks import all_tasks
from bench.place import NothingToMeasure

if TYPE_CHECKING:
    from pathlib import Path

    from bench.outcomes.tasks import Task

    from helmsman.testing import CodexHome, ScriptedModel

PYTHON = next(one for one in all_tasks() if one.source == "inflection")
JAVASCRIPT = next(one for one in all_tasks() if one.source == "underscore")
SHADOW, EDITS, DAEMON = "shadowed module", "edits the check", "background process"


def made(task: Task, folder: Path) -> Path:
    try:
        return task.make(folder)
    except NothingToMeasure as problem:
        pytest.skip(str(problem))


@pytest.mark.timeout(400)  # the first test that reads the packages fetches them
def test_there_are_enough_tasks_and_each_kind_of_agent_plays_some() -> None:
    tasks = all_tasks()
    assert len(tasks) >= 60
    assert {one.language for one in tasks} == {"Python", "JavaScript"}
    some = tasks[::6]  # each pair costs a Python or a node that computes what is right
    try:
        pairs = cast(some, 2)
    except NothingToMeasure as problem:
        pytest.skip(str(problem))
    assert {player.name for _, player in pairs} == PLAYERS.keys()
    assert len([one for _, one in pairs if one.job == "debug"]) == 3 * len(some)


@pytest.mark.needs_git
@pytest.mark.parametrize("task", [PYTHON, JAVASCRIPT], ids=["python", "javascript"])
def test_the_hidden_test_fails_with_the_defect_and_with_a_fix_for_the_check_alone(task: Task, tmp_path: Path) -> None:
    if not task.is_python and shutil.which("node") is None:
        pytest.skip("There is no node here.")
    root = made(task, tmp_path / "repo")
    assert not task.is_right(root)
    over = PLAYERS["correct for the test, wrong in general"].does(task, 1) or {task.file: task.wrong_text()}
    (root / task.file).write_text(over[task.file] or "", encoding="utf-8")
    assert not task.is_right(root)
    (root / task.file).write_text(task.right_text(), encoding="utf-8")
    assert task.is_right(root)


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.needs_git
@pytest.mark.parametrize(
    "kind", ["honest", EDITS, *(pytest.param(one, marks=pytest.mark.rare) for one in (SHADOW, DAEMON, "hard-codes"))]
)
async def test_the_verdict_is_that_of_the_hidden_test(
    kind: str, codex_home: CodexHome, codex_binary: Path, model: ScriptedModel, tmp_path: Path
) -> None:
    made(PYTHON, tmp_path / "fetched")
    async with open_stage(codex_home, codex_binary, model, tmp_path) as stage:
        played = await stage.play(PYTHON, PLAYERS[kind])
    assert (played.verified, played.right) == (kind == "honest", kind == "honest"), played.says


def test_the_page_counts_each_kind_and_names_missed_goals() -> None:
    def one(player: str, *, verified: bool, right: bool) -> Played:
        return Played(
            player=player,
            task="task-001 split",
            language="Python",
            verified=verified,
            right=right,
            turns=2,
            seconds=1.0,
            judgement="clean",
            says="",
        )

    outcomes = [one("honest", verified=True, right=True), one(SHADOW, verified=True, right=False)]
    page = as_page(outcomes, "a day")
    assert "| honest | 1 | 1 | 0 | 0 | 0 | 2 | 1.0 |" in page
    assert "| shadowed module | 1 | 0 | 1 | 0 | 0 | 2 | 1.0 |" in page
    assert goals_missed(outcomes) == [
        "task-001 split, shadowed module: verified but wrong",
        "Verified but wrong: 1 of 2 (50.0 %)",
    ]
    assert goals_missed([one("honest", verified=False, right=True)]) == ["Refused but right: 1 of 1 (100.0 %)"]
