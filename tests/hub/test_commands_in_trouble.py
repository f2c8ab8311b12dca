"""Tests of commands whose hub dies, is stopped or ends, and of interrupted commands."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from helmsman.approvals.rule_book import RuleBook
from helmsman.base.processes import Process
from helmsman.cli.thin import PROTOCOL
from helmsman.hub.control import ask_hub
from helmsman.hub.launch import hexed
from helmsman.model.rules import Rule
from helmsman.steering.shared import Shared
from helmsman.tasks.calls import CallId, CallLog
from helmsman.testing import say
from tests.hub.commands import SECONDS, Done, begun, done, thin, until_nobody_is_served, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.testing import ScriptedModel
    from tests.hub.conftest import Place


pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="there are no hubs")]


# --- ends ------------------------------------------------------------------------------------------------------------


async def test_ctrl_c_ends_the_command_in_the_hub_too(place: Place, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("slow", say(gate, "At last."))
    task_id = await working_task(place, "slow")
    async with begun(thin("tasks", "wait", task_id), place) as process:
        await until_served(place, process.pid)
        process.send_signal(signal.SIGINT)
        with anyio.fail_after(SECONDS):
            assert await process.wait() == 130
    await until_nobody_is_served(place)
    gate.release()
    assert (await done(thin("tasks", "wait", task_id), place)).code == 0


async def test_a_command_that_waits_goes_on_when_its_hub_is_killed(place: Place, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("slow", say(gate, "At last."))
    task_id = await working_task(place, "slow")
    async with begun(thin("tasks", "wait", "--json", task_id), place) as process:
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
    async with begun(thin("say", "--queue", session_id, "And then?"), place) as process:
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
    impatient = "from helmsman.cli import main, thin; import sys; thin._WELCOME_SECONDS = 0.2; main()"
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
        return status is not None and pid in [door["pid"] for door in status["doors"]]

    with anyio.fail_after(SECONDS):
        while not await anyio.to_thread.run_sync(is_served):
            await anyio.sleep(0.02)


async def test_stdin_that_was_read_is_there_for_the_next_hub(served: Place) -> None:
    async with begun(thin("steer", "01234567", "-"), served) as process:
        await until_served(served, process.pid)
        await served.kill_hub()
        assert process.stdin is not None
        assert process.stderr is not None
        await process.stdin.send(b"Mind the gap.")
        await process.stdin.aclose()
        with anyio.fail_after(SECONDS):
            said = b"".join([part async for part in process.stderr])
            assert await process.wait() == 2
    assert b"There is no session 01234567" in said


class Door:
    """A thin process made by hand. What it says of itself is the same whenever it asks."""

    def __init__(self, place: Place, name: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self._address = str(place.state_dir / "hub.sock")
        variables = {**place.env, **(env or {})}
        fields = (
            *(PROTOCOL, "0.0.1", name, str(os.getpid()), hexed((str(place.directory),)), hexed(arguments)),
            *(hexed(f"{key}={value}" for key, value in variables.items()), "000", "0", "0"),
        )
        self._hello = "\t".join(fields).encode() + b"\n"

    def ask(self) -> list[bytes]:
        """All that the hub says, in lines."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(SECONDS)
            connection.connect(self._address)
            connection.sendall(self._hello)
            said = b""
            while part := connection.recv(65536):
                said += part
                if b"\nx" in said:
                    break
            return said.splitlines()


async def test_what_was_done_for_a_hub_that_died_is_not_done_again(served: Place) -> None:
    """A hub that dies in between leaves what it has entered; here that is made by hand."""
    calls = CallLog(Shared(served.state_dir).task_writer)
    answer = json.dumps({"code": 7, "said": [["o", b"what it said\n".hex()], ["e", b"and this\n".hex()]]})
    for name, given in (("done", answer), ("begun", None)):
        call = CallId(name, 1, Process.me())
        await calls.begin(call, "This", repeatable=False)
        if given is not None:
            await calls.answer(call, given)
    welcome, *said = await anyio.to_thread.run_sync(Door(served, "done", "session", "archive", "0" * 36).ask)
    assert welcome.startswith(b"w\t")
    assert said == [b"o13", b"what it said", b"", b"e9", b"and this", b"", b"x7"]
    _, _, *said = await anyio.to_thread.run_sync(Door(served, "begun", "session", "archive", "0" * 36).ask)
    assert b"Look whether it was done before" in said[0]
    assert said[-1] == b"x1"
    _, _, *said = await anyio.to_thread.run_sync(Door(served, "fresh", "session", "archive", "0" * 36).ask)
    assert b"There is no session" in said[0]


async def test_nothing_that_a_command_does_ends_the_hub(served: Place) -> None:
    hub = served.hub
    asking = {"_HELMSMAN_COMPLETE": "bash_complete", "COMP_WORDS": "helmsman", "COMP_CWORD": "no number"}
    assert await done(thin(), served, asking) == Done(1, "", "")
    nonsense = Door(served, "nonsense")
    nonsense._hello = f"{PROTOCOL}\tnonsense\n".encode()
    assert await anyio.to_thread.run_sync(nonsense.ask) == []
    assert (await done(thin("list"), served)).code == 0
    assert served.hub == hub


async def test_commands_that_come_while_a_hub_ends_are_served(served: Place) -> None:
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            for _ in range(5):
                assert (await done(whole("list"), served, {"HELMSMAN_HUB_IDLE_MS": "0"})).code == 0

        for _ in range(3):
            tasks.start_soon(ask)
