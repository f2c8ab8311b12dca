"""Agents with a smaller profile, each a real program: whole turns in the sandbox, with questions, and resumed sessions."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from helmsman import load_settings
from helmsman.base.structs import replace
from helmsman.errors import AnswerInvalid, InvalidInput
from helmsman.model.events import CommandExecution
from helmsman.service import HelmsmanService
from helmsman.settings import ConfigFile, Settings
from helmsman.testing import CodexHome, ScriptedModel, add, call, patch, run, say
from tests.agents.test_stories import approved, ended, question_of
from tests.hostile_repository import make_hostile
from tests.real_agents import MORE, RealAgent, real_agent

pytestmark = [pytest.mark.anyio, pytest.mark.matrix, pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture(params=MORE)
def agent(request: pytest.FixtureRequest, tmp_path: Path, model: ScriptedModel) -> RealAgent:
    return real_agent(request.param, tmp_path / "home", model)


@pytest.fixture
def env(agent: RealAgent, tmp_path: Path) -> dict[str, str]:
    return CodexHome(tmp_path / "codex").env | agent.env


@pytest.fixture
def settings(agent: RealAgent, env: dict[str, str], tmp_path: Path) -> Settings:
    named = {"agents": {agent.name: {"command": list(agent.command)}}}
    file = ConfigFile(tmp_path / "helmsman.toml", named, trusted=True)
    return replace(load_settings({"detach": False}, env, tmp_path), files=(file,))


async def test_a_whole_turn_asks_is_answered_and_stays_in_the_sandbox(
    agent: RealAgent, settings: Settings, env: dict[str, str], model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    command = f"touch made.txt; sh -c 'touch ../trap'; echo {'x' * 80} end"
    model.on("make it", run(command), say("made"))
    model.on("remove it", run("rm made.txt"), say("kept"))
    model.on("write it", patch(add(str(git_repo / "new.txt"), "hello\n")), say("written"))
    model.on("look again", say("still here"))
    async with HelmsmanService(settings, env=env) as helm:
        session = await helm.start("make it", cwd=git_repo, agent=agent.name, sandbox="workspace-write")
        asked = await question_of(session)
        assert (asked.type, asked.details["command"]) == ("command_approval", command)
        assert not (git_repo / "made.txt").exists()
        await session.respond(asked.id, "approve")
        items = await ended(session)
        assert session.result == "made"
        assert any(isinstance(item, CommandExecution) for item in items)
        assert (git_repo / "made.txt").exists()
        assert not (git_repo.parent / "trap").exists(), "the sandbox holds what was approved"
        await session.say("remove it")
        await session.respond((await question_of(session)).id, "deny")
        await ended(session)
        assert (git_repo / "made.txt").exists()
        await session.say("write it")
        await approved(session)
        assert (git_repo / "new.txt").read_text(encoding="utf-8") == "hello\n"
        assert session.usage.counts[0] > 0 or agent.name == "kimi"
        session_id = session.id
    async with HelmsmanService(settings, env=env) as helm:  # another process of it
        session = await helm.say(session_id, "look again")
        await ended(session)
        assert session.result == "still here"
        assert "make it" in str(model.requests[-1].input), "it knows what was said before"
    assert model.problems == []


async def test_nothing_of_an_untrusted_repository_runs(
    agent: RealAgent, settings: Settings, env: dict[str, str], model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    ran.mkdir()
    make_hostile(git_repo, ran, model)
    server = '{"mcpServers": {"evil": {"command": "touch", "args": ["%s"]}}}' % (ran / f"mcp-{agent.name}")
    for name in (".kimi-code/mcp.json", ".kilocode/mcp.json", ".kilo/mcp.json", ".kilo/kilo.json"):
        (git_repo / name).parent.mkdir(exist_ok=True)
        (git_repo / name).write_text(server, encoding="utf-8")
    model.on("hello", say("hi"))
    async with HelmsmanService(settings, env=env) as helm:
        with suppress(InvalidInput), anyio.fail_after(300):  # refused, where it would run something
            session = await helm.start("hello", cwd=git_repo, agent=agent.name, sandbox="workspace-write")
            await ended(session)
    assert sorted(path.name for path in ran.iterdir()) == []


async def test_a_form_of_an_agent_is_answered_as_questions(
    tmp_path: Path, model: ScriptedModel, git_repo: Path
) -> None:
    agent = real_agent("kimi", tmp_path / "home", model)  # which asks so where the client declares elicitation
    env = CodexHome(tmp_path / "codex").env | agent.env
    file = ConfigFile(tmp_path / "helmsman.toml", {"agents": {"kimi": {"command": list(agent.command)}}}, trusted=True)
    settings = replace(load_settings({"detach": False}, env, tmp_path), files=(file,))
    colours = [{"label": name, "description": f"all {name}"} for name in ("red", "blue")]
    sizes = [{"label": name, "description": name} for name in ("small", "large")]
    colour = {"question": "Which colour?", "header": "Colour", "options": colours}
    several = {"question": "Which sizes?", "header": "Sizes", "options": sizes, "multi_select": True}
    asked_for = call("AskUserQuestion", {"questions": [colour, several]})
    for prompt in ("ask me", "ask again"):
        model.on(prompt, asked_for, say("thank you"))
    async with HelmsmanService(settings, env=env) as helm:
        session = await helm.start("ask me", cwd=git_repo, agent="kimi", sandbox="workspace-write")
        asked = await question_of(session)
        assert asked.type == "user_input"
        assert "Which colour?" in asked.prompts[0].text
        assert [prompt.options for prompt in asked.prompts] == [("red", "blue"), ()]
        assert "small, large" in asked.prompts[1].text
        with pytest.raises(AnswerInvalid):
            await session.respond(asked.id, "green", "small")
        await session.respond(asked.id, "blue", "small, large")
        await ended(session)
        told = str(model.requests[-1].input[-1])
        assert all(answer in told for answer in ("blue", "small", "large"))
        await session.say("ask again")
        await question_of(session)
        await session.interrupt()
        assert not session.questions
