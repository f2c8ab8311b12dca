"""Codex runs no bubblewrap of the user's PATH, and its commands have that PATH as before."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import anyio
import pytest

from helmsman import Helmsman
from helmsman.testing import run, say

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.settings import Settings
    from helmsman.testing import CodexHome, ScriptedModel

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="only Linux has bubblewrap")]


@pytest.mark.parametrize("engine", ["app-server", "exec"])
async def test_a_planted_bubblewrap_is_not_run_and_tools_of_the_user_are(
    settings: Settings,
    codex_home: CodexHome,
    model: ScriptedModel,
    git_repo: Path,
    tmp_path: Path,
    engine: Literal["app-server", "exec"],
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (
        ("my-tool", "echo from-my-tool"),
        ("bwrap", f"touch {tmp_path}/planted; exit 1"),
        ("git", "echo mine"),
    ):
        (tools / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (tools / name).chmod(0o755)
    env = {**codex_home.env, "PATH": f"{tools}:{codex_home.env.get('PATH') or os.environ['PATH']}"}
    codex_home.configure(allow_login_shell=False)  # else the PATH is what the system's profile says
    model.on("which", run("command -v my-tool git > which.txt; my-tool >> which.txt"), say("done"))
    async with Helmsman(replace(settings, engine=engine, detach=False), env=env, inside=True) as helm:
        session = await helm.start("which", cwd=git_repo, sandbox="workspace-write", approval_policy="never")
        with anyio.fail_after(60):
            await session.wait(until="end")
    assert (git_repo / "which.txt").read_text(encoding="utf-8") == f"{tools}/my-tool\n{tools}/git\nfrom-my-tool\n"
    assert not (tmp_path / "planted").exists()
