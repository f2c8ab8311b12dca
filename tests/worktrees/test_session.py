"""Real Codex sessions work in worktrees beside each other; what they did is looked at, brought over or dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helmsman import Helmsman, worktrees
from helmsman.testing import run, say
from helmsman.testing.repository import git

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.settings import Settings
    from helmsman.testing import CodexHome, ScriptedModel

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git]

SECONDS = 60


async def test_two_sessions_on_one_repository_and_the_better_one_is_applied(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("the good one", run("echo good > answer.txt"), run("mkdir -p sub; echo x > sub/more"), say("done"))
    model.on("the bad one", run("echo bad > answer.txt"), say("done"))
    async with Helmsman(settings, env=codex_home.env) as helm:
        good, bad = [
            await helm.start(prompt, cwd=git_repo, worktree=True, approval_policy="never", sandbox="workspace-write")
            for prompt in ("the good one", "the bad one")
        ]
        for session in (good, bad):
            assert await session.wait(until="end", timeout=SECONDS)
            assert session.status == "done"
        assert good.worktree is not None
        assert bad.worktree is not None
        assert [(file.path, file.kind) for file in worktrees.diff(good.worktree).files] == [
            ("answer.txt", "added"),
            ("sub/more", "added"),
        ]
        assert worktrees.worktree_of(settings.state_dir, bad.id) == bad.worktree
        assert not (git_repo / "answer.txt").exists()
        worktrees.apply(good.worktree)
        for session in (good, bad):
            assert session.worktree is not None
            worktrees.discard(session.worktree)
    assert (git_repo / "answer.txt").read_text(encoding="utf-8") == "good\n"
    assert git(git_repo, "status", "--porcelain", "--untracked-files=all") == "?? answer.txt\n?? sub/more\n"
    assert git(git_repo, "branch", "--format=%(refname:short)").split() == ["main"]
    assert git(git_repo, "worktree", "list").count("\n") == 1


async def test_the_next_process_finds_the_worktree_of_a_session(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("write", run("echo hi > made.txt"), say("done"))
    async with Helmsman(settings, env=codex_home.env) as helm:
        session = await helm.start(
            "write", cwd=git_repo, worktree=True, approval_policy="never", sandbox="workspace-write"
        )
        assert await session.wait(until="end", timeout=SECONDS)
    async with Helmsman(settings, env=codex_home.env) as helm:
        found = await helm.session(session.id)
        assert found.worktree == session.worktree
        assert found.worktree is not None
        assert [file.path for file in worktrees.diff(found.worktree).files] == ["made.txt"]
