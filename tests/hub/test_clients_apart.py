"""Clients of one hub with other rules, toolsets, roots and limits: each gets what it would have had alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from helmsman import Helmsman
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, always, run, say
from mcp import Client
from tests.clients.server_process import HttpServer
from tests.hub.conftest import Place
from tests.hub.test_http import fetch
from tests.mcp.caller import Caller

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="There are hubs here.")]

SECONDS = 60
RULE = '[[rules]]\neffect = "allow"\ncommand = ["touch", "made.txt"]\noutside = true\n'


async def api(server: HttpServer, path: str) -> Any:
    try:
        return await fetch(Request(server.url.removesuffix("/mcp") + path, headers=server.headers))
    except HTTPError as error:
        return {"status": error.code}


@pytest.mark.long
async def test_clients_over_http_see_and_do_what_each_would_alone(
    place: Place, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    gate = model.gate()
    model.on("touch", run("touch made.txt"), say("done"))
    model.on("hold", always(say(gate, "done")))
    kept, config = tmp_path / "kept", tmp_path / "config"
    kept.mkdir()
    (config / "helmsman").mkdir(parents=True)
    (config / "helmsman" / "helmsman.toml").write_text(RULE, encoding="utf-8")
    limits = {"HELMSMAN_ALLOWED_ROOTS": str(kept), "MAX_SESSIONS": "1"}
    narrow = replace(place, env={**place.env, **limits}, directory=kept)
    wide = replace(place, env={**place.env, "XDG_CONFIG_HOME": str(config)}, directory=git_repo)
    asking = {"approvalPolicy": "untrusted", "sandbox": "workspace-write"}
    async with (
        narrow.over_http() as one,
        wide.over_http("--tools", "sessions,extras") as two,
        Client(one.transport()) as first,
        Client(two.transport()) as second,
    ):
        assert "codex_fork" not in {tool.name for tool in (await first.list_tools()).tools}
        assert "helmsman_find" in {tool.name for tool in (await second.list_tools()).tools}, "codex_fork is found by it"
        ours, theirs = Caller(first), Caller(second)
        hidden = (await theirs("codex_start", prompt="touch", worktree=True, **asking))["sessionId"]
        assert (await theirs.until_settled(hidden))["status"] == "done", "its own rule has answered"
        seen = (await ours("codex_start", prompt="touch", **asking))["sessionId"]
        assert (await ours.until_settled(seen))["status"] == "awaiting_approval", "that rule is not ours"
        for _ in range(2):
            await theirs("codex_start", prompt="hold")
        assert (await ours.error("codex_start", prompt="hold"))["running"] == [seen]
        elsewhere = await ours.error("codex_start", prompt="hold", workingDirectory=str(git_repo))
        assert elsewhere["code"] == "invalid_input"
        for tool, more in (("codex_status", {}), ("codex_say", {"message": "x"}), ("codex_interrupt", {})):
            assert (await ours.error(tool, sessionId=hidden, **more))["code"] == "invalid_input"
        looks = {
            "sessions": await ours("codex_list"),
            "resources": [str(one.uri) for one in (await first.list_resources()).resources],
            **{path: await api(one, path) for path in LOOKS},
            **{path: await api(one, path) for path in (f"/api/sessions/{hidden}", f"/api/sessions/{hidden}/diff")},
        }
        for where, shown in looks.items():
            told = json.dumps(shown)
            assert hidden not in told, where
            assert str(git_repo) not in told, where
        assert hidden in json.dumps(await api(two, "/api/search?q=touch")), "whoever may see it does"
        gate.release()


LOOKS = (
    *("/api/sessions", "/api/tasks", "/api/overview", "/api/search?q=touch", "/api/questions", "/api/schedules"),
    *("/api/rules", "/api/notices", "/api/engines", "/api/usage?by=session", "/api/usage?by=directory"),
)


async def test_a_client_with_roots_neither_lists_nor_drops_the_worktrees_of_others(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    model.otherwise(say("done"))
    narrow = replace(settings, allowed_roots=(tmp_path / "elsewhere",))
    async with Helmsman(settings, env=codex_home.env) as helm:
        session = await helm.start("work", cwd=git_repo, worktree=True)
        await session.wait(until="end")
        assert session.worktree is not None
    async with Helmsman(narrow, env=codex_home.env) as confined:
        assert await confined.extras.changes.worktrees() == ()
        assert await confined.extras.changes.leftovers() == ()
        with pytest.raises(InvalidInput):
            await confined.extras.changes.discard(session.id)
        assert (await confined.extras.usage.report(group_by="session")).groups == ()
    async with Helmsman(settings, env=codex_home.env) as helm:
        assert [one.worktree.session_id for one in await helm.extras.changes.worktrees()] == [session.id]
        assert len((await helm.extras.usage.report(group_by="session")).groups) == 1


async def test_clients_on_pipes_have_their_own_variables(place: Place, model: ScriptedModel) -> None:
    for name in ("one", "two"):
        model.on(f"hello {name}", run("echo $DATABASE_URL"), say("done"))
        other = replace(place, env={**place.env, "DATABASE_URL": f"db://{name}"})
        async with Client(other.on_stdio()) as client:
            codex = Caller(client)
            started = await codex("codex_start", prompt=f"hello {name}", approvalPolicy="never")
            await codex.until_settled(started["sessionId"])
            assert f"db://{name}" in model.requests[-1].tool_outputs[-1]
