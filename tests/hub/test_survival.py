"""A hub is killed, and its clients do not notice: what they asked is answered once, and their forms stay."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest

from helmsman.base.structs import replace
from helmsman.hub.control import ask_hub
from helmsman.tasks.registry import REGISTRY_NAME, Registry
from helmsman.testing import ScriptedModel, run, say
from helmsman.testing.hubs import hub_pid
from mcp import Client
from tests.clients.server_process import ServerProcess
from tests.hub.conftest import Place
from tests.mcp.caller import Caller

pytestmark = pytest.mark.anyio

SECONDS = 60


@pytest.fixture(params=["legacy", "2026-07-28"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


def tasks_of(place: Place) -> int:
    registry = Registry(place.state_dir / REGISTRY_NAME)
    try:
        return len(registry.list()[0])
    finally:
        registry.close()


async def test_a_turn_continues_while_its_hub_is_killed_between_calls_and_in_mid_call(
    place: Place, model: ScriptedModel, folder: Path, mode: Any
) -> None:
    gate = model.gate()
    model.on("slow", say(gate, "done at last"))
    async with Client(place.on_stdio(), mode=mode) as client:
        codex = Caller(client)
        started = await codex("codex_start", prompt="slow", workingDirectory=str(folder))
        await gate.reached()
        await place.kill_hub()
        assert (await codex("codex_status", sessionId=started["sessionId"]))["status"] == "active"
        waited: dict[str, Any] = {}

        async def wait() -> None:
            waited.update(await codex("codex_wait", sessionId=started["sessionId"]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.sleep(0.2)
            await place.kill_hub()
            assert (await codex("codex_status", sessionId=started["sessionId"]))["status"] == "active"
            gate.release()
        assert (waited["status"], waited.get("result")) == ("done", "done at last")
        assert tasks_of(place) == 1


async def test_a_turn_that_ends_while_the_next_hub_looks_for_it_has_ended(
    place: Place, model: ScriptedModel, folder: Path
) -> None:
    async with Client(place.on_stdio()) as client:
        codex = Caller(client)
        for number in range(4):
            gate = model.gate()
            model.on(f"slow {number}", say(gate, "done at last"))
            started = await codex("codex_start", prompt=f"slow {number}", workingDirectory=str(folder))
            await gate.reached()
            await place.kill_hub()
            gate.release()  # the next hub has yet to start
            with anyio.fail_after(SECONDS):
                waited = await codex("codex_wait", sessionId=started["sessionId"])
            assert (waited["status"], waited.get("result")) == ("done", "done at last")


async def test_a_call_whose_answer_was_lost_is_executed_once(place: Place, model: ScriptedModel, folder: Path) -> None:
    model.otherwise(say("done"))
    async with place.started() as server:
        client = Raw(server)
        await client.initialize()
        start = {"prompt": "hello", "workingDirectory": str(folder)}
        call = {"method": "tools/call", "params": {"name": "codex_start", "arguments": start}}
        await client.send(id=7, **call)
        await model.wait_for_request(1)  # the turn runs; whether the call was answered by now, nobody knows
        await place.kill_hub()
        first = await client.answer(7)
        assert first["result"]["structuredContent"]["sessionId"]
        assert not first["result"].get("isError")
        await client.send(id=8, method="ping")
        await client.answer(8)
        assert tasks_of(place) == 1
        assert [message.get("id") for message in client.heard].count(7) == 1


async def test_a_form_that_is_open_stays_open_and_its_answer_counts(
    place: Place, model: ScriptedModel, folder: Path
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    forms: list[Any] = []
    filled_in = anyio.Event()

    async def person(_context: Any, params: Any) -> types.ElicitResult:
        forms.append(params)
        await filled_in.wait()
        return types.ElicitResult(action="accept", content={"decision": "approve"})

    asked: Any = person
    async with Client(place.on_stdio(), mode="legacy", elicitation_callback=asked) as client:
        codex = Caller(client)
        started = await codex(
            "codex_start",
            prompt="touch",
            workingDirectory=str(folder),
            sandbox="read-only",
            approvalPolicy="on-request",
        )
        with anyio.fail_after(SECONDS):
            while not forms:
                await anyio.sleep(0.01)
        await place.kill_hub()
        assert (await codex("codex_status", sessionId=started["sessionId"]))["status"] == "awaiting_approval"
        filled_in.set()
        with anyio.fail_after(SECONDS):
            while (await codex("codex_wait", sessionId=started["sessionId"]))["status"] != "done":
                await anyio.sleep(0.05)
    assert len(forms) == 1
    assert (folder / "made.txt").exists()


async def test_a_form_is_answered_while_there_is_no_hub(place: Place, model: ScriptedModel, folder: Path) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with place.started() as server:
        client = Raw(server)
        await client.initialize(elicitation={})
        asking = {"prompt": "touch", "sandbox": "read-only", "approvalPolicy": "on-request"}
        arguments = {**asking, "workingDirectory": str(folder)}
        await client.send(id=2, method="tools/call", params={"name": "codex_start", "arguments": arguments})
        form = await client.until(lambda message: message.get("method") == "elicitation/create")
        await place.kill_hub()
        await client.send(id=form["id"], result={"action": "accept", "content": {"decision": "approve"}})
        session_id = (await client.answer(2))["result"]["structuredContent"]["sessionId"]
        with anyio.fail_after(SECONDS):
            while not (folder / "made.txt").exists():
                await anyio.sleep(0.02)
        wait = {"name": "codex_wait", "arguments": {"sessionId": session_id}}
        await client.send(id=3, method="tools/call", params=wait)
        assert (await client.answer(3))["result"]["structuredContent"]["status"] == "done"
        assert [one["id"] for one in client.heard if one.get("method") == "elicitation/create"] == [form["id"]]


async def test_the_answer_in_a_form_counts_though_the_call_that_began_the_session_was_not_answered(
    place: Place, model: ScriptedModel, folder: Path
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with place.started() as server:
        client = Raw(server)
        await client.initialize(elicitation={})
        assert tasks_of(place) == 0  # opened here, the registry has its tables
        with closing(sqlite3.connect(place.state_dir / REGISTRY_NAME)) as registry:
            registry.execute(ANSWERS_FOR_MINUTES)
        asking = {"prompt": "touch", "sandbox": "read-only", "approvalPolicy": "on-request"}
        arguments = {**asking, "workingDirectory": str(folder)}
        await client.send(id=2, method="tools/call", params={"name": "codex_start", "arguments": arguments})
        form = await client.until(lambda message: message.get("method") == "elicitation/create")
        assert not any(message.get("id") == 2 for message in client.heard)
        await place.kill_hub()
        with closing(sqlite3.connect(place.state_dir / REGISTRY_NAME, timeout=SECONDS)) as registry:
            registry.execute("DROP TRIGGER slowly")
        await client.send(id=form["id"], result={"action": "accept", "content": {"decision": "approve"}})
        assert not (await client.answer(2))["result"].get("isError")
        with anyio.fail_after(SECONDS):
            while not (folder / "made.txt").exists():
                await anyio.sleep(0.02)
        assert [one["id"] for one in client.heard if one.get("method") == "elicitation/create"] == [form["id"]]


ANSWERS_FOR_MINUTES = """
    CREATE TRIGGER slowly BEFORE UPDATE OF answer ON calls BEGIN
        SELECT count(*) FROM (
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 10000000000) SELECT i FROM n
        );
    END
"""
"""A hub that writes down what a call gave takes so long that it can be killed before it answers."""


async def test_a_call_that_waits_is_answered_however_many_hubs_end(
    place: Place, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("slow", say(gate, "done at last"))
    async with place.started() as server:
        client = Raw(server)
        await client.initialize()
        arguments = {"prompt": "slow", "workingDirectory": str(folder)}
        await client.send(id=2, method="tools/call", params={"name": "codex_start", "arguments": arguments})
        session_id = (await client.answer(2))["result"]["structuredContent"]["sessionId"]
        wait = {"name": "codex_wait", "arguments": {"sessionId": session_id}, "_meta": {"progressToken": 5}}
        await client.send(id=3, method="tools/call", params=wait)
        for count in range(1, 5):
            await client.until_progress(count)
            await client.send(id=10 + count, method="ping")
            await client.answer(10 + count)  # what the hub said of the wait has been heard before
            await place.kill_hub()
        gate.release()
        assert (await client.answer(3))["result"]["structuredContent"]["result"] == "done at last"


async def test_a_hub_that_is_stopped_and_continues_does_everything_once(
    place: Place, model: ScriptedModel, folder: Path
) -> None:
    model.otherwise(say("done"))
    async with Client(place.on_stdio()) as client, Client(place.on_stdio(), mode="legacy") as other:
        codex = Caller(client)
        begun: list[str] = []

        async def start(caller: Caller) -> None:
            begun.append((await caller("codex_start", prompt="hello", workingDirectory=str(folder)))["sessionId"])

        with place.stopped_hub() as go_on:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(start, codex)
                tasks.start_soon(start, Caller(other))
                with anyio.move_on_after(1):  # a client that comes now waits too
                    async with Client(place.on_stdio(), mode="legacy"):
                        pytest.fail("who answered?")
                assert begun == []
                go_on()
        assert len(set(begun)) == tasks_of(place) == 2
        for session_id in begun:
            assert (await codex.until_settled(session_id))["status"] == "done"


async def test_calls_to_a_stopped_hub_are_executed_by_the_next_one(
    place: Place, model: ScriptedModel, folder: Path
) -> None:
    model.otherwise(say("done"))
    async with Client(place.on_stdio()) as client:
        codex = Caller(client)
        with place.stopped_hub():
            async with anyio.create_task_group() as tasks:

                async def start() -> None:
                    started = await codex("codex_start", prompt="hello", workingDirectory=str(folder))
                    assert (await codex.until_settled(started["sessionId"]))["status"] == "done"

                tasks.start_soon(start)
                await anyio.sleep(0.2)
                await place.kill_hub()
        assert tasks_of(place) == 1


async def test_a_hub_that_says_goodbye_has_not_ended_of_a_call(
    place: Place, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("slow", say(gate, "done at last"))
    async with Client(place.on_stdio()) as client:
        codex = Caller(client)
        started = await codex("codex_start", prompt="slow", workingDirectory=str(folder))
        waited: list[str] = []

        async def wait() -> None:
            ended = await codex("codex_wait", sessionId=started["sessionId"], timeoutSec=SECONDS)
            waited.append(ended["result"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            for _ in range(4):
                await codex("codex_status", sessionId=started["sessionId"])  # the wait was heard before this
                pid = place.hub
                ask_hub(place.state_dir, "restart")
                with anyio.fail_after(SECONDS):
                    while hub_pid(place.state_dir) in (None, pid):
                        await anyio.sleep(0.01)
            gate.release()
        assert waited == ["done at last"]


@pytest.mark.long
async def test_a_client_is_served_however_many_hubs_end_while_they_start(place: Place) -> None:
    async with replace(place, warm=False).started() as server:
        client = Raw(server)
        await client.initialize()
        await place.kill_hub()
        for _ in range(6):
            await place.kill_starting_hub()
        await client.send(id=2, method="ping")
        assert (await client.answer(2))["result"] == {}


@pytest.mark.long
async def test_a_client_that_stops_reading_blocks_no_other(place: Place, model: ScriptedModel, folder: Path) -> None:
    model.otherwise(say("done"))
    async with place.started() as deaf:
        client = Raw(deaf)
        await client.initialize()
        with anyio.move_on_after(5):  # until its pipe takes no more
            for number in range(100_000):
                await client.send(id=number + 10, method="tools/list")
        async with Client(place.on_stdio(), mode="legacy") as other:
            codex = Caller(other)
            started = await codex("codex_start", prompt="hello", workingDirectory=str(folder))
            assert (await codex.until_settled(started["sessionId"]))["status"] == "done"


class Raw:
    """A client that writes and reads lines, and keeps all it hears."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.heard: list[dict[str, Any]] = []

    async def send(self, **message: Any) -> None:
        assert self._server.process.stdin is not None
        await self._server.process.stdin.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def initialize(self, **capabilities: Any) -> None:
        info = {"name": "raw", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info}
        await self.send(id=1, method="initialize", params=params)
        answer = await self.answer(1)
        assert answer["result"]["capabilities"]["tools"]["listChanged"] is True
        await self.send(method="notifications/initialized")

    async def answer(self, request_id: int) -> dict[str, Any]:
        return await self.until(lambda message: message.get("id") == request_id and "method" not in message)

    async def until(self, is_it: Any) -> dict[str, Any]:
        with anyio.fail_after(SECONDS):
            while True:
                for message in self.heard:
                    if is_it(message):
                        return message
                self.heard.append(json.loads(await self._server.stdout.receive_until(b"\n", 10_000_000)))

    async def until_progress(self, hubs: int) -> None:
        """Wait until so many hubs have told how far the call is; each begins anew."""
        seen = 0

        def is_it(message: dict[str, Any]) -> bool:
            nonlocal seen
            is_first = message.get("method") == "notifications/progress" and message["params"]["progress"] < 0.5
            seen += is_first
            return seen == hubs

        with anyio.fail_after(SECONDS):
            for message in self.heard:
                if is_it(message):
                    return
            while True:
                self.heard.append(json.loads(await self._server.stdout.receive_until(b"\n", 10_000_000)))
                if is_it(self.heard[-1]):
                    return
