"""A session is handed over once or not at all when the hub that does it is killed in the middle, and it is told which."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from helmsman.testing import say
from tests.claude import claude_binary, claude_environment
from tests.hub.conftest import HeldAgent
from tests.hub.test_acknowledged import until
from tests.hub.test_survival import Raw

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.testing import ScriptedModel
    from tests.hub.conftest import Place

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.agents,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]


@pytest.mark.parametrize("killed", ["before the agent is up", "in its turn"])
async def test_a_session_is_handed_over_once_or_not_at_all_when_the_hub_is_killed(
    place: Place, model: ScriptedModel, tmp_path: Path, killed: str
) -> None:
    held = HeldAgent(claude_binary(), tmp_path / "held", '[ "$1" = -p ]')
    gate = model.gate()
    model.on("Begin", say("Begun."))
    model.on("Go on", say(gate, "Gone on."))
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
        is_done = killed == "in its turn"
        _, task = await until(place, "completed", "completed" if is_done else "unknown")
        await client.send(id=4, method="tools/call", params={"name": "agent_list", "arguments": {"agent": "claude"}})
        listed = (await client.answer(4))["result"]["structuredContent"]["sessions"]
    assert (task.session_id, task.handed_over_from, task.instruction) == (said["sessionId"], first, "Go on")
    assert [(one["sessionId"], one["summary"]) for one in listed] == ([(task.session_id, "Go on")] if is_done else [])
    assert sum("Go on" in request.user_texts[-1] for request in model.requests) == is_done
    assert is_done or "before Claude Code had begun the turn" in (task.note or "")
