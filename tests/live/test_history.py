"""The turns of a session come from its log: completely, after any restart, and with what other programs did in it."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from helmsman.base.structs import replace
from helmsman.model.events import AgentMessage, CommandExecution, Decision, PastTurn, UserMessage
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.store.sqlite import SqliteDatabase
from helmsman.store.upkeep import Compacted, Problems, problems
from helmsman.tasks.registry import REGISTRY_NAME, Registry
from helmsman.testing import CodexHome, ScriptedModel, run, say
from tests.shared_engine import on_its_own_engine

pytestmark = [pytest.mark.anyio, on_its_own_engine]


@pytest.fixture(autouse=True)
def words(model: ScriptedModel) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("made"))
    model.on("hello", say("hi"))
    model.on("again", say("hi again"))


def said(turns: tuple[PastTurn, ...]) -> list[list[str]]:
    messages = (UserMessage, AgentMessage)
    return [[item.text for item in turn.items if isinstance(item, messages)] for turn in turns]


async def finished(helm: HelmsmanService, prompt: str, folder: Path, **options: Any) -> str:
    session = await helm.start(prompt, cwd=folder, **options)
    assert await session.wait(until="end", timeout=30)
    return session.id


async def test_the_turns_of_a_session_survive_its_process_and_its_agents_files(
    settings: Settings, codex_home: CodexHome, folder: Path
) -> None:
    asks: Any = {"sandbox": "workspace-write", "approval_policy": "on-request"}
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.start("touch", cwd=folder, **asks)
        await session.wait(timeout=30)
        await session.respond(session.questions[0].id, "approve")
        assert await session.wait(until="end", timeout=30)
        before = await helm.history(session.id)
    cursor = session.feed.cursor
    for rollout in codex_home.path.rglob("rollout-*.jsonl"):
        rollout.unlink()
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        again = await helm.session(session.id)
        assert (again.status, again.result, again.turn_count) == ("done", "made", 1)
        assert again.feed.cursor == cursor, "readers go on from their cursors"
        (turn,) = await helm.history(session.id)
    assert (turn,) == before
    assert said((turn,)) == [["touch", "made"]]
    kinds = {type(item) for item in turn.items}
    assert {CommandExecution, Decision} <= kinds


async def test_looking_at_a_session_of_another_program_writes_nothing_and_continuing_it_imports_its_turns(
    settings: Settings, codex_home: CodexHome, folder: Path, tmp_path: Path
) -> None:
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session_id = await finished(helm, "hello", folder)
    other = replace(settings, state_dir=tmp_path / "other")
    async with HelmsmanService(other, env=codex_home.env) as helm:
        session = await helm.session(session_id)
        assert session.result == "hi"
        assert said(await helm.history(session_id)) == [["hello", "hi"]]
        await helm.task_writer.write()
        assert (await helm.task_writer.registry(lambda registry: registry.events(session_id))).events == ()
        await session.say("again")
        assert await session.wait(until="end", timeout=30)
    for rollout in codex_home.path.rglob("rollout-*.jsonl"):
        rollout.unlink()
    async with HelmsmanService(other, env=codex_home.env) as helm:
        assert said(await helm.history(session_id)) == [["hello", "hi"], ["again", "hi again"]]
        assert (await helm.session(session_id)).turn_count == 1, "Helmsman ran one of them here"


async def test_a_turn_that_another_program_ran_meanwhile_is_part_of_the_history(
    settings: Settings, codex_home: CodexHome, folder: Path, tmp_path: Path
) -> None:
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session_id = await finished(helm, "hello", folder)
    async with HelmsmanService(replace(settings, state_dir=tmp_path / "other"), env=codex_home.env) as helm:
        session = await helm.session(session_id)
        await session.say("again")
        assert await session.wait(until="end", timeout=30)
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.session(session_id)
        assert session.result == "hi again"
        assert said(await helm.history(session_id)) == [["hello", "hi"], ["again", "hi again"]]
        await session.say("hello")
        assert await session.wait(until="end", timeout=30)
        assert said(await helm.history(session_id)) == [["hello", "hi"], ["again", "hi again"], ["hello", "hi"]]


async def test_a_fork_has_the_turns_that_it_was_forked_from(
    settings: Settings, codex_home: CodexHome, folder: Path
) -> None:
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session_id = await finished(helm, "hello", folder)
        await (await helm.session(session_id)).say("again")
        await helm.sessions[session_id].wait(until="end", timeout=30)
        fork = await helm.fork(session_id, "hello", from_turn=1)
        assert await fork.wait(until="end", timeout=30)
        assert said(await helm.history(fork.id)) == [["hello", "hi"], ["hello", "hi"]]
        await helm.extras.upkeep.roll_back(session_id)
        assert said(await helm.history(session_id)) == [["hello", "hi"]]


async def test_a_session_whose_events_were_compacted_is_continued_and_gets_its_turns_back_from_its_agent(
    settings: Settings, codex_home: CodexHome, folder: Path
) -> None:
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session_id = await finished(helm, "hello", folder)
    path = settings.state_dir / REGISTRY_NAME
    with closing(Registry(path, clock=lambda: datetime.now(UTC) + timedelta(days=31))) as registry:
        cursor = registry.events(session_id).cursor
        assert registry.compact() == Compacted(sessions=1, events=cursor, results=1)
        assert registry.events(session_id)[:2] == ((), cursor)
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.session(session_id)
        assert (session.result, session.feed.cursor >= cursor) == ("hi", True)
        assert said(await helm.history(session_id)) == [["hello", "hi"]]
        await session.say("again")
        assert await session.wait(until="end", timeout=30)
        assert said(await helm.history(session_id)) == [["hello", "hi"], ["again", "hi again"]]
    with closing(Registry(path)) as registry:
        stored = registry.events(session_id)
        assert stored.cursor == cursor + len(stored.events), "events are numbered on"
    with SqliteDatabase(path).snapshot() as connection:
        assert problems(SqliteDatabase(path), connection) == Problems()
