"""Tests of every kind of failure of the model's endpoint: the turn says why, and the session continues afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
import pytest
from anyio.abc import ByteReceiveStream, ByteSendStream, SocketStream

from helmsman.model.events import OptionsChanged
from helmsman.model.options import TurnLimits
from helmsman.testing import cut, fail, hang, response_failed, say
from helmsman.testing.script import Step
from tests.faults.scene import SECONDS, Scene, bound

pytestmark = [pytest.mark.anyio, bound, pytest.mark.long]


@pytest.mark.parametrize(
    ("step", "word"),
    [
        (fail(429, retry_after=0), "429"),
        (fail(500), "demand"),
        (say("Hel", cut()), "disconnected"),
        (response_failed("server_error", "It is down."), "It is down."),
    ],
    ids=["429", "500", "cut stream", "failed response"],
)
async def test_a_model_that_fails_is_reported_and_the_session_continues(scene: Scene, step: Step, word: str) -> None:
    scene.model.on("work", step)
    async with scene.helmsman() as helm:
        session = await helm.start("work", cwd=scene.repo)
        assert await session.wait(until="end", timeout=SECONDS)
        assert session.error is not None
        assert (session.status, session.error.retryable, session.result) == ("error", True, None)
        assert word in session.error.message
        assert (await helm.tasks.get(session.task_ids[-1])).status == "failed"
        await scene.next_session_works(helm, after=session)


@pytest.mark.parametrize("step", [hang(), say("Hel", hang())], ids=["before a word", "in a word"])
async def test_endless_silence_is_ended_by_the_limits_and_the_session_continues(scene: Scene, step: Step) -> None:
    scene.model.on("work", step)
    async with scene.helmsman() as helm:
        session = await helm.start("work", cwd=scene.repo, limits=TurnLimits(first_event=1.0, inactivity=1.0))
        assert await session.wait(until="end", timeout=SECONDS)
        assert session.error is not None
        assert (session.error.code, session.error.retryable) == ("turn_timed_out", True)
        session.apply(OptionsChanged(session_id=session.id, limits=TurnLimits()))
        await scene.next_session_works(helm, after=session)


async def test_an_endpoint_that_is_down_is_noted_and_the_turn_ends_well_or_honestly(scene: Scene) -> None:
    """Newer Codex waits for the network for ever, older versions give up: neither hangs silently."""
    road = Road(urlsplit(scene.model.base_url).port or 0)
    async with road.open():
        pass  # known, and closed again
    scene.codex_home.configure(model_providers={"scripted": {"base_url": f"http://127.0.0.1:{road.port}/v1"}})
    scene.model.on("work", say("Back again."))
    async with scene.helmsman() as helm:
        session = await helm.start("work", cwd=scene.repo)
        with anyio.fail_after(SECONDS):
            while session.state.is_running and session.state.note is None:
                await session.feed.changed()
        async with road.open():
            assert await session.wait(until="end", timeout=SECONDS)
            assert session.result == "Back again." or (session.error is not None and session.error.retryable)
            await scene.next_session_works(helm, after=session)


async def test_an_endpoint_that_is_down_is_ended_by_the_limits(scene: Scene) -> None:
    scene.codex_home.configure(model_providers={"scripted": {"base_url": "http://127.0.0.1:9/v1"}})
    async with scene.helmsman() as helm:
        session = await helm.start("work", cwd=scene.repo, limits=TurnLimits(first_event=1.0))
        assert await session.wait(until="end", timeout=SECONDS)
        assert session.error is not None
        assert session.error.retryable


class Road:
    """The way to the model, which can be closed and opened again at the same port."""

    def __init__(self, to: int) -> None:
        self.port = 0
        self._to = to

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=self.port)
        self.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, self._carry)
            yield
            tasks.cancel_scope.cancel()

    async def _carry(self, client: SocketStream) -> None:
        async with client, await anyio.connect_tcp("127.0.0.1", self._to) as model, anyio.create_task_group() as tasks:
            tasks.start_soon(_copy, client, model)
            await _copy(model, client)
            tasks.cancel_scope.cancel()


async def _copy(source: ByteReceiveStream, target: ByteSendStream) -> None:
    try:
        async for chunk in source:
            await target.send(chunk)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return
