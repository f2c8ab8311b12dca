"""Over HTTP every client has the same token: what each may do in sessions of another client, or of a person."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest

from helmsman.base.structs import replace
from helmsman.testing import ScriptedModel, run, say
from mcp import Client
from tests import warm
from tests.clients.server_process import SECONDS
from tests.hub.conftest import Place
from tests.mcp.caller import Caller

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="the hub ends with a signal"),
]

ERAS: list[Any] = ["legacy", "2026-07-28"]
LOOK = "test -f notes.md"
TOOLS = "sessions,agents,extras,router,capabilities"


def _named(name: str) -> types.Implementation:
    return types.Implementation(name=name, version="1")


@pytest.fixture
def serving(place: Place, git_repo: Path) -> Place:
    return replace(place, directory=git_repo)


async def _persons(serving: Place, prompt: str, *options: str) -> tuple[str, str]:
    """Start a session as a person does in the terminal; its id and that of its task."""
    command = warm.command("run", "--detach", prompt, "--json", *options)
    done = await anyio.run_process(command, env=dict(serving.env), cwd=serving.directory)
    told = json.loads(done.stdout)
    return told["sessionId"], told["taskId"]


async def _question(codex: Caller, session_id: str) -> str:
    """The id of what a session asks, once it asks. A wait would last: the agent has nothing to answer."""
    with anyio.fail_after(SECONDS):
        while "pendingQuestion" not in (status := await codex("codex_status", sessionId=session_id)):
            await anyio.sleep(0.05)
    return str(status["pendingQuestion"]["id"])


@pytest.mark.long
@pytest.mark.parametrize("era", ERAS)
async def test_clients_with_one_token_act_on_their_own_sessions_alone(
    serving: Place, model: ScriptedModel, tmp_path: Path, era: Any
) -> None:
    model.on("touch", run(f"touch {tmp_path}/made.txt", escalate="please"), say("done"))
    model.on("write", run("echo x > written.txt"), say("done"))
    model.on("hello", say("hi"))
    async with (
        serving.over_http("--tools", TOOLS, "--expose-primitives") as server,
        Client(server.transport(), mode=era, client_info=_named("claude-code")) as first,
        Client(server.transport(), mode=era, client_info=_named("cursor")) as second,
        Client(server.transport(), mode=era, client_info=_named("")) as third,
    ):
        codex, other, unnamed = Caller(first), Caller(second), Caller(third)
        theirs, asking = await _persons(serving, "touch", "--full-auto")
        full, done = await _persons(serving, "hello", "-s", "danger-full-access", "-a", "never")
        wrote, written = await _persons(serving, "write", "--full-auto", "--worktree")
        started = await codex("codex_start", prompt="touch", sandbox="workspace-write", approvalPolicy="on-request")
        my_session = started["sessionId"]
        for session_id in (full, wrote):
            await codex.until_settled(session_id)
        listed = await other("codex", request="check all")
        my_task = {task["sessionId"]: task["id"] for task in listed["tasks"]}[my_session]
        for caller, session_id, task_id in (
            (codex, theirs, asking),
            (other, my_session, my_task),
            (unnamed, my_session, my_task),
            (unnamed, theirs, asking),
        ):
            question = await _question(caller, session_id)
            await caller("codex", request=f"check {task_id}")  # it is shown what it may not answer
            for answer in ("approve", "deny"):
                given = {"sessionId": session_id, "id": question, "answers": [answer]}
                for tool in ("codex_respond", "agent_respond"):
                    assert (await caller.error(tool, **given))["code"] == "not_yours"
                words = {"request": f"{answer} {task_id}", "hints": {"questionId": question}}
                assert (await caller.error("codex", **words))["error"]["code"] == "not_yours"
        digest = (await other("codex_diff", sessionId=wrote))["digest"]
        for tool, arguments in (
            ("codex_apply", {"sessionId": wrote, "digest": digest}),
            ("codex_discard", {"sessionId": wrote}),
            ("codex_say", {"sessionId": full, "message": "hello"}),
            ("_codex_local_resume", {"thread_id": full, "task": "hello"}),
            ("_codex_local_exec", {"thread_id": full, "task": "hello"}),
            ("codex", {"request": f"apply {written}"}),
            ("codex", {"request": f"continue {done}: hello"}),
        ):
            refused = await other.error(tool, **arguments)
            assert refused.get("error", refused)["code"] == "not_yours", (tool, arguments)
        assert not (serving.directory / "written.txt").exists()
        assert not (tmp_path / "made.txt").exists()
        asked = await _question(codex, my_session)
        await codex("codex_respond", sessionId=my_session, id=asked, answers=["approve"])
        await codex.until_settled(my_session)
    assert (tmp_path / "made.txt").exists()


@pytest.mark.long
@pytest.mark.parametrize("era", ERAS)
async def test_a_client_changes_neither_the_permissions_nor_the_place_of_a_session_of_others(
    serving: Place, model: ScriptedModel, era: Any
) -> None:
    model.on("write", run("echo x > written.txt"), say("done"))
    model.on("hello", say("hi"))
    async with (
        serving.over_http("--tools", TOOLS, "--expose-primitives") as server,
        Client(server.transport(), mode=era, client_info=_named("claude-code")) as first,
        Client(server.transport(), mode=era, client_info=_named("cursor")) as second,
    ):
        codex, other = Caller(first), Caller(second)
        theirs, _ = await _persons(serving, "hello", "--full-auto")
        mine = (await codex("codex_start", prompt="write", sandbox="workspace-write", worktree=True))["sessionId"]
        for session_id in (theirs, mine):
            await other.until_settled(session_id)
            for tool, arguments in (
                ("agent_say", {"message": "hello", "sandbox": "danger-full-access", "approvalPolicy": "never"}),
                ("agent_say", {"message": "hello", "approvalPolicy": "never"}),
                ("agent_say", {"message": "hello", "trustRepository": True}),
                ("codex_rename", {"name": "mine"}),
                ("codex_archive", {}),
                ("codex_unarchive", {}),
                ("codex_compact", {}),
                ("codex_rollback", {"turns": 1}),
                ("codex_goal", {"goal": "hello"}),
                ("codex_goal", {"goal": ""}),
            ):
                refused = await other.error(tool, sessionId=session_id, **arguments)
                assert refused["code"] == "not_yours", (tool, arguments)
            await other("agent_say", sessionId=session_id, message="hello")  # in its sandbox, as it was
            await other.until_settled(session_id)
        await other("codex_diff", sessionId=mine)  # what this client was shown, the other one was not
        assert (await codex.error("codex_apply", sessionId=mine))["code"] == "confirmation_needed"
        await codex("codex_rename", sessionId=mine, name="mine")


@pytest.mark.long
@pytest.mark.parametrize("era", ERAS)
async def test_a_job_is_answered_by_its_own_client_alone(serving: Place, model: ScriptedModel, era: Any) -> None:
    step = {"title": "Write it down", "details": "", "files": [{"file": "notes.md", "new": True}], "check": LOOK}
    plan = {"summary": "Add it.", "steps": [step], "risks": [], "checks": [], "openQuestions": []}
    model.on("add it", say(f"```json\n{json.dumps(plan)}\n```"))
    async with (
        serving.over_http("--tools", TOOLS) as server,
        Client(server.transport(), mode=era, client_info=_named("claude-code")) as first,
        Client(server.transport(), mode=era, client_info=_named("cursor")) as second,
    ):
        codex, other = Caller(first), Caller(second)
        job = (await codex("plan", request="add it", workingDirectory=str(serving.directory)))["taskId"]
        with anyio.fail_after(SECONDS):
            while (asked := (await other("plan", taskId=job, waitSec=0)).get("pendingQuestion")) is None:
                await anyio.sleep(0.05)
        for tool in ("codex_respond", "agent_respond"):
            given = {"sessionId": asked["sessionId"], "id": asked["id"], "answers": ["approve"]}
            assert (await other.error(tool, **given))["code"] == "not_yours"
        await other.error("codex", request=f"approve {job}", hints={"questionId": asked["id"]})
        assert (await codex("plan", taskId=job, waitSec=0))["pendingQuestion"]["id"] == asked["id"]
        await codex("codex_respond", sessionId=asked["sessionId"], id=asked["id"], answers=["stop"])
        with anyio.fail_after(SECONDS):
            while (await other("plan", taskId=job, waitSec=0))["status"] == "working":
                await anyio.sleep(0.05)
