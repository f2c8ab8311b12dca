"""A hub that dies after it has recorded that it is about to send a task to an agent: the supervisor knows if it was sent."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.agents.supervisor.records import read_records
from helmsman.tasks.model import Task
from helmsman.tasks.registry import REGISTRY_NAME, Registry
from helmsman.testing import CodexHome, ScriptedModel, say
from tests.claude import claude_binary, claude_environment
from tests.hub.dying_hub import dies, settings_for
from tests.hub_service import hub_service
from tests.real_agents import real_agent

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="There are no hubs here."),
]

SECONDS = 100


def stored(state_dir: Path) -> list[Task]:
    with closing(Registry(state_dir / REGISTRY_NAME)) as registry:
        return list(reversed(registry.list(limit=10)[0]))


async def settled(state_dir: Path, number: int) -> list[Task]:
    """As many tasks, none of which goes on."""
    with anyio.fail_after(SECONDS):
        while True:
            tasks = await anyio.to_thread.run_sync(stored, state_dir)
            if len(tasks) == number and not any(task.is_running for task in tasks):
                return tasks
            await anyio.sleep(0.05)


@pytest.mark.long
@pytest.mark.parametrize(
    "agent",
    [
        "claude",
        pytest.param("gemini", marks=pytest.mark.matrix),
        pytest.param("opencode", marks=pytest.mark.matrix),
    ],
)
async def test_the_next_hub_sends_unsent_input_once_and_repeats_nothing(
    codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path, detached_engines: Path, agent: str
) -> None:
    env, path = dict(codex_home.env), None
    if agent == "claude":
        env |= claude_environment(model, tmp_path / "claude")
        path = str(claude_binary())
    else:
        real = real_agent(agent, tmp_path / "home", model)
        program = tmp_path / "bin" / agent
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {" ".join(real.command[:-1])} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        env |= {**real.env, "PATH": f"{program.parent}:{real.env['PATH']}"}
    settings = settings_for(env, detached_engines, path)
    options: dict[str, Any] = {"cwd": str(git_repo), "agent": agent, "unenforced": True}
    for prompt in ("first words", "second words", "third words"):
        model.on(prompt, say(f"heard the {prompt}"))

    await dies(settings, env, "first words", when="before", **options)
    async with hub_service(settings, env):
        (first,) = await settled(detached_engines, 1)
    assert (first.status, first.result, first.spec) == ("completed", "heard the first words", None)

    await dies(settings, env, "second words", when="before", session_id=first.session_id)
    async with hub_service(settings, env):
        _, second = await settled(detached_engines, 2)
    assert (second.status, second.result, second.session_id) == (
        "completed",
        "heard the second words",
        first.session_id,
    )

    await dies(settings, env, "third words", when="after", session_id=first.session_id)
    async with hub_service(settings, env):
        *_, third = await settled(detached_engines, 3)
    assert (third.status, third.result) == ("completed", "heard the third words")
    heard = [text for request in model.requests for text in request.user_texts[-1:] if "words" in text]
    assert [[word in text for word in ("first", "second", "third")].index(True) for text in heard] == [0, 1, 2]
    for record in read_records(detached_engines):
        record.stop()


async def test_a_request_that_cannot_be_stored_fails_and_never_reaches_the_agent(
    codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path, detached_engines: Path
) -> None:
    env = {**codex_home.env, **claude_environment(model, tmp_path / "claude")}
    settings = settings_for(env, detached_engines, str(claude_binary()))
    secret = "sk-" + "aB3" * 16
    await dies(settings, env, f"use {secret}", when="before", cwd=str(git_repo), agent="claude", unenforced=True)
    async with hub_service(settings, env):
        (task,) = await settled(detached_engines, 1)
    assert task.error is not None
    assert (task.status, task.error["code"], task.error["retryable"]) == ("failed", "engine_lost", True)
    assert "before Claude Code received this, so nothing was done. Send it again." in task.error["message"]
    assert not model.requests
