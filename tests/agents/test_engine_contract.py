"""What every engine promises (`helmsman.agents.protocol`), shown on each: Codex's, Claude Code's, that of the Agent Client
Protocol on an agent that is played and on the real ones, and one made of nothing but the promises."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import Session, Settings, load_settings
from helmsman.agents.acp.agent import KNOWN, AcpAgent
from helmsman.agents.acp.profile import OwnAgent
from helmsman.agents.claude.agent import ClaudeAgent
from helmsman.agents.codex.agent import CodexAgent
from helmsman.agents.protocol import Agent, Capability, Engine
from helmsman.agents.supervisor.client import Owner
from helmsman.agents.supervisor.records import read_records
from helmsman.agents.supervisor.records import read_records as kept_records
from helmsman.base.structs import replace
from helmsman.errors import (
    EngineLost,
    HelmsmanError,
    InvalidInput,
    QuestionNotOpen,
    SessionBusy,
    SessionIdle,
    SessionNotFound,
    Unsupported,
)
from helmsman.model.events import EngineGone, Event, TurnEnded, TurnStarted, UserMessage
from helmsman.model.inputs import turn_input
from helmsman.model.options import ReviewTarget, SessionOptions, TurnInput
from helmsman.model.questions import Prompt, Question
from helmsman.service import HelmsmanService
from helmsman.settings import ConfigFile
from helmsman.testing import CodexHome, ScriptedModel, always, say
from helmsman.testing.binaries import codex_version, codex_versions
from helmsman.testing.fake_acp_agent import FakeAcpAgent, says, waits
from helmsman.testing.home import HomeTemplates
from tests.claude import claude_binary, claude_environment
from tests.engines import start_turn
from tests.played import PlayedAgent, PlayedEngine
from tests.real_agents import NAMES, real_agent

pytestmark = pytest.mark.anyio

SECONDS = 120
"""Timeout of a step: OpenCode starts slowly, and Gemini loads no session in the minute of its creation."""
NOWHERE = "0199a0f2-0000-7000-8000-00000000dead"


@dataclass
class Followed:
    """Events of a session from the engine."""

    events: list[Event] = field(default_factory=list[Event])
    _news: anyio.Event = field(default_factory=anyio.Event)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()
        self._news = anyio.Event()

    async def ends(self, count: int = 1) -> list[TurnEnded]:
        with anyio.fail_after(SECONDS):
            while len(found := [event for event in self.events if isinstance(event, TurnEnded)]) < count:
                await self._news.wait()
        return found


@dataclass
class Stage:
    """Agent, and how a test makes its turn end or continue until an interrupt."""

    agent: Agent
    settings: Settings
    env: dict[str, str]
    directory: Path
    model: ScriptedModel | None = None
    unenforced: bool = False

    @property
    def options(self) -> SessionOptions:
        return SessionOptions(
            agent=self.agent.name, cwd=self.directory, skip_git_repo_check=True, unenforced=self.unenforced
        )

    async def start(self, helm: HelmsmanService, prompt: str) -> Session:
        return await helm.start(prompt, cwd=self.directory, agent=self.agent.name, unenforced=self.unenforced)

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[Engine]:
        async with self.agent.open_engine(self.settings, self.env) as engine:
            yield engine

    @asynccontextmanager
    async def helm(self) -> AsyncIterator[HelmsmanService]:
        brought = [self.agent] if isinstance(self.agent, PlayedAgent | AcpAgent) and not self.settings.files else []
        async with HelmsmanService(self.settings, env=self.env, agents=brought) as helm:
            yield helm

    async def begin(self, engine: Engine, prompt: str = "short") -> tuple[str, Followed]:
        opened = await start_turn(engine, self.options, TurnInput(text=prompt))
        follower = Followed()
        engine.attach(opened.session_id, follower)
        if prompt == "long" and self.model is not None:
            with anyio.fail_after(SECONDS):
                await self.model.wait_for_request()  # killed any earlier, `codex exec` leaves no session to resume
        return opened.session_id, follower

    def let_end(self, engine: Engine) -> None:
        """Return a prompt of a turn that ends soon."""
        if isinstance(engine, PlayedEngine):
            engine.end("completed")


@pytest.fixture(
    params=[
        *("app-server", "exec", "played", "on a pipe", "acp", "claude"),
        *(pytest.param(name, marks=[pytest.mark.rare, pytest.mark.timeout(900)]) for name in NAMES),
    ]
)
def stage(
    request: pytest.FixtureRequest,
    settings: Settings,
    codex_home: CodexHome,
    codex_home_templates: HomeTemplates,
    model: ScriptedModel,
    git_repo: Path,
    tmp_path: Path,
) -> Iterator[Stage]:
    if request.param == "played":
        yield Stage(PlayedAgent(), settings, codex_home.env, git_repo)
        return
    if request.param == "acp":
        fake = FakeAcpAgent(tmp_path / "fake")
        fake.on("short", says("done"))
        fake.on("more", says("done again"))
        fake.on("long", says("begun"), waits())
        mine = OwnAgent("mine", "Mine", mode="ask", runs_repository_files=False)
        agent = AcpAgent(mine, tuple(fake.command), Owner(1))
        yield Stage(agent, replace(settings, detach=os.name == "posix"), codex_home.env, git_repo, unenforced=True)
        _end_kept(settings)
        return
    model.on("short", say("done"))
    model.on("more", say("done again"))
    model.on("long", always(say("begun ", model.gate(), "and ended")))
    if request.param == "claude":
        yield from _claude_stage(codex_home, model, git_repo, tmp_path)
        return
    if request.param in NAMES:
        yield from _real_stage(request.param, model, git_repo, tmp_path)
        return
    if request.param != "on a pipe":
        yield Stage(CodexAgent(), replace(settings, engine=request.param), codex_home.env, git_repo, model)
        return
    older = [path for path in codex_versions().values() if codex_version(path) < (0, 163, 0)]
    if not older or os.name != "posix":
        pytest.skip("There is no Codex here that is on a pipe.")
    home = codex_home_templates.new_home(older[-1], tmp_path / "older")
    home.use_model(model.base_url, codex_version(older[-1]))
    home.keep_quiet(codex_version(older[-1]))
    settings = load_settings({"codex_path": str(older[-1]), "detach": True}, home.env, tmp_path)
    yield Stage(CodexAgent(Owner(1)), settings, home.env, git_repo, model)
    for record in read_records(settings.state_dir):
        record.stop()


def _claude_stage(codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path) -> Iterator[Stage]:
    """In supervisors, but for what is asked of a whole service: there it is a child of our own."""
    claude = claude_binary()
    env = codex_home.env | claude_environment(model, tmp_path / "claude")
    settings = load_settings({"claude_path": str(claude), "detach": True}, env, tmp_path)
    yield Stage(ClaudeAgent(Owner(1)), settings, env, git_repo, model, unenforced=True)
    _end_kept(settings)


def _real_stage(name: str, model: ScriptedModel, git_repo: Path, tmp_path: Path) -> Iterator[Stage]:
    """An agent of the Agent Client Protocol, in supervisors."""
    real = real_agent(name, tmp_path / "home", model)
    profile = next(profile for profile in KNOWN if profile.name == name)
    env = real.env | {"HELMSMAN_STATE_DIR": str(tmp_path / "state")}
    named = ConfigFile(tmp_path / "helmsman.toml", {"agents": {name: {"command": [*real.command]}}}, trusted=True)
    settings = replace(load_settings({"detach": True}, env, tmp_path), files=(named,))
    model.otherwise(lambda _request: say("done"))
    yield Stage(AcpAgent(profile, real.command, Owner(1)), settings, env, git_repo, model, unenforced=True)
    _end_kept(settings)


def _end_kept(settings: Settings) -> None:
    for record in kept_records(settings.state_dir):
        record.stop()


# --- sessions and turns ----------------------------------------------------------------------------------------------


async def test_in_a_session_that_was_opened_nothing_runs(stage: Stage) -> None:
    async with stage.engine() as engine:
        opened = await engine.open(stage.options)
        assert opened.turn_id is None
        assert opened.directory == str(stage.directory)
        await engine.interrupt(opened.session_id)


async def test_a_turn_is_reported_from_its_start_to_its_one_end(stage: Stage) -> None:
    async with stage.engine() as engine:
        opened = await engine.open(stage.options)
        begun = await engine.run_turn(opened.session_id, stage.options, TurnInput(text="short"))
        follower = Followed()
        engine.attach(begun.session_id, follower)
        stage.let_end(engine)
        (end,) = await follower.ends()
        assert (end.outcome, end.turn_id) == ("completed", begun.turn_id)
        assert {event.session_id for event in follower.events} == {begun.session_id}
        started = [event for event in follower.events if isinstance(event, TurnStarted)]
        assert [event.turn_id for event in started] == [begun.turn_id]


async def test_events_before_the_first_listener_are_kept(stage: Stage) -> None:
    async with stage.engine() as engine:
        opened = await start_turn(engine, stage.options, TurnInput(text="short"))
        stage.let_end(engine)
        first = Followed()
        engine.attach(opened.session_id, first)
        assert len(await first.ends()) == 1


async def test_one_turn_follows_another(stage: Stage) -> None:
    async with stage.engine() as engine:
        session_id, follower = await stage.begin(engine)
        stage.let_end(engine)
        await follower.ends()
        begun = await engine.run_turn(session_id, stage.options, TurnInput(text="more"))
        assert begun.session_id == session_id
        stage.let_end(engine)
        first, second = await follower.ends(2)
        assert (second.turn_id, second.outcome) == (begun.turn_id, "completed")
        assert first.turn_id != second.turn_id


async def test_there_is_no_second_turn_beside_one_that_runs(stage: Stage) -> None:
    async with stage.engine() as engine:
        session_id, follower = await stage.begin(engine, "long")
        with pytest.raises(SessionBusy):
            await engine.run_turn(session_id, stage.options, TurnInput(text="more"))
        await engine.interrupt(session_id)
        assert [end.outcome for end in await follower.ends()] == ["interrupted"]


async def test_an_interrupt_has_stopped_the_turn_when_it_returns(stage: Stage) -> None:
    async with stage.engine() as engine:
        session_id, follower = await stage.begin(engine, "long")
        await engine.interrupt(session_id)
        assert [end.outcome for end in await follower.ends()] == ["interrupted"]
        await engine.interrupt(session_id)  # there is nothing to stop
        begun = await engine.run_turn(session_id, stage.options, TurnInput(text="more"))
        stage.let_end(engine)
        assert (await follower.ends(2))[-1].turn_id == begun.turn_id


async def test_a_session_can_be_gone_on_with_in_another_engine(stage: Stage) -> None:
    async with stage.engine() as engine:
        session_id, follower = await stage.begin(engine)
        stage.let_end(engine)
        await follower.ends()
    async with stage.engine() as engine:
        assert (await engine.resume(session_id, stage.options)).session_id == session_id
        follower = Followed()
        engine.attach(session_id, follower)
        await engine.run_turn(session_id, stage.options, TurnInput(text="more"))
        stage.let_end(engine)
        assert [end.outcome for end in await follower.ends()] == ["completed"]


async def test_an_unknown_session_is_not_begun_anew(stage: Stage) -> None:
    async with stage.engine() as engine:
        with pytest.raises(SessionNotFound):
            await engine.resume(NOWHERE, stage.options)


async def test_a_released_listener_receives_nothing_more(stage: Stage) -> None:
    async with stage.engine() as engine:
        session_id, follower = await stage.begin(engine, "long")
        engine.detach(session_id)
        before = list(follower.events)
        await engine.interrupt(session_id)
        assert follower.events == before


async def test_a_closed_engine_says_so_to_all(stage: Stage) -> None:
    async with stage.engine() as engine:
        session_id, follower = await stage.begin(engine)
        stage.let_end(engine)
        await follower.ends()
        assert not engine.lost
    assert isinstance(engine.lost, HelmsmanError)
    told = 1 if engine.id is None else 0  # a running one has not ended
    assert [type(event) for event in follower.events].count(EngineGone) == told
    with pytest.raises(EngineLost):
        await engine.open(stage.options)
    with pytest.raises(EngineLost):
        engine.attach(session_id, follower)


async def test_a_question_that_is_not_open_takes_no_answer(stage: Stage) -> None:
    question = Question(
        asker="Codex",
        id="none",
        type="command_approval",
        session_id=NOWHERE,
        turn_id=None,
        prompts=(Prompt(text="?", options=("approve", "deny")),),
        details={},
    )
    async with stage.engine() as engine:
        with pytest.raises(QuestionNotOpen):
            await engine.answer(question, None)


# --- what not every engine can do ------------------------------------------------------------------------------------


async def test_an_agent_says_beforehand_what_its_engine_can_do(stage: Stage) -> None:
    async with stage.engine() as engine:
        assert await stage.agent.capabilities(stage.settings, stage.env) == engine.capabilities


async def test_a_message_reaches_the_turn_or_is_refused(stage: Stage) -> None:
    async with stage.helm() as helm:
        session = await stage.start(helm, "long")
        await expect(helm, session, Capability.STEER, session.steer("look here"))
        await session.interrupt()
        with pytest.raises(SessionIdle):
            await session.steer("too late")


ASKED_OF_A_SESSION: dict[Capability, Callable[[HelmsmanService, Session], Awaitable[Any]]] = {
    Capability.FORK: lambda helm, session: helm.fork(session.id),
    Capability.FORK_AT_TURN: lambda helm, session: helm.fork(session.id, from_turn=1),
    Capability.ROLL_BACK: lambda helm, session: helm.extras.upkeep.roll_back(session.id),
    Capability.COMPACT: lambda helm, session: helm.extras.upkeep.compact(session.id),
    Capability.RENAME: lambda helm, session: helm.extras.upkeep.rename(session.id, "a name"),
    Capability.ARCHIVE: lambda helm, session: helm.extras.upkeep.archive(session.id),
    Capability.GOALS: lambda helm, session: helm.extras.upkeep.goal(session.id),
    Capability.ATTACH: lambda helm, session: helm.extras.upkeep.own_terminal(session.id),
    Capability.REVIEW: lambda helm, session: helm.run_other_turn(session.id, turn_input("look", kind=ReviewTarget())),
    Capability.PLAN: lambda helm, session: helm.run_other_turn(session.id, turn_input("plan", kind="plan")),
}


async def test_supported_operations_work_and_others_are_refused_with_the_agents_that_can(stage: Stage) -> None:
    if stage.model is not None:
        stage.model.otherwise(lambda _request: say("done"))
    async with stage.helm() as helm:
        session: Session | None = None
        for capability, ask in ASKED_OF_A_SESSION.items():
            if session is None:
                session = await stage.start(helm, "short")
                assert session.engine is not None
                stage.let_end(session.engine)
                assert await session.wait(until="end", timeout=SECONDS)
            assert session.engine is not None
            is_done = capability in session.engine.capabilities
            await expect(helm, session, capability, ask(helm, session))
            if is_done:
                session = None  # a refusal leaves it unchanged
            for known in list(helm.sessions.values()):
                if known.engine is not None:
                    await known.interrupt()


async def test_the_turns_that_were_run_here_are_known_of_every_agent(stage: Stage) -> None:
    if stage.model is not None:
        stage.model.otherwise(lambda _request: say("done"))
    async with stage.helm() as helm:
        session = await stage.start(helm, "short")
        assert session.engine is not None
        stage.let_end(session.engine)
        assert await session.wait(until="end", timeout=SECONDS)
        (turn,) = await helm.history(session.id)
        assert turn.status == "completed"
        assert isinstance(turn.items[0], UserMessage)


async def expect(helm: HelmsmanService, session: Session, capability: Capability, asked: Awaitable[Any]) -> None:
    assert session.engine is not None
    can = helm.agents.explained(session.engine.capabilities)
    if capability in can:
        with anyio.fail_after(SECONDS):
            await asked
        return
    with pytest.raises(Unsupported) as refused:
        await asked
    assert refused.value.details == {"agent": session.options.agent, "capability": capability.word}
    assert refused.value.message.endswith(f"cannot {capability.text}. {can.lacking[capability]}")
    assert capability.word not in can.as_dict()["can"]
    assert capability.word in can.as_dict()["cannot"]


async def test_an_unknown_agent_is_refused_with_those_there_are(stage: Stage) -> None:
    async with stage.helm() as helm:
        with pytest.raises(InvalidInput, match="There is no agent 'clod'"):
            await helm.start("short", cwd=stage.directory, agent="clod")
        assert (await helm.tasks.list())[0] == []
