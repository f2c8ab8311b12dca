"""Tests of commands whose hub dies, is stopped or ends, and of interrupted commands."""

from __future__ import annotations

import json
import signal
import socket
import sys
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import anyio
import anyio.to_thread
import pytest

from helmsman.approvals.rule_book import RuleBook
from helmsman.cli.thin import TEXT_PATH
from helmsman.hub.control import ask_hub
from helmsman.model.rules import Rule
from helmsman.testing import ScriptedModel, say
from tests.hub.commands import SECONDS, begun, done, thin, until_nobody_is_served, whole
from tests.hub.conftest import Place

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="there are no hubs")]


def cold(*arguments: str) -> list[str]:
    """`helmsman`, as a process whose id is that of the client that the hub shows."""
    return [sys.executable, "-m", "helmsman", *arguments]


# --- ends ------------------------------------------------------------------------------------------------------------


async def test_ctrl_c_ends_the_command_in_the_hub_too(place: Place, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("slow", say(gate, "At last."))
    task_id = await working_task(place, "slow")
    async with begun(cold("tasks", "wait", task_id), place) as process:
        await until_served(place, process.pid)
        process.send_signal(signal.SIGINT)
        with anyio.fail_after(SECONDS):
            assert await process.wait() == 130
    await until_nobody_is_served(place)
    gate.release()
    assert (await done(whole("tasks", "wait", task_id), place)).code == 0


async def test_a_command_that_waits_continues_when_its_hub_is_killed(place: Place, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("slow", say(gate, "At last."))
    task_id = await working_task(place, "slow")
    async with begun(cold("tasks", "wait", "--json", task_id), place) as process:
        await until_served(place, process.pid)
        await place.kill_hub()
        await until_served(place, process.pid)
        gate.release()
        assert process.stdout is not None
        with anyio.fail_after(SECONDS):
            shown = b"".join([part async for part in process.stdout])
            assert await process.wait() == 0
    assert json.loads(shown)["result"] == "At last."


async def test_ctrl_c_leaves_a_message_queued(place: Place, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("slow", say(gate, "At last."))
    model.on("And then?", say("Nothing more."))
    task_id = await working_task(place, "slow")
    shown = await done(thin("tasks", "show", "--json", task_id), place)
    session_id = json.loads(shown.stdout)["sessionId"]
    async with begun(cold("say", "--queue", session_id, "And then?"), place) as process:
        with anyio.fail_after(SECONDS):
            while "And then?" not in (await done(thin("tasks", "--status", "pending"), place)).stdout:
                await anyio.sleep(0.02)
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
    gate.release()
    with anyio.fail_after(SECONDS):
        while "Nothing more." not in (await done(thin("status", session_id), place)).stdout:
            await anyio.sleep(0.05)


async def test_a_hub_that_is_stopped_is_not_waited_for(served: Place) -> None:
    rule = Rule(effect="allow", text="git status", directory=served.directory, below=False, outside=True)
    RuleBook((), served.state_dir).add(rule)
    (listed,) = json.loads((await done(thin("config", "rules", "--json"), served)).stdout)["rules"]
    impatient = (
        "from helmsman.cli import main, thin; from helmsman.hub import control; "
        "thin._BEGIN_SECONDS = control._SECONDS = 0.2; main()"
    )
    with served.stopped_hub():
        removing = ["config", "rules", "remove", "--yes", listed["id"]]
        removed = await done([sys.executable, "-c", impatient, *removing], served)
    assert (removed.code, "Removed rule" in removed.stderr) == (0, True)
    await until_nobody_is_served(served)
    assert json.loads((await done(thin("config", "rules", "--json"), served)).stdout)["rules"] == []


async def working_task(place: Place, prompt: str) -> str:
    """Yield a task in an engine that outlives its client."""
    from helmsman import Helmsman, load_settings

    settings = load_settings(env=place.env, cwd=place.directory)
    async with Helmsman(settings, env=place.env) as helm:
        session = await helm.start(prompt, cwd=place.directory)
        assert session.task_id is not None
        return session.task_id


async def until_served(place: Place, pid: int) -> None:
    def is_served() -> bool:
        status = ask_hub(place.state_dir, "status")
        return status is not None and pid in [client["pid"] for client in status["clients"]]

    with anyio.fail_after(SECONDS):
        while not await anyio.to_thread.run_sync(is_served):
            await anyio.sleep(0.02)


async def rendered(place: Place, content: object) -> dict[str, Any]:
    """Return the hub's answer to a request of a thin client."""

    def ask() -> dict[str, Any]:
        connection = HTTPConnection("hub")
        connection.sock = socket.socket(socket.AF_UNIX)
        with closing(connection):
            connection.sock.connect(str(place.state_dir / "hub.sock"))
            connection.request("POST", TEXT_PATH, json.dumps(content))
            return dict(json.loads(connection.getresponse().read()))

    return await anyio.to_thread.run_sync(ask)


async def test_nothing_that_a_command_does_ends_the_hub(served: Place) -> None:
    hub = served.hub
    asking = {"_HELMSMAN_COMPLETE": "bash_complete", "COMP_WORDS": "helmsman", "COMP_CWORD": "no number"}
    assert (await done(whole(), served, asking)).stdout == ""
    unusable: dict[str, Any] = {"arguments": [[]], "environment": {}, "directory": "/", "terminals": [0] * 3}
    contents: tuple[Any, ...] = ([], {}, {"arguments": 7}, unusable)
    for nonsense in contents:
        assert "exitCode" not in await rendered(served, nonsense)
    assert (await done(thin("list"), served)).code == 0
    assert served.hub == hub


async def test_rendering_never_changes_files_for_a_shell_command(served: Place) -> None:
    content: dict[str, Any] = {"environment": served.env, "directory": str(served.directory), "terminals": [False] * 3}
    for words in (
        ["session", "archive", "0" * 36],
        ["config", "rules", "remove", "--yes", "3f2a"],
        ["tasks", "submit", "-"],
        ["run", "Work"],
    ):
        answer = await rendered(served, {"arguments": words, **content})
        assert answer.get("ownProcess"), (words, answer)


async def test_commands_that_come_while_a_hub_ends_are_served(served: Place) -> None:
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            for _ in range(5):
                assert (await done(whole("list"), served, {"HELMSMAN_HUB_IDLE_MS": "0"})).code == 0

        for _ in range(3):
            tasks.start_soon(ask)
