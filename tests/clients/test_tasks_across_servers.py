"""Tasks outlive their server: begun through one `helmsman serve`, finished without any, read and steered through another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.client.extension import ClaimContext
from mcp.client.stdio import StdioServerParameters

from helmsman.agents.codex.storage import CodexSessions, read_turn
from helmsman.testing import CodexHome, ScriptedModel, hang, run, say
from mcp import Client
from tests.clients.server_process import Serving
from tests.mcp.caller import Caller
from tests.mcp.test_tasks import RawResult, TaskHandle, TaskRequest, Tasks, unused

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name != "posix", reason="There are no detached engines here.")]

SECONDS = 60


class Servers:
    """Starts servers that share one Codex, its home and the state directory; their engines outlive them."""

    def __init__(self, serving: Serving, home: CodexHome, folder: Path) -> None:
        self._serving = serving
        self._home = home
        self._pid_file = folder / "server.pid"

    @asynccontextmanager
    async def one(self, **options: Any) -> AsyncIterator[Server]:
        """A server and its client, for the length of the block. At its end the client closes the pipe, as clients do."""
        command = self._serving.command("--tools", "router,sessions")
        parameters = StdioServerParameters(
            command="/bin/sh",  # which says who it is, and becomes the server
            args=["-c", 'echo $$ > "$0" && exec "$@"', str(self._pid_file), *command],
            env=dict(self._serving.env),
            cwd=self._serving.directory,
        )
        async with Client(parameters, **options) as client:
            yield Server(client, int(self._pid_file.read_text(encoding="utf-8")))

    async def until_recorded(self, session_id: str) -> None:
        """Wait until Codex has recorded the end of the session's last turn."""
        index = CodexSessions(self._home.path)

        def ended() -> bool:
            info = index.find(session_id)
            turn = read_turn(info.path, None) if info is not None and info.path is not None else None
            return turn is not None and turn.outcome != "open"

        await until(ended)


class Server(Caller):
    """A client of a server that can be killed."""

    def __init__(self, client: Client, pid: int) -> None:
        super().__init__(client)
        self.pid = pid

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    async def started(self, prompt: str, directory: Path, **options: Any) -> tuple[str, str]:
        """Start a session; its id and the id of its task."""
        begun = await self("codex_start", prompt=prompt, workingDirectory=str(directory), **options)
        return begun["sessionId"], begun["taskId"]

    async def task(self, method: str, task_id: str) -> dict[str, Any]:
        """One method of the tasks extension."""
        request: Any = TaskRequest(method=method, params={"taskId": task_id})
        with anyio.fail_after(SECONDS):
            result: dict[str, Any] = (await self.client.session.send_request(request, RawResult)).model_dump(
                by_alias=True
            )
        return result


@pytest.fixture
def servers(codex_home: CodexHome, codex_binary: Path, folder: Path, tmp_path: Path, detached_engines: Path) -> Servers:
    env = {"HELMSMAN_DETACH": "1", "HELMSMAN_STATE_DIR": str(detached_engines)}
    return Servers(Serving.on(codex_home, codex_binary, folder, **env), codex_home, tmp_path)


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(SECONDS):
        while not condition():
            await anyio.sleep(0.02)


def at(directory: Path) -> dict[str, Any]:
    return {"context": {"working_dir": str(directory)}}


# --- one server ------------------------------------------------------------------------------------------------------


def without_clock(question: dict[str, Any]) -> dict[str, Any]:
    """Return a question without its remaining time, which changes."""
    assert question["deadline"]["secondsLeft"] > 200
    return {key: value for key, value in question.items() if key != "deadline"}


async def test_run_check_choose_wait_results_and_cancel_in_plain_words(
    servers: Servers, model: ScriptedModel, folder: Path
) -> None:
    gate, never = model.gate(), model.gate()
    model.on("parser", run("echo looking"), say("The parser ", gate, "is fixed."))
    model.on("lexer", say("The lexer ", never, "is fixed."))
    heard: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)
        gate.release()

    async with servers.one() as codex:
        first = (await codex("codex", request="fix the parser", **at(folder)))["task"]
        checked = await codex("codex", request="check my task")
        assert (checked["action"], checked["task"]["id"]) == ("check", first["id"])
        second = (await codex("codex", request="fix the lexer", **at(folder)))["task"]
        asked = await codex("codex", request="how is my task going?")
        assert asked["nextAction"] == "choose"
        assert [choice["id"] for choice in asked["choices"]] == [second["id"], first["id"]]
        with anyio.fail_after(SECONDS):
            await gate.reached()
            waited = await codex.client.call_tool("codex", {"request": "wait for number 2"}, progress_callback=hear)
        assert waited.structured_content is not None
        assert waited.structured_content["task"]["id"] == first["id"]
        assert waited.structured_content["resultSummary"]["text"] == "The parser is fixed."
        assert heard
        results = await codex("codex", request=f"show me the results of {first['alias']}")
        assert results["resultSummary"]["text"] == "The parser is fixed."
        assert results["resultSummary"]["usage"]["inputTokens"] > 0
        cancelled = await codex("codex", request=f"cancel {second['id']}")
        assert (cancelled["task"]["id"], cancelled["task"]["status"]) == (second["id"], "canceled")


# --- two servers, one after the other --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["killed", "left"])
async def test_a_task_that_finished_while_no_server_ran_is_read_by_the_next(
    servers: Servers, model: ScriptedModel, folder: Path, how: str
) -> None:
    gate = model.gate()
    model.on("work", run("echo working"), say("It is ", gate, "done."))
    async with servers.one() as codex:
        session_id, task_id = await codex.started("work", folder)
        with anyio.fail_after(SECONDS):
            await gate.reached()
        if how == "killed":
            codex.kill()
    gate.release()
    await servers.until_recorded(session_id)
    async with servers.one() as codex:
        read = await codex("codex", request=f"show me the results of {task_id}")
        assert read["task"]["status"] == "completed"
        assert read["resultSummary"]["text"] == "It is done."
        assert read["resultSummary"]["usage"]["inputTokens"] > 0
        status = await codex("codex_status", sessionId=session_id)
        assert (status["status"], status["result"]) == ("done", "It is done.")
        assert status["usage"]["inputTokens"] > 0
        (listed,) = (await codex("codex_list"))["sessions"]
        assert (listed["sessionId"], listed["isActive"], listed["taskIds"]) == (session_id, False, [task_id])


@pytest.mark.parametrize("how", ["killed", "left"])
async def test_a_question_stays_open_and_the_next_server_has_it_answered(
    servers: Servers, model: ScriptedModel, folder: Path, how: str
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("It is made."))
    async with servers.one() as codex:
        session_id, task_id = await codex.started(
            "touch", folder, sandbox="workspace-write", approvalPolicy="on-request"
        )
        asked = without_clock((await codex.until_settled(session_id))["pendingQuestion"])
        if how == "killed":
            codex.kill()
    async with servers.one() as codex:
        checked = await codex("codex", request=f"check {task_id}")
        assert (checked["task"]["status"], checked["task"]["inputRequired"]) == ("working", True)
        assert without_clock(checked["pendingQuestion"]) == asked
        (listed,) = (await codex("codex_list"))["sessions"]
        assert listed["activeStatus"] == "awaiting_approval"
        again = await codex("codex_status", sessionId=session_id)
        assert (again["status"], without_clock(again["pendingQuestion"])) == ("awaiting_approval", asked)
        await codex("codex_respond", sessionId=session_id, id=asked["id"], answers=["approve"])
        done = await codex.until_settled(session_id)
        assert (done["status"], done["result"]) == ("done", "It is made.")
        read = await codex("codex", request=f"show me the results of {task_id}")
        assert (read["task"]["status"], read["resultSummary"]["text"]) == ("completed", "It is made.")
    assert (folder / "made.txt").exists()


async def test_cancelling_what_a_dead_server_began_stops_its_command(
    servers: Servers, model: ScriptedModel, folder: Path
) -> None:
    file = folder / "followed.txt"
    model.on("follow", run(f"touch {file}; tail -f {file}"), say("never said"))
    async with servers.one() as codex:
        session_id, task_id = await codex.started("follow", folder, sandbox="workspace-write")
        await until(lambda: is_followed(file))
        codex.kill()
    assert is_followed(file)
    async with servers.one() as codex:
        assert (await codex("codex_status", sessionId=session_id))["status"] == "active"
        cancelled = await codex("codex", request=f"cancel {task_id}")
        assert cancelled["task"]["status"] == "canceled"
        assert "1 running command" in cancelled["userMessage"]
        await until(lambda: not is_followed(file))
        assert (await codex("codex_status", sessionId=session_id))["status"] == "interrupted"


def is_followed(file: Path) -> bool:
    """Whether the command runs; in its sandbox it has another pid than here."""
    shown = subprocess.run(
        ["ps", "-axww", "-o", "command="], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    return f"tail -f {file}" in shown.stdout.splitlines()


async def test_a_session_keeps_its_options_in_the_next_turn_that_another_server_runs(
    servers: Servers, model: ScriptedModel, codex_home: CodexHome, folder: Path
) -> None:
    codex_home.configure(sandbox_mode="danger-full-access", approval_policy="never")
    model.on("first", say("One."))
    model.on("second", run("touch refused.txt", escalate="please"), say("Two."))
    async with servers.one() as codex:
        session_id, _ = await codex.started("first", folder, sandbox="read-only", approvalPolicy="on-request")
        await codex.until_settled(session_id)
        codex.kill()
    async with servers.one() as codex:
        await codex("codex_say", sessionId=session_id, message="second")
        asked = await codex.until_settled(session_id)
        assert asked["pendingQuestion"]["type"] == "command_approval"
        await codex("codex_respond", sessionId=session_id, id=asked["pendingQuestion"]["id"], answers=["deny"])
        assert (await codex.until_settled(session_id))["result"] == "Two."
    first, second = applied(codex_home, session_id)
    assert first == second == ("read-only", "on-request")
    assert not (folder / "refused.txt").exists()


def applied(home: CodexHome, session_id: str) -> list[tuple[str, str]]:
    """The sandbox and approval policy under which Codex ran each turn of a session, as it wrote them down."""
    (rollout,) = (home.path / "sessions").rglob(f"rollout-*{session_id}.jsonl")
    contexts: dict[str, tuple[str, str]] = {}
    for line in rollout.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["type"] == "turn_context":
            payload = entry["payload"]
            contexts[payload["turn_id"]] = (payload["sandbox_policy"]["type"], payload["approval_policy"])
    return list(contexts.values())


# --- tasks of the protocol -------------------------------------------------------------------------------------------


class Handle(Tasks):
    """The client's side of the extension that takes the handle of a task and leaves it at that."""

    async def _follow(self, handle: TaskHandle, context: ClaimContext) -> types.CallToolResult:
        structured = {"taskId": handle.task_id}
        return types.CallToolResult(
            content=[], structured_content=structured, is_error=True
        )  # unlike the result of a wait


FORMS: dict[str, Any] = {"extensions": [Handle()], "elicitation_callback": unused}


async def handed_out(codex: Server, session_id: str) -> str:
    with anyio.fail_after(SECONDS):
        result = await codex.client.call_tool("codex_wait", {"sessionId": session_id})
    assert result.structured_content is not None
    task_id: str = result.structured_content["taskId"]
    return task_id


async def test_a_task_of_the_protocol_continues_to_its_end_under_the_next_server(
    servers: Servers, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("work", say("It is ", gate, "done."))
    async with servers.one(**FORMS) as codex:
        session_id, task_id = await codex.started("work", folder)
        with anyio.fail_after(SECONDS):
            await gate.reached()
        assert await handed_out(codex, session_id) == task_id
        codex.kill()
    async with servers.one(**FORMS) as codex:
        assert (await codex.task("tasks/get", task_id))["status"] == "working"
        gate.release()
        with anyio.fail_after(SECONDS):
            while (task := await codex.task("tasks/get", task_id))["status"] == "working":
                await anyio.sleep(0.02)
    assert (task["taskId"], task["status"]) == (task_id, "completed")
    result = task["result"]["structuredContent"]
    assert (result["sessionId"], result["status"], result["result"]) == (session_id, "done", "It is done.")


async def test_a_task_of_the_protocol_is_cancelled_under_the_next_server(
    servers: Servers, model: ScriptedModel, folder: Path
) -> None:
    model.on("hang", hang())
    async with servers.one(**FORMS) as codex:
        session_id, task_id = await codex.started("hang", folder)
        with anyio.fail_after(SECONDS):
            await model.wait_for_request()
        assert await handed_out(codex, session_id) == task_id
        codex.kill()
    async with servers.one(**FORMS) as codex:
        await codex.task("tasks/cancel", task_id)
        assert (await codex.task("tasks/get", task_id))["status"] == "cancelled"
        assert (await codex("codex_status", sessionId=session_id))["status"] == "interrupted"


# --- two servers at the same time ------------------------------------------------------------------------------------


async def test_two_servers_called_at_once_with_the_same_key_start_one_session(
    servers: Servers, model: ScriptedModel, folder: Path
) -> None:
    model.on("once", say("Only once."))
    sessions: list[str] = []

    async def start(codex: Server) -> None:
        session_id, _ = await codex.started("once", folder, idempotencyKey="the-key")
        assert (await codex.until_settled(session_id))["result"] == "Only once."
        sessions.append(session_id)

    async with servers.one() as one, servers.one() as other:
        async with anyio.create_task_group() as calls:
            calls.start_soon(start, one)
            calls.start_soon(start, other)
        assert len((await one("codex_list"))["sessions"]) == 1
    assert sessions[0] == sessions[1]
    assert len(model.requests) == 1


async def test_a_server_sees_what_another_made_of_a_session_it_knows(
    servers: Servers, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("first", say("One."))
    model.on("second", say("Two", gate, "."))
    async with servers.one() as one, servers.one() as other:
        session_id, _ = await one.started("first", folder)
        await one.until_settled(session_id)
        assert (await other("codex_status", sessionId=session_id))["result"] == "One."
        await one("codex_say", sessionId=session_id, message="second")
        assert (await other("codex_status", sessionId=session_id))["status"] == "active"
        gate.release()
        assert (await other.until_settled(session_id))["result"] == "Two."
