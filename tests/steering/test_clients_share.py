"""Several clients on one process: they share the sessions, and each has its own settings, rules, limits and directory."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from helmsman import Session, Settings
from helmsman.agents.environment import digest_of
from helmsman.agents.registry import HOMES, usable
from helmsman.base.caller_context import CallerContext
from helmsman.base.structs import replace
from helmsman.errors import AnswerInvalid, InvalidInput, TooManySessions
from helmsman.model.answered_by import AnsweredBy
from helmsman.model.events import Event
from helmsman.service import HelmsmanService
from helmsman.settings import ConfigFile
from helmsman.steering.shared import Shared
from tests.played import PlayedAgent
from tests.sessions.test_service_properties import unhurried

pytestmark = pytest.mark.anyio

_AGENT = AnsweredBy("agent", "test", "tool")


@pytest.fixture
def agent() -> PlayedAgent:
    return PlayedAgent()


@pytest.fixture
async def shared(tmp_path: Path, agent: PlayedAgent) -> AsyncIterator[Shared]:
    async with Shared(unhurried(tmp_path).state_dir, [agent]) as shared:
        yield shared


@asynccontextmanager
async def two_clients(
    shared: Shared, one: Settings, other: Settings
) -> AsyncIterator[tuple[HelmsmanService, HelmsmanService]]:
    async with HelmsmanService(one, shared=shared) as first, HelmsmanService(other, shared=shared) as second:
        yield first, second


async def question_of(session: Session) -> str:
    with anyio.fail_after(20):
        await session.wait()
    return session.questions[0].id


async def test_a_session_is_the_same_through_every_client_and_outlives_the_one_it_came_by(
    shared: Shared, agent: PlayedAgent, tmp_path: Path
) -> None:
    settings = unhurried(tmp_path)
    async with HelmsmanService(settings, shared=shared) as second:
        async with HelmsmanService(settings, shared=shared) as first:
            heard: list[Event] = []
            first.listen(lambda _session, event: heard.append(event))
            session = await first.start("go", cwd=tmp_path, agent=agent.name)
            assert heard
        heard.clear()
        assert await second.session(session.id) is session
        agent.engines[-1].ask()
        await second.respond(session.id, await question_of(session), ["approve"])
        agent.engines[-1].end("completed")
        with anyio.fail_after(20):
            assert await session.wait(until="end")
        await second.say(session.id, "more")
        assert len(agent.engines) == 1
        assert session.verbs is second
        assert heard == [], "a client that has closed hears nothing more"


async def test_all_clients_together_run_no_more_turns_than_allowed(
    shared: Shared, agent: PlayedAgent, tmp_path: Path
) -> None:
    """As each command of the shell is a client of its own. What is asked for at the same moment counts, too."""
    settings = replace(unhurried(tmp_path), max_sessions=3)
    refused: list[TooManySessions] = []

    async def start(number: int) -> None:
        async with HelmsmanService(settings, shared=shared) as client:
            try:
                await client.start(f"go {number}", cwd=tmp_path, agent=agent.name)
            except TooManySessions as error:
                refused.append(error)

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(start, number)
    running = [session for session in shared.session_registry.at_work.values() if session.state.is_running]
    assert (len(running), len(refused)) == (3, 5)
    async with HelmsmanService(settings, shared=shared) as client:
        with pytest.raises(TooManySessions, match="3 turns are running and MAX_SESSIONS is 3") as caught:
            await client.start("one more", cwd=tmp_path, agent=agent.name)
        for session in running:
            assert f"- {session.id} (go " in caught.value.message
        assert caught.value.details["running"] == [session.id for session in running]


async def test_a_full_hub_names_no_session_outside_the_allowed_roots(
    shared: Shared, agent: PlayedAgent, tmp_path: Path
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    settings = replace(unhurried(tmp_path), max_sessions=2)
    narrow = replace(settings, allowed_roots=(inside,))
    async with two_clients(shared, settings, narrow) as (wide, bounded):
        hidden = await wide.start("secret plan", cwd=outside, agent=agent.name)
        known = await wide.start("go", cwd=inside, agent=agent.name)
        with pytest.raises(TooManySessions, match="2 turns are running") as caught:
            await bounded.start("go", cwd=inside, agent=agent.name)
        assert caught.value.details["running"] == [known.id]
        assert hidden.id not in caught.value.message
        assert "secret plan" not in caught.value.message


async def test_a_key_stands_for_its_session_as_long_as_the_registry_says(
    shared: Shared, agent: PlayedAgent, tmp_path: Path
) -> None:
    narrow = replace(unhurried(tmp_path), max_sessions=1)
    async with two_clients(shared, narrow, unhurried(tmp_path)) as (first, second):
        session = await first.start("go", cwd=tmp_path, agent=agent.name, idempotency_key="key")
        for client in (first, second):  # also where there is no room for another
            assert await client.start("go", cwd=tmp_path, agent=agent.name, idempotency_key="key") is session
        with pytest.raises(InvalidInput, match="another key for another agent"):
            await second.start("go", cwd=tmp_path, agent="codex", idempotency_key="key")
        agent.engines[-1].end("completed")
        with anyio.fail_after(20):
            assert await session.wait(until="end")
        (task_id,) = session.task_ids
        await second.tasks.wait(await second.tasks.get(task_id))
        past = datetime.now(UTC) - timedelta(days=1)
        await shared.task_writer.registry(lambda registry: registry.update(task_id, expires_at=past))
        fresh = await second.start("go", cwd=tmp_path, agent=agent.name, idempotency_key="key")
        assert fresh is not session


async def test_a_turn_keeps_the_rules_and_the_deadline_of_the_client_that_began_it(
    shared: Shared, agent: PlayedAgent, tmp_path: Path
) -> None:
    rules = {"rules": [{"effect": "allow", "type": "command_approval"}]}
    lenient = replace(
        unhurried(tmp_path), files=(ConfigFile(tmp_path / "helmsman.toml", rules, trusted=True),), approval_timeout=5.0
    )
    async with two_clients(shared, lenient, unhurried(tmp_path)) as (first, second):
        session = await first.start("go", cwd=tmp_path, agent=agent.name)
        agent.engines[-1].ask()
        with anyio.fail_after(20):
            while agent.engines[-1].open_questions:
                await session.feed.changed()
        agent.engines[-1].end("completed")
        with anyio.fail_after(20):
            await session.wait(until="end")
        await second.say(session.id, "more")
        agent.engines[-1].ask()
        question = await question_of(session)
        assert session.deadlines[question].seconds > 5


async def test_no_client_lists_follows_or_continues_sessions_outside_its_roots(
    shared: Shared, agent: PlayedAgent, tmp_path: Path
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    confined = replace(unhurried(tmp_path), allowed_roots=(inside,))
    async with two_clients(shared, unhurried(tmp_path), confined) as (wide, narrow):
        heard: list[str] = []
        narrow.listen(lambda session, _event: heard.append(session.id))
        there = await wide.start("go", cwd=inside, agent=agent.name, sandbox="danger-full-access")
        elsewhere = await wide.start("go", cwd=outside, agent=agent.name, idempotency_key="issue-17")
        with pytest.raises(InvalidInput, match="outside"):
            await narrow.start("go", cwd=inside, agent=agent.name, idempotency_key="issue-17")
        assert set(narrow.sessions) == {there.id}
        assert set(heard) == {there.id}
        for refused in (narrow.session(elsewhere.id), narrow.say(elsewhere.id, "more"), narrow.interrupt(elsewhere.id)):
            with pytest.raises(InvalidInput, match="outside"):
                await refused
        assert (await narrow.session(there.id)) is there
        with pytest.raises(InvalidInput, match="outside the allowed roots"):
            await narrow.steer(there.id, "and write elsewhere")
        await wide.steer(there.id, "go on")


async def test_an_agent_behind_roots_lets_nothing_out_of_the_sandbox_for_any_client(
    shared: Shared, agent: PlayedAgent, tmp_path: Path
) -> None:
    confined = replace(unhurried(tmp_path), allowed_roots=(tmp_path,))
    async with two_clients(shared, unhurried(tmp_path), confined) as (wide, narrow):
        session = await wide.start("go", cwd=tmp_path, agent=agent.name)
        agent.engines[-1].ask()
        question = await question_of(session)
        with pytest.raises(AnswerInvalid, match="only a person"):
            await narrow.respond(session.id, question, ["approve"], by=_AGENT)
        await wide.respond(session.id, question, ["approve"], by=_AGENT)
        agent.engines[-1].ask("patch_approval", paths=["/elsewhere/a.txt"])
        question = await question_of(session)
        with pytest.raises(AnswerInvalid, match="/elsewhere"):
            await narrow.respond(session.id, question, ["approve"], by=_AGENT)
        await narrow.respond(session.id, question, ["deny"], by=_AGENT)


async def test_paths_are_those_of_the_client_that_names_them(
    shared: Shared, agent: PlayedAgent, tmp_path: Path
) -> None:
    (tmp_path / "here" / "below").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    at = CallerContext({**os.environ, "HOME": str(tmp_path / "home")}, tmp_path / "here")
    with at.entered():
        helm = HelmsmanService(unhurried(tmp_path), shared=shared)
    async with helm:
        with at.entered():
            assert (await helm.start("go", agent=agent.name)).directory == str(tmp_path / "here")
            assert (await helm.start("go", cwd="below", agent=agent.name)).directory == str(tmp_path / "here" / "below")
            assert (await helm.start("go", cwd="~", agent=agent.name)).directory == str(tmp_path / "home")


async def test_clients_for_which_an_engine_would_differ_have_one_each(
    shared: Shared, agent: PlayedAgent, tmp_path: Path
) -> None:
    settings = unhurried(tmp_path)
    async with (
        HelmsmanService(settings, shared=shared, env={"PATH": "/one", "TERM": "a"}) as first,
        HelmsmanService(settings, shared=shared, env={"PATH": "/two"}) as second,
        HelmsmanService(replace(settings, max_sessions=3), shared=shared, env={"PATH": "/one", "TERM": "b"}) as third,
    ):
        engines = [await helm.engine(agent=agent.name) for helm in (first, second, third)]
    assert engines[0] is engines[2]
    assert engines[0] is not engines[1]
    told = [
        {"PATH": "/one"},
        {"PATH": "/two"},
        *(
            {"PATH": "/one", name: "1"}
            for name in (*HOMES, "KILO_CONFIG_CONTENT", "KIMI_MODEL_NAME", "NANOCODER_CONFIG_DIR")
        ),
    ]
    assert len({digest_of(env) for env in told}) == len(told)


async def test_engines_are_let_go_of_when_their_last_client_has_gone_and_nothing_runs_in_them(
    agent: PlayedAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helmsman.steering.shared._LINGER_SECONDS", 0.05)
    settings = unhurried(tmp_path)
    async with Shared(settings.state_dir, [agent]) as shared, HelmsmanService(settings, shared=shared) as other:
        async with HelmsmanService(settings, shared=shared, env={"PATH": "/one"}) as helm:
            session = await helm.start("go", cwd=tmp_path, agent=agent.name)
            engine = agent.engines[-1]
        assert usable(engine), "a turn runs in it"
        engine.end("completed")
        with anyio.fail_after(20):
            await engine.until_lost()
        assert (session.status, session.engine) == ("done", None)
        await other.say(session.id, "more")
        assert agent.engines[-1] is not engine
        agent.engines[-1].end("completed")
