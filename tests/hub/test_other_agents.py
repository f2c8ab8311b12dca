"""Agents beside Codex in a real hub: it is killed, and what they do and ask goes on."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest

from helmsman import Helmsman, load_settings
from helmsman.agents.kept_records import read_records
from helmsman.errors import InvalidInput
from helmsman.hub.control import ask_hub
from helmsman.testing.fake_acp_agent import FakeAcpAgent, asks, says
from helmsman.testing.hubs import hub_pid
from tests.agents.acp.test_acp_storage import ID, PLACE, qwen
from tests.clients.server_process import SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman import Question, Session
    from helmsman.testing import CodexHome

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="There are no hubs here.")]


async def asked(session: Session) -> Question:
    with anyio.fail_after(SECONDS):
        while not session.questions:
            await session.feed.changed()
    return session.questions[0]


async def hub_is_killed(state_dir: Path) -> None:
    """Returns when the next one, which the keeper starts, though no client is there, follows what runs."""
    pid = hub_pid(state_dir)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with anyio.fail_after(SECONDS):
        while hub_pid(state_dir) in (None, pid) or not (ask_hub(state_dir, "status") or {}).get("sessionsAtWork"):
            await anyio.sleep(0.05)


def name_own_agent(fake: FakeAcpAgent, config: Path) -> None:
    """A configuration in which the agent is called `mine`."""
    (config / "helmsman").mkdir(parents=True)
    lines = f"command = {fake.command}\nmode = 'ask'\nruns_repository_files = false\n"
    (config / "helmsman" / "helmsman.toml").write_text(f"[agents.mine]\n{lines}", encoding="utf-8")


async def test_a_client_has_the_agents_and_sessions_of_its_own_home_whoever_has_started_the_hub(
    codex_home: CodexHome, detached_engines: Path, git_repo: Path, tmp_path: Path
) -> None:
    fake = FakeAcpAgent(tmp_path / "fake")
    fake.on("hello", says("hi"))
    name_own_agent(fake, tmp_path / "config")
    qwen(tmp_path / "other")
    own = {"HOME": str(tmp_path / "other"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    for env, agents, listed in ((codex_home.env, False, []), (codex_home.env | own, True, [ID])):
        settings = replace(load_settings({"detach": True}, env, tmp_path), state_dir=detached_engines)
        async with Helmsman(settings, env=env) as helm:
            found, _ = await helm.list(directory=PLACE, agent="qwen")
            assert [info.session_id for info in found] == listed
            spent = await helm.extras.usage.report(agent="qwen")
            assert bool(spent.total.usage.input_tokens) == bool(listed)
            if not agents:
                with pytest.raises(InvalidInput, match="There is no agent 'mine'"):
                    await helm.start("hello", cwd=git_repo, agent="mine", unenforced=True)
                continue
            session = await helm.start("hello", cwd=git_repo, agent="mine", unenforced=True)
            assert await session.wait(until="end", timeout=SECONDS)
            assert (session.status, session.result) == ("done", "hi")


@pytest.mark.long
async def test_a_question_of_an_agent_of_ones_own_outlives_client_and_hub(
    codex_home: CodexHome, detached_engines: Path, git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeAcpAgent(tmp_path / "fake")
    fake.on("run", says("I try. "), asks("execute", "rm x", rawInput={"command": "rm x"}, allowed=[says("gone")]))
    name_own_agent(fake, tmp_path / "config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))  # the hub's own, too
    env = {**codex_home.env, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    settings = replace(load_settings({"detach": True}, env, tmp_path), state_dir=detached_engines)
    async with Helmsman(settings, env=env) as helm:
        session = await helm.start("run it", cwd=git_repo, agent="mine", unenforced=True)
        question = await asked(session)
    await hub_is_killed(detached_engines)
    async with Helmsman(settings, env=env) as helm:
        found = await helm.session(session.id)
        assert (await asked(found)).id == question.id
        await found.respond(question.id, "approve")
        assert await found.wait(until="end", timeout=SECONDS)
        assert (found.status, found.result) == ("done", "gone")
        (record,) = read_records(detached_engines)
        os.kill(record.child.pid, signal.SIGKILL)
        with anyio.fail_after(SECONDS):
            while record.directory.exists():
                await anyio.sleep(0.05)
        await found.say("run it again")  # in another process
        question = await asked(found)
    await hub_is_killed(detached_engines)
    async with Helmsman(settings, env=env) as helm:
        found = await helm.session(session.id)
        await found.respond((await asked(found)).id, "approve")
        assert await found.wait(until="end", timeout=SECONDS)
        assert (found.status, found.result) == ("done", "gone")
    assert [one["prompt"][0]["text"] for one in fake.asked_for("session/prompt")] == ["run it", "run it again"]
