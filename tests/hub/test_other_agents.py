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
from helmsman.hub.control import ask_hub
from helmsman.testing.fake_acp_agent import FakeAcpAgent, asks, says
from helmsman.testing.hubs import hub_pid
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


@pytest.mark.long
async def test_a_question_of_an_agent_of_ones_own_outlives_client_and_hub(
    codex_home: CodexHome, detached_engines: Path, git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeAcpAgent(tmp_path / "fake")
    fake.on("run", says("I try. "), asks("execute", "rm x", rawInput={"command": "rm x"}, allowed=[says("gone")]))
    fake.on("more", says("again"))
    config = tmp_path / "config" / "helmsman"
    config.mkdir(parents=True)
    lines = f"command = {fake.command}\nmode = 'ask'\nruns_repository_files = false\n"
    (config / "helmsman.toml").write_text(f"[agents.mine]\n{lines}", encoding="utf-8")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))  # the hub's own, too
    env = {**codex_home.env, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    settings = replace(load_settings({"detach": True}, env, tmp_path), state_dir=detached_engines)
    async with Helmsman(settings, env=env) as helm:
        session = await helm.start("run it", cwd=git_repo, agent="mine", unenforced=True)
        question = await asked(session)
    pid = hub_pid(detached_engines)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with anyio.fail_after(SECONDS):  # its keeper starts the next hub, though no client is there
        while hub_pid(detached_engines) in (None, pid) or not (ask_hub(detached_engines, "status") or {}).get(
            "sessionsAtWork"
        ):
            await anyio.sleep(0.05)
    async with Helmsman(settings, env=env) as helm:
        found = await helm.session(session.id)
        assert (await asked(found)).id == question.id
        await found.respond(question.id, "approve")
        assert await found.wait(until="end", timeout=SECONDS)
        assert (found.status, found.result) == ("done", "gone")
        assert len(read_records(detached_engines)) == 1
        await found.say("more")
        assert await found.wait(until="end", timeout=SECONDS)
        assert (found.result, found.turn_count) == ("again", 2)
    assert [one["prompt"][0]["text"] for one in fake.asked_for("session/prompt")] == ["run it", "more"]
