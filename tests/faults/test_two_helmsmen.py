"""Tests of two Helmsmen with separate engines for one session: one may write, and the other gets an error with a next
step.
"""

from __future__ import annotations

import anyio
import pytest

from helmsman.agents.codex.agent import agent_in_use
from helmsman.agents.codex.features import Version
from helmsman.errors import HelmsmanError, SessionLocked
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.testing import hang, say
from tests.faults.scene import SECONDS, Scene, bound

pytestmark = [pytest.mark.long, pytest.mark.anyio, bound]


async def ended(session: Session) -> Session:
    assert await session.wait(until="end", timeout=SECONDS)
    return session


async def needs_lock(helm: HelmsmanService) -> None:
    if (await agent_in_use(helm.settings, helm.environment)).version < Version.parse("0.147.0"):
        pytest.skip("This Codex locks no session.")


async def test_a_session_that_another_holds_is_locked_can_be_forked_and_is_free_when_the_other_has_left(
    scene: Scene,
) -> None:
    scene.model.on("one", say("first"))
    scene.model.on("two", say("second"))
    scene.model.on("aside", say("in a fork"))
    async with scene.helmsman() as second:
        await needs_lock(second)
        async with scene.helmsman() as first:
            session_id = (await ended(await first.start("one", cwd=scene.repo))).id
            await first.task_writer.write()  # so that the other does not take its turn for running
            with pytest.raises(SessionLocked, match="fork the session") as caught:
                await second.say(session_id, "two")
            assert caught.value.retryable
            session = await second.session(session_id)
            assert not session.state.is_running
            assert (await second.tasks.get(session.task_ids[-1])).status == "failed"
            assert (await ended(await second.fork(session_id, "aside"))).result == "in a fork"
            assert (await ended(await first.say(session_id, "two"))).result == "second"
        assert (await ended(await second.say(session_id, "two"))).result == "second"
        await scene.next_session_works(second, after=session)


async def test_a_session_that_another_is_working_in_is_left_to_it(scene: Scene) -> None:
    scene.model.on("work", hang())
    async with scene.helmsman() as second, scene.helmsman() as first:
        await needs_lock(second)
        session = await first.start("work", cwd=scene.repo)
        with anyio.fail_after(SECONDS):
            await scene.model.wait_for_request()  # Codex has written the session down by then
        with pytest.raises(HelmsmanError) as caught:
            await second.say(session.id, "me too")
        assert caught.value.code in ("session_locked", "session_busy")
        assert session.state.is_running
        await first.interrupt(session.id)
        assert session.status == "interrupted"
