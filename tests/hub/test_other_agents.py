"""Agents beside Codex in a real hub: it is killed, and what they do and ask goes on."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import anyio
import pytest

from helmsman import Helmsman, load_settings
from helmsman.agents.supervisor.records import read_records
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput
from helmsman.hub.control import ask_hub
from helmsman.testing import CodexHome
from helmsman.testing.fake_acp_agent import FakeAcpAgent, asks, says
from helmsman.testing.hubs import hub_pid
from tests.agents.acp.test_acp_storage import ID, PLACE, qwen
from tests.clients.server_process import SECONDS
from tests.hub.conftest import Place
from tests.hub.test_acknowledged import stored
from tests.hub.test_survival import Raw
from tests.turns import asked

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="There are no hubs here.")]


def own_agent(tmp_path: Path, command: list[str]) -> Path:
    """A configuration with an agent `mine`; its XDG_CONFIG_HOME."""
    config = tmp_path / "config" / "helmsman"
    config.mkdir(parents=True)
    lines = f"command = {command}\nmode = 'ask'\nruns_repository_files = false\n"
    (config / "helmsman.toml").write_text(f"[agents.mine]\n{lines}", encoding="utf-8")
    return config.parent


async def hub_is_killed(state_dir: Path) -> None:
    """Returns when the next one, which the supervisor starts, though no client is there, follows what runs."""
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


async def test_a_client_sees_the_agents_and_sessions_of_its_own_home_in_any_hub(
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
async def test_a_call_of_an_agents_own_tool_is_done_once_though_its_hub_is_killed(place: Place, tmp_path: Path) -> None:
    fake = FakeAcpAgent(tmp_path / "fake")
    fake.on("work", says("done"))
    held, reached, let = tmp_path / "held", tmp_path / "reached", tmp_path / "let"
    wait = f'touch "{reached}"; until [ -e "{let}" ]; do sleep 0.05; done'
    held.write_text(f"#!/bin/sh\n{wait}\nexec {shlex.join(fake.command)}\n", encoding="utf-8")
    held.chmod(0o755)
    env = {**place.env, "XDG_CONFIG_HOME": str(own_agent(tmp_path, [str(held)]))}
    arguments = {"task": "work", "working_dir": str(place.directory), "unenforced": True}
    async with replace(place, env=env).started("--tools", "router", "--expose-primitives") as server:
        client = Raw(server)
        await client.initialize()
        await client.send(id=2, method="tools/call", params={"name": "_mine_local_exec", "arguments": arguments})
        with anyio.fail_after(SECONDS):
            while not reached.exists():
                await anyio.sleep(0.01)
        (before,) = stored(place)
        await place.kill_hub()
        let.touch()
        begun = (await client.answer(2))["result"]["structuredContent"]
        assert (begun["task_id"], begun["agent"]) == (before.id, "mine")
        waiting = {"name": "mine", "arguments": {"request": f"wait for {before.id}"}}
        await client.send(id=3, method="tools/call", params=waiting)
        told = (await client.answer(3))["result"]["structuredContent"]
    assert (told["task"]["status"], told["resultSummary"]["text"]) == ("completed", "done")
    assert len(stored(place)) == len(fake.asked_for("session/prompt")) == 1


@pytest.mark.long
async def test_a_question_of_an_agent_of_ones_own_outlives_client_and_hub(
    codex_home: CodexHome, detached_engines: Path, git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeAcpAgent(tmp_path / "fake")
    fake.on("run", says("I try. "), asks("execute", "rm x", rawInput={"command": "rm x"}, allowed=[says("gone")]))
    config = str(own_agent(tmp_path, fake.command))
    monkeypatch.setenv("XDG_CONFIG_HOME", config)  # the hub's own, too
    env = {**codex_home.env, "XDG_CONFIG_HOME": config}
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
