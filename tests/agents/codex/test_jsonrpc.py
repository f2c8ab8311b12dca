"""Tests of the JSON-RPC peer, over a transport made of two streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from helmsman.base.jsonrpc import IncomingRequest, Peer, Resumed, Transport
from helmsman.errors import EngineLost, EngineProtocolError, EngineRefused, EngineTimeout, HelmsmanError

pytestmark = pytest.mark.anyio


class Wire(Transport):
    """Transport whose other end is the test."""

    def __init__(self, resumed: Resumed | None = None) -> None:
        self.resumed = resumed
        self._to_peer, self._from_test = anyio.create_memory_object_stream[str | Exception](100)
        self._to_test, self.sent = anyio.create_memory_object_stream[str](100)

    async def messages(self) -> AsyncIterator[list[str]]:
        async for message in self._from_test:
            if isinstance(message, Exception):
                raise message
            yield [message]

    async def send(self, message: str) -> None:
        await self._to_test.send(message)

    async def loss(self) -> EngineLost:
        return EngineLost("the wire was cut", exit_code=9)

    def say(self, message: object) -> None:
        self._to_peer.send_nowait(message if isinstance(message, str | Exception) else json.dumps(message))

    def cut(self) -> None:
        self._to_peer.close()

    async def heard(self) -> dict[str, Any]:
        with anyio.fail_after(5):
            message: dict[str, Any] = json.loads(await self.sent.receive())
            return message

    def close(self) -> None:
        for stream in (self._to_peer, self._from_test, self._to_test, self.sent):
            stream.close()


class Listener:
    def __init__(self) -> None:
        self.notifications: list[tuple[str, Mapping[str, Any]]] = []
        self.requests: list[IncomingRequest] = []
        self.closed: list[HelmsmanError] = []
        self.takes_requests = True

    def on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        self.notifications.append((method, params))
        if method == "explode":
            raise ZeroDivisionError

    def on_request(self, request: IncomingRequest) -> bool:
        self.requests.append(request)
        if request.method == "explode":
            raise ZeroDivisionError
        return self.takes_requests


@asynccontextmanager
async def connected(resumed: Resumed | None = None) -> AsyncIterator[tuple[Peer, Wire, Listener]]:
    wire, listener = Wire(resumed), Listener()
    peer = Peer(
        wire,
        other="Codex",
        on_notification=listener.on_notification,
        on_request=listener.on_request,
        on_close=listener.closed.append,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(peer.run)
        try:
            yield peer, wire, listener
        finally:
            tasks.cancel_scope.cancel()
    wire.close()


async def test_answers_reach_their_own_request_in_any_order() -> None:
    async with connected() as (peer, wire, _):
        results: dict[str, Any] = {}

        async def ask(name: str) -> None:
            results[name] = await peer.request(name, timeout=5)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "a")
            tasks.start_soon(ask, "b")
            first, second = await wire.heard(), await wire.heard()
            wire.say({"id": second["id"], "result": second["method"]})
            wire.say({"id": first["id"], "result": first["method"]})
        assert results == {"a": "a", "b": "b"}


async def test_resuming_a_conversation_does_not_answer_for_others() -> None:
    async with connected(Resumed(epoch=3, requests=7, answer={})) as (peer, wire, _):

        async def answer() -> None:
            request = await wire.heard()
            assert request["id"] == "3.8"
            for stranger in ("2.8", "3.7", 8, 1):
                wire.say({"id": stranger, "result": "to somebody else"})
            wire.say({"id": "3.8", "result": "to you"})

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            assert await peer.request("a", timeout=5) == "to you"


async def test_an_error_answer_is_raised_with_its_code_and_data() -> None:
    async with connected() as (peer, wire, _):

        async def answer() -> None:
            request = await wire.heard()
            wire.say({"id": request["id"], "error": {"code": -32600, "message": "no" * 5000, "data": {"k": 1}}})

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            with pytest.raises(EngineRefused) as caught:
                await peer.request("x", timeout=5)
        assert caught.value.details["rpc_code"] == -32600
        assert caught.value.details["rpc_data"] == {"k": 1}
        assert len(caught.value.message) < 1000


async def test_a_request_that_is_never_answered_times_out_and_its_late_answer_is_dropped() -> None:
    async with connected() as (peer, wire, _):
        with pytest.raises(EngineTimeout, match="did not answer slow"):
            await peer.request("slow", timeout=0.01)
        late = await wire.heard()
        wire.say({"id": late["id"], "result": 1})
        wire.say({"method": "still/alive"})
        assert await answered(peer, wire) == "pong"


async def test_every_waiter_gets_the_reason_when_the_peer_is_gone() -> None:
    async with connected() as (peer, wire, listener):
        reasons: list[EngineLost] = []

        async def ask() -> None:
            try:
                await peer.request("x", timeout=5)
            except EngineLost as error:
                reasons.append(error)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask)
            await wire.heard()
            wire.cut()
        assert [error.details["exit_code"] for error in reasons] == [9, 9, 9]
        assert len({id(error) for error in reasons}) == 3
        assert [error.code for error in listener.closed] == ["engine_lost"]


async def test_writing_after_the_end_is_refused_with_the_reason() -> None:
    async with connected() as (peer, wire, _):
        wire.cut()
        with anyio.fail_after(5):
            while peer.closed is None:
                await anyio.lowlevel.checkpoint()
        with pytest.raises(EngineLost, match="the wire was cut"):
            await peer.request("x")
        with pytest.raises(EngineLost):
            peer.notify("x")
        assert peer.respond(1, {}) is False


async def test_a_message_that_is_too_long_ends_the_conversation_with_that_reason() -> None:
    async with connected() as (peer, wire, listener):
        wire.say(EngineProtocolError("too long"))
        with anyio.fail_after(5):
            while peer.closed is None:
                await anyio.lowlevel.checkpoint()
        assert listener.closed[0].code == "engine_protocol_error"


@pytest.mark.parametrize(
    "garbage",
    [
        "{",
        "[]",
        "null",
        "3",
        '"x"',
        "[{}]",
        "{}",
        '{"id": null}',
        '{"id": {}, "result": 1}',
        '{"id": 77, "result": 1}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:20],
)
async def test_lines_that_are_no_messages_are_skipped(garbage: str) -> None:
    async with connected() as (peer, wire, _):
        wire.say(garbage)
        assert await answered(peer, wire) == "pong"


async def test_notifications_with_odd_params_arrive_with_none() -> None:
    async with connected() as (peer, wire, listener):
        wire.say({"method": "n", "params": [1, 2]})
        wire.say({"method": "m"})
        await answered(peer, wire)
        assert listener.notifications == [("n", {}), ("m", {})]


async def test_a_callback_that_raises_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with connected() as (peer, wire, _):
        wire.say({"method": "explode"})
        assert await answered(peer, wire) == "pong"
        assert "handling explode failed" in caplog.text


async def test_a_conversation_is_given_up_while_there_is_nothing_to_write() -> None:
    wire = Wire()
    reason = EngineLost("it says nothing that makes sense")
    peer = Peer(wire, on_notification=lambda *_: peer.give_up(reason), on_request=lambda _: True, other="The other end")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(peer.run)
        await anyio.wait_all_tasks_blocked()
        wire.say({"method": "nonsense"})
    wire.close()
    assert peer.closed is reason


async def test_an_unhandled_request_is_answered_with_an_error() -> None:
    async with connected() as (_peer, wire, listener):
        listener.takes_requests = False
        wire.say({"id": 0, "method": "attestation/generate", "params": {}})
        answer = await wire.heard()
        assert answer["id"] == 0
        assert answer["error"]["code"] == -32601


async def test_a_request_whose_handler_raises_is_refused_not_accepted() -> None:
    async with connected() as (_peer, wire, _):
        wire.say({"id": 0, "method": "explode"})
        assert "error" in await wire.heard()


async def test_a_request_is_answered_exactly_once() -> None:
    async with connected() as (peer, wire, _):
        wire.say({"id": 5, "method": "ask"})
        await answered(peer, wire)
        assert peer.respond(5, {"decision": "accept"}) is True
        assert peer.respond(5, {"decision": "decline"}) is False
        assert peer.refuse(5, "no") is False
        assert await wire.heard() == {"id": 5, "result": {"decision": "accept"}}
        assert await answered(peer, wire) == "pong"


async def test_ids_of_both_sides_do_not_collide() -> None:
    async with connected() as (peer, wire, listener):
        async with anyio.create_task_group() as tasks:
            got: list[Any] = []

            async def ask() -> None:
                got.append(await peer.request("ours", timeout=5))

            tasks.start_soon(ask)
            ours = await wire.heard()
            wire.say({"id": ours["id"], "method": "theirs", "params": {"a": 1}})
            wire.say({"id": ours["id"], "result": "for us"})
        assert got == ["for us"]
        assert listener.requests == [IncomingRequest(ours["id"], "theirs", {"a": 1})]


async def test_a_cancelled_request_leaves_nothing_behind() -> None:
    async with connected() as (peer, wire, _):
        with anyio.move_on_after(0.01):
            await peer.request("x", timeout=60)
        request = await wire.heard()
        wire.say({"id": request["id"], "result": 1})
        assert await answered(peer, wire) == "pong"


async def answered(peer: Peer, wire: Wire) -> Any:
    """Make a round trip, which also proves that everything sent before has been read."""
    results: list[Any] = []

    async def ask() -> None:
        results.append(await peer.request("ping", timeout=5))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        request = await wire.heard()
        wire.say({"id": request["id"], "result": "pong"})
    return results[0]
