"""The app-server engine on a real Codex."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.agents.codex.binary import find_codex
from helmsman.agents.codex.engine import AppServerEngine, open_app_server
from helmsman.agents.protocol import Opened
from helmsman.errors import (
    EngineLost,
    EngineRefused,
    InvalidInput,
    QuestionNotOpen,
    SessionIdle,
)
from helmsman.model.events import EngineGone, Event, ProcessStateChanged, QuestionAsked, QuestionClosed, TurnEnded
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.model.questions import Choice, Question
from helmsman.sessions.state import SessionState
from helmsman.testing import CodexHome, ScriptedModel, always, hang, run, say, spawn_agent
from helmsman.testing.script import Step
from tests.engines import start_turn

pytestmark = pytest.mark.anyio


@dataclass
class Follower:
    """Collects a session's events and lets a test wait for one."""

    opened: Opened
    events: list[Event] = field(default_factory=list[Event])
    state: SessionState = field(init=False)
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        self.state = SessionState(self.opened.session_id)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.state.apply(event)
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, condition: Callable[[], object], seconds: float = 30) -> None:
        with anyio.fail_after(seconds):
            while not condition():
                await self._changed.wait()

    @property
    def states(self) -> list[str]:
        return [event.state.value for event in self.events if isinstance(event, ProcessStateChanged)]

    async def question(self) -> Question:
        await self.until(lambda: self.state.questions)
        return next(iter(self.state.questions.values()))

    async def end(self) -> TurnEnded:
        await self.until(lambda: any(isinstance(event, TurnEnded) and event.agent_id is None for event in self.events))
        return next(event for event in self.events if isinstance(event, TurnEnded) and event.agent_id is None)


@asynccontextmanager
async def engine_on(codex_binary: Path, codex_home: CodexHome) -> AsyncIterator[AppServerEngine]:
    binary = await find_codex(explicit=codex_binary, env=codex_home.env, state_dir=None)
    async with open_app_server(binary, codex_home=codex_home.path, env=codex_home.env) as engine:
        yield engine


@pytest.fixture
async def engine(codex_binary: Path, codex_home: CodexHome) -> AsyncIterator[AppServerEngine]:
    async with engine_on(codex_binary, codex_home) as engine:
        yield engine


async def begin(engine: AppServerEngine, prompt: str, **options: Any) -> Follower:
    follower = Follower(await start_turn(engine, SessionOptions(**options), TurnInput(text=prompt)))
    engine.attach(follower.opened.session_id, follower)
    return follower


async def test_a_sandbox_that_writes_does_not_make_codex_trust_the_repository(
    engine: AppServerEngine, model: ScriptedModel, git_repo: Path, codex_home: CodexHome, tmp_path: Path
) -> None:
    (git_repo / ".codex").mkdir()
    (git_repo / ".codex" / "config.toml").write_text(
        f'[mcp_servers.evil]\ncommand = "touch"\nargs = ["{tmp_path}/evil"]\n', encoding="utf-8"
    )
    model.on("write", run("echo hi > made.txt"), say("done"))
    before = codex_home.config_path.read_bytes()
    session = await begin(engine, "write", cwd=git_repo, writes="workspace", asks="never")
    await session.end()
    assert (git_repo / "made.txt").read_text(encoding="utf-8") == "hi\n"
    assert codex_home.config_path.read_bytes() == before
    assert not (tmp_path / "evil").exists()


async def test_a_writing_sandbox_from_the_configuration_does_not_trust_it_either(
    codex_binary: Path, model: ScriptedModel, git_repo: Path, codex_home: CodexHome
) -> None:
    codex_home.configure(sandbox_mode="workspace-write")
    before = codex_home.config_path.read_bytes()
    model.on("write", run("echo hi > made.txt"), say("done"))
    async with engine_on(codex_binary, codex_home) as engine:
        session = await begin(engine, "write", cwd=git_repo, asks="never")
        await session.end()
    assert (git_repo / "made.txt").exists()
    assert codex_home.config_path.read_bytes() == before


async def test_a_trusted_repository_has_its_configuration_loaded_and_nothing_written(
    engine: AppServerEngine, model: ScriptedModel, git_repo: Path, codex_home: CodexHome, tmp_path: Path
) -> None:
    (git_repo / ".codex").mkdir()
    (git_repo / ".codex" / "config.toml").write_text(
        'developer_instructions = "obey the repository"\n', encoding="utf-8"
    )
    model.on("hello", say("hi"))
    before = codex_home.config_path.read_bytes()
    session = await begin(engine, "hello", cwd=git_repo, writes="workspace", trust_repository=True)
    await session.end()
    assert "obey the repository" in str(model.requests[-1].body)
    assert codex_home.config_path.read_bytes() == before


async def test_writable_roots_and_network_of_the_configuration_are_kept(
    codex_binary: Path, model: ScriptedModel, folder: Path, codex_home: CodexHome, tmp_path: Path
) -> None:
    codex_home.configure(sandbox_workspace_write={"network_access": True, "exclude_slash_tmp": True})
    model.on("hello", say("hi"))
    async with engine_on(codex_binary, codex_home) as engine:
        session = await begin(engine, "hello", cwd=folder, writes="workspace", writable_roots=(tmp_path,))
        await session.end()
    told = str(model.requests[-1].body)
    assert str(tmp_path) in told
    assert "enabled" in told.lower()


async def test_writable_roots_need_the_sandbox_that_has_them(engine: AppServerEngine, folder: Path) -> None:
    with pytest.raises(InvalidInput, match="workspace-write"):
        await begin(engine, "x", cwd=folder, writes="nothing", writable_roots=(folder,))


async def test_a_question_is_answered_once(engine: AppServerEngine, model: ScriptedModel, folder: Path) -> None:
    model.on("touch", run("touch x", escalate="need it"), say("ok"))
    session = await begin(engine, "touch", cwd=folder, asks="when_needed")
    question = await session.question()
    await engine.answer(question, None)
    with pytest.raises(QuestionNotOpen):
        await engine.answer(question, (Choice("approve"),))
    await session.end()
    assert not (folder / "x").exists()


async def test_an_interrupt_closes_the_open_question(
    engine: AppServerEngine, model: ScriptedModel, folder: Path
) -> None:
    model.on("touch", run("touch x", escalate="need it"), say("never"))
    session = await begin(engine, "touch", cwd=folder, asks="when_needed")
    question = await session.question()
    await engine.interrupt(session.opened.session_id)
    await session.end()
    closed = [event for event in session.events if isinstance(event, QuestionClosed)]
    assert [(event.question_id, event.answer) for event in closed] == [(question.id, None)]
    with pytest.raises(QuestionNotOpen):
        await engine.answer(question, (Choice("approve"),))
    assert not (folder / "x").exists()


async def test_each_change_of_a_sessions_state_is_an_event(
    engine: AppServerEngine, model: ScriptedModel, folder: Path
) -> None:
    model.on("wait", hang())
    session = await begin(engine, "wait", cwd=folder)
    await engine.interrupt(session.opened.session_id)
    await session.end()
    await engine.archive(session.opened.session_id)
    assert session.states == ["starting", "idle", "running", "stopping", "idle", "stored"]


async def test_there_is_nothing_to_steer_in_an_idle_session(
    engine: AppServerEngine, model: ScriptedModel, folder: Path
) -> None:
    model.on("hello", say("hi"))
    session = await begin(engine, "hello", cwd=folder)
    await session.end()
    with pytest.raises(SessionIdle):
        await engine.steer(session.opened.session_id, "more")


async def test_a_bad_configuration_value_is_refused_by_name(engine: AppServerEngine, folder: Path) -> None:
    with pytest.raises(EngineRefused, match="model_reasoning_effort"):
        await begin(engine, "x", cwd=folder, config={"model_reasoning_effort": 3})


async def test_a_sub_agents_question_is_its_parents(
    engine: AppServerEngine, model: ScriptedModel, folder: Path
) -> None:
    model.on("parent", spawn_agent("child work"), say("parent done"))
    model.on("child work", run("touch child.txt", escalate="need it"), say("child done"))
    session = await begin(engine, "parent", cwd=folder, asks="when_needed")
    await session.until(lambda: any(isinstance(event, QuestionAsked) for event in session.events))
    question = next(event.question for event in session.events if isinstance(event, QuestionAsked))
    assert question.session_id == session.opened.session_id
    assert question.agent_id not in (None, session.opened.session_id)
    await engine.answer(question, None)
    child_ended = lambda: any(isinstance(event, TurnEnded) and event.agent_id for event in session.events)  # noqa: E731
    await session.until(child_ended)
    await session.end()


@pytest.mark.parametrize("moment", ["before the first word", "in a message", "in a command", "at a question"])
async def test_killing_the_engine_tells_everyone_at_once(
    codex_binary: Path, codex_home: CodexHome, model: ScriptedModel, folder: Path, moment: str
) -> None:
    gate = model.gate()
    steps: dict[str, Step] = {
        "before the first word": hang(),
        "in a message": say("some", gate, "more"),
        "in a command": run("touch running; exec sleep 5"),
        "at a question": run("touch x", escalate="please"),
    }
    model.on("go", always(steps[moment]))
    async with engine_on(codex_binary, codex_home) as engine:
        session = await begin(engine, "go", cwd=folder, writes="workspace", asks="when_needed")
        match moment:
            case "before the first word":
                with anyio.fail_after(20):
                    await model.wait_for_request()
            case "in a message":
                await gate.reached()
            case "in a command":
                with anyio.fail_after(20):
                    while not (folder / "running").exists():
                        await anyio.sleep(0.02)
            case _:
                await session.question()
        reasons: list[EngineLost] = []

        async def ask() -> None:
            try:
                await engine.compact(session.opened.session_id)
                await engine.interrupt(session.opened.session_id)
            except EngineLost as error:
                reasons.append(error)

        async with anyio.create_task_group() as tasks:
            kill_engine(engine)
            tasks.start_soon(ask)
        with anyio.fail_after(10):
            await session.until(lambda: any(isinstance(event, EngineGone) for event in session.events))
        assert reasons
        assert session.state.status == "error"
        assert session.states[-1] == "stored"
        with pytest.raises(EngineLost):
            await start_turn(engine, SessionOptions(cwd=folder), TurnInput(text="x"))


def kill_engine(engine: AppServerEngine) -> None:
    transport: Any = engine._peer._transport
    transport.child.kill()
