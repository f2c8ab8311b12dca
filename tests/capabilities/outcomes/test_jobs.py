"""Jobs: turns that are run for an outcome, each step once, followed and stopped like any task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from helmsman.base.structs import replace
from helmsman.capabilities.outcomes import jobs
from helmsman.capabilities.outcomes.request import Wanted
from helmsman.capabilities.outcomes.work import Work, seconds_left
from helmsman.errors import InvalidInput
from helmsman.hub.telemetry import Telemetry
from helmsman.service import HelmsmanService
from helmsman.tasks.model import TaskDraft
from helmsman.tasks.outcome import TaskOutcome
from helmsman.testing import ScriptedModel, run, say, usage

pytestmark = pytest.mark.anyio


def procedure(monkeypatch: pytest.MonkeyPatch, do: Callable[[Work], Awaitable[TaskOutcome]]) -> None:
    monkeypatch.setitem(jobs.PROCEDURES, "debug", do)


def wanted(directory: Path) -> Wanted:
    return Wanted(kind="debug", request="it does not work", directory=str(directory), more={})


async def test_the_verified_result_of_a_job_is_the_result_of_its_task(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.on("first", say("one"))
    model.on("second", say("two"))
    counted: list[str] = []

    async def count() -> int:
        counted.append("once")
        return 7

    async def two_turns(work: Work) -> TaskOutcome:
        begun = await work.start("begin", "first", worktree=True)
        more = await work.say("more", begun.session.id, "second")
        found = [await work.once("count", count) for _ in range(2)]
        return TaskOutcome(output=f"{begun.said} {more.said}", report={"verified": True, "found": found})

    procedure(monkeypatch, two_turns)
    task = await helm.extras.outcomes.start(wanted(git_repo), idempotency_key="k")
    again = await helm.extras.outcomes.start(wanted(git_repo), idempotency_key="k")
    assert again.id == task.id
    ended = await helm.tasks.wait(task, timeout=60)
    assert (ended.status, ended.result, ended.job) == ("completed", "one two", "debug")
    assert (await helm.tasks.results(ended)).report == {"verified": True, "found": [7, 7]}
    assert counted == ["once"]
    turns, _ = await helm.tasks.list()
    assert [(turn.job, turn.status) for turn in turns] == [
        (None, "completed"),
        (None, "completed"),
        ("debug", "completed"),
    ]


async def test_a_job_counts_the_turns_of_its_finished_steps_after_a_restart(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.on("first", [say("one"), usage(1000)])
    spent: list[object] = []

    async def one_turn(work: Work) -> TaskOutcome:
        async def ask() -> str:
            return (await work.start("begin", "first")).said

        await work.once("judged", ask)
        known = await work.helm.task_writer.registry(lambda registry: registry.steps(work.task.id))
        later = Work(work.helm, work.tasks, work.task, work.wanted, work.job, known, anyio.CancelScope())
        spent.extend([(await work.spent())[0].input_tokens, await work.spent() == await later.spent()])
        return TaskOutcome(output="", report={"verified": True})

    procedure(monkeypatch, one_turn)
    await helm.tasks.wait(await helm.extras.outcomes.start(wanted(git_repo)), timeout=60)
    assert spent == [1000, True]


async def test_the_turns_of_a_job_are_part_of_its_trace(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "get_tracer", tracers.get_tracer)
    model.on("first", say("one"))

    async def one_turn(work: Work) -> TaskOutcome:
        await work.start("begin", "first", worktree=True)
        return TaskOutcome(output="no", report={"verified": False})

    procedure(monkeypatch, one_turn)
    stop = helm.listen(Telemetry(tracers).on_event)
    await helm.tasks.wait(await helm.extras.outcomes.start(wanted(git_repo)), timeout=60)
    stop()
    turn, job = spans.get_finished_spans()
    assert (turn.name, job.name) == ("invoke_agent codex", "invoke_workflow debug")
    assert turn.parent is not None
    assert job.context is not None
    assert turn.parent.span_id == job.context.span_id
    assert job.attributes is not None
    assert job.attributes["error.type"] == "failed"


async def test_an_unverified_job_has_failed(
    helm: HelmsmanService, git_repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lies(work: Work) -> TaskOutcome:
        return TaskOutcome(output="The check fails as before.", report={"verified": False})

    procedure(monkeypatch, lies)
    ended = await helm.tasks.wait(await helm.extras.outcomes.start(wanted(git_repo)), timeout=60)
    assert (ended.status, (ended.error or {})["code"]) == ("failed", "not_verified")


async def test_a_job_asks_with_its_session_and_ends_with_all_it_runs_when_it_is_cancelled(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.on("ask", run("touch made.txt"), say("done"))

    async def asks(work: Work) -> TaskOutcome:
        await work.start("begin", "ask", sandbox="workspace-write", approval_policy="untrusted")
        return TaskOutcome(output="", report={"verified": True})

    procedure(monkeypatch, asks)
    task = await helm.extras.outcomes.start(wanted(git_repo))
    with anyio.fail_after(60):
        while not (task := await helm.tasks.wait(task)).input_required:
            pass
    (session,) = helm.sessions.values()
    ended, stopped = await helm.tasks.cancel(task, reason="not wanted")
    assert (ended.status, ended.note) == ("canceled", "It was cancelled: not wanted")
    assert "1 session(s)" in stopped
    assert session.status == "interrupted"


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"request": " "}, "request"), ({"candidates": 9}, "candidates"), ({"seconds": 0}, "jobLimitSec")],
)
async def test_invalid_input_is_refused(changed: dict[str, object], named: str) -> None:
    given = {"kind": "debug", "request": "x", "directory": "/", "more": {}, **changed}
    with pytest.raises(InvalidInput) as refused:
        partial(Wanted, **given)()  # type: ignore[arg-type]
    assert refused.value.details["parameter"] == named


async def test_the_time_of_a_job_counts_from_its_beginning_but_for_the_time_of_people(helm: HelmsmanService) -> None:
    began = datetime.now(UTC) - timedelta(seconds=100)
    task, _ = await helm.task_writer.registry(
        lambda registry: registry.add(TaskDraft(instruction="x", status="working"))
    )
    task = replace(task, created_at=began)
    job = Wanted(kind="debug", request="x", directory="/", seconds=120)
    assert seconds_left(task, job) == pytest.approx(20, abs=2)
    assert seconds_left(task, replace(job, seconds=60)) == 0
    asked = {"seconds": 10.0, "since": (began + timedelta(seconds=70)).isoformat()}  # and its hub died while it was
    assert seconds_left(replace(task, uncounted=asked), job) == pytest.approx(60, abs=2)
