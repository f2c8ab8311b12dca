"""What an earlier hub left that cannot simply go on: each task ends, or waits, with a reason that says what to do."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.base.structs import pack, replace
from helmsman.errors import QuestionNotOpen
from helmsman.model.answered_by import AnsweredBy
from helmsman.model.options import SessionOptions, TurnLimits
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.steering.turn_policy import TurnPolicy
from helmsman.tasks.call_key import CallKey, call_key
from helmsman.tasks.drafts import draft_task
from helmsman.tasks.model import Task
from helmsman.tasks.registry import REGISTRY_NAME, Registry
from helmsman.testing import CodexHome, ScriptedModel, run, say
from tests.hub_service import hub_service
from tests.turns import requested

pytestmark = pytest.mark.anyio

SECONDS = 30
PERSON = AnsweredBy("person", via="dashboard")


@pytest.fixture
def detached(settings: Settings, detached_engines: Path) -> Settings:
    return replace(settings, detach=True, state_dir=detached_engines)


def leave(settings: Settings, directory: Path, *, spec: Any = None, session_id: str | None = None, **more: Any) -> Task:
    """A task that a hub has acknowledged, and has not come to run."""
    options = SessionOptions(cwd=directory)
    known = requested("work", options).packed()
    policy = pack(TurnPolicy.of(settings, TurnLimits(), "of somebody who is away"))
    _, draft = draft_task(
        requested("work", options),
        session_id=session_id,
        policy=policy,
        spec=known if spec is None else spec,
    )
    with closing(Registry(settings.state_dir / REGISTRY_NAME)) as registry:
        task, _ = registry.add(replace(draft, **more))
    return task


async def until(helm: HelmsmanService, task: Task, found: Callable[[Task], object]) -> Task:
    with anyio.fail_after(SECONDS):
        while not found(now := await helm.tasks.get(task.id)):
            await anyio.sleep(0.01)
    return now


async def test_a_stored_task_of_an_unknown_form_fails_and_says_so(
    detached: Settings, codex_home: CodexHome, folder: Path
) -> None:
    odd = leave(detached, folder, spec={"of": "another version"})
    job = leave(detached, folder, job="debug")
    async with hub_service(detached, codex_home.env) as helm:
        task = await until(helm, odd, lambda task: task.has_ended)
        assert task.status == "failed"
        assert task.error is not None
        assert "cannot read the record of an earlier one" in task.error["message"]
        waiting = await until(helm, job, lambda task: task.note is not None)
        assert waiting.is_running


async def test_a_turn_of_a_job_that_has_ended_does_not_begin(
    detached: Settings, codex_home: CodexHome, folder: Path
) -> None:
    orphan = leave(detached, folder, of_job="t_gone")
    async with hub_service(detached, codex_home.env) as helm:
        task = await until(helm, orphan, lambda task: task.has_ended)
        assert (task.status, task.note) == ("canceled", "Its job has ended.")


@pytest.mark.parametrize("session_id", [None, str(uuid.UUID(int=7))], ids=["start", "message"])
async def test_work_that_needs_the_environment_of_its_client_waits_for_it_says_so_and_can_be_cancelled(
    detached: Settings, codex_home: CodexHome, folder: Path, session_id: str | None
) -> None:
    theirs = leave(detached, folder, session_id=session_id)
    async with hub_service(detached, codex_home.env) as helm:
        task = await until(helm, theirs, lambda task: task.note is not None)
        assert (task.status, task.session_id) == ("pending", session_id)
        await helm.tasks.cancel(task, reason="not needed any more")
        task = await until(helm, theirs, lambda task: task.has_ended)
        assert task.status == "canceled"
        assert "not needed any more" in (task.note or "")


# --- answers ---------------------------------------------------------------------------------------------------------


@contextmanager
def asked(*, again: bool = False) -> Iterator[None]:
    """One call of a client, which it may repeat to the next hub."""
    before = call_key.set(CallKey("call", is_repeated=again))
    try:
        yield
    finally:
        call_key.reset(before)


async def test_an_answer_that_a_hub_gave_before_it_died_is_the_same_answer_and_no_other_one(
    detached: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("touch", run("touch made.txt", escalate="it is needed"), say("All said."))
    async with hub_service(detached, codex_home.env) as helm:
        session = await helm.start("touch it", cwd=folder, sandbox="workspace-write", approval_policy="on-request")
        assert await session.wait(timeout=SECONDS)
        (question,) = session.questions
        with asked():
            await helm.respond(session.id, question.id, ["approve"], by=PERSON)
        with pytest.raises(QuestionNotOpen):
            await helm.respond(session.id, question.id, ["approve"], by=PERSON)
        with asked(again=True):
            assert await helm.respond(session.id, question.id, ["approve"], by=PERSON) is session
            with pytest.raises(QuestionNotOpen):
                await helm.respond(session.id, question.id, ["deny"], by=PERSON)
            with pytest.raises(QuestionNotOpen):
                await helm.respond(session.id, question.id, ["approve"], by=AnsweredBy("agent", via="tool"))
            with pytest.raises(QuestionNotOpen):
                await helm.respond(session.id, "q_unknown", ["approve"], by=PERSON)
        assert await session.wait(until="end", timeout=SECONDS)
