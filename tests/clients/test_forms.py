"""While the form of a real client is open, its agent waits and cannot answer; once it is dismissed, the agent may."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest

from helmsman.testing import ScriptedModel, run, say
from tests.clients.node import NodeClients
from tests.clients.server_process import Serving

pytestmark = [pytest.mark.anyio, pytest.mark.long]


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_an_agent_answers_only_after_the_form_was_dismissed(
    node_clients: NodeClients, serving: Serving, model: ScriptedModel, transport: str
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    start = {"prompt": "touch", "sandbox": "workspace-write", "approvalPolicy": "on-request"}
    async with AsyncExitStack() as stack:
        if transport == "http":
            http = await stack.enter_async_context(serving.over_http())
            plan: dict[str, Any] = {"url": http.url, "headers": http.headers}
        else:
            command, *arguments = serving.command()
            launch = {"command": command, "args": arguments, "env": dict(serving.env), "cwd": str(serving.directory)}
            plan = {"server": launch}
        told = await node_clients.tell("forms.mjs", start=start, **plan)
    assert "touch made.txt" in told["message"]
    assert told["early"] is False
    assert told["refused"].startswith("not_yours: A person is answering question")
    assert told["waited"]["status"] == "awaiting_approval"
    assert "note" not in told["waited"]
    assert told["answered"] is True
    assert told["end"]["status"] == "done"
    assert (serving.directory / "made.txt").exists()
