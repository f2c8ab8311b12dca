"""`helmsman serve` on a pipe: what it writes, how it ends, and what it refuses to begin with."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.tasks.model import Task
from helmsman.tasks.registry import REGISTRY_NAME, Registry
from helmsman.testing import CodexHome, ScriptedModel, hang, run, say
from tests.clients.server_process import SECONDS, ServerProcess, Serving

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to end a server by"),
]

SIGNALS = [(signal.SIGTERM, 143), (signal.SIGINT, 130)]


@pytest.fixture
def serving(codex_home: CodexHome, codex_binary: Path, git_repo: Path) -> Serving:
    return Serving.on(codex_home, codex_binary, git_repo)


class Pipe:
    """A client that writes and reads lines, and believes nothing."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._asked = 0

    async def send(self, method: str, params: dict[str, Any] | None = None, **message: Any) -> None:
        assert self._server.process.stdin is not None
        whole = {"jsonrpc": "2.0", "method": method, "params": params or {}, **message}
        await self._server.process.stdin.send(json.dumps(whole).encode() + b"\n")

    async def receive(self) -> dict[str, Any]:
        with anyio.fail_after(SECONDS):
            line = await self._server.stdout.receive_until(b"\n", 10_000_000)
        message: dict[str, Any] = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        return message

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a request; whatever else comes meanwhile has to be a message too."""
        self._asked += 1
        await self.send(method, params, id=self._asked)
        while (message := await self.receive()).get("id") != self._asked or "method" in message:
            pass
        result: dict[str, Any] = message["result"]
        return result

    async def initialize(self, **capabilities: Any) -> None:
        client = {"name": "pipe", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": client}
        await self.ask("initialize", hello)
        await self.send("notifications/initialized")

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.ask("tools/call", {"name": tool, "arguments": arguments})
        structured: dict[str, Any] = result["structuredContent"]
        return structured

    async def close(self) -> None:
        assert self._server.process.stdin is not None
        await self._server.process.stdin.aclose()

    async def rest(self) -> list[dict[str, Any]]:
        """All that still comes, until the server closes its end."""
        messages: list[dict[str, Any]] = []
        try:
            while True:
                messages.append(await self.receive())
        except (anyio.EndOfStream, anyio.IncompleteRead):
            return messages


def registered(serving: Serving, answer: dict[str, Any]) -> Task:
    """The task of a tool's answer, as the registry has it."""
    with closing(Registry(serving.state_dir / REGISTRY_NAME)) as registry:
        task = registry.get(answer["taskId"])
    assert task is not None
    return task


async def test_nothing_but_protocol_is_written_to_stdout(serving: Serving, model: ScriptedModel) -> None:
    model.on("work", run("echo on stdout"), say("done"))
    async with serving.started(env={"LOG_LEVEL": "debug"}) as server:
        pipe = Pipe(server)
        await pipe.initialize()
        session_id = (await pipe.call("codex_start", prompt="work"))["sessionId"]
        assert (await pipe.call("codex_wait", sessionId=session_id))["status"] == "done"
        refused = await pipe.ask("tools/call", {"name": "codex_status", "arguments": {"sessionId": "nope"}})
        assert refused["content"][0]["text"].startswith("session_not_found: ")
        await pipe.close()
        assert await pipe.rest() == []
        assert await server.ended() == 0
    assert any(line.startswith("DEBUG ") for line in server.errors)


async def test_a_client_that_closes_its_pipe_in_mid_turn_ends_server_and_codex(
    serving: Serving, model: ScriptedModel
) -> None:
    model.on("work", run("sleep 1000"), hang())
    async with serving.started() as server:
        pipe = Pipe(server)
        await pipe.initialize()
        session_id = (await pipe.call("codex_start", prompt="work"))["sessionId"]
        with anyio.fail_after(SECONDS):
            while not (await pipe.call("codex_status", sessionId=session_id))["itemEvents"]:
                await pipe.call("codex_wait", sessionId=session_id, until="change", timeoutSec=1)
        await pipe.send("tools/call", {"name": "codex_wait", "arguments": {"sessionId": session_id}}, id=99)
        await pipe.close()
        await pipe.rest()
        assert await server.ended() == 0


async def test_running_tasks_are_stopped_with_the_server_and_queued_ones_cancelled(
    serving: Serving, model: ScriptedModel
) -> None:
    model.on("work", hang())
    async with serving.started() as server:
        pipe = Pipe(server)
        await pipe.initialize()
        work = await pipe.call("codex_start", prompt="work")
        queued = await pipe.call("codex_say", sessionId=work["sessionId"], message="more", whenBusy="queue")
        await pipe.close()
        assert await server.ended() == 0
    stopped, cancelled = registered(serving, work), registered(serving, queued)
    assert sorted(server.errors) == sorted(
        [
            f"{stopped.id} ({stopped.alias}), failed: {stopped.note}",
            f"{cancelled.id} ({cancelled.alias}), canceled: {cancelled.note}",
        ]
    )
    assert (stopped.status, cancelled.status) == ("failed", "canceled")
    assert stopped.note is not None
    assert stopped.note.startswith("It was stopped when its server ended.")
    assert cancelled.note is not None
    assert cancelled.note.startswith("Helmsman was closed before it began.")


async def test_a_turn_continues_after_its_client_left_and_the_next_client_finds_it(
    serving: Serving, model: ScriptedModel, detached_engines: Path
) -> None:
    assert detached_engines == serving.state_dir
    gate = model.gate()
    model.on("work", say(gate, "done"))
    model.on("more", say("done too"))
    async with serving.started(env={"HELMSMAN_DETACH": "1"}) as server:
        pipe = Pipe(server)
        await pipe.initialize()
        work = await pipe.call("codex_start", prompt="work")
        queued = await pipe.call("codex_say", sessionId=work["sessionId"], message="more", whenBusy="queue")
        await pipe.close()
        assert await server.ended() == 0
        assert [line.split()[:2] for line in server.errors] == [["helmsman:", "hub"]], "nothing has become of it yet"
    assert registered(serving, work).status == "working"
    gate.release()
    async with serving.started(env={"HELMSMAN_DETACH": "1"}) as server:
        pipe = Pipe(server)
        await pipe.initialize()
        with anyio.fail_after(SECONDS):
            while registered(serving, queued).status != "completed":
                await pipe.call("codex_wait", sessionId=work["sessionId"], until="change", timeoutSec=1)
    assert registered(serving, work).result == "done"


async def test_a_client_that_dies_while_a_form_is_open_ends_the_server_quietly(
    serving: Serving, model: ScriptedModel
) -> None:
    gate = model.gate()
    model.on("touch", [gate, run("touch made.txt", escalate="please")], say("done"))
    async with serving.started() as server:
        pipe = Pipe(server)
        await pipe.initialize(elicitation={})
        await pipe.call("codex_start", prompt="touch", sandbox="workspace-write", approvalPolicy="on-request")
        gate.release()
        while (await pipe.receive()).get("method") != "elicitation/create":
            pass
        await pipe.close()
        await pipe.rest()
        assert await server.ended() == 0
    assert len(server.errors) == 1  # what became of the turn


async def test_a_client_that_no_longer_listens_ends_the_server_quietly(serving: Serving) -> None:
    reading, writing = os.pipe()
    try:
        async with serving.started(stdout=writing) as server:
            os.close(reading)
            await Pipe(server).send("server/discover", id=1)  # the answer has nowhere to go
            assert await server.ended() == 0
    finally:
        os.close(writing)
    assert server.errors == []


@pytest.mark.parametrize(("number", "exit_code"), SIGNALS)
async def test_a_signal_ends_server_and_codex_while_the_client_stays(
    serving: Serving, model: ScriptedModel, number: signal.Signals, exit_code: int
) -> None:
    model.on("work", hang())
    async with serving.started() as server:
        pipe = Pipe(server)
        await pipe.initialize()
        session_id = (await pipe.call("codex_start", prompt="work"))["sessionId"]
        await pipe.send("tools/call", {"name": "codex_wait", "arguments": {"sessionId": session_id}}, id=99)
        assert await server.end_by(number) == exit_code
    assert server.errors == []


@pytest.mark.parametrize(
    ("arguments", "env", "sentence"),
    [
        (["--tools", "magic"], {}, "--tools is 'magic', which is not valid."),
        ([], {"HELMSMAN_TOOLS": "compat,router"}, "both have a tool named codex"),
        ([], {"MAX_SESSIONS": "many"}, "MAX_SESSIONS is 'many', which is not valid."),
        ([], {"APPROVAL_TIMEOUT_MS": "-1"}, "APPROVAL_TIMEOUT_MS is '-1', which is not valid."),
        ([], {"EVENT_BUFFER_SIZE": "0"}, "EVENT_BUFFER_SIZE is '0', which is not valid."),
        ([], {"LOG_LEVEL": "loud"}, "LOG_LEVEL is 'loud', which is not valid."),
        ([], {"HELMSMAN_ENGINE": "steam"}, "HELMSMAN_ENGINE is 'steam', which is not valid."),
        ([], {"HELMSMAN_DETACH": "maybe"}, "HELMSMAN_DETACH is 'maybe', which is not valid."),
        ([], {"CODEX_HOME": "/no/such/place"}, "CODEX_HOME is '/no/such/place', which is not valid."),
        (["--transport", "pigeon"], {}, "Invalid value for '--transport'"),
    ],
)
async def test_invalid_options_are_refused_before_the_server_starts(
    serving: Serving, arguments: list[str], env: dict[str, str], sentence: str
) -> None:
    async with serving.started(*arguments, env=env) as server:
        pipe = Pipe(server)
        assert await pipe.rest() == []
        assert await server.ended() == 2
    assert sentence in "".join(server.errors)
    assert "Traceback" not in "".join(server.errors)


async def test_a_server_whose_input_is_a_file_answers_what_is_in_it(serving: Serving) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "file", "version": "1"}}
    request = serving.directory / "requests.jsonl"
    request.write_text(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}) + "\n", "utf-8")
    with request.open("rb") as stdin, anyio.fail_after(SECONDS):
        done = await anyio.run_process(
            serving.command(), stdin=stdin, env=serving.env, cwd=serving.directory, start_new_session=True
        )
    (answer,) = done.stdout.splitlines()
    assert json.loads(answer)["result"]["serverInfo"]["name"] == "helmsman"
    assert done.stderr == b""
