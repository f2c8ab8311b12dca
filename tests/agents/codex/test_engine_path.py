"""Codex itself runs no program that a session could have planted on the PATH; its commands have the user's PATH."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import anyio
import pytest

from helmsman import Helmsman
from helmsman.base.structs import replace
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, run, say

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="only Linux has bubblewrap")]


@pytest.fixture
def outside_tmp() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="helmsman-test-") as place:
        yield Path(place).resolve()


@pytest.mark.parametrize("engine", ["app-server", "exec"])
async def test_a_planted_bubblewrap_is_not_run_and_tools_of_the_user_are(
    settings: Settings,
    codex_home: CodexHome,
    model: ScriptedModel,
    git_repo: Path,
    tmp_path: Path,
    outside_tmp: Path,
    engine: Literal["app-server", "exec"],
) -> None:
    """None of it is in /tmp: Codex runs no bubblewrap from where its commands may write."""
    tools, state = outside_tmp / "tools", outside_tmp / "state"
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
    async with Helmsman(replace(settings, engine=engine, detach=False, state_dir=state), env=env, inside=True) as helm:
        session = await helm.start("which", cwd=git_repo, sandbox="workspace-write", approval_policy="never")
        with anyio.fail_after(60):
            await session.wait(until="end")
    assert (git_repo / "which.txt").read_text(encoding="utf-8") == f"{tools}/my-tool\n{tools}/git\nfrom-my-tool\n"
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("engine", ["app-server", "exec"])
async def test_codex_itself_starts_no_git_of_the_repository_and_its_commands_still_find_it(
    settings: Settings,
    codex_home: CodexHome,
    model: ScriptedModel,
    git_repo: Path,
    tmp_path: Path,
    engine: Literal["app-server", "exec"],
) -> None:
    """Like an activated `.venv` of the repository."""
    tools = _tools_with_git(git_repo / ".venv" / "bin", tmp_path)
    env = {**codex_home.env, "PATH": f"{tools}:{codex_home.env.get('PATH') or os.environ['PATH']}"}
    codex_home.configure(allow_login_shell=False)
    model.on("which", run("command -v git > which.txt; sleep 0.1"), say("done"))
    async with Helmsman(replace(settings, engine=engine, detach=False), env=env, inside=True) as helm:
        session = await helm.start("which", cwd=git_repo, sandbox="workspace-write", approval_policy="never")
        with anyio.fail_after(60):
            await session.wait(until="end")
    assert (git_repo / "which.txt").read_text(encoding="utf-8") == f"{tools}/git\n"
    assert not (tmp_path / "planted").exists()


async def test_an_engine_takes_no_session_that_may_write_a_directory_on_its_path(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, tmp_path: Path
) -> None:
    """Directory that was not writable when the engine started."""
    (tmp_path / "first").mkdir()
    tools = _tools_with_git(tmp_path / "project" / "bin", tmp_path)
    env = {**codex_home.env, "PATH": f"{codex_home.env.get('PATH') or os.environ['PATH']}:{tools}"}
    model.on("hello", say("done"))
    async with Helmsman(replace(settings, detach=False), env=env, inside=True) as helm:
        first = await helm.start("hello", cwd=tmp_path / "first", sandbox="workspace-write")
        await first.wait()
        second = await helm.start("hello", cwd=tmp_path / "project", sandbox="workspace-write")
        await second.wait()
        assert first.engine is not None
        assert second.engine is not None
        assert str(tools) in first.engine.search_path
        assert str(tools) not in second.engine.search_path


def _tools_with_git(directory: Path, tmp_path: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "git").write_text(f"#!/bin/sh\ntouch {tmp_path}/planted\n", encoding="utf-8")
    (directory / "git").chmod(0o755)
    return directory
