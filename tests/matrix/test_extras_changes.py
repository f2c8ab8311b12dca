"""Changes and usage on every supported Codex: both come from git and from files, so every version can."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.errors import HelmsmanError
from helmsman.model.events import Usage
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, add, patch, run, say, spawn_agent, usage, wait_agents
from helmsman.testing.model_apis import DEFAULT_USAGE

pytestmark = [pytest.mark.matrix, pytest.mark.anyio, pytest.mark.needs_git]

SECONDS = 60
SCRIPTED = 10
"""How many calls of the model the scripts of the usage story have."""


async def ended(session: Session) -> Session:
    assert await session.wait(until="end", timeout=SECONDS)
    assert session.status == "done", session.error
    return session


async def test_worktree_changes_applied_and_discarded(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, verdict: object
) -> None:
    # 0.145 and 0.155 cannot have a worktree below another writable root, where Helmsman's own files are hidden.
    codex_home.configure(sandbox_workspace_write={"exclude_slash_tmp": True, "exclude_tmpdir_env_var": True})
    model.on("edit", patch(add("edited.txt", "one\n")), run("echo two > written.txt"), say("done"))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await ended(
            await helm.start("edit", cwd=git_repo, worktree=True, approval_policy="never", sandbox="workspace-write")
        )
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        changed = await helm.extras.changes.diff(session.id)
        assert [file.path for file in changed.diff.files] == ["edited.txt", "written.txt"]
        await helm.extras.changes.apply(session.id)
        await helm.extras.changes.discard(session.id)
    assert (git_repo / "edited.txt").exists()
    assert (git_repo / "written.txt").exists()


async def test_usage_counted_once(
    settings: Settings,
    codex_home: CodexHome,
    model: ScriptedModel,
    git_repo: Path,
    codex_version: tuple[int, int, int],
    verdict: object,
) -> None:
    """Over two turns, a resume in another process, a fork of a fork, and (where there are any) sub-agents."""
    model.on("one", [run("true"), usage(1)], [say("1"), usage(10, 4, 2, 1)])
    model.on("two", [say("2"), usage(100)])
    model.on("three", [say("3"), usage(1_000)])
    model.on("fork", [say("4"), usage(10_000)])
    model.on("again", [say("5"), usage(100_000)])
    model.on("delegate", [spawn_agent("child"), usage(1)], [wait_agents(), usage(1)], [say("6"), usage(1)])
    model.on("child", [say("7"), usage(1_000_000)])
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await ended(await helm.start("one", cwd=git_repo, full_auto=True))
        await ended(await session.say("two"))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        await ended(await helm.say(session.id, "three"))
        fork = await ended(await helm.fork(session.id, "fork"))
        second = await ended(await helm.fork(fork.id, "again"))
        expected = {
            session.id: Usage(1_111, 4, 2, 1),
            fork.id: Usage(10_000),
            second.id: Usage(100_000),
        }
        if codex_version >= (0, 115, 0):
            delegated = await ended(await helm.start("delegate", cwd=git_repo))
            expected[delegated.id] = Usage(1_000_003)
            # 0.115 and 0.130 were seen to ask the model once more than scripted, why is not known: that call counts too.
            for _ in model.requests[SCRIPTED:]:
                expected[delegated.id] += DEFAULT_USAGE
        told = await helm.extras.usage.report(group_by="session")
    assert {group.key: group.usage for group in told.groups} == expected
    assert told.total.usage == sum(expected.values(), Usage())
    (model_group,) = [group for group in told.groups if group.key == session.id]
    assert model_group.turns == 3


async def test_diff_of_a_session_without_a_worktree(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, verdict: object
) -> None:
    model.on("edit", patch(add("edited.txt", "one\n")), say("done"))
    session = await ended(await helm.start("edit", cwd=git_repo, approval_policy="never", sandbox="workspace-write"))
    changed = await helm.extras.changes.diff(session.id)
    assert (changed.scope, [file.path for file in changed.diff.files]) == ("turn", ["edited.txt"])
    with pytest.raises(HelmsmanError, match="has no worktree"):
        await helm.extras.changes.apply(session.id)
