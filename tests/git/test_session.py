"""Real Codex sessions work in worktrees beside each other; what they did is looked at, brought over or dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman import Helmsman
from helmsman.base.caller_context import CallerContext
from helmsman.git import lifecycle, tree_changes
from helmsman.git.worktree import worktree_of
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, run, say
from helmsman.testing.repository import git

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
        assert [(file.path, file.kind) for file in tree_changes.diff(good.worktree).files] == [
            ("answer.txt", "added"),
            ("sub/more", "added"),
        ]
        assert worktree_of(settings.state_dir, bad.id) == bad.worktree
        assert not (git_repo / "answer.txt").exists()
        tree_changes.apply(good.worktree)
        for session in (good, bad):
            assert session.worktree is not None
            lifecycle.discard(session.worktree)
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
        assert [file.path for file in tree_changes.diff(found.worktree).files] == ["made.txt"]


@pytest.mark.parametrize("directory", [".", "sub", "~/repo", "absolute", "link"])
async def test_sessions_in_worktrees_are_listed_for_the_directory_that_the_caller_names(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path, directory: str
) -> None:
    """Relative to the caller's directory, which is not the hub's; also when the worktree is gone."""
    model.otherwise(say("done"))
    place = git_repo / "sub" if directory == "sub" else git_repo
    place.mkdir(exist_ok=True)
    (place / "kept").touch()
    git(git_repo, "add", "--all")
    git(git_repo, "commit", "--quiet", "--message=All")
    (tmp_path / "link").symlink_to(git_repo)
    named = {"absolute": str(git_repo), "link": str(tmp_path / "link")}.get(directory, directory)
    async with Helmsman(settings, env=codex_home.env) as helm:
        session = await helm.start("work", cwd=place, worktree=True)
        assert await session.wait(until="end", timeout=SECONDS)
        other = await helm.start("work", cwd=tmp_path)
        assert await other.wait(until="end", timeout=SECONDS)
        caller = CallerContext({"HOME": str(git_repo.parent)}, git_repo)
        for is_there in (True, False):
            with caller.entered():
                found, _ = await helm.list(directory=named)
                tasks, _ = await helm.tasks.list(directory=named)
                texts = await helm.extras.search.find("work", directory=named)
            assert [info.session_id for info in found] == [session.id]
            assert [task.session_id for task in tasks] == [session.id]
            assert [one.session.session_id for one in texts.found] == [session.id]
            if is_there:
                await helm.extras.changes.discard(session.id)
