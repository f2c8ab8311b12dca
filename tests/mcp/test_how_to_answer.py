"""Whoever looks at a task that asks is told how to answer it from where they are, also when it is a job."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from helmsman.shapes.task_answers import how_to_answer
from helmsman.tasks.model import Task

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def task(**more: Any) -> Task:
    given: dict[str, Any] = {"id": "T-local-1", "alias": "fix-it", "origin": "local", "status": "working"}
    given |= {"instruction": "fix it", "created_at": NOW, "updated_at": NOW, "input_required": True}
    return Task(**given | more)


@pytest.mark.parametrize(
    ("tools", "said"),
    [(("sessions",), "codex_respond in session one or two"), (("agents",), "agent_respond in session one or two")],
)
def test_a_job_is_answered_in_its_sessions(tools: tuple[str, ...], said: str) -> None:
    helm = cast("Any", SimpleNamespace(settings=SimpleNamespace(tools=tools)))
    assert said in how_to_answer(helm, task(job="debug", job_sessions=("one", "two")))


def test_where_no_tool_answers_a_job_a_person_does() -> None:
    helm = cast("Any", SimpleNamespace(settings=SimpleNamespace(tools=("router",))))
    assert "helmsman respond" in how_to_answer(helm, task(job="debug", job_sessions=("one",)))
    assert "approve T-local-1" in how_to_answer(helm, task(session_id="one"))
