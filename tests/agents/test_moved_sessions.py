"""Sessions of other real agents than Codex that go from one machine to another: each has a home and a repository."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import Session, Settings, load_settings
from helmsman.agents.protocol import Capability
from helmsman.base.process_ending import signal_all
from helmsman.base.processes import KILL, with_variable
from helmsman.base.structs import replace
from helmsman.service import HelmsmanService
from helmsman.settings import ConfigFile
from helmsman.steering.carrying import AWAY, CarriedSession
from helmsman.steering.opening import Carried
from helmsman.testing import CodexHome, ScriptedModel, hang, make_repository, run, say
from tests.carrying import carried, gathered
from tests.claude import claude_binary, claude_environment
from tests.real_agents import real_agent

pytestmark = [pytest.mark.anyio, pytest.mark.rare, pytest.mark.timeout(400)]

SECONDS = 120
FULL: Any = {"sandbox": "danger-full-access", "approval_policy": "never"}


@dataclass
class Machine:
    """Home of an agent with its own repository."""

    agent: str
    settings: Settings
    env: dict[str, str]
    own: tuple[str, str]
    """Variable and value that only processes of this home have."""
    repo: Path

    @asynccontextmanager
    async def helm(self) -> AsyncIterator[HelmsmanService]:
        async with HelmsmanService(self.settings, env=self.env) as helm:
            yield helm


def machine(agent: str, folder: Path, model: ScriptedModel) -> Machine:
    folder.mkdir()
    home, repo = folder / "home", make_repository(folder / "repo")
    env = CodexHome(folder / "codex").env
    if agent == "claude":
        env |= claude_environment(model, home)
        settings = load_settings({"claude_path": str(claude_binary()), "detach": False}, env, folder)
        return Machine(agent, settings, env, ("CLAUDE_CONFIG_DIR", str(home)), repo)
    real = real_agent(agent, home, model)
    env |= real.env
    named = ConfigFile(folder / "helmsman.toml", {"agents": {agent: {"command": list(real.command)}}}, trusted=True)
    settings = replace(load_settings({"detach": False}, env, folder), files=(named,))
    return Machine(agent, settings, env, ("HOME", str(home)), repo)


async def ended(session: Session) -> Session:
    assert await session.wait(until="end", timeout=SECONDS)
    assert session.status == "done", session.error
    return session


@pytest.mark.parametrize("agent", ["claude", "qwen"])
async def test_a_session_is_gone_on_with_on_another_machine_and_on_the_first_again(
    agent: str, tmp_path: Path, model: ScriptedModel
) -> None:
    """Kill the first one in the middle of its second turn. Its third turn, after the move, must not count."""
    one, other = (machine(agent, tmp_path / name, model) for name in ("one", "other"))
    for word in ("first", "fenced", "third", "fourth", "fifth"):
        model.on(word, say(f"said {word}"))
    model.on("second", run("echo seen-on-one"), hang())
    async with other.helm() as there:
        async with one.helm() as here:
            session = await ended(await here.start("first", cwd=one.repo, agent=agent, **FULL))
            shipped = await carried(here, session.id, agent=agent)
            parts = await gathered(shipped)
            await here.say(session.id, "second")
            with anyio.fail_after(SECONDS):
                while "seen-on-one" not in b"".join(part.data for part in parts).decode():
                    assert session.state.is_running, session.error
                    await anyio.sleep(0.1)
                    parts += await gathered(shipped)
            signal_all(with_variable(*one.own), KILL)
            await session.wait(until="end", timeout=SECONDS)
        moved = await carried(there, session.id, agent=agent)
        await moved.place(parts, other.repo)
        going = await ended(
            await there.start("third", cwd=other.repo, agent=agent, carried=Carried(session.id), **FULL)
        )
        assert (going.id, going.directory, going.result) == (session.id, str(other.repo), "said third")
        told = json.dumps(model.requests[-1].body)
        assert ("said first" in told, "seen-on-one" in told) == (True, True)
        parts += await gathered(moved)
    async with other.helm() as there:  # by a process that has to find it
        await ended(await there.say(session.id, "fourth"))
        told = json.dumps(model.requests[-1].body)
        assert ("said third" in told, str(one.repo) in told.rpartition("said third")[2]) == (True, False)
        parts = await gathered(await carried(there, session.id, agent=agent))

    async with one.helm() as here:
        await ended(await here.say(session.id, "fenced"))  # by a machine that does not know that it is out
        await (await carried(here, session.id, agent=agent)).place(parts, one.repo)
        back = await ended(await here.start("fifth", cwd=one.repo, agent=agent, carried=Carried(session.id), **FULL))
        told = json.dumps(model.requests[-1].body)
        assert (back.result, "said fourth" in told, "said fenced" in told) == ("said fifth", True, False)
        (away,) = (one.settings.state_dir / AWAY).glob("*/*.jsonl")
        assert "said fenced" in away.read_text(encoding="utf-8")


@pytest.mark.parametrize("agent", ["gemini", "opencode", "copilot"])
async def test_sessions_of_others_stay_where_they_are_and_that_is_said(
    agent: str, tmp_path: Path, model: ScriptedModel
) -> None:
    one = machine(agent, tmp_path / "one", model)
    async with one.helm() as helm:
        assert await CarriedSession.of(helm, agent, "0" * 36) is None
        assert "starts anew from the files" in (await helm.capabilities(agent=agent)).lacking[Capability.MOVE]
