"""Tests of the engine for the Agent Client Protocol, with a scripted agent."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from helmsman import Helmsman, load_settings
from helmsman.agents.acp.dialect import clear_away
from helmsman.agents.acp.profile import OwnAgent, Profile
from helmsman.agents.process_engine import AgentSession, ProcessEngine
from helmsman.base.processes import with_variable
from helmsman.base.structs import replace
from helmsman.errors import EngineStartFailed, InvalidInput, InvalidSetting, QuestionNotOpen
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    EngineGone,
    Event,
    FileChange,
    ItemEnded,
    QuestionAsked,
    QuestionClosed,
    TodoList,
    TurnEnded,
    Unknown,
    Usage,
    UsageReported,
)
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.model.questions import Choice, Question
from helmsman.shapes.session_status import session_status
from helmsman.testing.fake_acp_agent import FakeAcpAgent, asks, dies, ends, refuses, runs, says, updates, waits
from tests.sandboxes import acp_engine

pytestmark = pytest.mark.anyio

SECONDS = 20


class Fake(OwnAgent):
    """Fake agent that counts tokens and accepts a second prompt in the running turn."""

    counting = "turn"
    steering = "second prompt"

    def __init__(self) -> None:
        super().__init__("fake", "Fake", mode="ask", runs_repository_files=False)


class Followed:
    """Events of a session from the engine."""

    def __init__(self, engine: ProcessEngine, session_id: str) -> None:
        self.session_id = session_id
        self.events: list[Event] = []
        self._news = anyio.Event()
        engine.attach(session_id, self._take)

    def _take(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()
        self._news = anyio.Event()

    async def until(self, found: Callable[[Event], bool], count: int = 1) -> Event:
        with anyio.fail_after(SECONDS):
            while len(matching := [event for event in self.events if found(event)]) < count:
                await self._news.wait()
        return matching[count - 1]

    async def question(self, count: int = 1) -> Question:
        event = await self.until(lambda event: isinstance(event, QuestionAsked), count)
        assert isinstance(event, QuestionAsked)
        return event.question

    async def end(self, count: int = 1) -> TurnEnded:
        event = await self.until(lambda event: isinstance(event, TurnEnded), count)
        assert isinstance(event, TurnEnded)
        return event

    def items(self) -> list[object]:
        return [event.item for event in self.events if isinstance(event, ItemEnded)]


@pytest.fixture
def fake(tmp_path: Path) -> FakeAcpAgent:
    return FakeAcpAgent(tmp_path / "fake")


@pytest.fixture
def options(git_repo: Path) -> SessionOptions:
    return SessionOptions(agent="fake", cwd=git_repo, unenforced=True)


@asynccontextmanager
async def engine_of(fake: FakeAcpAgent, places: Path, profile: Profile | None = None) -> AsyncIterator[ProcessEngine]:
    async with acp_engine(profile or Fake(), fake.command, dict(os.environ), places / "state") as engine:
        yield engine


async def begin(engine: ProcessEngine, options: SessionOptions, prompt: str) -> Followed:
    opened = await engine.open(options)
    followed = Followed(engine, opened.session_id)
    await engine.run_turn(opened.session_id, options, TurnInput(text=prompt))
    return followed


# --- questions -------------------------------------------------------------------------------------------------------


async def test_a_yes_is_for_once_however_the_options_stand(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    fake.on(
        "run",
        asks("execute", "rm x", rawInput={"command": "rm x", "description": "to be rid of it"}, allowed=[says("gone")]),
    )
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "run it")
        question = await session.question()
        assert question.type == "command_approval"
        assert question.prompts[0].options == ("approve", "approve_session", "deny", "abort")
        assert question.details == {
            "command": "rm x",
            "directory": str(options.cwd),
            "reason": "to be rid of it",
            "sandbox": "outside",
        }
        await engine.answer(question, (Choice("approve_session"),))
        with pytest.raises(QuestionNotOpen):
            await engine.answer(question, (Choice("approve"),))
        assert (await session.end()).outcome == "completed"
        command, message = session.items()
        assert isinstance(command, CommandExecution)
        assert (command.command, command.status, command.declined) == ("rm x", "completed", False)
        assert isinstance(message, AgentMessage)
        assert message.text == "gone"
    assert [one["result"] for one in fake.received if one.get("id") == 0 and "result" in one] == [
        {"outcome": {"outcome": "selected", "optionId": "yes"}}
    ]


async def test_the_reason_of_a_refusal_is_the_next_thing_the_model_reads(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path, git_repo: Path
) -> None:
    (git_repo / "a.txt").write_text("one\ntwo\nthree\n")
    diff = {"type": "diff", "path": str(git_repo / "a.txt"), "oldText": "two", "newText": "TWO"}
    fake.on("edit", asks("edit", "a.txt", content=[diff]))
    fake.on("production", says("I see"))
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "edit it")
        question = await session.question()
        assert question.type == "patch_approval"
        assert question.details["paths"] == [str(git_repo / "a.txt")]
        assert "@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n" in question.details["diff"]
        await engine.answer(question, (Choice("deny", "that is production"),))
        assert (await session.end()).outcome == "completed"
        change, message = session.items()
        assert isinstance(change, FileChange)
        assert (change.declined, change.status) == (True, "failed")
        assert isinstance(message, AgentMessage)
        assert message.text == "I see"
        assert len([event for event in session.events if isinstance(event, TurnEnded)]) == 1
    assert [one["prompt"][0]["text"] for one in fake.asked_for("session/prompt")] == ["edit it", "that is production"]


@pytest.mark.parametrize(
    ("policy", "answer"),
    [
        ({"asks": "never"}, "no"),
        ({"writes": "nothing"}, "no"),
        ({"writes": "anything", "asks": "never"}, "yes"),
    ],
)
async def test_a_policy_that_never_asks_answers_by_itself(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path, policy: dict[str, Any], answer: str
) -> None:
    fake.on("run", asks("execute", "rm x"))
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, replace(options, **policy), "run it")
        await session.end()
        assert not [event for event in session.events if isinstance(event, QuestionAsked)]
    assert [
        one["result"]["outcome"]["optionId"] for one in fake.received if one.get("id") == 0 and "result" in one
    ] == [answer]


async def test_where_nothing_is_for_once_nothing_can_be_granted(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    always = {"optionId": "always", "name": "Yes", "kind": "allow_always"}
    fake.on("always", asks("execute", "rm x", options=[always]))
    twice = [{"optionId": one, "name": one, "kind": "allow_once"} for one in ("this", "that")]
    fake.on("twice", asks("fetch", "https://example.org", options=twice))
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "always")
        question = await session.question()
        assert question.prompts[0].options == ("deny", "abort")
        await engine.answer(question, (Choice("deny"),))
        await session.end()
        await engine.run_turn(session.session_id, options, TurnInput(text="twice"))
        question = await session.question(2)
        assert (question.type, question.prompts[0].options) == ("permission_approval", ("deny", "abort"))
        await engine.answer(question, None)
        await session.end(2)
    answers = [one["result"] for one in fake.received if "result" in one]
    assert answers == [{"outcome": {"outcome": "cancelled"}}] * 2


# --- interrupts and ends ---------------------------------------------------------------------------------------------


async def test_an_interrupt_answers_what_is_open_and_ends_what_was_started(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    mark = f"mark-{os.getpid()}"
    fake.on("run", runs(f"MARKED={mark} setsid sleep 300 & MARKED={mark} sleep 300"), asks("execute", "rm x"))
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "run it")
        question = await session.question()
        await _until(lambda: len(with_variable("MARKED", mark)) == 2)
        await engine.interrupt(session.session_id)
        assert (await session.end()).outcome == "interrupted"
        assert not with_variable("MARKED", mark)
        closed = [event for event in session.events if isinstance(event, QuestionClosed)]
        assert [event.question_id for event in closed] == [question.id]
        with pytest.raises(QuestionNotOpen):
            await engine.answer(question, (Choice("approve"),))
        assert [one["result"] for one in fake.received if one.get("id") == 0 and "result" in one] == [
            {"outcome": {"outcome": "cancelled"}}
        ]


@pytest.mark.parametrize("can", [True, False])
async def test_an_agent_has_the_variables_of_its_worktree_and_further_directories_if_it_takes_them(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path, can: bool
) -> None:
    if can:
        fake.greets(agentCapabilities={"loadSession": True, "sessionCapabilities": {"additionalDirectories": {}}})
    # The end of the turn would end the command.
    fake.on("work", runs(f"echo $HELMSMAN_PORT > {tmp_path}/port"), waits())
    here = replace(options, writes="workspace", writable_roots=(tmp_path,), environment={"HELMSMAN_PORT": "20001"})
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, here, "work")
        with anyio.fail_after(SECONDS):
            while not ((tmp_path / "port").exists() and (tmp_path / "port").read_text(encoding="utf-8")):
                await anyio.sleep(0.01)
        await engine.interrupt(session.session_id)
        assert (await session.end()).outcome == "interrupted"
    assert (tmp_path / "port").read_text(encoding="utf-8") == "20001\n"
    (opened,) = (one["params"] for one in fake.received if one.get("method") == "session/new")
    assert opened.get("additionalDirectories") == ([str(tmp_path)] if can else None)


async def test_an_agent_that_does_not_stop_is_ended_and_its_session_continues(
    options: SessionOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helmsman.agents.process_engine.INTERRUPT_SECONDS", 0.2)
    fake = FakeAcpAgent(tmp_path / "fake", deaf=True)
    fake.on("long", waits())
    fake.on("more", says("again"))
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "long")
        await engine.interrupt(session.session_id)
        assert (await session.end()).outcome == "interrupted"
        await engine.run_turn(session.session_id, options, TurnInput(text="more"))
        assert (await session.end(2)).outcome == "completed"
        assert not [event for event in session.events if isinstance(event, EngineGone)]
        assert [type(item) for item in session.items()] == [AgentMessage]  # replayed content is not new
    methods = [one.get("method") for one in fake.received if one.get("method") not in (None, "session/cancel")]
    assert methods == [
        *("initialize", "session/new", "session/set_mode", "session/prompt"),
        *("initialize", "session/load", "session/set_mode", "session/prompt"),
    ]


async def test_a_turn_that_ends_while_its_agent_is_being_ended_is_over_once(
    options: SessionOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helmsman.agents.process_engine.INTERRUPT_SECONDS", 0.2)
    fake = FakeAcpAgent(tmp_path / "fake", deaf=True)
    fake.on("long", waits())
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "long")
        end = engine.end

        async def answers_and_ends(held: AgentSession) -> None:
            assert held.turn is not None
            assert held.conversation is not None
            held.conversation.end_turn(held.turn)
            await end(held)

        with monkeypatch.context() as patched:
            patched.setattr(engine, "end", answers_and_ends)
            await engine.interrupt(session.session_id)
        assert [event.outcome for event in session.events if isinstance(event, TurnEnded)] == ["interrupted"]


async def test_a_process_that_dies_takes_its_own_session_with_it(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    fake.on("die", says("ah"), dies())
    fake.on("more", says("again"))
    fake.on("long", waits())
    async with engine_of(fake, tmp_path) as engine:
        other = await begin(engine, options, "long")
        session = await begin(engine, options, "die")
        gone = await session.until(lambda event: isinstance(event, EngineGone))
        assert isinstance(gone, EngineGone)
        assert "Fake exited (3)" in gone.failure.message
        assert engine.lost is None
        await engine.run_turn(session.session_id, options, TurnInput(text="more"))
        assert (await session.end()).outcome == "completed"
        await engine.interrupt(other.session_id)
        assert (await other.end()).outcome == "interrupted"


# --- requests of a turn ----------------------------------------------------------------------------------------------


async def test_messages_of_an_agent_become_items_in_any_order(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    call = {"sessionUpdate": "tool_call", "toolCallId": "c1", "kind": "execute", "title": "ls", "status": "pending"}
    done = {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "completed", "rawOutput": "a.txt\n"}
    plan = {"sessionUpdate": "plan", "entries": [{"content": "look", "status": "completed"}, {"content": "leap"}]}
    left = {"sessionUpdate": "tool_call_update", "toolCallId": "c2", "kind": "edit", "locations": [{"path": "/x"}]}
    fake.on(
        "work",
        says("Let me ", "think", thought=True),
        says("I ", "look"),
        updates(call, done, plan, {"sessionUpdate": "brand_new"}, left),
        ends(usage={"inputTokens": 100, "outputTokens": 10, "cachedReadTokens": 40}),
    )
    fake.on("fail", says("oh"), refuses(-32603, "Internal error", details="429 too many"))
    fake.on("cut", ends("max_tokens"))
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "work")
        assert (await session.end()).outcome == "completed"
        thought, said, command, change = session.items()
        assert (thought.text, said.text) == ("Let me think", "I look")  # type: ignore[attr-defined]
        assert isinstance(command, CommandExecution)
        assert (command.command, command.output, command.exit_code) == ("ls", "a.txt\n", None)
        assert isinstance(change, FileChange)
        assert (change.changes[0].path, change.status) == ("/x", "completed")
        assert any(isinstance(getattr(event, "item", None), TodoList) for event in session.events)
        assert [event.name for event in session.events if isinstance(event, Unknown)] == ["brand_new"]
        assert [event.last for event in session.events if isinstance(event, UsageReported)] == [Usage(100, 40, 10)]
        await engine.run_turn(session.session_id, options, TurnInput(text="fail"))
        failure = (await session.end(2)).failure
        assert failure is not None
        assert (failure.code, failure.http_status, failure.retryable) == ("rate_limit_exceeded", 429, True)
        await engine.run_turn(session.session_id, options, TurnInput(text="cut"))
        end = await session.end(3)
        assert (end.outcome, end.failure and end.failure.code) == ("failed", "max_tokens")


async def test_a_second_prompt_belongs_to_the_turn_where_the_agent_takes_it_so(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    fake.on("first", asks("execute", "rm x", allowed=[says("done")]))
    fake.on("second", says("heard"))
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "first")
        question = await session.question()
        await engine.steer(session.session_id, "second")
        await session.until(lambda event: isinstance(event, ItemEnded) or getattr(event, "text", "") == "heard")
        assert not [event for event in session.events if isinstance(event, TurnEnded)]
        await engine.answer(question, (Choice("approve"),))
        assert (await session.end()).outcome == "completed"


# --- refused starts --------------------------------------------------------------------------------------------------


async def test_an_agent_that_cannot_be_held_is_not_started(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    async with engine_of(fake, tmp_path) as engine:
        with pytest.raises(InvalidInput):
            await engine.open(replace(options, cwd=tmp_path / "no"))
    unknown = OwnAgent("fake", "Fake", mode="ask", runs_repository_files=True)
    async with engine_of(fake, tmp_path, unknown) as engine:
        with pytest.raises(InvalidInput, match="trust_repository"):
            await engine.open(options)
        await engine.open(replace(options, trust_repository=True))
    other = OwnAgent("fake", "Fake", mode="careful", runs_repository_files=False)
    async with engine_of(fake, tmp_path, other) as engine:
        with pytest.raises(EngineStartFailed, match="does not take the mode 'careful'"):
            await engine.open(options)
    fake.greets(protocolVersion=2)
    async with engine_of(fake, tmp_path) as engine:
        with pytest.raises(EngineStartFailed, match="speaks version 2"):
            await engine.open(options)
    (tmp_path / "fake" / "scenario.json").write_text("nonsense")
    async with engine_of(fake, tmp_path) as engine:
        with pytest.raises(EngineStartFailed, match="did not come up: Fake exited"):
            await engine.open(options)


# --- from above ------------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_an_agent_of_ones_own_is_a_few_lines(fake: FakeAcpAgent, tmp_path: Path, git_repo: Path) -> None:
    fake.on("hello", says("Hi there"))
    outside = tmp_path / "outside"
    fake.on("try it", runs(f"touch {outside}; touch inside"), asks("execute", "rm x"))
    file = tmp_path / "helmsman.toml"
    lines = f"command = {fake.command}\nmode = 'ask'\nwritable = ['{tmp_path / 'fake'}']\nrunning = true\n"
    file.write_text(f"[agents.mine]\n{lines}")
    env = {**os.environ, "HELMSMAN_STATE_DIR": str(tmp_path / "state")}
    settings = load_settings({}, env, tmp_path / "fake", user_file=file)
    with pytest.raises(InvalidSetting, match=r"agents\.mine\.running"):
        Helmsman(settings, env=env, inside=True)
    file.write_text(f"[agents.mine]\n{lines.replace('running = true', 'runs_repository_files = false')}")
    settings = load_settings({}, env, tmp_path / "fake", user_file=file)
    async with Helmsman(settings, env=env, inside=True) as helm:
        for unenforced in (True, False):
            session = await helm.start("hello", cwd=git_repo, agent="mine", unenforced=unenforced)
            assert await session.wait(until="end", timeout=SECONDS)
            assert session.state.result == "Hi there"
            assert session_status(session).enforced is not unenforced
            assert any(
                ("network is open" if session.state.enforced else "Nothing holds") in note for note in session.notes
            )
        session = await helm.start("try it", cwd=git_repo, agent="mine", sandbox="workspace-write")
        await _until((git_repo / "inside").exists)
        await session.wait(until="attention", timeout=SECONDS)
        await session.respond(session.questions[0].id, "approve")
        assert await session.wait(until="end", timeout=SECONDS)
        assert not outside.exists()


async def _until(found: Callable[[], bool]) -> None:
    with anyio.fail_after(SECONDS):
        while not found():
            await anyio.sleep(0.02)


async def test_a_process_prepared_for_a_message_is_not_ended_as_idle(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    fake.on("hello", says("Hi"))
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "hello")
        await session.end()
        fake.answers_late("session/set_mode", tmp_path / "now")
        others = replace(options, asks="never")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run_turn, session.session_id, others, TurnInput(text="hello"))
            await _until(lambda: len(fake.asked_for("session/set_mode")) == 2)
            engine._idle = 0.0
            tasks.start_soon(engine.end_idle)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            (tmp_path / "now").touch()
            assert (await session.end(2)).outcome == "completed"
            tasks.cancel_scope.cancel()
    assert len(fake.asked_for("initialize")) == 1


async def test_a_cost_that_is_reported_as_a_sum_is_the_turns_own_and_of_a_loaded_session_not_known_at_first(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    def costs(total: float, currency: str = "USD") -> dict[str, object]:
        cost = {"amount": total, "currency": currency}
        return updates({"sessionUpdate": "usage_update", "used": 1, "size": 9, "cost": cost})

    for words, total in (("first", 0.25), ("second", 1.0), ("third", 1.5)):
        fake.on(words, costs(total), says("done"))
    fake.on("free", costs(0), costs(7, "EUR"), says("done"))

    async def told(engine: ProcessEngine, session: Followed, words: str, turns: int) -> list[float | None]:
        await engine.run_turn(session.session_id, options, TurnInput(text=words))
        await session.end(turns)
        return [event.last.cost_usd for event in session.events if isinstance(event, UsageReported) and event.last]

    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "first")
        await session.end()
        assert await told(engine, session, "free", 2) == [0.25]
        assert await told(engine, session, "second", 3) == [0.25, 0.75]
    async with engine_of(fake, tmp_path) as engine:
        await engine.resume(session.session_id, options)
        loaded = Followed(engine, session.session_id)
        assert await told(engine, loaded, "second", 1) == []
        assert await told(engine, loaded, "third", 2) == [0.5]


async def test_a_message_to_a_session_whose_process_is_just_being_ended_is_not_lost(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    fake.on("hello", says("Hi"))
    async with engine_of(fake, tmp_path) as engine, anyio.create_task_group() as tasks:
        session = await begin(engine, options, "hello")
        await session.end()
        held = engine._sessions[session.session_id]
        tasks.start_soon(engine.end, held)  # as one that was idle for long
        while not held.is_ending:
            await anyio.lowlevel.checkpoint()
        assert held.process is not None
        await engine.run_turn(session.session_id, options, TurnInput(text="hello again"))
        assert (await session.end(2)).outcome == "completed"
    assert len(fake.asked_for("session/load")) == 1


async def test_a_session_that_two_ask_for_at_a_time_is_loaded_once(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    async with engine_of(fake, tmp_path) as engine:
        opened = await engine.open(options)
    async with engine_of(fake, tmp_path) as engine, anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(engine.resume, opened.session_id, options)
    assert len(fake.asked_for("session/load")) == 1


async def test_only_unused_homes_are_removed_and_links_are_not_followed(
    tmp_path: Path,
) -> None:
    places, other = tmp_path / "agents", tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("mine", encoding="utf-8")
    os.utime(other, (0, 0))
    homes = places / "homes"
    (homes / "old" / "home").mkdir(parents=True)
    os.utime(homes / "old", (0, 0))
    (homes / "link").symlink_to(other)
    clear_away(places)
    assert not (homes / "old").exists()
    assert (other / "file").exists()
