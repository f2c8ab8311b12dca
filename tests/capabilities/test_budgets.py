"""Tests of budgets: a question comes before one is exceeded, and a yes grants the amount in the question."""

from __future__ import annotations

import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import pytest

from helmsman import load_settings
from helmsman.model.events import Event, SettingsApplied, TurnEnded, Usage, UsageReported
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings
from helmsman.steering.shared import Shared
from tests.capabilities.test_limits import until
from tests.hub_service import hub_service
from tests.played import PlayedAgent, PlayedEngine
from tests.turns import asked

pytestmark = pytest.mark.anyio

SECONDS = 20
MODEL = "gpt-5.4"  # 2.50 USD for a million tokens of input


@pytest.fixture
def agent() -> PlayedAgent:
    return PlayedAgent()


class Place:
    """A project, and the user's own file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.user_file = folder / "user" / "helmsman.toml"
        self.project = folder / "project"
        self.user_file.parent.mkdir()
        (self.project / ".git").mkdir(parents=True)
        (self.project / ".git" / "HEAD").touch()

    def allow(self, **amounts: object) -> None:
        lines = [f"{key} = {amount}" for key, amount in amounts.items()]
        self.user_file.write_text("\n".join(["[budget]", *lines]))

    def settings(self) -> Settings:
        flags = {"default_agent": "played", "state_dir": str(self.folder / "state"), "codex_home": str(self.folder)}
        return load_settings(flags, {"HOME": str(self.folder)}, self.project, user_file=self.user_file)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def spend(engine: PlayedEngine, session: Session, tokens: int) -> None:
    """A model call has ended."""
    engine.emit(SettingsApplied(session_id=session.id, model=MODEL))
    engine.emit(UsageReported(session_id=session.id, last=Usage(tokens, 0, 0, 0)))


async def running(session: Session) -> None:
    """Until the engine has begun a turn of it."""
    with anyio.fail_after(SECONDS):
        while session.status != "active" or session.state.turn_id is None:
            await session.feed.changed()


async def test_a_turn_that_passes_a_budget_is_stopped_and_continues_once_after_a_yes_as_the_same_task(
    agent: PlayedAgent, place: Place
) -> None:
    place.allow(project_day_usd=10)
    async with HelmsmanService(place.settings(), agents=[agent]) as helm:
        session = await helm.start("work", cwd=place.project)
        idle: list[Event] = []
        helm.listen(lambda one, event: None if one.state.is_running else idle.append(event))
        (engine,) = agent.engines
        spend(engine, session, 3_760_000)  # 9.40 USD
        spend(engine, session, 400_000)  # and one USD more
        question = await asked(session)
        assert question.prompts[0].text == (
            "This project has used 10.40 of 10 USD today. Continue, up to 15.40 USD for this project?"
        )
        assert question.prompts[0].options == ("approve", "stop")
        assert question.asker == "Helmsman"
        task = await until(helm, session, lambda one: one.input_required)
        assert (task.status, task.waiting_for, task.turn_id) == ("working", "budget", None)
        assert session.status == "awaiting_approval"

        await helm.respond(session.id, question.id, ["approve"])
        await running(session)
        went_on = await until(helm, session, lambda one: one.turn_id is not None)
        assert (went_on.id, went_on.waiting_for, went_on.note) == (task.id, None, None)
        spend(engine, session, 1_900_000)  # 15.15 USD
        engine.end("completed")
        done = await until(helm, session, lambda one: one.has_ended)
        assert (done.id, done.status) == (task.id, "completed")
        assert done.usage == Usage(6_060_000, 0, 0, 0), "of both turns"
        assert [type(event) for event in idle] == [TurnEnded], "its session is idle only at the end"
        assert len(await helm.tasks.of_sessions([session.id])) == 1

        (state,) = await helm.extras.budgets.states(place.project)
        assert (state.key, round(state.used, 2), state.budget, state.granted) == ("project_day_usd", 15.15, 10, 15.4)


async def test_a_turn_that_ends_with_the_call_that_passes_a_budget_has_ended_and_the_next_one_asks_first(
    agent: PlayedAgent, place: Place
) -> None:
    place.allow(day_tokens=1000)
    async with HelmsmanService(place.settings(), agents=[agent]) as helm:
        session = await helm.start("work", cwd=place.project)
        spend(agent.engines[0], session, 1000)
        agent.engines[0].end("completed")
        assert (await until(helm, session, lambda one: one.has_ended)).status == "completed"

        await helm.say(session.id, "more")
        question = await asked(session)
        assert "All work has used 1,000 of 1,000 tokens today." in question.prompts[0].text
        await helm.respond(session.id, question.id, ["stop"])
        task = await until(helm, session, lambda one: one.has_ended)
        assert task.status == "failed"
        assert task.error is not None
        assert task.error["code"] == "budget_exceeded"
        assert task.note is not None
        assert session.error is not None
        assert task.note == task.error["message"] == session.error.message
        assert session.error.code == "budget_exceeded"

        other = await helm.start(
            "a new session", cwd=place.folder
        )  # it asks, too, and the caller has its id immediately
        waiting = await until(helm, other, lambda one: one.input_required)
        assert (waiting.status, waiting.session_id, waiting.waiting_for) == ("pending", other.id, "budget")
        await helm.respond(other.id, (await asked(other)).id, ["approve"])
        await running(other)
        agent.engines[0].end("completed")
        assert (await until(helm, other, lambda one: one.has_ended)).status == "completed"
        third = await helm.start("what was granted holds for all work", cwd=place.project)
        assert not third.questions


async def test_sessions_that_are_each_below_a_budget_and_together_beyond_it_are_asked_about(
    agent: PlayedAgent, place: Place
) -> None:
    """Count directories of the project: through a link, a subdirectory, or a worktree. Others do not count."""
    place.allow(project_day_tokens=1000)
    inside, link, tree = place.project / "inside", place.folder / "link", place.folder / "tree"
    (place.project / ".git" / "HEAD").unlink()
    for words in (["init"], ["commit", "--allow-empty", "-m", "first"], ["worktree", "add", str(tree)]):
        who = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
        subprocess.run(["git", *who, *words], cwd=place.project, check=True, capture_output=True)  # noqa: ASYNC221
    inside.mkdir()
    link.symlink_to(place.project)
    forged = place.folder / "forged"
    forged.mkdir()
    (forged / ".git").write_text((tree / ".git").read_text())
    async with HelmsmanService(place.settings(), agents=[agent]) as helm:
        sessions = [await helm.start("work", cwd=each) for each in (inside, link, tree, forged)]
        (engine,) = agent.engines
        for session in sessions:
            spend(engine, session, 400)
        with anyio.fail_after(SECONDS):
            while not any(session.questions for session in sessions):
                await anyio.sleep(0.01)
        states = await helm.extras.budgets.states(tree)
        assert [(state.used, state.project) for state in states] == [(1200, str(place.project))]
        states = await helm.extras.budgets.states(forged)
        assert [(state.used, state.project) for state in states] == [(400, str(forged))]
        assert not sessions[3].questions


async def test_a_task_has_its_own_budget_and_a_yes_to_it_is_for_that_task_alone(
    agent: PlayedAgent, place: Place
) -> None:
    place.allow(task_tokens=100)
    async with HelmsmanService(place.settings(), agents=[agent]) as helm:
        session = await helm.start("work", cwd=place.project)
        (engine,) = agent.engines
        spend(engine, session, 150)
        question = await asked(session)
        assert "This task has used 150 of 100 tokens. Continue, up to 200 tokens" in question.prompts[0].text
        await helm.respond(session.id, question.id, ["approve"])
        await running(session)
        spend(engine, session, 40)
        spend(engine, session, 10)
        question = await asked(session)
        assert "200 of 100 tokens, of which up to 200 were granted." in question.prompts[0].text
        await helm.interrupt(session.id)
        assert (await until(helm, session, lambda one: one.has_ended)).status == "failed"

        await helm.say(session.id, "the next task begins anew")
        await running(session)
        assert not session.questions
        spend(engine, session, 100)
        await asked(session)


async def test_the_budget_of_the_file_as_it_is_now_holds_and_a_changed_one_makes_what_was_granted_void(
    agent: PlayedAgent, place: Place
) -> None:
    place.allow(day_tokens=10_000)
    async with HelmsmanService(place.settings(), agents=[agent]) as helm:
        session = await helm.start("work", cwd=place.project)
        (engine,) = agent.engines
        spend(engine, session, 600)
        place.allow(day_tokens=500)
        spend(engine, session, 1)
        question = await asked(session)
        assert "up to 851 tokens" in question.prompts[0].text
        await helm.respond(session.id, question.id, ["approve"])
        await running(session)
        place.allow(day_tokens=400)
        spend(engine, session, 1)
        question = await asked(session)
        assert "has used 602 of 400 tokens today. Continue, up to 802 tokens" in question.prompts[0].text
        await helm.respond(session.id, question.id, ["approve"])
        await running(session)
        place.user_file.write_text("[budget\n")  # the previous value applies
        spend(engine, session, 300)
        await asked(session)
        place.user_file.unlink()
        await helm.respond(session.id, session.questions[0].id, ["stop"])
        await helm.say(session.id, "nothing holds any more")
        await running(session)


async def test_a_project_may_only_narrow(agent: PlayedAgent, place: Place) -> None:
    place.allow(day_tokens=1000)
    (place.project / "helmsman.toml").write_text("[budget]\nday_tokens = 5000\ntask_tokens = 300\n")
    settings = place.settings()
    assert [note for note in settings.ignored if "budget.day_tokens" in note and "(1000)" in note]
    (place.project / "inside").mkdir()
    (place.project / "inside" / "helmsman.toml").write_text("budget = 'none'\n")  # which refuses no one
    broken = load_settings({}, {"HOME": str(place.folder)}, place.project / "inside", user_file=place.user_file)
    assert [note for note in broken.ignored if note.startswith("[budget] of the project is ignored")]
    async with HelmsmanService(settings, agents=[agent]) as helm:
        session = await helm.start("work", cwd=place.project / "inside")
        spend(agent.engines[0], session, 300)
        assert "This task has used 300 of 300 tokens." in (await asked(session)).prompts[0].text
        other = await helm.start("work", cwd=place.folder)
        spend(agent.engines[0], other, 700)
        assert "All work has used 1,000 of 1,000 tokens" in (await asked(other)).prompts[0].text


async def test_a_repository_that_an_agent_creates_in_a_project_has_no_budget_of_its_own(
    agent: PlayedAgent, place: Place
) -> None:
    """Neither a fresh one, nor one without the amounts of the project's file."""
    place.allow(project_day_tokens=1000)
    (place.project / "helmsman.toml").write_text("[budget]\ntask_tokens = 300\n")
    planted = place.project / "sub"
    async with HelmsmanService(place.settings(), agents=[agent]) as helm:
        first = await helm.start("work", cwd=place.project)
        spend(agent.engines[0], first, 200)
        (planted / ".git").mkdir(parents=True)
        (planted / ".git" / "HEAD").touch()
        second = await helm.start("work", cwd=planted)
        spend(agent.engines[0], second, 300)
        assert "This task has used 300 of 300 tokens." in (await asked(second)).prompts[0].text
        (state,) = await helm.extras.budgets.states(planted)
        assert (state.used, state.project) == (500, str(place.project))


async def test_the_day_is_that_of_the_clock_on_the_wall(agent: PlayedAgent, place: Place) -> None:
    place.allow(day_tokens=1000)
    async with HelmsmanService(place.settings(), agents=[agent]) as helm:
        session = await helm.start("work", cwd=place.project)
        spend(agent.engines[0], session, 900)
        agent.engines[0].end("completed")
        await until(helm, session, lambda one: one.has_ended)
        budgets = helm.extras.budgets
        assert [state.used for state in await budgets.states(place.project)] == [900]
        now = datetime.now().astimezone()
        budgets.clock = lambda: now + timedelta(days=1)
        assert [state.used for state in await budgets.states(place.project)] == [0]
        assert [state.budget for state in await budgets.states(place.project)] == [1000]


async def test_an_interrupt_while_a_turn_is_being_stopped_is_the_end_without_a_question(
    agent: PlayedAgent, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.allow(task_tokens=100)
    async with HelmsmanService(place.settings(), agents=[agent]) as helm:
        session = await helm.start("work", cwd=place.project)
        (engine,) = agent.engines
        is_stopping, go_on, stop = anyio.Event(), anyio.Event(), engine.interrupt

        async def slowly(session_id: str) -> None:
            if not is_stopping.is_set():
                is_stopping.set()
                await go_on.wait()
            await stop(session_id)

        monkeypatch.setattr(engine, "interrupt", slowly)
        spend(engine, session, 100)
        with anyio.fail_after(SECONDS):
            await is_stopping.wait()
            await helm.interrupt(session.id)
        task = await until(helm, session, lambda one: one.has_ended)
        assert (task.status, session.questions) == ("canceled", [])
        go_on.set()


async def test_cancelling_a_task_with_an_open_question_is_a_no(agent: PlayedAgent, place: Place) -> None:
    place.allow(day_tokens=1)
    settings = place.settings()
    async with (
        Shared(settings.state_dir, [agent]) as shared,
        HelmsmanService(settings, shared=shared) as helm,
        HelmsmanService(settings, shared=shared) as other,
    ):
        session = await helm.start("work", cwd=place.project)
        spend(agent.engines[0], session, 1)
        await asked(session)
        task = (await other.tasks.of_sessions([session.id]))[session.id][0]
        ended, _ = await other.tasks.cancel(task)
        assert ended.status == "failed"
        assert ended.error is not None
        assert ended.error["code"] == "budget_exceeded"


async def test_no_answer_is_a_no(agent: PlayedAgent, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helmsman.capabilities.budgets.ANSWERED_WITHIN", timedelta(seconds=0.05))
    place.allow(day_tokens=1)
    async with HelmsmanService(place.settings(), agents=[agent]) as helm:
        session = await helm.start("work", cwd=place.project)
        spend(agent.engines[0], session, 1)
        task = await until(helm, session, lambda one: one.has_ended)
        assert (task.status, (task.error or {})["code"]) == ("failed", "budget_exceeded")
        assert session.status == "error"


async def test_the_next_hub_asks_again_and_a_start_that_had_not_begun_has_another_session(
    agent: PlayedAgent, place: Place
) -> None:
    place.allow(day_tokens=1000)
    settings = place.settings()
    async with hub_service(settings, {}, [agent]) as helm:
        session = await helm.start("work", cwd=place.project)
        spend(agent.engines[-1], session, 1000)
        await asked(session)
        other = await helm.start("other work", cwd=place.project)
        await until(helm, other, lambda one: one.input_required)
        started = (await helm.tasks.of_sessions([other.id]))[other.id][0].id
    async with hub_service(settings, {}, [agent]) as helm:

        async def sessions_that_ask() -> dict[str, str]:
            listed, _ = await helm.tasks.list()
            return {one.id: one.session_id or "" for one in listed if one.input_required and one.waiting_for}

        with anyio.fail_after(SECONDS):
            while len(asking := await sessions_that_ask()) < 2 or asking[started] == other.id:
                await anyio.sleep(0.01)
        assert session.id in asking.values(), "it had begun, and goes on in its thread"
        for session_id in asking.values():
            question = await asked(await helm.session(session_id))
            assert "has used 1,000 of 1,000 tokens" in question.prompts[0].text
        again = await helm.session(asking[started])
        await helm.respond(again.id, again.questions[0].id, ["approve"])
        await running(again)
        agent.engines[-1].end("completed")
        done = await until(helm, again, lambda one: one.has_ended)
        assert (done.id, done.status, done.waiting_for) == (started, "completed", None)
