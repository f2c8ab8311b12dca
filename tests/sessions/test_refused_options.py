"""What was asked for and refused never holds: not for the next message, nor for the next process."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import anyio
import pytest

from helmsman import Session
from helmsman.base.structs import replace
from helmsman.errors import EngineRefused, InvalidInput, SessionBusy, Unsupported
from helmsman.model.inputs import turn_input
from helmsman.service import HelmsmanService
from tests.played import PlayedAgent, PlayedEngine
from tests.sessions.test_service_properties import unhurried

pytestmark = pytest.mark.anyio


async def ended(helm: HelmsmanService, agent: PlayedAgent, place: Path) -> Session:
    session = await helm.start("go", cwd=place, agent=agent.name, approval_policy="untrusted")
    agent.engines[-1].end("completed")
    with anyio.fail_after(20):
        await session.wait(until="end")
    return session


async def test_a_policy_that_was_refused_is_not_there_for_the_next_process(tmp_path: Path) -> None:
    agent, settings = PlayedAgent(), unhurried(tmp_path)
    async with HelmsmanService(settings, agents=[agent]) as helm:
        session = await ended(helm, agent, tmp_path)
        agent.engines[-1].refusal = EngineRefused("It will not. Try another.")
        with pytest.raises(EngineRefused):
            await helm.say(session.id, "more", approval_policy="never", trust_repository=True)
        assert (session.options.asks, session.options.trust_repository) == ("unless_harmless", False)
    async with HelmsmanService(settings, agents=[agent]) as helm:
        options = (await helm.session(session.id)).options
        assert (options.asks, options.trust_repository) == ("unless_harmless", False)


async def test_options_given_during_a_turn_do_not_change_it(tmp_path: Path) -> None:
    agent = PlayedAgent()
    async with HelmsmanService(unhurried(tmp_path), agents=[agent]) as helm:
        session = await helm.start("go", cwd=tmp_path, agent=agent.name, approval_policy="untrusted")
        await helm.say(session.id, "later", when_busy="queue")
        with pytest.raises(SessionBusy):
            await helm.say(session.id, "more", approval_policy="never")
        with pytest.raises(InvalidInput, match="takes no options"):
            await helm.say(session.id, "more", when_busy="steer", approval_policy="never")
        await helm.say(session.id, "last", when_busy="queue", approval_policy="never")
        asked = []
        for _ in range(3):
            asked.append(session.options.asks)
            await session.until_begun()
            agent.engines[-1].end("completed")
            with anyio.fail_after(20):
                while session.queue and not session.state.is_running:
                    await session.feed.changed()
                while session.state.prompt in ("go", "later") and not session.state.is_running:
                    await session.feed.changed()
        assert asked == ["unless_harmless", "unless_harmless", "never"]


async def test_options_of_a_queued_message_that_failed_do_not_hold(
    tmp_path: Path,
) -> None:
    agent = PlayedAgent()
    async with HelmsmanService(unhurried(tmp_path), agents=[agent]) as helm:
        session = await helm.start("go", cwd=tmp_path, agent=agent.name, approval_policy="untrusted")
        failed = anyio.Event()

        async def fail(*_: object) -> Session:
            failed.set()
            raise RuntimeError("nobody has thought of this")

        await helm.say(session.id, "later", when_busy="queue", approval_policy="never")
        (waiting,) = session.queue
        queued = session.queued_turn(waiting.task_id)
        assert queued is not None
        session.attach_queued(waiting.task_id, replace(queued, run=fail))
        agent.engines[-1].end("completed")
        with anyio.fail_after(20):
            await failed.wait()
        assert session.options.asks == "unless_harmless"


async def test_an_agent_without_a_sandbox_is_given_no_session_that_needs_one(tmp_path: Path) -> None:
    agent, settings = PlayedAgent(), unhurried(tmp_path)
    async with HelmsmanService(settings, agents=[agent]) as helm:
        with pytest.raises(Unsupported, match="hold its commands to a sandbox"):
            await helm.start("go", cwd=tmp_path, agent=agent.name, sandbox="read-only")
    async with HelmsmanService(replace(settings, allowed_roots=(tmp_path,)), agents=[agent]) as helm:
        with pytest.raises(Unsupported, match="hold its commands to a sandbox"):
            await helm.start("go", cwd=tmp_path, agent=agent.name)


async def test_an_agent_that_is_not_there_leaves_its_sessions_as_they_are(tmp_path: Path) -> None:
    agent, settings = PlayedAgent(), unhurried(tmp_path)
    async with HelmsmanService(settings, agents=[agent]) as helm:
        session_id = (await ended(helm, agent, tmp_path)).id
    async with HelmsmanService(settings) as helm:
        session = await helm.session(session_id)
        status = session.status
        with pytest.raises(InvalidInput, match="There is no agent 'played'"):
            await session.say("more")
        assert (session.status, session.state.is_running) == (status, False)
        tasks, _ = await helm.tasks.list()
        assert [task.agent for task in tasks] == ["played"]


async def test_a_turn_that_continues_in_the_engine_is_busy_and_not_failed(tmp_path: Path) -> None:
    agent = PlayedAgent()
    async with HelmsmanService(unhurried(tmp_path), agents=[agent]) as helm:
        session = await ended(helm, agent, tmp_path)
        engine = cast("PlayedEngine", session.engine)
        engine.detach(session.id)
        session.detach()  # somebody else goes on with it in the same engine
        await engine.run_turn(session.id, session.options, turn_input("theirs"))
        with pytest.raises(SessionBusy):
            await session.say("mine")
        assert (session.status, session.state.turn_id) == ("active", engine.turn_id)
        assert ((await helm.session(session.id)).status, session.state.prompt) == ("active", None)
        engine.end("completed")
        assert (await helm.session(session.id)).status == "done"
        mine = await helm.tasks.get(session.task_ids[-1])
        assert (mine.instruction, mine.status, mine.turn_id) == ("mine", "failed", None)
        assert mine.error is not None
        assert mine.error["code"] == "session_busy"


async def test_an_exception_of_a_plugged_in_engine_is_a_failure_of_that_engine(tmp_path: Path) -> None:
    agent = PlayedAgent()
    async with HelmsmanService(unhurried(tmp_path), agents=[agent]) as helm:
        session = await ended(helm, agent, tmp_path)

        def fail() -> None:
            raise ValueError("out of coffee")

        agent.engines[-1].at_once = fail
        with pytest.raises(ValueError, match="out of coffee"):
            await session.say("more")
        task = await helm.tasks.get(session.task_ids[-1])
        assert session.error is not None
        assert task.error is not None
        assert session.error.message == task.error["message"]
        assert session.error.message.startswith(
            "The engine of Played failed: ValueError('out of coffee'). Report it to"
        )


@pytest.mark.parametrize("name", ["codex", "ECHO", "two words", ""])
def test_an_agent_has_its_own_name(name: str, tmp_path: Path) -> None:
    class Named(PlayedAgent):
        @property
        def name(self) -> str:
            return name

    with pytest.raises(InvalidInput, match="An agent cannot be called"):
        HelmsmanService(unhurried(tmp_path), agents=[Named()])
