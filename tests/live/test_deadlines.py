"""What the deadline does to a question of a real Codex, and what is left to see of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import Helmsman
from helmsman.base.structs import replace
from helmsman.model.answered_by import PERSON_IN_DASHBOARD
from helmsman.model.events import Decision, QuestionClosed
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import MCP_ANSWER_SECONDS, Settings
from helmsman.shapes.session_status import session_status
from helmsman.shapes.transcript import transcript
from helmsman.testing import CodexHome, ScriptedModel, ask_user, question, run, say

pytestmark = pytest.mark.anyio

SECONDS = 30


@pytest.fixture
def asks(folder: Path) -> dict[str, Any]:
    return {"cwd": folder, "sandbox": "workspace-write", "approval_policy": "on-request"}


@pytest.fixture(autouse=True)
def _touches(model: ScriptedModel) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    model.on("next", say("and on"))


@pytest.fixture
def in_hub(settings: Settings, detached_engines: Path) -> Settings:
    """The settings of programs that ask the hub."""
    return replace(settings, detach=True, state_dir=detached_engines)


async def finished(session: Session) -> Session:
    assert await session.wait(until="end", timeout=SECONDS)
    return session


async def asked(session: Session) -> str:
    assert await session.wait(timeout=SECONDS)
    return session.questions[0].id


def closings(session: Session) -> list[QuestionClosed]:
    return [event for event in session.feed.since(0).events if isinstance(event, QuestionClosed)]


def audit(settings: Settings) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (settings.state_dir / "audit.jsonl").read_text(encoding="utf-8").splitlines()]


async def test_a_denial_by_deadline_leaves_a_trace(
    settings: Settings, codex_home: CodexHome, asks: dict[str, Any], folder: Path
) -> None:
    async with HelmsmanService(replace(settings, approval_timeout=0.2), env=codex_home.env) as helm:
        session = await finished(await helm.start("touch", **asks))
        status = session_status(session)
        assert status.status == "done"
        assert status.note is not None
        assert status.note.startswith("A question timed out and was denied: ")
        assert "touch made.txt" in status.note
        assert status.timed_out is not None
        (decision,) = [item for item in session.state.items_and_decisions if isinstance(item, Decision)]
        assert decision.outcome == "denied: no answer in 0 s"
        text = transcript(session, await helm.history(session.id))
        assert "denied: no answer in" in text
        assert "A question timed out" in text
        await helm.task_writer.write()
        task = await helm.tasks.get(session.task_ids[-1])
        assert (task.status, len(task.timed_out), task.note) == ("completed", 1, status.note)
        await session.say("next")
        await finished(session)
        assert session_status(session).note is None
        assert "denied: no answer in" in transcript(session, await helm.history(session.id))
    (entry,) = audit(settings)
    assert (entry["decision"], entry["by"]) == ("deny", "deadline")
    assert not (folder / "made.txt").exists()


async def test_a_later_process_sees_what_the_deadline_denied(
    settings: Settings, codex_home: CodexHome, asks: dict[str, Any]
) -> None:
    async with HelmsmanService(replace(settings, approval_timeout=0.2), env=codex_home.env) as helm:
        session = await finished(await helm.start("touch", **asks))
        note = session_status(session).note
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        status = session_status(await helm.session(session.id))
    assert (status.status, status.note) == ("done", note)
    assert status.timed_out is not None


async def test_a_question_is_denied_only_once_it_is_off_the_screen(
    settings: Settings, codex_home: CodexHome, asks: dict[str, Any]
) -> None:
    async with HelmsmanService(replace(settings, approval_timeout=3), env=codex_home.env) as helm:
        session = await helm.start("touch", **asks)
        question_id = await asked(session)
        deadline = session.deadlines[question_id]
        async with session.on_screen(session.questions[0]):
            with anyio.fail_after(SECONDS):
                while not deadline.is_paused:
                    await anyio.sleep(0.01)
            with anyio.move_on_after(3.5):  # longer than it would have had
                await session.wait(until="change")
            assert session.status == "awaiting_approval"
        assert (await finished(session)).status == "done"
    assert [event.by for event in closings(session)] == ["deadline"]


async def test_a_question_that_another_program_shows_is_not_denied_and_all_of_them_say_what_the_deadline_did(
    in_hub: Settings, codex_home: CodexHome, asks: dict[str, Any], folder: Path
) -> None:
    """The hub has the question; one program began the session, and another shows what it asks."""
    async with (
        Helmsman(replace(in_hub, approval_timeout=4), env=codex_home.env) as one,
        Helmsman(in_hub, env=codex_home.env) as other,
    ):
        session = await one.start("touch", **asks)
        question_id = await asked(session)
        looked_at = await other.session(session.id)
        assert await asked(looked_at) == question_id
        assert looked_at.deadlines[question_id].seconds <= 4  # the clock is one and the same
        async with looked_at.on_screen(looked_at.questions[0]):
            with anyio.fail_after(SECONDS):
                while not session.deadlines[question_id].is_paused:
                    await anyio.sleep(0.05)
            with anyio.move_on_after(4.5):
                await session.wait(until="change")
            assert session.status == "awaiting_approval"
            await other.respond(session.id, question_id, ["approve"], by=PERSON_IN_DASHBOARD)
        await finished(session)
        assert (folder / "made.txt").exists()
        await session.say("touch")
        await finished(session)
        await finished(looked_at)
    for seen in (session, looked_at):
        assert [(event.by, event.via) for event in closings(seen)] == [("person", "dashboard"), ("deadline", None)]
    assert [entry["by"] for entry in audit(in_hub)] == ["person", "deadline"]


async def test_a_question_of_a_persons_session_waits_for_an_answer(
    in_hub: Settings, codex_home: CodexHome, asks: dict[str, Any], folder: Path
) -> None:
    """Unless a time is configured. A person who is only away denies nothing."""
    async with Helmsman(in_hub, env=codex_home.env) as helm:
        session = await helm.start("touch", **asks)
        question_id = await asked(session)
        deadline = session.deadlines[question_id]
        assert not deadline.has_end
        status = session_status(session)
        assert status.pending_question is not None
        assert status.pending_question.deadline is None
        await session.respond(question_id, "approve")
        await finished(session)
    assert (folder / "made.txt").exists()


async def test_a_question_that_cannot_be_answered_later_keeps_its_deadline(
    settings: Settings, codex_home: CodexHome, asks: dict[str, Any]
) -> None:
    """Without a hub and without a handler, no person ever sees it."""

    async def think(_session: Any, _question: Any) -> None:
        await anyio.sleep_forever()

    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.start("touch", **asks)
        left = session.deadlines[await asked(session)].seconds
        assert 290 < left <= MCP_ANSWER_SECONDS
        await session.interrupt()
        session = await helm.start("touch", on_question=think, **asks)
        assert not session.deadlines[await asked(session)].has_end
        await session.interrupt()


async def test_a_question_for_text_is_not_denied_and_the_agent_learns_that_it_was_not_answered(
    settings: Settings, codex_home: CodexHome, asks: dict[str, Any], model: ScriptedModel
) -> None:
    model.on("which", ask_user(question("Which one?", "A", "B")), say("I took neither"))
    async with HelmsmanService(replace(settings, approval_timeout=0.2), env=codex_home.env) as helm:
        plan = {**asks, "config": {"features": {"default_mode_request_user_input": True}}}
        session = await finished(await helm.start("which", **plan))
        status = session_status(session)
        assert status.status == "done"
        assert str(status.note).startswith("A question timed out and was not answered: ")
        (closed,) = closings(session)
        assert (closed.answer, closed.by) == ("unanswered", "deadline")
        assert "not answered: no answer in" in transcript(session, await helm.history(session.id))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        assert session_status(await helm.session(session.id)).note == status.note
    assert "The user did not answer in time" in model.requests[-1].tool_output
    (entry,) = audit(settings)
    assert (entry["decision"], entry["by"]) == ("unanswered", "deadline")
