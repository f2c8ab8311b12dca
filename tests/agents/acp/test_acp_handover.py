"""Tests of handing a session over to another agent: its prompt and its permissions, with scripted agents."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from helmsman import Helmsman, load_settings
from helmsman.errors import InvalidInput, SessionBusy
from helmsman.testing.fake_acp_agent import FakeAcpAgent, says, updates, waits

pytestmark = pytest.mark.anyio

SECONDS = 20
COMMANDS = 23
TURNS = 12


@pytest.fixture
def first(tmp_path: Path) -> FakeAcpAgent:
    return FakeAcpAgent(tmp_path / "first")


@pytest.fixture
def second(tmp_path: Path) -> FakeAcpAgent:
    return FakeAcpAgent(tmp_path / "second")


@pytest.fixture
async def helm(first: FakeAcpAgent, second: FakeAcpAgent, tmp_path: Path) -> AsyncIterator[Helmsman]:
    file = tmp_path / "helmsman.toml"
    tables = [
        f"[agents.{name}]\ncommand = {agent.command}\nmode = 'ask'\nruns_repository_files = false\n"
        f"writable = ['{tmp_path / name}']\n"
        for name, agent in (("first", first), ("second", second))
    ]
    file.write_text("".join(tables), encoding="utf-8")
    env = {**os.environ, "HELMSMAN_STATE_DIR": str(tmp_path / "state")}
    async with Helmsman(load_settings({}, env, tmp_path, user_file=file), env=env, inside=True) as helm:
        yield helm


@pytest.mark.rare
async def test_the_next_agent_gets_the_newest_work_and_the_size_of_the_rest(
    helm: Helmsman, first: FakeAcpAgent, second: FakeAcpAgent, folder: Path
) -> None:
    calls = [
        {
            "sessionUpdate": "tool_call",
            "toolCallId": f"call-{number}",
            "kind": "execute",
            "title": f"echo {number}",
            "status": "completed",
            "rawInput": {"command": f"echo {number}"},
        }
        for number in range(COMMANDS)
    ]
    first.on("dig", says("Dug. " + "deep " * 900))
    first.on("run", updates(*calls), says("All run."))
    second.on("Go on", says("I go on."))
    session = await helm.start("dig 1", cwd=folder, agent="first", unenforced=True)
    assert await session.wait(until="end", timeout=SECONDS)
    for number in range(2, TURNS):
        await session.say(f"dig {number}")
        assert await session.wait(until="end", timeout=SECONDS)
    await session.say("run them")
    assert await session.wait(until="end", timeout=SECONDS)

    other = await helm.say(session.id, "Go on with it", agent="second")
    assert await other.wait(until="end", timeout=SECONDS)
    assert other.id != session.id
    assert other.result == "I go on."
    (asked,) = second.asked_for("session/prompt")
    told = asked["prompt"][0]["text"]
    assert f"## Turn {TURNS} (" in told
    assert "\nAsked: run them\n" in told
    assert f"({COMMANDS - 20} earlier commands are left out.)" in told
    assert f"Ran: echo {COMMANDS - 1}" in told
    assert "Ran: echo 1\n" not in told
    assert "Asked: dig 11" in told
    assert "Asked: dig 1\n" not in told
    assert "turns are left out.)" in told
    assert any(f"Handed over from session {session.id}" in note for note in other.notes)


async def test_a_session_that_is_still_at_it_is_not_handed_over(
    helm: Helmsman, first: FakeAcpAgent, second: FakeAcpAgent, folder: Path
) -> None:
    first.on("dig", waits())
    session = await helm.start("dig", cwd=folder, agent="first", unenforced=True)
    with pytest.raises(SessionBusy):
        await helm.say(session.id, "Go on", agent="second")
    with pytest.raises(InvalidInput, match="Wait for it, or interrupt it"):
        await helm.say(session.id, "Go on", agent="second", when_busy="queue")
    assert second.received == []
    with anyio.fail_after(SECONDS):
        await session.interrupt()
