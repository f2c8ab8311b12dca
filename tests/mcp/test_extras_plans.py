"""`codex_plan` through the Python client, in both eras, on a real Codex."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest

from helmsman.base.structs import replace
from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.testing import ScriptedModel, run, say
from mcp import Client
from tests.mcp.caller import Caller

pytestmark = pytest.mark.anyio

SECONDS = 60
PLAN = "I have looked.\n<proposed_plan>\n# Plan\n1. Make a file.\n</proposed_plan>\n"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, tools=("sessions", "extras"))


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def works(model: ScriptedModel) -> None:
    write = run("echo made > made.txt")
    model.on("Make a file", write, say(PLAN))
    model.on("call it so", write, say(PLAN.replace("a file", "it so")))
    model.on("The plan is approved", write, say("It is made"))


async def settled(codex: Caller, session_id: str, *, after: str | None = None) -> dict[str, Any]:
    """The session when it is done or asks something else than before."""
    with anyio.fail_after(SECONDS):
        while True:
            status = await codex("codex_wait", sessionId=session_id, timeoutSec=5)
            if status["status"] != "active" and status.get("pendingQuestion", {}).get("id") != (after or ""):
                return status


@pytest.mark.usefixtures("works")
async def test_an_agent_revises_and_approves(
    helm: HelmsmanService, model: ScriptedModel, asks: dict[str, Any], folder: Path, mode: Any
) -> None:
    gate = model.gate()
    model.on("The plan is approved", run("echo made > made.txt"), say("It is ", gate, "made"))
    async with Client(build_server(helm), mode=mode) as client:
        codex = Caller(client)
        started = await codex("codex_plan", prompt="Make a file", **asks)
        session_id = started["sessionId"]
        assert started["taskId"].startswith("T-local-")
        first = (await settled(codex, session_id))["pendingQuestion"]
        assert first["type"] == "user_input"
        assert first["questions"][0]["options"] == ["approve", "revise", "stop"]
        assert first["details"]["plan"] == "# Plan\n1. Make a file."
        await codex("codex_respond", sessionId=session_id, id=first["id"], answers=["revise: call it so"])
        second = (await settled(codex, session_id, after=first["id"]))["pendingQuestion"]
        assert second["details"]["plan"] == "# Plan\n1. Make it so."
        assert not (folder / "made.txt").exists()
        answered = await codex("codex_respond", sessionId=session_id, id=second["id"], answers=["approve"])
        assert answered["status"] == "active"
        gate.release()
        done = await settled(codex, session_id)
    assert (done["status"], done["result"]) == ("done", "It is made")
    assert (folder / "made.txt").exists()


@pytest.mark.usefixtures("works")
async def test_a_person_is_asked_in_a_form_and_can_say_what_is_to_be_different(
    helm: HelmsmanService, asks: dict[str, Any], folder: Path, mode: Any
) -> None:
    forms: list[types.ElicitRequestFormParams] = []

    async def person(context: Any, params: Any) -> types.ElicitResult:
        forms.append(params)
        filled = {"plan": "revise", "plan_words": "call it so"} if len(forms) == 1 else {"plan": "approve"}
        return types.ElicitResult(action="accept", content=filled)

    server = build_server(helm)
    async with Client(server, mode=mode, elicitation_callback=person) as client:
        codex = Caller(client)
        session_id = (await codex("codex_plan", prompt="Make a file", **asks))["sessionId"]
        with anyio.fail_after(SECONDS):
            while (done := await codex("codex_wait", sessionId=session_id, timeoutSec=5))["status"] != "done":
                pass
    assert done["result"] == "It is made"
    assert (folder / "made.txt").exists()
    assert len(forms) == 2
    assert "1. Make a file." in forms[0].message
    assert "1. Make it so." in forms[1].message
    assert forms[0].requested_schema["properties"]["plan"]["enum"] == ["approve", "revise", "stop"]


@pytest.mark.usefixtures("works")
async def test_stop_changes_nothing(helm: HelmsmanService, asks: dict[str, Any], folder: Path, mode: Any) -> None:
    async with Client(build_server(helm), mode=mode) as client:
        codex = Caller(client)
        session_id = (await codex("codex_plan", prompt="Make a file", **asks))["sessionId"]
        question = (await settled(codex, session_id))["pendingQuestion"]
        answered = await codex("codex_respond", sessionId=session_id, id=question["id"], answers=["stop"])
    assert answered["status"] == "interrupted"
    assert not (folder / "made.txt").exists()
