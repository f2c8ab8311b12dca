"""Tests of spending on a real Codex: the reported usage equals that of the scripted model, counted once."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.base.structs import replace
from helmsman.model.events import Usage
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings
from helmsman.shapes.session_status import session_in_full
from helmsman.testing import CodexHome, ScriptedModel, hang, run, say, spawn_agent, usage, wait_agents
from helmsman.web.reading import SessionSpendings

pytestmark = pytest.mark.anyio

SECONDS = 60


@pytest.fixture
def scripted(model: ScriptedModel) -> ScriptedModel:
    model.on("one", [run("true"), usage(1, 0, 1, 0)], [say("1"), usage(10, 4, 2, 1)])
    model.on("two", [say("2"), usage(100, 40, 20, 10)])
    model.on("fork", [say("3"), usage(1000, 400, 200, 100)])
    model.on("delegate", [spawn_agent("child"), usage(1)], [wait_agents(), usage(1)], [say("4"), usage(1)])
    model.on("child", [say("5"), usage(10000)])
    return model


async def ended(session: Session) -> Session:
    assert await session.wait(until="end", timeout=SECONDS)
    assert session.status == "done"
    return session


async def total(helm: HelmsmanService) -> Usage:
    return (await helm.extras.usage.report()).total.usage


async def test_turns_of_this_process_count_at_once_and_only_once(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path
) -> None:
    session = await ended(await helm.start("one", cwd=git_repo, full_auto=True))
    await ended(await session.say("two"))
    told = await helm.extras.usage.report(group_by="session")
    assert told.total.usage == Usage(111, 44, 23, 11)
    assert (told.total.turns, told.total.sessions) == (2, 1)
    (group,) = told.groups
    assert (group.key, group.usage) == (session.id, told.total.usage)
    (by_model,) = (await helm.extras.usage.report(group_by="model")).groups
    assert by_model.key == session.model
    assert by_model.cost_usd is not None
    (by_directory,) = (await helm.extras.usage.report(group_by="directory")).groups
    assert by_directory.key == str(git_repo)


async def test_the_files_of_a_session_are_read_only_if_another_program_has_continued_it(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path, codex_home: CodexHome
) -> None:
    session = await ended(await helm.start("two", cwd=git_repo))
    (file,) = codex_home.path.rglob("rollout-*.jsonl")
    file.write_bytes(file.read_bytes().replace(b'"input_tokens":100,', b'"input_tokens":900,'))
    assert await total(helm) == Usage(100, 40, 20, 10)
    assert [one.part.usage for one in await helm.extras.usage.of_session(session.id)] == [Usage(100, 40, 20, 10)]
    assert [one.usage for one in await helm.extras.usage.spent_since(session.state.created_at)] == [
        Usage(100, 40, 20, 10)
    ]
    later = time.time() + 60
    os.utime(file, (later, later))
    assert await total(helm) == Usage(900, 40, 20, 10)
    assert [one.part.usage.input_tokens for one in await helm.extras.usage.of_session(session.id)] == [900]


async def test_a_fork_counts_only_what_it_spent_itself(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path
) -> None:
    session = await ended(await helm.start("two", cwd=git_repo))
    fork = await ended(await helm.fork(session.id, "fork"))
    told = {group.key: group.usage for group in (await helm.extras.usage.report(group_by="session")).groups}
    assert told == {session.id: Usage(100, 40, 20, 10), fork.id: Usage(1000, 400, 200, 100)}


@pytest.mark.matrix(changed_in=["0.148.0", "0.155.0"])
async def test_turns_that_were_forgotten_were_spent_all_the_same(
    settings: Settings, codex_home: CodexHome, scripted: ScriptedModel, git_repo: Path
) -> None:
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await ended(await helm.start("one", cwd=git_repo, full_auto=True))
        await ended(await session.say("two"))
        await helm.extras.upkeep.roll_back(session.id)
        await ended(await session.say("fork"))
        assert await total(helm) == Usage(1111, 444, 223, 111)
    for file in settings.state_dir.glob("registry*"):
        file.unlink()
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        assert await total(helm) == Usage(1111, 444, 223, 111)


async def test_sub_agents_count_for_the_session_that_began_them(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path
) -> None:
    session = await ended(await helm.start("delegate", cwd=git_repo))
    (group,) = (await helm.extras.usage.report(group_by="session")).groups
    assert (group.key, group.usage) == (session.id, Usage(10003))
    assert session.usage == Usage(10003)
    assert (await helm.tasks.get(session.task_id or "")).usage == Usage(10003)
    assert not await helm.extras.budgets.used_up(str(git_repo), session.task_id or "")


@pytest.mark.parametrize("limit", ["max_cost_usd", "task_usd"])
async def test_tokens_of_a_sub_agent_count_against_the_limit_of_its_task(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, limit: str
) -> None:
    """At 5 USD for a million tokens of input each of its calls costs more than the limit."""
    model.on("delegate", [spawn_agent("child"), usage(1)], [wait_agents(), usage(1)], [say("4"), usage(1)])
    model.on("child", [run("true"), usage(4_000_000)], hang())
    assert settings.user_file is not None
    settings.user_file.parent.mkdir(parents=True, exist_ok=True)
    prices = '[prices."gpt-5.5"]\ninput = 5\noutput = 5\n'
    settings.user_file.write_text(prices + ("[budget]\ntask_usd = 5\n" if limit == "task_usd" else ""))
    more: dict[str, Any] = {"max_cost_usd": 5.0} if limit == "max_cost_usd" else {}
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.start("delegate", cwd=git_repo, model="gpt-5.5", **more)
        assert await session.wait(until="attention", timeout=SECONDS)
        if limit == "max_cost_usd":
            assert session.status == "interrupted"
            note = (await helm.tasks.get(session.task_id or "")).note or ""
            assert note.startswith("It was stopped: it has cost $20.")
        else:
            (question,) = session.questions
            assert question.prompts[0].text.startswith("This task has used 20.00 of 5 USD.")
            await session.respond(question.id, "stop")


async def test_a_session_has_used_the_same_after_a_restart_a_fork_and_a_rollback(
    settings: Settings, codex_home: CodexHome, scripted: ScriptedModel, git_repo: Path
) -> None:
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await ended(await helm.start("one", cwd=git_repo, full_auto=True))
        await ended(await session.say("two"))
        await ended(await session.say("delegate"))
        page = await session_in_full(helm, helm.tasks.prices, session, output_lines=1)
        told = [(one["name"], one["status"], one["tokens"]) for one in page["subAgents"]]
        assert told == [("child", "done", 10000)]
        fork = await ended(await helm.fork(session.id, "fork"))
        assert await seen(helm, session.id) == Usage(10114, 44, 23, 11)
        assert await seen(helm, fork.id) == Usage(1000, 400, 200, 100)
        worked_at = session.state.changed_at
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        assert await seen(helm, session.id) == Usage(10114, 44, 23, 11)
        again = await helm.session(session.id)
        assert abs(again.state.changed_at - worked_at) < timedelta(seconds=1), "when it worked, not when it was loaded"
        await ended(await helm.say(session.id, "two"))
        assert await seen(helm, session.id) == Usage(10214, 84, 43, 21)
        await helm.extras.upkeep.roll_back(session.id)
        assert await seen(helm, session.id) == Usage(10214, 84, 43, 21)
        await ended(await helm.say(session.id, "two"))
        assert await seen(helm, session.id) == Usage(10314, 124, 63, 31)
        await ended(await helm.say(fork.id, "two"))
        assert await seen(helm, fork.id) == Usage(1100, 440, 220, 110)


async def seen(helm: HelmsmanService, session_id: str) -> Usage:
    """Return the usage of a session, on which all views must agree."""
    session = await helm.session(session_id)
    (told,) = [one for one in (await helm.extras.usage.report(group_by="session")).groups if one.key == session_id]
    page = await session_in_full(helm, helm.tasks.prices, session, output_lines=1)
    used = session.usage
    assert told.usage == used
    assert page["usage"]["inputTokens"] == used.input_tokens
    assert page["costUsd"] == pytest.approx(told.cost_usd)
    listed = SessionSpendings(helm).of(session_id, (), {})
    assert (listed["tokens"], listed["costUsd"]) == (told.tokens, pytest.approx(told.cost_usd))
    return used


async def test_sessions_that_helmsman_never_ran_count(
    settings: Settings, codex_home: CodexHome, codex_binary: Path, scripted: ScriptedModel, git_repo: Path
) -> None:
    with anyio.fail_after(SECONDS):
        await anyio.run_process(
            [codex_binary, "exec", "two"], cwd=git_repo, env=codex_home.env, stdin=subprocess.DEVNULL
        )
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        assert await total(helm) == Usage(100, 40, 20, 10)
        (info,), _ = await helm.list()
        await ended(await helm.say(info.session_id, "fork"))
        assert await total(helm) == Usage(1100, 440, 220, 110)


async def test_the_exec_engine_counts_once(
    settings: Settings, codex_home: CodexHome, scripted: ScriptedModel, git_repo: Path
) -> None:
    async with HelmsmanService(replace(settings, engine="exec"), env=codex_home.env) as helm:
        session = await ended(await helm.start("two", cwd=git_repo, approval_policy="never"))
        await ended(await session.say("fork"))
        assert await total(helm) == session.usage == Usage(1100, 440, 220, 110)


async def test_the_registry_knows_sessions_that_codex_deleted(
    settings: Settings, codex_home: CodexHome, scripted: ScriptedModel, git_repo: Path
) -> None:
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        await ended(await helm.start("two", cwd=git_repo))
        assert await total(helm) == Usage(100, 40, 20, 10)
        shutil.rmtree(settings.codex_home / "sessions")
        assert await total(helm) == Usage(100, 40, 20, 10)


@pytest.mark.needs_git
async def test_worktrees_count_for_their_repository_also_when_they_are_gone(
    settings: Settings, codex_home: CodexHome, scripted: ScriptedModel, git_repo: Path
) -> None:
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await ended(await helm.start("two", cwd=git_repo, worktree=True))
        for _ in range(2):
            (group,) = (await helm.extras.usage.report(group_by="directory")).groups
            assert group.key == str(git_repo)
            if session.worktree is not None:
                await helm.extras.changes.discard(session.id)


async def test_a_report_counts_only_turns_of_its_time(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path
) -> None:
    assert (await helm.extras.usage.report()).groups == ()
    await ended(await helm.start("two", cwd=git_repo))
    assert (await helm.extras.usage.report(since="1h")).total.turns == 1
    assert (await helm.extras.usage.report(since="0h")).total.turns == 0
