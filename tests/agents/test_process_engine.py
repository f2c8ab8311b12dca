"""Tests of the life of sessions and processes in all dialects: a toy agent, and the real ones, with kills in every state."""

from __future__ import annotations

import inspect
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from helmsman.agents import process_engine
from helmsman.agents.acp.agent import KNOWN
from helmsman.agents.acp.dialect import AcpDialect
from helmsman.agents.acp.profile import Profile
from helmsman.agents.claude.binary import ClaudeBinary
from helmsman.agents.claude.dialect import ClaudeDialect
from helmsman.agents.claude.storage import ClaudeSessions
from helmsman.agents.process_engine import (
    TRANSITIONS,
    AgentDialect,
    AgentSession,
    ProcessEngine,
    Supervision,
    open_process_engine,
)
from helmsman.agents.protocol import Trust
from helmsman.agents.supervisor.client import Owner
from helmsman.agents.supervisor.records import ProcessRecord, read_records
from helmsman.base.processes import descendants, with_variable
from helmsman.base.structs import replace
from helmsman.errors import HelmsmanError, InvalidInput, SessionNotFound
from helmsman.model.events import (
    EngineGone,
    Event,
    ProcessStateChanged,
    QuestionAsked,
    TurnEnded,
    TurnStarted,
)
from helmsman.model.events import ProcessState as State
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.model.questions import Choice
from helmsman.testing import ScriptedModel, always, say
from tests.agents.toy.dialect import ToyDialect
from tests.claude import claude_binary, claude_environment
from tests.real_agents import NAMES, real_agent
from tests.sandboxes import launch_config

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name != "posix", reason="There are no supervisors here.")]

SECONDS = 200
"""Timeout of a step: Gemini loads no session in the minute of its creation, and OpenCode starts slowly."""
ROOT = Path(__file__).parents[2]


@dataclass
class Place:
    """State directory with consecutive hubs, and the agent that they run."""

    state_dir: Path
    options: SessionOptions
    dialect: Callable[[], AgentDialect]
    argv: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @asynccontextmanager
    async def hub(self, epoch: int, left: Sequence[ProcessRecord] = ()) -> AsyncIterator[ProcessEngine]:
        supervision = Supervision(engine_id="engine-1", owner=Owner(epoch), about={})
        async with open_process_engine(
            self.dialect(),
            launch_config(self.argv, self.env, self.state_dir),
            state_dir=self.state_dir,
            idle=900,
            supervision=supervision,
            left=left,
        ) as engine:
            yield engine

    @property
    def record(self) -> ProcessRecord:
        (record,) = read_records(self.state_dir)
        return record


@pytest.fixture
def place(tmp_path: Path, git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Return the place of a toy agent."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")])
    )  # its supervisor finds the watcher
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    options = SessionOptions(agent="toy", cwd=git_repo, unenforced=True)
    yield Place(tmp_path / "state", options, lambda: ToyDialect(sessions))
    for record in read_records(tmp_path / "state"):
        record.stop()


@pytest.fixture(
    params=[
        "toy",
        *(
            pytest.param(name, marks=[pytest.mark.rare, pytest.mark.timeout(900)])
            for name in ("claude", "claude in a sandbox", *NAMES)
        ),
    ]
)
def any_place(
    request: pytest.FixtureRequest, place: Place, git_repo: Path, model: ScriptedModel, tmp_path: Path
) -> Place:
    """Return the place of the toy agent, or of a real one on a scripted model."""
    name, _, where = request.param.partition(" ")
    if name == "toy":
        return place
    model.on("long", always(say("begun ", model.gate(), "and ended")))
    model.on("short", always(say("done")))  # wins: Qwen sends an unanswered "long" in one message with the next "short"
    model.otherwise(lambda _request: say("done"))
    options = SessionOptions(agent=name, cwd=git_repo, unenforced=not where)
    if name == "claude":
        home = tmp_path / "claude"
        env = dict(os.environ) | claude_environment(model, home)
        binary = ClaudeBinary(path=claude_binary(), version="2.1.312", home=home)
        return Place(
            place.state_dir, options, lambda: ClaudeDialect(ClaudeSessions(home), binary), (str(binary.path),), env
        )
    agent = real_agent(name, tmp_path / "home", model)
    profile = next(profile for profile in KNOWN if profile.name == name)
    return Place(place.state_dir, options, lambda: AcpDialect(profile, agent.env), agent.command, agent.env)


class Heard:
    """Events of a session from the engine."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, *kinds: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kinds)]


async def until(found: Callable[[], object]) -> None:
    with anyio.fail_after(SECONDS):
        while not found():
            await anyio.sleep(0.01)


async def begun(engine: ProcessEngine, place: Place, prompt: str) -> tuple[AgentSession, Heard]:
    opened = await engine.open(place.options)
    heard = Heard()
    engine.attach(opened.session_id, heard)
    await engine.run_turn(opened.session_id, place.options, TurnInput(text=prompt))
    return engine._sessions[opened.session_id], heard


async def goes_on(engine: ProcessEngine, place: Place, session_id: str, heard: Heard) -> None:
    """Run a turn to its end."""
    before = len(heard.of(TurnEnded))
    await engine.run_turn(session_id, place.options, TurnInput(text="short"))
    await until(lambda: len(heard.of(TurnEnded)) > before)
    last = heard.of(TurnEnded)[-1]
    assert isinstance(last, TurnEnded)
    assert last.outcome == "completed"


def test_every_state_leads_back_to_the_one_without_a_process() -> None:
    assert set(TRANSITIONS) == set(State)
    assert all(State.STORED in TRANSITIONS[state] for state in State if state is not State.STORED)
    assert TRANSITIONS[State.ENDING] == {State.STORED}, "nothing begins in a process that is ending"
    assert [state for state in State if State.RUNNING in TRANSITIONS[state]] == [
        State.STARTING,
        State.IDLE,
    ]


def test_the_states_are_drawn_alike_in_the_module_and_in_the_documentation() -> None:
    drawn = [line for line in (process_engine.__doc__ or "").splitlines() if re.search("[─│]", line)]
    assert len(drawn) == 3
    assert {state.name for state in State} == set(re.findall("[A-Z]{4,}", "".join(drawn)))
    assert "\n".join(drawn) in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_a_dialect_is_not_made_without_all_its_answers() -> None:
    questions = sorted(AgentDialect.__abstractmethods__)
    assert {"trust", "check", "converse", "fingerprint", "launch", "find", "history", "opened"} <= set(questions)
    for question in questions:
        answers = {name: getattr(ToyDialect, name) for name in questions if name != question}
        incomplete = type("Incomplete", (AgentDialect,), answers)
        assert inspect.isabstract(incomplete)


def test_trust_in_an_agent_has_no_defaults() -> None:
    answers = {name: getattr(ToyDialect.trust, name) for name in inspect.signature(Trust).parameters}
    for question in answers:
        with pytest.raises(TypeError):
            Trust(**{name: answer for name, answer in answers.items() if name != question})
    assert Profile.__abstractmethods__ >= {"trust", "home", "dangerous_files"}


async def test_an_agent_that_may_run_files_of_a_repository_needs_trust_in_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyDialect, "trust", replace(ToyDialect.trust, runs_repository_files=True))
    async with place.hub(1) as engine:
        opened = await engine.open(place.options)
        with pytest.raises(InvalidInput, match="Toy may run files of this repository"):
            await engine.run_turn(opened.session_id, place.options, TurnInput(text="short"))
        trusted = replace(place.options, trust_repository=True)
        await engine.run_turn(opened.session_id, trusted, TurnInput(text="short"))


async def test_a_new_protocol_needs_only_a_dialect(place: Place) -> None:
    async with place.hub(1) as engine:
        session, heard = await begun(engine, place, "ask")
        await until(lambda: heard.of(QuestionAsked))
        (asked,) = heard.of(QuestionAsked)
        assert isinstance(asked, QuestionAsked)
        await engine.answer(asked.question, (Choice("approve"),))
        await until(lambda: heard.of(TurnEnded))
        assert place.options.cwd is not None
        assert (place.options.cwd / "made.txt").exists()
        await goes_on(engine, place, session.id, heard)
        with pytest.raises(SessionNotFound):
            await engine.resume("unknown", place.options)
    async with place.hub(2) as engine:
        resumed = await engine.resume(session.id, place.options)
        assert (resumed.session_id, resumed.turn_id) == (session.id, None)


async def test_each_change_of_the_state_is_an_event(place: Place) -> None:
    async with place.hub(1) as engine:
        session, heard = await begun(engine, place, "short")
        await until(lambda: heard.of(TurnEnded))
        await engine.end(session)
        told = [event.state for event in heard.events if isinstance(event, ProcessStateChanged)]
    assert [state.value for state in told] == ["starting", "idle", "running", "idle", "ending", "stored"]


async def test_the_next_hub_follows_the_turn_and_answers_its_question(place: Place) -> None:
    async with place.hub(1) as engine:
        session, heard = await begun(engine, place, "ask")
        await until(lambda: heard.of(QuestionAsked))
    assert not heard.of(TurnEnded, EngineGone)
    async with place.hub(2, [place.record]) as engine:
        again = Heard()
        engine.attach(session.id, again)
        await engine.adopt(session.id, place.options)
        await until(lambda: again.of(QuestionAsked))
        (asked,) = again.of(QuestionAsked)
        assert isinstance(asked, QuestionAsked)
        assert [event.turn_id for event in again.of(TurnStarted)] == [heard.of(TurnStarted)[0].turn_id]
        await engine.answer(asked.question, None)
        await until(lambda: again.of(TurnEnded))
        await goes_on(engine, place, session.id, again)


async def begun_and_ended(engine: ProcessEngine, place: Place) -> tuple[AgentSession, Heard]:
    """Run the first turn of a session to its end: no agent stores a session before that. What was heard is forgotten."""
    session, heard = await begun(engine, place, "short")
    await until(lambda: heard.of(TurnEnded))
    heard.events.clear()
    return session, heard


async def in_state(
    engine: ProcessEngine, place: Place, state: State, tasks: anyio.abc.TaskGroup
) -> tuple[AgentSession, Heard]:
    """Bring a session to a state. In the states that an agent would soon leave, it is stopped."""
    session, heard = await begun_and_ended(engine, place)
    if state is not State.IDLE:
        await engine.run_turn(session.id, place.options, TurnInput(text="long"))
    if state in (State.STOPPING, State.ENDING):
        for process in descendants(place.record.supervisor):
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(process.pid, signal.SIGSTOP)
        tasks.start_soon(*((engine.interrupt, session.id) if state is State.STOPPING else (engine.end, session)))
    await until(lambda: session.state is state)
    return session, heard


STATES = pytest.mark.parametrize(
    "state",
    [State.IDLE, State.RUNNING, State.STOPPING, State.ENDING],
    ids=lambda state: state.value,
)
KILLED = pytest.mark.parametrize("killed", ["child", "supervisor"])


async def all_gone(record: ProcessRecord) -> None:
    await until(lambda: not with_variable("KEPT_BY_HELMSMAN", str(record.directory)))


@KILLED
async def test_a_session_continues_after_a_kill_while_its_process_starts(any_place: Place, killed: str) -> None:
    async with any_place.hub(1) as engine:
        session, heard = await begun_and_ended(engine, any_place)
        await engine.end(session)
        await until(lambda: not read_records(any_place.state_dir))
        failed: list[HelmsmanError] = []

        async def start() -> None:
            try:
                await engine.get_ready(session.id, any_place.options, TurnInput(text="short"))
            except HelmsmanError as error:
                failed.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start)
            await until(lambda: failed or read_records(any_place.state_dir))
            record = any_place.record
            with suppress(ProcessLookupError):
                os.kill(getattr(record, killed).pid, signal.SIGKILL)
        await all_gone(record)
        await until(lambda: session.state is State.STORED)
        await goes_on(engine, any_place, session.id, heard)


@KILLED
@STATES
async def test_a_session_continues_after_a_kill_in_any_state(any_place: Place, state: State, killed: str) -> None:
    async with any_place.hub(1) as engine, anyio.create_task_group() as tasks:
        session, heard = await in_state(engine, any_place, state, tasks)
        record = any_place.record
        os.kill(getattr(record, killed).pid, signal.SIGKILL)
        await until(lambda: session.state is State.STORED and session.gone.is_set())
        await all_gone(record)
        if state is not State.ENDING:
            await until(lambda: heard.of(TurnEnded, EngineGone))
        await goes_on(engine, any_place, session.id, heard)
        ends = [event.turn_id for event in heard.of(TurnEnded)]
        assert len(ends) == len(set(ends)), "a turn ends once"
        assert len(heard.of(EngineGone)) == (state is State.IDLE) or state in (
            State.RUNNING,
            State.STOPPING,
        )


@pytest.mark.long
@STATES
async def test_a_session_continues_under_a_hub_that_takes_it_over_in_any_state(any_place: Place, state: State) -> None:
    async with any_place.hub(1) as engine, anyio.create_task_group() as tasks:
        session, heard = await in_state(engine, any_place, state, tasks)
        async with any_place.hub(2, read_records(any_place.state_dir)) as other:
            again = Heard()
            other.attach(session.id, again)
            if session.id in await other.running_sessions():
                await other.adopt(session.id, any_place.options)
                await other.interrupt(session.id)
                await until(lambda: again.of(TurnEnded, EngineGone))
            await other.resume(session.id, any_place.options)
            await goes_on(other, any_place, session.id, again)
        assert not [event for event in heard.of(TurnEnded) if state is State.RUNNING], "the earlier hub says nothing"
