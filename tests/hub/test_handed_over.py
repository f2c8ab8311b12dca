"""A session is handed over once when the hub that does it is killed in the middle, also while the other agent starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helmsman.agents.supervisor.records import read_records
from helmsman.base.structs import replace
from helmsman.testing import ScriptedModel, say
from tests.claude import claude_binary, claude_environment
from tests.hub.conftest import HeldAgent, Place
from tests.hub.test_acknowledged import until
from tests.hub.test_survival import Raw

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.rare,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]


@pytest.mark.parametrize("killed", ["before the agent is up", "in its turn"])
async def test_a_session_is_handed_over_once_and_continues_though_its_hub_is_killed(
    place: Place, model: ScriptedModel, tmp_path: Path, killed: str
) -> None:
    held = HeldAgent(claude_binary(), tmp_path / "held", '[ "$1" = -p ]')
    gate = model.gate()
    model.on("Begin", say("Begun."))
    model.on("Go on", say(gate, "Gone on."))
    model.on("Further", say("Gone further."))
    place = replace(
        place,
        env={**place.env, **claude_environment(model, tmp_path / "claude"), "CLAUDE_CLI_PATH": str(held.path)},
    )
    async with place.started("--tools", "agents") as server:
        client = Raw(server)
        await client.initialize()
        arguments = {"agent": "codex", "prompt": "Begin", "workingDirectory": str(place.directory)}
        begin = {"name": "agent_start", "arguments": {**arguments, "sandbox": "read-only"}}
        await client.send(id=2, method="tools/call", params=begin)
        first = (await client.answer(2))["result"]["structuredContent"]["sessionId"]
        await until(place, "completed")

        goes_on = {"sessionId": first, "message": "Go on", "agent": "claude", "unenforced": True}
        await client.send(id=3, method="tools/call", params={"name": "agent_say", "arguments": goes_on})
        await held.reached()
        if killed == "in its turn":
            held.let()
            await gate.reached()
        await place.kill_hub()
        if killed != "in its turn":
            held.let()
        gate.release()
        said = (await client.answer(3))["result"]["structuredContent"]
        assert said["handedOverFrom"] == first
        _, task = await until(place, "completed", "completed")
        await client.send(id=4, method="tools/call", params={"name": "agent_list", "arguments": {"agent": "claude"}})
        listed = (await client.answer(4))["result"]["structuredContent"]["sessions"]

        await place.kill_hub()  # its Claude Code has nothing to do, and is left
        further = {"sessionId": said["sessionId"], "message": "Further", "unenforced": True}
        await client.send(id=5, method="tools/call", params={"name": "agent_say", "arguments": further})
        await client.answer(5)
        *_, last = await until(place, "completed", "completed", "completed")
    assert (task.session_id, task.handed_over_from, task.instruction) == (said["sessionId"], first, "Go on")
    assert [(one["sessionId"], one["summary"]) for one in listed] == [(task.session_id, "Go on")]
    assert (last.session_id, last.result) == (task.session_id, "Gone further.")
    assert sum("Go on" in request.user_texts[-1] for request in model.requests) == 1
    assert len(read_records(place.state_dir, "claude")) == 1  # nobody needs the others
