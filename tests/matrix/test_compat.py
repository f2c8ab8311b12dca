"""The tools of the removed `codex mcp-server` on every Codex: a turn with an approval, and a reply after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.base.structs import replace
from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, run, say
from mcp import Client
from tests.mcp.caller import Caller
from tests.mcp.test_elicitation import Person

pytestmark = [pytest.mark.matrix, pytest.mark.anyio]


async def test_the_removed_server(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path, verdict: object
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    model.on("again", say("back"))
    compat = replace(settings, tools=("compat",))
    person = Person()
    arguments = {"cwd": str(folder), "sandbox": "workspace-write", "approval-policy": "on-request"}
    async with (
        HelmsmanService(compat, env=codex_home.env) as helm,
        Client(build_server(helm), mode="legacy", elicitation_callback=person) as client,
    ):
        first = await Caller(client)("codex", prompt="touch", **arguments)
    assert first["content"] == "done"
    assert (folder / "made.txt").exists()
    (form,) = person.forms
    assert form.message.startswith("Allow Codex to run `")
    assert "\nCommand: touch made.txt\n" in form.message
    async with HelmsmanService(compat, env=codex_home.env) as helm, Client(build_server(helm), mode="legacy") as client:
        second = await Caller(client)("codex-reply", prompt="again", conversationId=first["threadId"])
    assert second == {"threadId": first["threadId"], "content": "back"}
