"""Tests of supervised agents of the Agent Client Protocol: turns and questions outlive the hub."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import load_settings
from helmsman.agents.acp.agent import AcpAgent
from helmsman.agents.acp.copilot import Copilot
from helmsman.agents.acp.profile import OwnAgent, Profile
from helmsman.agents.acp.updates import joined
from helmsman.agents.process_engine import ProcessEngine
from helmsman.agents.protocol import Engine
from helmsman.agents.registry import Agents, EngineHolder
from helmsman.agents.supervisor.client import Owner
from helmsman.agents.supervisor.records import ProcessRecord, ask_supervisor, read_records
from helmsman.base.concurrency import background_tasks
from helmsman.base.processes import with_variable
from helmsman.base.structs import replace
from helmsman.errors import ClientAway, QuestionNotOpen
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    EngineGone,
    ItemStarted,
    Notice,
    TurnEnded,
    TurnStarted,
    Usage,
    UsageReported,
)
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.model.questions import Choice
from helmsman.settings import Settings
from helmsman.testing.fake_acp_agent import FakeAcpAgent, asks, ends, runs, says, updates, waits
from tests.agents.acp.test_acp_engine import SECONDS, Fake, Followed, _until
from tests.hub_service import hub_service

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name != "posix", reason="There are no supervisors here.")]


@dataclass
class Place:
    """State directory with consecutive hubs."""

    fake: FakeAcpAgent
    settings: Settings
    env: dict[str, str]
    options: SessionOptions
    profile: Profile
    agent: AcpAgent = field(init=False)

    def hub(self, epoch: int) -> AcpAgent:
        self.agent = AcpAgent(self.profile, tuple(self.fake.command), Owner(epoch))
        return self.agent

    @asynccontextmanager
    async def reopened(self, epoch: int = 2) -> AsyncIterator[ProcessEngine]:
        """Return the processes as the next hub finds them."""
        async with self.hub(epoch).reopen_engine(self.settings, self.record.engine_id) as engine:
            assert isinstance(engine, ProcessEngine)
            yield engine

    @property
    def record(self) -> ProcessRecord:
        (record,) = read_records(self.settings.state_dir)
        return record

    async def left(self, prompt: str, *, asking: bool = True) -> Followed:
        """Start a turn in a first hub and leave it running, at its question if it has one."""
        async with self.hub(1).open_engine(self.settings, self.env) as engine:
            assert isinstance(engine, ProcessEngine)
            followed = await begun(engine, self.options, prompt)
            if asking:
                await followed.question()
            return followed


async def begun(engine: ProcessEngine, options: SessionOptions, prompt: str) -> Followed:
    opened = await engine.open(options)
    followed = Followed(engine, opened.session_id)
    await engine.run_turn(opened.session_id, options, TurnInput(text=prompt))
    return followed


@pytest.fixture
def place(tmp_path: Path, git_repo: Path) -> Iterator[Place]:
    env = {**os.environ, "HELMSMAN_STATE_DIR": str(tmp_path / "state")}
    settings = load_settings({"detach": True}, env, tmp_path)
    options = SessionOptions(agent="fake", cwd=git_repo, unenforced=True)
    yield Place(FakeAcpAgent(tmp_path / "fake"), settings, env, options, Fake())
    for record in read_records(settings.state_dir):
        record.stop()
        assert not with_variable("KEPT_BY_HELMSMAN", str(record.directory))


async def adopted(engine: ProcessEngine, place: Place, session_id: str) -> tuple[Followed, str | None]:
    assert await engine.running_sessions() == (session_id,)
    opened = await engine.adopt(session_id, place.options)
    return Followed(engine, session_id), opened.turn_id


async def test_concurrent_recoveries_share_one_engine_with_all_sessions(
    place: Place,
) -> None:
    place.fake.on("run", asks("execute", "rm x", rawInput={"command": "rm x"}))
    async with place.hub(1).open_engine(place.settings, place.env) as engine:
        assert isinstance(engine, ProcessEngine)
        left = [await begun(engine, place.options, "run it") for _ in range(3)]
        for followed in left:
            await followed.question()
    (engine_id,) = {record.engine_id for record in read_records(place.settings.state_dir)}

    agents = Agents([place.hub(2)])
    found: list[Engine | None] = []
    async with background_tasks() as tasks:
        clients = [EngineHolder(agents.seen_from(()), place.settings, place.env, tasks) for _ in range(2)]

        async def look(client: EngineHolder) -> None:
            found.append(await client.reach("fake", engine_id))

        async with anyio.create_task_group() as looking:
            for client in (*clients, *clients):
                looking.start_soon(look, client)
        engine_found = found[0]
        assert engine_found is not None
        assert [one is engine_found for one in found] == [True] * 4
        assert sorted(await engine_found.running_sessions()) == sorted(followed.session_id for followed in left)


async def test_the_next_hub_follows_all_sessions_of_an_agent_though_it_takes_up_several_at_once(place: Place) -> None:
    place.fake.on("run", asks("execute", "rm x", rawInput={"command": "rm x"}))
    settings = replace(place.settings, state_dir=place.settings.state_dir.resolve())
    assert place.options.cwd is not None
    ids = []
    async with hub_service(settings, place.env, [place.hub(1)]) as helm:
        for _ in range(3):
            session = await helm.start("run it", cwd=place.options.cwd, agent="fake", unenforced=True)
            with anyio.fail_after(SECONDS):
                while not session.questions:
                    await session.feed.changed()
            ids.append(session.id)
    async with hub_service(settings, place.env, [place.hub(2)]) as helm:
        with anyio.fail_after(SECONDS):
            while [helm.sessions[one].status for one in ids if one in helm.sessions] != ["awaiting_approval"] * 3:
                await anyio.sleep(0.05)


async def test_the_next_hub_has_the_turn_and_its_question(place: Place) -> None:
    place.fake.on(
        "run",
        says("I ", "try"),
        asks("execute", "rm x", rawInput={"command": "rm x"}, allowed=[says("gone")]),
        ends(usage={"inputTokens": 100, "outputTokens": 10}),
    )
    place.fake.on("more", says("again"))
    first = await place.left("run it")
    (asked,) = [event.question for event in first.events if hasattr(event, "question")]
    (turn_id,) = [event.turn_id for event in first.events if isinstance(event, TurnStarted)]
    assert not [event for event in first.events if isinstance(event, TurnEnded | EngineGone)]
    assert ask_supervisor(place.record.socket).waiting == (first.session_id,)

    engine_id = place.record.engine_id
    assert place.agent.engine_is_alive(place.settings, engine_id)
    async with place.reopened() as engine:
        again, adopted_turn = await adopted(engine, place, first.session_id)
        assert adopted_turn == turn_id
        assert [event.turn_id for event in again.events if isinstance(event, TurnStarted)] == [turn_id]
        assert await again.question() == asked
        await engine.answer(asked, (Choice("approve"),))
        assert (await again.end()).outcome == "completed"
        said, command, last = again.items()
        assert isinstance(said, AgentMessage)
        assert isinstance(command, CommandExecution)
        assert isinstance(last, AgentMessage)
        assert (said.text, command.command, last.text) == ("I try", "rm x", "gone")
        before, now = (
            {event.item.id: event.source for event in one.events if isinstance(event, ItemStarted)}
            for one in (first, again)
        )
        assert None not in now.values()
        assert before.items() <= now.items(), "an event comes from the same line, whoever reads it"
        assert again.events[-1].source is not None
        used = [event.last for event in again.events if isinstance(event, UsageReported)]
        assert used == [Usage(100, 0, 10)]

        with pytest.raises(ClientAway):
            await engine.open(place.options)
        await engine.run_turn(first.session_id, place.options, TurnInput(text="more"))  # in the process that is there
        assert (await again.end(2)).outcome == "completed"
        assert not await place.agent.takes_work(place.settings, {**place.env, "SOME_API_KEY": "another"}, engine_id)
        careful = OwnAgent("fake", "Fake", mode="careful", runs_repository_files=False)
        other = AcpAgent(careful, tuple(place.fake.command), Owner(2), {engine_id: engine})
        assert not await other.takes_work(place.settings, place.env, engine_id)
        assert await place.agent.takes_work(place.settings, place.env, engine_id)
        await engine.run_turn(first.session_id, place.options, TurnInput(text="more"))
        assert (await again.end(3)).outcome == "completed"
    asked_for = [one for one in place.fake.received if "method" in one]
    ids = [one["id"] for one in asked_for if "id" in one]
    assert len(ids) == len(set(ids))
    assert [one["method"] for one in asked_for].count("initialize") == 1
    await _until(lambda: not read_records(place.settings.state_dir))  # nothing was running in it


async def test_ends_without_a_watching_client_are_notified_later(place: Place) -> None:
    pieces = [f"{number} " for number in range(3000)]
    place.fake.on("alone", says(*pieces))
    first = await place.left("alone", asking=False)
    await _until(lambda: not any(ask_supervisor(place.record.socket)))
    async with place.reopened() as engine:
        again, turn_id = await adopted(engine, place, first.session_id)
        end = await again.end()
        assert (end.outcome, end.turn_id) == ("completed", turn_id)
        (said,) = again.items()
        assert isinstance(said, AgentMessage)
        assert said.text == "".join(pieces)


async def test_a_message_that_never_left_is_no_turn(place: Place) -> None:
    async with place.hub(1).open_engine(place.settings, place.env) as earlier:
        opened = await earlier.open(place.options)
        place.record.note(turn={"id": "T", "prompts": [["1.9", 99]]})  # as by one who is killed before it is sent
        async with place.reopened() as engine:
            assert await engine.running_sessions() == ()
        await _until(lambda: not read_records(place.settings.state_dir))
    assert place.fake.asked_for("session/prompt") == []
    assert opened.turn_id is None


async def test_an_interrupt_ends_what_was_begun_before_the_takeover(place: Place) -> None:
    mark = f"kept-{os.getpid()}"
    place.fake.on("run", runs(f"MARKED={mark} setsid sleep 300 & MARKED={mark} sleep 300"), asks("execute", "rm x"))
    first = await place.left("run it")
    await _until(lambda: len(with_variable("MARKED", mark)) == 2)
    async with place.reopened() as engine:
        again, _ = await adopted(engine, place, first.session_id)
        await again.question()
        await engine.interrupt(first.session_id)
        assert (await again.end()).outcome == "interrupted"
        assert not with_variable("MARKED", mark)
        assert place.record.is_supervised  # the agent itself continues
    answers = [one["result"] for one in place.fake.received if one.get("id") == 0 and "result" in one]
    assert answers == [{"outcome": {"outcome": "cancelled"}}]


@pytest.mark.parametrize("killed", ["supervisor", "child"])
async def test_nothing_is_left_when_one_of_them_is_killed(place: Place, killed: str) -> None:
    mark = f"killed-{os.getpid()}"
    place.fake.on("run", runs(f"MARKED={mark} setsid sleep 300"), asks("execute", "rm x"))
    place.fake.on("more", says("again"))
    first = await place.left("run it")
    await _until(lambda: len(with_variable("MARKED", mark)) == 1)
    async with place.reopened() as engine:
        again, _ = await adopted(engine, place, first.session_id)
        await again.question()
        record = place.record
        os.kill(getattr(record, killed).pid, signal.SIGKILL)
        gone = await again.until(lambda event: isinstance(event, EngineGone))
        assert isinstance(gone, EngineGone)
        assert (
            "The supervisor of Fake is gone" if killed == "supervisor" else "ended by signal 9"
        ) in gone.failure.message
        await _until(lambda: not with_variable("KEPT_BY_HELMSMAN", str(record.directory)))
        assert not with_variable("MARKED", mark)
        assert await place.agent.takes_work(place.settings, place.env, record.engine_id)
        await engine.run_turn(first.session_id, place.options, TurnInput(text="more"))
        assert (await again.end()).outcome == "completed"


async def test_a_refusal_and_an_unsent_message_survive_the_hub(place: Place) -> None:
    place.profile.steering = "when asked"
    place.fake.on("two", asks("execute", "rm x"), asks("execute", "rm y"), says("stopped"))
    place.fake.on("because", says("I see"))
    async with place.hub(1).open_engine(place.settings, place.env) as engine:
        assert isinstance(engine, ProcessEngine)
        first = await begun(engine, place.options, "two")
        await engine.answer(await first.question(), (Choice("deny", "because of x"),))
        await first.question(2)
        await engine.steer(first.session_id, "look here")
    async with place.reopened() as engine:
        again, _ = await adopted(engine, place, first.session_id)
        await engine.answer(await again.question(), (Choice("approve"),))
        assert (await again.end()).outcome == "completed"
        commands = [item for item in again.items() if isinstance(item, CommandExecution)]
        assert [command.declined for command in commands] == [True, False]
    assert place.fake.asked_for("session/prompt")[-1]["prompt"][0]["text"] == "because of x\n\nlook here"


async def test_a_policy_applies_before_a_client_asks_for_the_session(place: Place) -> None:
    place.options = replace(place.options, asks="never")
    changed = {"sessionUpdate": "current_mode_update", "currentModeId": "wild"}
    place.fake.on("run", runs("sleep 0.5"), asks("execute", "rm x", refused=[updates(changed), waits()]))
    first = await place.left("run it", asking=False)
    async with place.reopened() as engine:
        again, _ = await adopted(engine, place, first.session_id)
        ended = await again.end()
        assert ended.failure is not None
        assert "changed its mode to wild" in ended.failure.message
    answers = [one["result"] for one in place.fake.received if one.get("id") == 0 and "result" in one]
    assert answers == [{"outcome": {"outcome": "selected", "optionId": "no"}}]


class Optional(Fake):
    """Agent whose sessions have other settings besides the mode that stop it from asking."""

    def __init__(self) -> None:
        super().__init__()
        self.trust = replace(self.trust, asking_options={"allow_all": "off"})


async def test_all_that_makes_it_ask_is_set_again_after_a_turn_that_was_left(place: Place) -> None:
    place.profile = Optional()
    place.fake.has_options("mode", "allow_all")
    place.fake.on("run", asks("execute", "rm x"))
    place.fake.on("more", says("again"))
    first = await place.left("run it")
    async with place.reopened() as engine:
        again, _ = await adopted(engine, place, first.session_id)
        await engine.answer(await again.question(), (Choice("deny"),))
        await again.end()
        await engine.run_turn(first.session_id, place.options, TurnInput(text="more"))
        assert (await again.end(2)).outcome == "completed"
    options = [(one["configId"], one["value"]) for one in place.fake.asked_for("session/set_config_option")]
    assert options == [("allow_all", "off")] * 2
    assert len(place.fake.asked_for("session/set_mode")) == 2


async def test_an_earlier_hub_lets_go_and_says_nothing(place: Place) -> None:
    place.fake.on("run", asks("execute", "rm x", allowed=[says("gone")]))
    async with place.hub(1).open_engine(place.settings, place.env) as earlier:
        assert isinstance(earlier, ProcessEngine)
        first = await begun(earlier, place.options, "run it")
        question = await first.question()
        async with place.reopened() as engine:
            again, _ = await adopted(engine, place, first.session_id)
            await engine.answer(await again.question(), (Choice("approve"),))
            assert (await again.end()).outcome == "completed"
            with pytest.raises(QuestionNotOpen):
                await earlier.answer(question, (Choice("approve"),))
    assert not [event for event in first.events if isinstance(event, TurnEnded | EngineGone)]


# --- stored facts ----------------------------------------------------------------------------------------------------


def test_pieces_are_joined_and_nothing_else() -> None:
    def piece(said: str, kind: str = "agent_message_chunk") -> dict[str, Any]:
        update = {"sessionUpdate": kind, "content": {"type": "text", "text": said}}
        return {"method": "session/update", "params": {"sessionId": "S", "update": update}}

    messages = [piece("a"), piece("b"), piece("Info: x"), piece("c"), piece("d"), piece("e", "agent_thought_chunk")]
    said = [one["params"]["update"]["content"]["text"] for one in joined(Copilot(), [*messages, {"id": 1}])[:-1]]
    assert said == ["ab", "Info: x", "cd", "e"]


async def test_an_agent_that_may_have_left_its_asking_mode_is_not_left_to_the_next_hub(
    place: Place, tmp_path: Path
) -> None:
    place.fake = FakeAcpAgent(tmp_path / "deaf", deaf=True)
    place.fake.on("change", updates({"sessionUpdate": "current_mode_update", "currentModeId": "wild"}), waits())
    async with place.hub(1).open_engine(place.settings, place.env) as engine:
        assert isinstance(engine, ProcessEngine)
        followed = await begun(engine, place.options, "change it")
        await followed.until(lambda event: isinstance(event, Notice))
    assert [event.outcome for event in followed.events if isinstance(event, TurnEnded)] == ["failed"]
    await _until(lambda: not any(record.is_running for record in read_records(place.settings.state_dir)))
