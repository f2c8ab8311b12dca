"""Tests of each profile with its real agent: no agent gets more access than requested."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from helmsman import load_settings
from helmsman.agents.acp.agent import KNOWN, AcpAgent
from helmsman.agents.acp.opencode import place_of
from helmsman.agents.process_engine import ProcessEngine
from helmsman.agents.supervisor.client import Owner
from helmsman.agents.supervisor.records import read_records
from helmsman.base.processes import with_variable
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput
from helmsman.model.events import AgentMessage, EngineGone, Event, QuestionAsked, TurnEnded, Usage, UsageReported
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.model.questions import Choice, Question
from helmsman.settings import Settings
from helmsman.testing import ModelRequest, ScriptedModel, add, always, call, patch, run, say
from helmsman.testing.script import Step
from helmsman.testing.tools import SHELLS
from tests.agents.acp.test_acp_engine import Followed, begin
from tests.hostile_repository import make_hostile
from tests.real_agents import NAMES, RealAgent, real_agent
from tests.sandboxes import acp_engine

pytestmark = [pytest.mark.anyio, pytest.mark.matrix, pytest.mark.timeout(400)]

PROFILES = {profile.name: profile for profile in KNOWN}
SECONDS = 120
MARK = "HELMSMAN_STORY"
CALL = Usage(100, 20, 10, 3)
"""Timeout of a step: OpenCode needs half a minute for its very first start, and more on a busy machine."""


@pytest.fixture(params=NAMES)
def agent(request: pytest.FixtureRequest, tmp_path: Path, model: ScriptedModel) -> RealAgent:
    return real_agent(request.param, tmp_path / "home", model)


@asynccontextmanager
async def opened(agent: RealAgent, places: Path) -> AsyncIterator[ProcessEngine]:
    async with acp_engine(PROFILES[agent.name], agent.command, agent.env, places / "state") as engine:
        yield engine


class Story:
    """Session for running turn by turn."""

    def __init__(self, engine: ProcessEngine, followed: Followed, options: SessionOptions) -> None:
        self.engine = engine
        self.followed = followed
        self.options = options
        self._turns = 1
        self._seen = 0

    async def turn(self, prompt: str) -> None:
        await self.engine.run_turn(self.followed.session_id, self.options, TurnInput(text=prompt))
        self._turns += 1

    async def ended(self) -> tuple[TurnEnded, list[object]]:
        """Wait for the end of the turn, and return its items."""
        with anyio.fail_after(SECONDS):
            end = await self.followed.end(self._turns)
        items, self._seen = self.followed.items()[self._seen :], len(self.followed.items())
        return end, items

    async def asked(self) -> Question:
        """Wait for a question of the running turn."""
        turn_ids = [event.turn_id for event in self.followed.events]
        event = await self.followed.until(
            lambda event: isinstance(event, QuestionAsked) and event.turn_id == turn_ids[-1]
        )
        assert isinstance(event, QuestionAsked)
        return event.question

    async def approves_all(self) -> list[Question]:
        """Approve all that is asked in the turn that runs now, until it has ended."""
        turn_id = self.followed.events[-1].turn_id
        asked: list[Question] = []

        def is_next(event: Event) -> bool:
            is_open = isinstance(event, QuestionAsked) and event.question not in asked
            return event.turn_id == turn_id and (is_open or isinstance(event, TurnEnded))

        while isinstance(event := await self.followed.until(is_next), QuestionAsked):
            asked.append(event.question)
            await self.engine.answer(event.question, (Choice("approve"),))
        return asked


async def test_turn_and_question_outlive_the_hub(
    agent: RealAgent, model: ScriptedModel, git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.agents.acp.test_acp_engine.SECONDS", SECONDS)
    mark = f"{agent.name}-kept-{os.getpid()}"
    model.on("make it", [say("I try. "), run("touch made.txt")], say("made"))
    model.on("run long", run(long_command(mark)), say("never said"))
    env = {**agent.env, "HELMSMAN_STATE_DIR": str(tmp_path / "state")}
    settings = load_settings({"detach": True}, env, tmp_path)
    profile = PROFILES[agent.name]
    options = SessionOptions(agent=agent.name, cwd=git_repo, writes="workspace")
    hubs = [AcpAgent(profile, agent.command, Owner(epoch)) for epoch in range(1, 5)]
    try:
        async with hubs[0].open_engine(settings, env) as engine:
            assert isinstance(engine, ProcessEngine)
            first = await begin(engine, options, "make it")
            asked = await first.question()
        async with taken_over(hubs[1], settings, first.session_id, options) as (engine, second):
            assert await second.question() == asked
            assert await hubs[1].takes_work(settings, env, engine.id or "")
            await engine.answer(asked, (Choice("approve"),))
            assert (await second.end()).outcome == "completed"
            assert (git_repo / "made.txt").exists()
            assert [item.text for item in second.items() if isinstance(item, AgentMessage)][-1] == "made"
            told = [event.last for event in second.events if isinstance(event, UsageReported)]
            assert [one and one.counts for one in told] == [(CALL + CALL).counts]
            await engine.run_turn(first.session_id, options, TurnInput(text="run long"))
            await engine.answer(await second.question(2), (Choice("approve"),))
            await _until(lambda: len(with_variable(MARK, mark)) >= 2)
        async with taken_over(hubs[2], settings, first.session_id, options) as (engine, third):
            await engine.interrupt(first.session_id)
            assert (await third.end()).outcome == "interrupted"
            assert not with_variable(MARK, mark)
            assert await hubs[2].takes_work(settings, env, engine.id or "")
            await engine.run_turn(first.session_id, options, TurnInput(text="run long"))
            await engine.answer(await third.question(), (Choice("approve"),))
            await _until(lambda: len(with_variable(MARK, mark)) >= 2)
            (record,) = read_records(settings.state_dir)
            os.kill(record.supervisor.pid, signal.SIGKILL)
            await third.until(lambda event: isinstance(event, EngineGone))
            await _until(lambda: not with_variable("KEPT_BY_HELMSMAN", str(record.directory)))
            assert not with_variable("HOME", str(agent.home))
        homes = tmp_path / "state" / "agents" / "homes"
        assert list(homes.iterdir() if homes.exists() else ()) == []
    finally:
        for record in read_records(settings.state_dir):
            record.stop()
    assert model.problems == []


@asynccontextmanager
async def taken_over(
    hub: AcpAgent, settings: Settings, session_id: str, options: SessionOptions
) -> AsyncIterator[tuple[ProcessEngine, Followed]]:
    """Session that an earlier hub has left in the middle of a turn."""
    (record,) = read_records(settings.state_dir)
    async with hub.reopen_engine(settings, record.engine_id) as engine:
        assert isinstance(engine, ProcessEngine)
        assert await engine.running_sessions() == (session_id,)
        adopted = await engine.adopt(session_id, options)
        assert adopted.turn_id is not None
        assert adopted.enforced is not options.unenforced
        yield engine, Followed(engine, session_id)


def long_command(mark: str) -> str:
    """Return a command that does not end, with a child that has left its group."""
    leaving = "import subprocess, time; subprocess.Popen(['sleep', '300'], start_new_session=True)"
    return f"{MARK}={mark} python3 -c \"{leaving}; open('begun', 'w'); time.sleep(300)\""


# --- no more access than requested -----------------------------------------------------------------------------------


async def test_a_sandbox_holds_what_was_approved_and_its_sessions_are_found_outside(
    agent: RealAgent, model: ScriptedModel, git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.agents.acp.test_acp_engine.SECONDS", SECONDS)
    profile = PROFILES[agent.name]
    home = profile.home(agent.env)
    options = SessionOptions(agent=agent.name, cwd=git_repo, writes="workspace")
    tried = AcpAgent(profile, agent.command).try_sandbox(
        load_settings({"state_dir": str(tmp_path / "state")}), agent.env
    )
    assert home is not None
    assert f"{profile.title} " in await tried
    home.path.mkdir(parents=True, exist_ok=True)
    (home.path / "settings.json").write_text("{}")
    secret = tmp_path / "state" / "secret"
    outside = [tmp_path / "outside", agent.home / "outside", home.path / "planted", home.path / "settings.json"]
    outside += [home.path / name / "planted" for name in home.kept]
    shared = home.path / home.shared[0]
    project = profile.own_project(home.path, git_repo)
    other = shared / "other"
    if project is not None or agent.name == "opencode":  # others' sessions cannot be written
        other.mkdir(parents=True)
        outside.append(other / "planted")
    model.on("say hello", say("Hi there"))
    model.on("write it", patch(add(str(git_repo / "new.txt"), "hello\n")), say("written"))
    model.on("say more", say("More"))
    mark = f"{agent.name}-held-{os.getpid()}"
    model.on("run long", run(long_command(mark)), say("never said"))
    async with opened(agent, tmp_path) as engine:
        secret.write_text("hidden")
        story = Story(engine, await begin(engine, options, "say hello"), options)
        assert (await story.ended())[0].outcome == "completed"
        if agent.name == "opencode":
            project = place_of(shared, story.followed.session_id)
        evil = (project or shared) / "evil"
        tries = "; ".join((*(f"echo planted > {path}" for path in outside), f"ln -s {outside[0]} {evil}"))
        if home.mark is not None:
            tries += f"; echo {tmp_path} > {evil.with_name(home.mark)}"
        model.on("try it", run(f"touch inside; {tries}; cat {secret}"), say("tried"))
        await story.turn("try it")
        asked = await story.approves_all()  # OpenCode asks about the directories outside first
        assert [one.details["sandbox"] for one in asked if one.type == "command_approval"] == ["inside"]
        assert (await story.ended())[0].outcome == "completed"
        assert (git_repo / "inside").exists()
        assert [path for path in outside if path.exists()] == [home.path / "settings.json"]
        assert (home.path / "settings.json").read_text() == "{}"
        assert home.mark is None or evil.with_name(home.mark).read_text() == str(git_repo)
        assert "hidden" not in model.requests[-1].tool_output
        await story.turn("write it")
        await engine.answer(await story.asked(), (Choice("approve"),))
        await story.ended()
        assert (git_repo / "new.txt").read_text() == "hello\n"
        session_id = story.followed.session_id
        reader = profile.reader(agent.env)
        assert reader is not None
        assert reader.find(session_id) is not None

        await story.turn("run long")
        await engine.answer(await story.asked(), (Choice("approve"),))
        await _until(lambda: (git_repo / "begun").exists() and len(with_variable(MARK, mark)) >= 2)
        await engine.interrupt(session_id)
        assert not with_variable(MARK, mark)
        assert (await story.ended())[0].outcome == "interrupted"

        # It continues outside once the planted links are gone, and then inside again.
        with pytest.raises(InvalidInput, match="links that lead elsewhere"):
            await engine.resume(session_id, replace(options, unenforced=True))
        evil.unlink()
        for changed in (replace(options, unenforced=True), replace(options, writes="nothing")):
            await profile.may_load(session_id, agent.env)
            opened_again = await engine.resume(session_id, changed)
            assert opened_again.enforced is not changed.unenforced
            story.options = changed
            await story.turn("say more")
            assert (await story.ended())[0].outcome == "completed"
        turns = reader.past_turns(session_id)
        assert turns is not None
        assert len(turns) == 6
    assert [path.name for path in git_repo.iterdir() if path.is_dir()] == [".git"]  # nothing that was mounted on
    assert model.problems == []


async def test_where_nothing_may_be_written_nothing_is(
    agent: RealAgent, model: ScriptedModel, git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.agents.acp.test_acp_engine.SECONDS", SECONDS)

    def attempt(request: ModelRequest) -> Step:
        return run("touch made.txt") if set(SHELLS) & set(request.tool_names) else say("There is no shell.")

    model.on("make it", attempt, say("done"))
    options = SessionOptions(agent=agent.name, cwd=git_repo, unenforced=True)
    async with opened(agent, tmp_path) as engine:
        for policy in ({"writes": "nothing"}, {"asks": "never"}):
            session = await begin(engine, replace(options, **policy), "make it")  # type: ignore[arg-type]
            await session.end()
            assert not [event for event in session.events if isinstance(event, QuestionAsked)]
            assert not (git_repo / "made.txt").exists()


@pytest.mark.parametrize(
    ("name", "tool", "place"),
    [
        ("gemini", "run_shell_command", "dir_path"),
        ("opencode", "bash", "workdir"),
        ("qwen", "run_shell_command", "directory"),
    ],
)
async def test_a_command_that_runs_elsewhere_says_so(
    name: str,
    tool: str,
    place: str,
    model: ScriptedModel,
    git_repo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.agents.acp.test_acp_engine.SECONDS", SECONDS)
    agent = real_agent(name, tmp_path / "home", model)
    (git_repo / "sub").mkdir()
    given: dict[str, object] = {"command": "touch made.txt", "description": "make it", place: str(git_repo / "sub")}
    if name == "qwen":
        given["is_background"] = False
    model.on("elsewhere", call(tool, given), say("made"))
    async with opened(agent, tmp_path) as engine:
        session = await begin(engine, SessionOptions(agent=name, cwd=git_repo, unenforced=True), "elsewhere")
        question = await session.question()
        assert question.details["command"] == "touch made.txt"
        shown = question.details.get("directory", question.details.get("more"))
        assert shown in (str(git_repo / "sub"), f"[in {git_repo / 'sub'}] (make it)")
        await engine.answer(question, (Choice("approve"),))
        await session.end()
    assert (git_repo / "sub" / "made.txt").exists()


def delegate(model: ScriptedModel, mode: str) -> None:
    """Make Copilot give work to a sub-agent, which wants to run a command."""
    task = {"description": "make it", "name": "maker", "prompt": "make one now", "agent_type": "task", "mode": mode}
    model.on("delegate", call("task", task), say("begun"), always(say("all done")))
    model.on("make one now", run("touch made.txt"), say("made"))


@pytest.mark.parametrize("mode", ["sync", "background"])
@pytest.mark.parametrize("answer", ["approve", "deny"])
async def test_a_sub_agent_of_copilot_asks_as_its_agent_does_and_its_calls_count(
    mode: str, answer: str, model: ScriptedModel, git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.agents.acp.test_acp_engine.SECONDS", SECONDS)
    agent = real_agent("copilot", tmp_path / "home", model)
    delegate(model, mode)
    async with opened(agent, tmp_path) as engine:
        session = await begin(engine, SessionOptions(agent="copilot", cwd=git_repo, unenforced=True), "delegate")
        question = await session.question()
        assert (question.type, question.details["command"]) == ("command_approval", "touch made.txt")
        assert not (git_repo / "made.txt").exists()
        await engine.answer(question, (Choice(answer),))
        assert (await session.end()).outcome == "completed"
        (used,) = [event.last for event in session.events if isinstance(event, UsageReported)]
        assert used is not None
        assert used.counts == tuple(count * len(model.requests) for count in CALL.counts)
    assert len(model.requests) >= 3
    assert (git_repo / "made.txt").exists() == (answer == "approve")


@pytest.mark.parametrize("policy", [{"writes": "nothing"}, {"asks": "never"}])
async def test_a_sub_agent_of_copilot_may_do_no_more_than_its_agent(
    policy: dict[str, str], model: ScriptedModel, git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.agents.acp.test_acp_engine.SECONDS", SECONDS)
    agent = real_agent("copilot", tmp_path / "home", model)
    delegate(model, "sync")
    options = replace(SessionOptions(agent="copilot", cwd=git_repo, unenforced=True), **policy)  # type: ignore[arg-type]
    async with opened(agent, tmp_path) as engine:
        session = await begin(engine, options, "delegate")
        await session.end()
        assert not [event for event in session.events if isinstance(event, QuestionAsked)]
    assert any(request.last_user_text == "make one now" for request in model.requests)
    assert not (git_repo / "made.txt").exists()


async def test_opencode_asks_and_has_no_sub_agents_whatever_its_configuration_says(
    model: ScriptedModel, git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that questions of sub-agents reach no user."""
    monkeypatch.setattr("tests.agents.acp.test_acp_engine.SECONDS", 60)
    agent = real_agent("opencode", tmp_path / "home", model)
    permission = {"task": "allow", "bash": {"touch *": "allow"}, "*": "allow", "b*": "allow"}
    mine = {"permission": permission, "tools": {"task": True, "bash": True}}
    allowed = {
        **mine,
        "agent": {name: {**mine, "mode": "primary"} for name in ("build", "mine")},
        "default_agent": "mine",
    }
    given = json.loads(agent.env["OPENCODE_CONFIG_CONTENT"])
    agent.env["OPENCODE_CONFIG_CONTENT"] = json.dumps({**given, **allowed})
    config = Path(agent.env["XDG_CONFIG_HOME"]) / "opencode" / "opencode.json"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(json.dumps(allowed))
    model.on("make it", run("touch made.txt"), say("made"))
    async with opened(agent, tmp_path) as engine:
        session = await begin(engine, SessionOptions(agent="opencode", cwd=git_repo, unenforced=True), "make it")
        question = await session.question()
        assert question.details["command"] == "touch made.txt"
        await engine.answer(question, (Choice("deny"),))
        await session.end()
    assert not (git_repo / "made.txt").exists()
    assert "task" not in {name for request in model.requests for name in request.tool_names}


@pytest.mark.parametrize("place", ["its root", "a directory of it", "a directory with a .git of no use"])
async def test_a_repository_runs_nothing_and_gets_no_key(
    agent: RealAgent,
    model: ScriptedModel,
    git_repo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    monkeypatch.setattr("tests.agents.acp.test_acp_engine.SECONDS", SECONDS)
    ran = tmp_path / "ran"
    ran.mkdir()
    cwd = git_repo if place == "its root" else git_repo / "below"
    cwd.mkdir(exist_ok=True)
    if "no use" in place:
        (cwd / ".git").write_text("gitdir: nowhere")
    model.on("make it", run("touch made.txt"), say("made"))
    async with ScriptedModel() as foreign:
        named = make_hostile(git_repo, ran, foreign)[agent.name]
        keep_key_at_home(agent)
        options = SessionOptions(agent=agent.name, cwd=cwd, unenforced=True)
        async with opened(agent, tmp_path) as engine:
            if named:
                with pytest.raises(InvalidInput, match="would run files of this repository") as refused:
                    await engine.open(options)
                assert refused.value.details["files"] == [str(path) for path in named]
                for path in named:
                    path.unlink()
            session = await begin(engine, options, "make it")
            question = await session.question()  # also where the repository says that nothing need be asked
            await engine.answer(question, (Choice("deny"),))
            await session.end()
        assert foreign.requests == []
    assert list(ran.iterdir()) == []


def keep_key_at_home(agent: RealAgent) -> None:
    """Whom to send the key to is said by a file of the user's, where one of the repository might come before it.

    Gemini finds the repository's, does not heed it, and then has no key: its own has to be in its environment.
    """
    if agent.name == "qwen":
        (agent.home / ".qwen").mkdir(exist_ok=True)
        lines = [f"{name}={agent.env.pop(name)}\n" for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL")]
        (agent.home / ".qwen" / ".env").write_text("".join(lines))


async def _until(found: Callable[[], bool]) -> None:
    with anyio.fail_after(SECONDS):
        while not found():
            await anyio.sleep(0.1)
