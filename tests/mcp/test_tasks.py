"""The tasks extension: a long wait as a task, for clients that declare it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import anyio
import mcp_types as types
import pytest
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict

from helmsman.base.structs import replace
from helmsman.mcp.server import build_server
from helmsman.mcp.tasks import EXTENSION
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, hang, run, say
from mcp import Client
from tests.hub_service import hub_service
from tests.mcp.caller import Caller

pytestmark = pytest.mark.anyio


class TaskHandle(types.Result):
    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    poll_interval_ms: int | None = None


class TaskRequest(types.Request[Any, Any]):
    method: str
    params: Any


class RawResult(types.Result):
    model_config = ConfigDict(extra="allow")


class Tasks(ClientExtension):
    """A client's side of the extension: polls a task to its end, answering what it asks with `answers`."""

    identifier = EXTENSION

    def __init__(self, answers: dict[str, Any] | None = None, *, cancel: bool = False) -> None:
        self.seen: list[str] = []
        self._answers = answers
        self._cancel = cancel

    def claims(self) -> Any:
        return (ResultClaim(result_type="task", model=TaskHandle, resolve=self._follow),)

    async def _follow(self, handle: TaskHandle, context: ClaimContext) -> types.CallToolResult:
        async def call(method: str, **params: Any) -> dict[str, Any]:
            request: Any = TaskRequest(method=method, params={"taskId": handle.task_id, **params})
            result = await context.session.send_request(request, RawResult)
            answer = result.model_dump(by_alias=True)
            assert answer["resultType"] == "complete"
            return answer

        if self._cancel:
            await call("tasks/cancel")
        while True:
            task = await call("tasks/get")
            self.seen.append(task["status"])
            if task["status"] == "completed":
                return types.CallToolResult.model_validate(task["result"])
            if task["status"] == "cancelled":
                return types.CallToolResult(content=[], structured_content={"status": "cancelled"}, is_error=True)
            if task["status"] == "input_required" and self._answers is not None:
                (key,) = task["inputRequests"]
                answer = {"action": "accept", "content": self._answers}
                await call("tasks/update", inputResponses={key: answer})
                self._answers = None
            await anyio.sleep(0.02)


class Handles(Tasks):
    """A client that keeps the handle of a task and does not follow it."""

    async def _follow(self, handle: TaskHandle, context: ClaimContext) -> types.CallToolResult:
        self.seen.append(handle.task_id)
        return types.CallToolResult(content=[], structured_content={}, is_error=True)


async def unused(context: Any, params: Any) -> types.ElicitResult:
    """That the client has this says that it can show forms; a task's forms go another way."""
    return types.ElicitResult(action="cancel")


async def test_a_client_that_cannot_show_forms_waits_and_finds_the_question(
    helm: HelmsmanService, model: ScriptedModel, asks: dict[str, Any]
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with Client(build_server(helm), extensions=[Tasks()]) as client:
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="touch", **asks))["sessionId"]
        assert (await codex.until_settled(session_id))["pendingQuestion"]["type"] == "command_approval"


async def test_a_wait_becomes_a_task_that_asks_and_completes(
    helm: HelmsmanService, model: ScriptedModel, asks: dict[str, Any], folder: Path
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    tasks = Tasks({"decision": "approve"})
    async with Client(build_server(helm), extensions=[tasks], elicitation_callback=unused) as client:
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="touch", **asks))["sessionId"]
        done = await codex("codex_wait", sessionId=session_id)
        again = await codex("codex_wait", sessionId=session_id)
    assert (done["status"], done["result"]) == ("done", "done")
    assert again["status"] == "done"
    assert "input_required" in tasks.seen
    assert (folder / "made.txt").exists()


async def test_cancelling_the_task_interrupts_the_turn(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("hang", hang())
    tasks = Tasks(cancel=True)
    async with Client(build_server(helm), extensions=[tasks], elicitation_callback=unused) as client:
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="hang", workingDirectory=str(folder)))["sessionId"]
        assert (await codex.error("codex_wait", sessionId=session_id))["status"] == "cancelled"
        assert (await codex("codex_status", sessionId=session_id))["status"] == "interrupted"


async def test_a_client_that_did_not_declare_it_gets_no_task(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("hang", hang())
    async with Client(build_server(helm)) as client:
        codex = Caller(client)
        started = await codex("codex_start", prompt="hang", workingDirectory=str(folder))
        status = await codex("codex_wait", sessionId=started["sessionId"], timeoutSec=0.1)
        assert status["status"] == "active"
        request: Any = TaskRequest(method="tasks/get", params={"taskId": started["taskId"]})
        with pytest.raises(MCPError, match="Declare the extension"):
            await client.session.send_request(request, RawResult)


@pytest.mark.skipif(os.name != "posix", reason="There are no detached engines here.")
async def test_a_task_continues_through_a_restart_of_the_server(
    settings: Settings, detached_engines: Path, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("work", say("All ", gate, "done."))
    detached = replace(settings, detach=True, state_dir=detached_engines)
    handles = Handles()
    options: Any = {"extensions": [handles], "elicitation_callback": unused}
    async with (
        hub_service(detached, codex_home.env) as helm,
        Client(build_server(helm), **options) as client,
    ):
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="work", workingDirectory=str(folder)))["sessionId"]
        await codex.error("codex_wait", sessionId=session_id)
    (task_id,) = handles.seen
    async with (
        hub_service(detached, codex_home.env) as helm,
        Client(build_server(helm), **options) as client,
    ):
        request: Any = TaskRequest(method="tasks/get", params={"taskId": task_id})
        working = (await client.session.send_request(request, RawResult)).model_dump(by_alias=True)
        assert working["status"] == "working"
        gate.release()
        with anyio.fail_after(60):
            while True:
                now = (await client.session.send_request(request, RawResult)).model_dump(by_alias=True)
                if now["status"] != "working":
                    break
                await anyio.sleep(0.02)
    assert now["status"] == "completed"
    assert now["result"]["structuredContent"]["result"] == "All done."
