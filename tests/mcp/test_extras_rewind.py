"""`codex_rewind` and its refusals, called by a client on a real Codex."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from helmsman import load_settings
from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.testing import CodexHome, ScriptedModel, hang, run, say
from mcp import Client
from tests.mcp.caller import Caller

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git, pytest.mark.usefixtures("snapshots")]


@pytest.fixture
async def codex(codex_binary: Path, codex_home: CodexHome, tmp_path: Path) -> AsyncIterator[Caller]:
    flags = {"codex_path": str(codex_binary), "detach": False, "tools": "sessions,extras"}
    settings = load_settings(flags, codex_home.env, tmp_path)
    async with HelmsmanService(settings, env=codex_home.env) as helm, Client(build_server(helm)) as client:
        yield Caller(client)


async def started(codex: Caller, prompt: str, folder: Path, **more: Any) -> str:
    place = {"workingDirectory": str(folder), "approvalPolicy": "never", "sandbox": "workspace-write"}
    session_id: str = (await codex("codex_start", prompt=prompt, **place | more))["sessionId"]
    assert (await codex.until_settled(session_id))["status"] == "done"
    return session_id


async def test_a_turn_is_shown_and_taken_back_and_what_cannot_be_is_refused(
    codex: Caller, model: ScriptedModel, git_repo: Path, folder: Path
) -> None:
    model.on("write", run("echo one > a.txt"), say("done"))
    model.on("look", say("seen"))
    model.on("other", run("echo two > c.txt"), say("done"))
    model.on("wait", hang())
    session_id = await started(codex, "write", git_repo)
    shown = await codex("codex_rewind", sessionId=session_id, part="files")
    assert (shown["done"], [file["path"] for file in shown["files"]]) == (False, ["a.txt"])
    assert "Say in your next message" in shown["notes"][-1]
    done = await codex("codex_rewind", sessionId=session_id, part="files", digest=shown["digest"])
    assert (done["done"], done["forgotten"]) == (True, [])
    assert not (git_repo / "a.txt").exists()
    undo = await codex("codex_rewind", sessionId=session_id, undo=True)
    await codex("codex_rewind", sessionId=session_id, undo=True, digest=undo["digest"])
    assert (git_repo / "a.txt").read_text(encoding="utf-8") == "one\n"
    # Somebody who only reads is not in the way; somebody who writes is, in the same tree.
    await started(codex, "look", git_repo, sandbox="read-only")
    assert (await codex("codex_rewind", sessionId=session_id))["turn"] == 1
    other = await started(codex, "other", git_repo)
    refused = await codex.error("codex_rewind", sessionId=session_id)
    assert (refused["code"], refused["reason"], refused["sessions"]) == ("cannot_rewind", "shared_tree", [other])
    alone = await codex("codex_rewind", sessionId=session_id, part="conversation")
    assert [turn["prompt"] for turn in alone["forgotten"]] == ["write"]
    # Outside of git only the conversation can be taken back, and brought back.
    outside = await started(codex, "look", folder, skipGitRepoCheck=True)
    refused = await codex.error("codex_rewind", sessionId=outside)
    assert (refused["reason"], "git init" in refused["message"]) == ("no_git", True)
    alone = await codex("codex_rewind", sessionId=outside, part="conversation")
    alone = await codex("codex_rewind", sessionId=outside, part="conversation", digest=alone["digest"])
    undo = await codex("codex_rewind", sessionId=outside, undo=True)
    assert (undo["part"], undo["conversation"]) == ("conversation", alone["conversation"])
    assert (await codex.error("codex_rewind", sessionId=session_id, to=7))["code"] == "invalid_input"
    await codex("codex_say", sessionId=session_id, message="wait")
    assert (await codex.error("codex_rewind", sessionId=session_id))["code"] == "session_busy"
    await codex("codex_interrupt", sessionId=session_id)
    await codex("codex_archive", sessionId=other)
