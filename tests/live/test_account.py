"""A few small stories that run on the scripted model, or, with HELMSMAN_E2E=1, on the user's own account and model.

CODEX_E2E=true means the same.

They ask for so little that any model can do it, and cost next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from helmsman import Helmsman, load_settings, run_step
from helmsman.settings import Settings
from helmsman.testing import CodexHome, HomeTemplates, ScriptedModel, run, say
from helmsman.testing.binaries import codex_version

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

ON_ACCOUNT = any(os.environ.get(name) in ("1", "true") for name in ("HELMSMAN_E2E", "CODEX_E2E"))
SECONDS = 300

ADD = "What is 20 + 22? Answer with the number alone."
SCHEMA_ADD = "What is 20 + 22? Answer as JSON."
TOUCH = "Run exactly this command, asking for escalated permissions, and then say done: touch made.txt"
REMEMBER = "Remember the word heron. Answer with the word ok alone."
WAIT = "Run exactly this command, and then say done: sleep 60"
RECALL = "Which word were you to remember? Answer with it alone."

Setup = tuple[Settings, dict[str, str] | None]


@pytest.fixture
async def setup(codex_binary: Path, tmp_path: Path, codex_home_templates: HomeTemplates) -> AsyncIterator[Setup]:
    if ON_ACCOUNT:
        yield load_settings({"codex_path": str(codex_binary)}, cwd=tmp_path), None
        return
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(ScriptedModel())
        home: CodexHome = codex_home_templates.new_home(codex_binary, tmp_path / "home")
        home.use_model(model.base_url, codex_version(codex_binary))
        model.on(ADD, say("42"))
        model.on(SCHEMA_ADD, say('{"sum": 42}'))
        model.on(TOUCH, run("touch made.txt", escalate="You asked for it."), say("done"))
        model.on(REMEMBER, say("ok"))
        model.on(WAIT, run("sleep 60"), say("done"))
        model.on(RECALL, say("heron"))
        yield load_settings({"codex_path": str(codex_binary)}, home.env, tmp_path), home.env


async def test_a_question_is_answered(setup: Setup, git_repo: Path) -> None:
    settings, env = setup
    result = await run_step(ADD, cwd=git_repo, sandbox="read-only", settings=settings, env=env)
    assert "42" in result.text
    assert result.usage.input_tokens > 0


async def test_an_output_schema_is_kept(setup: Setup, git_repo: Path) -> None:
    settings, env = setup
    number = {"sum": {"type": "integer"}}
    schema = {"type": "object", "properties": number, "required": ["sum"], "additionalProperties": False}
    result = await run_step(
        SCHEMA_ADD, cwd=git_repo, sandbox="read-only", output_schema=schema, settings=settings, env=env
    )
    assert result.output == {"sum": 42}


async def test_a_command_is_asked_for_and_denied(setup: Setup, git_repo: Path) -> None:
    settings, env = setup
    async with Helmsman(settings, env=env) as helm:
        session = await helm.start(TOUCH, cwd=git_repo, sandbox="read-only", approval_policy="untrusted")
        while await session.wait(timeout=SECONDS) and session.questions:
            assert "touch" in session.questions[0].details["command"]
            await session.respond(session.questions[0].id, "deny")
    assert session.status == "done"
    assert not (git_repo / "made.txt").exists()


async def test_a_running_session_is_listed_interrupted_and_resumed(setup: Setup, git_repo: Path) -> None:
    settings, env = setup
    async with Helmsman(settings, env=env) as helm:
        session = await helm.start(WAIT, cwd=git_repo, full_auto=True)
        with anyio.fail_after(SECONDS):
            while not any(item.type == "command_execution" for item in session.items):
                await session.feed.changed()
        await session.interrupt()
        assert session.status == "interrupted"
        listed, _ = await helm.list(directory=git_repo)
        assert [info.session_id for info in listed] == [session.id]
    result = await run_step(ADD, session_id=session.id, settings=settings, env=env)
    assert "42" in result.text
    assert result.session_id == session.id


async def test_a_session_remembers_across_processes(setup: Setup, git_repo: Path) -> None:
    settings, env = setup
    first = await run_step(REMEMBER, cwd=git_repo, sandbox="read-only", settings=settings, env=env)
    second = await run_step(RECALL, session_id=first.session_id, settings=settings, env=env)
    assert "heron" in second.text.lower()
