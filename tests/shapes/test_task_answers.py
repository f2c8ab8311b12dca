"""Tasks as the router's tools return them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from helmsman.model.events import PlanStep, TodoList
from helmsman.sessions.progress import infer_progress
from helmsman.shapes.contract import ProgressOutput
from helmsman.shapes.task_answers import about, task_age, task_progress
from helmsman.tasks.model import Task


def task(**fields: Any) -> Task:
    now = datetime.now(UTC)
    times: dict[str, Any] = {"created_at": now - timedelta(minutes=90, seconds=20), "updated_at": now}
    return Task(
        **{"id": "T-local-1", "origin": "local", "alias": "a-b", "status": "working", "instruction": "x"}
        | times
        | fields
    )


def test_steps_and_percentage_have_the_names_of_other_tools_too() -> None:
    plan = TodoList(id="p", steps=(PlanStep("look", "completed"), PlanStep("fix it", "in_progress")))
    progress = ProgressOutput.model_validate(infer_progress([plan]), from_attributes=True)
    assert (progress.current_step, progress.total_steps, progress.step_description) == (2, 2, "fix it")
    assert progress.percentage == progress.percent == 50


def test_progress_without_a_plan_has_no_steps() -> None:
    shown = task_progress(
        task(progress={"text": "3 of 4 tests", "done": 3, "total": 4, "unit": "tests", "percent": 75})
    )
    assert shown is not None
    assert (shown.percentage, shown.current_step, shown.total_steps, shown.step_description) == (75, None, None, None)


def test_an_unfinished_task_is_kept_at_least_as_long_as_if_it_ended_now() -> None:
    kept = task().kept_until(timedelta(days=2))
    now = datetime.now(UTC)
    assert timedelta(days=2, minutes=-5) < kept - now <= timedelta(days=2)
    assert task(status="completed", expires_at=now).kept_until(timedelta(days=2)) == now


def test_the_age_of_a_task_is_since_its_end_or_else_its_start() -> None:
    assert task_age(task()) == "started 1 h 30 min ago"
    assert (
        task_age(task(status="completed", completed_at=datetime.now(UTC) - timedelta(seconds=150))) == "ended 2 min ago"
    )


@pytest.mark.parametrize(("seconds", "words"), [(-1, "0 s"), (12, "12 s"), (100, "1 min"), (7300, "2 h 1 min")])
def test_a_duration_is_reported_roughly(seconds: float, words: str) -> None:
    assert about(seconds) == words
