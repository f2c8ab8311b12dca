"""Run the same stories on every real agent but Codex, through the library.

`make matrix` runs them; docs/compatibility.md has the results.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import Helmsman, Session, Settings, load_settings
from helmsman.agents.acp.agent import KNOWN
from helmsman.agents.claude.binary import TITLE, find_claude
from helmsman.base.process_ending import signal_all
from helmsman.base.processes import KILL, with_variable
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput, Unsupported
from helmsman.model.events import AgentMessage, CommandExecution, FileChange
from helmsman.model.questions import Question
from helmsman.settings import ConfigFile
from helmsman.shapes.listed_sessions import listed_sessions
from helmsman.testing import CodexHome, ScriptedModel, add, patch, run, say, think
from tests.agents.conftest import Record
from tests.claude import claude_binary, claude_environment
from tests.hostile_repository import make_hostile
from tests.real_agents import NAMES, real_agent

pytestmark = [pytest.mark.anyio, pytest.mark.story, pytest.mark.timeout(400), pytest.mark.usefixtures("snapshots")]

SECONDS = 120
"""Timeout of a step: OpenCode needs half a minute for its very first start, and more on a busy machine."""
MARK = "HELMSMAN_STORY"
CALL = (100, 20, 10)
"""Tokens of a response of the scripted model: input, cached input, output."""


@dataclass
class Stage:
    """Agent with its own home, and how to start it."""

    name: str
    settings: Settings
    env: dict[str, str]
    own: tuple[str, str]
    """Variable and value that only processes of this agent have."""
    policy: dict[str, Any]
    record: Record

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Helmsman]:
        async with Helmsman(self.settings, env=self.env, inside=True) as helm:
            yield helm


@pytest.fixture(
    params=[
        pytest.param("claude", marks=pytest.mark.rare),
        *(pytest.param(name, marks=[pytest.mark.matrix, pytest.mark.long]) for name in NAMES),
    ]
)
def stage(request: pytest.FixtureRequest, tmp_path: Path, model: ScriptedModel) -> Stage:
    home = tmp_path / "home"
    codex = CodexHome(tmp_path / "codex").env
    if request.param == "claude":
        env = codex | claude_environment(model, home)
        settings = load_settings({"claude_path": str(claude_binary()), "detach": False}, env, tmp_path)
        record = Record("claude", TITLE, find_claude(settings, env).version)
        own, policy = ("CLAUDE_CONFIG_DIR", str(home)), {"sandbox": "workspace-write"}
        return Stage("claude", settings, env, own, policy, record)
    agent = real_agent(request.param, home, model)
    env = codex | agent.env
    profile = next(profile for profile in KNOWN if profile.name == agent.name)
    named = ConfigFile(
        tmp_path / "helmsman.toml", {"agents": {agent.name: {"command": list(agent.command)}}}, trusted=True
    )
    settings = replace(load_settings({"detach": False}, env, tmp_path), files=(named,))
    record = Record(agent.name, profile.title, _version(agent.command))
    policy = {"sandbox": "workspace-write"}
    return Stage(agent.name, settings, env, ("HOME", str(home)), policy, record)


def _version(command: tuple[str, ...]) -> str:
    """Return the version of the package that contains a program."""
    program = Path(next(word for word in command if "node_modules" in word and not word.endswith("/bin/node")))
    package = next(place for parent in program.parents if (place := parent / "package.json").exists())
    return str(json.loads(package.read_text(encoding="utf-8"))["version"])


async def question_of(session: Session) -> Question:
    with anyio.fail_after(SECONDS):
        while not session.questions:
            assert session.state.is_running, session.error
            await session.feed.changed()
    return session.questions[0]


async def approved(session: Session) -> None:
    """Let the turn end, with a yes to all that it asks: OpenCode asks apart about places outside."""
    with anyio.fail_after(SECONDS):
        while session.state.is_running:
            if session.questions:
                await session.respond(session.questions[0].id, "approve")
            else:
                await session.feed.changed()


async def ended(session: Session) -> list[object]:
    """Wait for the end of the turn, and return its items."""
    assert await session.wait(until="end", timeout=SECONDS)
    return list(session.items)


async def until(found: Callable[[], bool]) -> None:
    with anyio.fail_after(SECONDS):
        while not found():
            await anyio.sleep(0.05)


async def test_it_is_steered_like_any_other(stage: Stage, model: ScriptedModel, git_repo: Path) -> None:
    mark = f"{stage.name}-{os.getpid()}"
    leaving = "import subprocess, time; subprocess.Popen(['sleep', '300'], start_new_session=True)"
    program = f"{leaving}; open('begun', 'w'); time.sleep(300)"
    model.on("say hello", [think("hm"), say("Hi ", "there")])
    model.on("make it", run("touch made.txt; echo out; exit 3"), say("made"))
    model.on("remove it", run("rm made.txt"), say("kept"))
    model.on("delete it", run("rm made.txt"), say("I see"))
    model.on("because it is needed", say("I see"))
    model.on("write it", patch(add(str(git_repo / "new.txt"), "hello\n")), say("written"))
    model.on("take a while", run("python3 -c 'import time; time.sleep(1)'"), say("not heard"))
    model.on("look there", say("looked"))
    model.on("run long", run(f'{MARK}={mark} python3 -c "{program}"'), say("never said"))
    model.on("make another", run("touch another.txt"), say("made"))
    story = stage.record.story
    async with stage.opened() as helm:
        with story("start"):
            session = await helm.start("say hello", cwd=git_repo, agent=stage.name, **stage.policy)
            items = await ended(session)
            assert session.result == "Hi there"
            assert [item.text for item in items if isinstance(item, AgentMessage)] == ["Hi there"]
        with story("usage"):
            assert session.usage.counts[:3] == CALL
            if stage.name == "opencode":  # at the prices that it is given
                assert session.usage.cost_usd == pytest.approx((80 * 1 + 20 * 0.1 + 10 * 10) / 1_000_000)

        with story("question_yes"):
            await session.say("make it")
            asked = await question_of(session)
            assert (asked.type, asked.details["command"]) == ("command_approval", "touch made.txt; echo out; exit 3")
            assert not (git_repo / "made.txt").exists()
            await session.respond(asked.id, "approve")
            items = await ended(session)
            assert (git_repo / "made.txt").exists()
        with story("exit_code", Unsupported):
            (command,) = [item for item in items if isinstance(item, CommandExecution)]
            if stage.name == "gemini":
                assert (command.exit_code, command.output) == (None, "")
                raise Unsupported("It never says what a command printed, nor its exit code.")
            assert (command.exit_code, command.output.strip()) == (3, "out")

        with story("question_no"):
            await session.say("remove it")
            await session.respond((await question_of(session)).id, "deny")
            items = await ended(session)
            assert (git_repo / "made.txt").exists()
            assert [item.declined for item in items if isinstance(item, CommandExecution)] == [True]
        with story("question_with_reason"):
            await session.say("delete it")
            await session.respond((await question_of(session)).id, "deny: because it is needed")
            await ended(session)
            assert (git_repo / "made.txt").exists()
            assert session.result == "I see"
            assert "because it is needed" in json.dumps(model.requests[-1].input)

        with story("patch"):
            await session.say("write it")
            asked = await question_of(session)
            assert (asked.type, asked.details["paths"]) == ("patch_approval", [str(git_repo / "new.txt")])
            assert "+hello" in asked.details["diff"]
            await session.respond(asked.id, "approve")
            items = await ended(session)
            assert (git_repo / "new.txt").read_text() == "hello\n"
            assert [item.changes[0].kind for item in items if isinstance(item, FileChange)] == ["add"]

        for undo in (False, True):  # of every agent the files are taken back, and the rewind too
            shown = await helm.extras.rewinding.preview(session.id, undo=undo)
            assert (shown.part, shown.diff and [file.path for file in shown.diff.files]) == ("files", ["new.txt"])
            await helm.extras.rewinding.rewind(session.id, undo=undo, digest=shown.digest)
            assert (git_repo / "new.txt").exists() is undo

        await session.say("take a while")
        asked = await question_of(session)
        with story("steer", Unsupported):
            try:
                await session.steer("look there")
            finally:
                await session.respond(asked.id, "approve")
                await ended(session)
            assert session.result == "looked"

        with story("interrupt"):
            await session.say("run long")
            await session.respond((await question_of(session)).id, "approve")
            await until(lambda: (git_repo / "begun").exists() and len(with_variable(MARK, mark)) >= 2)
            await session.interrupt()
            assert session.status == "interrupted"
            assert not with_variable(MARK, mark)

        with story("resume_after_kill"):
            await session.say("make another")
            await question_of(session)
            signal_all(with_variable(*stage.own), KILL)
            await ended(session)
            assert session.error is not None
            await session.say("make another")
            await session.respond((await question_of(session)).id, "approve")
            await ended(session)
            assert (git_repo / "another.txt").exists()

        with story("list"):
            found, _ = await helm.list(directory=git_repo, agent=stage.name)
            (listed,) = await listed_sessions(helm, found)
            assert (listed["sessionId"], listed["agent"]) == (session.id, stage.name)
            history = await helm.history(session.id)
            done = [item.type for item in history[1].items]
            assert done == ["user_message", "command_execution", "decision", "agent_message"]
        await session.say("run long")
        await question_of(session)
        await session.interrupt()
    async with stage.opened() as later:  # which has only recorded facts
        found, _ = await later.list(directory=git_repo, agent=stage.name)
        (listed,) = await listed_sessions(later, found)
        assert (listed["sessionId"], listed["status"]) == (session.id, "interrupted")
    model.problems.clear()  # what a killed one had requested


async def test_a_repository_runs_nothing(stage: Stage, model: ScriptedModel, git_repo: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    ran.mkdir()
    model.on("make it", run("touch made.txt"), say("made"))
    async with ScriptedModel() as foreign, stage.opened() as helm:
        make_hostile(git_repo, ran, foreign)
        with stage.record.story("hostile_repository", InvalidInput):
            try:
                session = await helm.start("make it", cwd=git_repo, agent=stage.name, **stage.policy)
                await session.respond((await question_of(session)).id, "deny")
                await ended(session)
            finally:
                assert foreign.requests == []
                assert list(ran.iterdir()) == []
                assert not (git_repo / "made.txt").exists()


async def test_the_sandbox_holds_what_was_approved(stage: Stage, model: ScriptedModel, git_repo: Path) -> None:
    outside = git_repo.parent / "outside"
    model.on("try it", run(f"touch inside; touch {outside}"), say("tried"))
    async with stage.opened() as helm:
        with stage.record.story("sandbox"):
            session = await helm.start("try it", cwd=git_repo, agent=stage.name, sandbox="workspace-write")
            await question_of(session)
            await approved(session)
            assert (git_repo / "inside").exists()
        assert not outside.exists()
