"""Tests that acknowledged work runs once, although the hub is killed before it has begun."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Any

import anyio
import anyio.to_thread
import pytest

from helmsman.agents.supervisor.records import read_records
from helmsman.base.structs import replace
from helmsman.tasks.model import Task
from helmsman.tasks.registry import REGISTRY_NAME, Registry
from helmsman.testing import ScriptedModel, say
from mcp import Client
from tests.clients.server_process import SECONDS
from tests.hub.conftest import HeldAgent, Place
from tests.hub.test_survival import Raw
from tests.mcp.caller import Caller

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

TOOLS = ("--tools", "sessions,router", "--expose-primitives")


def stored(place: Place) -> list[Task]:
    """Return all tasks, oldest first, as in the store."""
    with closing(Registry(place.state_dir / REGISTRY_NAME)) as registry:
        return list(reversed(registry.list(limit=500)[0]))


async def until(place: Place, *statuses: str) -> list[Task]:
    with anyio.fail_after(SECONDS):
        while True:
            tasks = await anyio.to_thread.run_sync(stored, place)
            if [task.status for task in tasks] == list(statuses):
                return tasks
            await anyio.sleep(0.05)


@pytest.fixture
def held_place(place: Place, held_codex: HeldAgent) -> Place:
    return replace(place, env={**place.env, "CODEX_CLI_PATH": str(held_codex.path)})


async def acknowledged(place: Place, codex: HeldAgent, client: Client, **more: Any) -> str:
    """A task that has its id, and no engine yet."""
    begun = await Caller(client)("_codex_local_run", task="work", working_dir=str(place.directory), **more)
    await codex.reached()
    task_id: str = begun["task_id"]
    return task_id


async def test_a_task_whose_hub_is_killed_before_its_engine_is_up_runs_once_with_the_next_one(
    held_place: Place, held_codex: HeldAgent, model: ScriptedModel
) -> None:
    model.on("work", say("done"))
    async with Client(held_place.on_stdio(*TOOLS)) as client:
        task_id = await acknowledged(held_place, held_codex, client)
        await held_place.kill_hub()
        held_codex.let()
        waited = await Caller(client)("_codex_local_wait", task_id=task_id)
        assert (waited["task_id"], waited["status"]) == (task_id, "completed")
    (task,) = stored(held_place)
    assert (task.result, task.spec) == ("done", None)
    assert len(model.requests) == 1


async def test_a_task_waits_for_a_client_with_its_environment_and_says_so(
    held_place: Place, held_codex: HeldAgent, model: ScriptedModel
) -> None:
    model.on("work", say("done"))
    async with Client(held_place.on_stdio(*TOOLS)) as client:
        task_id = await acknowledged(held_place, held_codex, client)
    await held_place.kill_hub()
    held_codex.let()
    other = replace(held_place, env={**held_place.env, "OPENAI_API_KEY": "another"})
    async with Client(other.on_stdio(*TOOLS)) as client:
        with anyio.fail_after(SECONDS):
            while not (shown := await Caller(client)("_codex_local_status", task_id=task_id)).get("note"):
                await anyio.sleep(0.02)
        assert shown["status"] == "pending"
        assert "same environment" in shown["note"]
        assert not model.requests
        async with Client(held_place.on_stdio(*TOOLS)):  # it need not ask for anything
            (task,) = await until(held_place, "completed")
    assert (task.id, task.result, task.note) == (task_id, "done", None)
    assert len(model.requests) == 1


async def test_a_task_that_waits_can_be_cancelled(
    held_place: Place, held_codex: HeldAgent, model: ScriptedModel
) -> None:
    async with Client(held_place.on_stdio(*TOOLS)) as client:
        task_id = await acknowledged(held_place, held_codex, client)
    await held_place.kill_hub()
    held_codex.let()
    other = replace(held_place, env={**held_place.env, "OPENAI_API_KEY": "another"})
    async with Client(other.on_stdio(*TOOLS)) as client:
        cancelled = await Caller(client)("_codex_local_cancel", task_id=task_id)
        assert cancelled["status"] == "canceled"
    async with Client(held_place.on_stdio(*TOOLS)) as client:
        (task,) = await until(held_place, "canceled")
        assert await Caller(client)("_codex_local_status", task_id=task_id)
    assert (task.spec, model.requests) == (None, [])


async def test_the_same_call_asked_again_gives_the_same_task(
    held_place: Place, held_codex: HeldAgent, model: ScriptedModel
) -> None:
    model.on("work", say("done"))
    async with held_place.started(*TOOLS) as server:
        client = Raw(server)
        await client.initialize()
        arguments = {"prompt": "work", "workingDirectory": str(held_place.directory)}
        await client.send(id=2, method="tools/call", params={"name": "codex_start", "arguments": arguments})
        await held_codex.reached()
        (before,) = stored(held_place)
        await held_place.kill_hub()
        held_codex.let()
        answer = (await client.answer(2))["result"]["structuredContent"]
        assert answer["taskId"] == before.id
        (task,) = await until(held_place, "completed")
    assert (task.session_id, task.result) == (answer["sessionId"], "done")
    assert len(model.requests) == 1


async def test_messages_that_are_queued_survive_in_their_order(place: Place, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("first", say(gate, "one"))
    model.on("second", say("two"))
    model.on("third", say("three"))
    async with Client(place.on_stdio(*TOOLS)) as client:
        codex = Caller(client)
        started = await codex("codex_start", prompt="first", workingDirectory=str(place.directory))
        await gate.reached()
        for message in ("second", "third"):
            await codex("codex_say", sessionId=started["sessionId"], message=message, whenBusy="queue")
        await place.kill_hub()
        shown = await codex("codex_status", sessionId=started["sessionId"])
        assert shown["status"] == "active"
        with anyio.fail_after(SECONDS):
            while "2 messages are queued" not in (shown.get("note") or ""):
                shown = await codex("codex_status", sessionId=started["sessionId"])
        gate.release()
        tasks = await until(place, "completed", "completed", "completed")
    assert [task.result for task in tasks] == ["one", "two", "three"]
    assert len(model.requests) == 3


async def test_an_interrupt_takes_back_messages_that_an_earlier_hub_queued(place: Place, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("first", say(gate, "one"))
    async with Client(place.on_stdio(*TOOLS)) as client:
        codex = Caller(client)
        started = await codex("codex_start", prompt="first", workingDirectory=str(place.directory))
        await gate.reached()
        await codex("codex_say", sessionId=started["sessionId"], message="second", whenBusy="queue")
        await place.kill_hub()
        with anyio.fail_after(SECONDS):
            while "queued" not in ((await codex("codex_status", sessionId=started["sessionId"])).get("note") or ""):
                await anyio.sleep(0.02)
        await codex("codex_interrupt", sessionId=started["sessionId"])
        await until(place, "canceled", "canceled")
    assert len(model.requests) == 1
    gate.release()


async def test_messages_are_sent_though_neither_hub_nor_client_is_there(place: Place, model: ScriptedModel) -> None:
    """The supervisor of the engine in which the first turn runs starts the next hub, and that has the engine."""
    gate = model.gate()
    model.on("first", say(gate, "one"))
    model.on("second", say("two"))
    async with Client(place.on_stdio(*TOOLS)) as client:
        codex = Caller(client)
        started = await codex("codex_start", prompt="first", workingDirectory=str(place.directory))
        await gate.reached()
        await codex("codex_say", sessionId=started["sessionId"], message="second", whenBusy="queue")
    await place.kill_hub()
    gate.release()
    tasks = await until(place, "completed", "completed")
    assert [task.result for task in tasks] == ["one", "two"]
    assert len(model.requests) == 2


async def test_a_task_that_waits_counts_for_the_clients_limit_when_it_begins(
    held_place: Place, held_codex: HeldAgent, model: ScriptedModel
) -> None:
    gate = model.gate()
    model.on("work", say(gate, "done"))
    one_at_a_time = replace(held_place, env={**held_place.env, "MAX_SESSIONS": "1"})
    async with Client(one_at_a_time.on_stdio(*TOOLS)) as client:
        await acknowledged(one_at_a_time, held_codex, client)
        await held_place.kill_hub()
        held_codex.let()
        await gate.reached()
        refused = await Caller(client).error("codex_start", prompt="more", workingDirectory=str(held_place.directory))
        assert refused["code"] == "too_many_sessions"
        gate.release()
        await until(held_place, "completed")


@pytest.mark.long
async def test_a_prompt_with_a_secret_is_not_stored(
    held_place: Place, held_codex: HeldAgent, model: ScriptedModel
) -> None:
    """Nobody could run such a task from the store, and it says so."""
    secret = "sk-" + "aB3" * 16
    place = replace(held_place, env={**held_place.env, "OPENAI_API_KEY": "value-of-the-key"})
    async with Client(place.on_stdio(*TOOLS)) as client:
        begun = await Caller(client)("_codex_local_run", task=f"use {secret}", working_dir=str(place.directory))
        await held_codex.reached()
        files = [file.read_bytes() for file in place.state_dir.rglob("*") if file.is_file()]
        assert not [file for file in files if secret.encode() in file or b"value-of-the-key" in file]
        (task,) = stored(place)
        assert task.spec is None
    await place.kill_hub()
    held_codex.let()
    async with Client(place.on_stdio(*TOOLS)) as client:
        with anyio.fail_after(SECONDS):
            while (shown := await Caller(client)("_codex_local_status", task_id=begun["task_id"]))[
                "status"
            ] != "unknown":
                await anyio.sleep(0.1)
    assert "Start it again" in shown["note"]
    assert not model.requests


@pytest.mark.matrix(changed_in=["0.105.0", "0.163.0"])
async def test_a_message_after_the_death_of_a_hub_finds_the_engine_that_has_the_session(
    place: Place, model: ScriptedModel
) -> None:
    """An older Codex is on a pipe, and has one owner: the next hub is it, for whoever comes with the same environment."""
    gate = model.gate()
    model.on("first", say(gate, "one"))
    model.on("second", say("two"))
    async with Client(place.on_stdio()) as client:
        codex = Caller(client)
        started = await codex("codex_start", prompt="first", workingDirectory=str(place.directory))
        await gate.reached()
        (before,) = read_records(place.state_dir)
        await place.kill_hub()
        assert (await codex("codex_status", sessionId=started["sessionId"]))["status"] == "active"
        gate.release()
        assert (await codex.until_settled(started["sessionId"]))["result"] == "one"
        await codex("codex_say", sessionId=started["sessionId"], message="second")
        assert (await codex.until_settled(started["sessionId"]))["result"] == "two"
        (after,) = read_records(place.state_dir)
    assert after.id == before.id
