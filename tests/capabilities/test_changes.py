"""What sessions changed, on a real Codex: looked at, brought over, dropped, and left over."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.errors import (
    ApplyConflict,
    ConfirmationNeeded,
    DiffChanged,
    DirtyTree,
    InvalidInput,
    SessionBusy,
    SessionNotFound,
    WorktreeError,
)
from helmsman.git.worktree import release
from helmsman.model.options import WorktreeOptions
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, add, hang, patch, run, say
from helmsman.testing.repository import git, make_repository
from tests.shared_engine import on_its_own_engine, on_shared_engine

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git, on_shared_engine]

SECONDS = 60
OPTIONS: dict[str, Any] = {"approval_policy": "never", "sandbox": "workspace-write"}


async def work(helm: HelmsmanService, prompt: str, repository: Path, *, worktree: bool = True) -> Session:
    session = await helm.start(prompt, cwd=repository, worktree=worktree, **OPTIONS)
    assert await session.wait(until="end", timeout=SECONDS)
    assert session.status == "done"
    return session


@pytest.fixture
def scripted(model: ScriptedModel) -> ScriptedModel:
    model.on("write", run("echo new > made.txt; echo more >> README.md"), say("done"))
    model.on("edit", patch(add("made.txt", "one\ntwo\n")), say("done"))
    model.on("look", say("nothing to do"))
    model.on("hang", hang())
    return model


# --- diff ------------------------------------------------------------------------------------------------------------


async def test_a_worktree_session_tells_exactly_what_it_changed(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path
) -> None:
    session = await work(helm, "write", git_repo)
    changed = await helm.extras.changes.diff(session.id)
    assert changed.scope == "worktree"
    assert [(file.path, file.kind) for file in changed.diff.files] == [("README.md", "modified"), ("made.txt", "added")]
    assert "+more" in changed.diff.text
    assert "made.txt" in changed.diff.stat
    assert "worktree" in changed.about


async def test_a_session_without_one_tells_what_its_last_turn_edited(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path
) -> None:
    session = await work(helm, "edit", git_repo, worktree=False)
    changed = await helm.extras.changes.diff(session.id)
    assert changed.scope == "turn"
    assert [(file.path, file.kind, file.added) for file in changed.diff.files] == [("made.txt", "added", 2)]
    assert "1 file(s) changed, +2 -0" in changed.diff.stat


async def test_otherwise_it_is_everything_uncommitted_there(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path
) -> None:
    session = await work(helm, "write", git_repo, worktree=False)
    (git_repo / "mine.txt").write_text("by a person\n", encoding="utf-8")
    changed = await helm.extras.changes.diff(session.id)
    assert changed.scope == "uncommitted"
    assert {file.path for file in changed.diff.files} == {"README.md", "made.txt", "mine.txt"}
    assert "by any program" in changed.about


async def test_outside_of_git_changes_are_unknown(
    helm: HelmsmanService, scripted: ScriptedModel, tmp_path: Path
) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    session = await work(helm, "look", folder, worktree=False)
    with pytest.raises(InvalidInput, match="not in the working tree"):
        await helm.extras.changes.diff(session.id)


async def test_a_diff_can_be_looked_at_while_the_session_is_running(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("write then hang", run("echo new > made.txt"), hang())
    session = await helm.start("write then hang", cwd=git_repo, worktree=True, **OPTIONS)
    with anyio.fail_after(SECONDS):
        await model.wait_for_request(2)
    changed = await helm.extras.changes.diff(session.id)
    assert [file.path for file in changed.diff.files] == ["made.txt"]
    await session.interrupt()


async def test_an_unknown_session_has_no_changes(helm: HelmsmanService) -> None:
    for call in (helm.extras.changes.diff, helm.extras.changes.apply, helm.extras.changes.discard):
        with pytest.raises(SessionNotFound):
            await call("0199a0f2-7c11-7d20-9f0a-3b2d5c8e1f00")


# --- apply -----------------------------------------------------------------------------------------------------------


async def test_changes_are_brought_over_once_and_again_does_no_harm(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path
) -> None:
    session = await work(helm, "write", git_repo)
    for _ in range(2):
        applied = await helm.extras.changes.apply(session.id)
        assert (applied.repository, applied.how) == (git_repo, "clean")
        assert {file.path for file in applied.files} == {"README.md", "made.txt"}
    assert (git_repo / "made.txt").read_text(encoding="utf-8") == "new\n"
    assert git(git_repo, "status", "--porcelain") == " M README.md\n?? made.txt\n"


async def test_a_dirty_tree_is_refused_unless_asked(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("write", run("echo new > made.txt"), say("done"))
    session = await work(helm, "write", git_repo)
    (git_repo / "README.md").write_text("mine\n", encoding="utf-8")
    with pytest.raises(DirtyTree) as caught:
        await helm.extras.changes.apply(session.id)
    assert caught.value.details["files"] == ["README.md"]
    assert not (git_repo / "made.txt").exists()
    await helm.extras.changes.apply(session.id, allow_dirty=True)
    assert (git_repo / "made.txt").exists()
    assert (git_repo / "README.md").read_text(encoding="utf-8") == "mine\n"


async def test_a_conflict_is_reported_and_nothing_is_touched(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path
) -> None:
    session = await work(helm, "write", git_repo)
    (git_repo / "README.md").write_text("something else\n", encoding="utf-8")
    git(git_repo, "commit", "--quiet", "--all", "--message=Second")
    with pytest.raises(ApplyConflict) as caught:
        await helm.extras.changes.apply(session.id)
    assert caught.value.details["conflicts"] == ["README.md"]
    assert git(git_repo, "status", "--porcelain") == ""


async def test_a_session_without_a_worktree_has_nothing_to_apply(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path
) -> None:
    session = await work(helm, "look", git_repo, worktree=False)
    for call in (helm.extras.changes.apply, helm.extras.changes.discard):
        with pytest.raises(InvalidInput, match="has no worktree"):
            await call(session.id)


async def test_a_busy_session_is_neither_applied_nor_discarded(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path
) -> None:
    session = await work(helm, "write", git_repo)
    await session.say("hang")
    for call in (helm.extras.changes.apply, helm.extras.changes.discard):
        with pytest.raises(SessionBusy, match="interrupt it"):
            await call(session.id)
    assert session.worktree is not None
    assert (session.worktree.path / "made.txt").exists()
    assert not (git_repo / "made.txt").exists()
    await session.interrupt()
    await helm.extras.changes.apply(session.id)
    assert (git_repo / "made.txt").exists()


async def test_a_worktree_that_a_fork_works_in_is_busy(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path
) -> None:
    session = await work(helm, "write", git_repo)
    fork = await helm.fork(session.id, "hang")
    with pytest.raises(SessionBusy, match=fork.id):
        await helm.extras.changes.discard(session.id)
    await fork.interrupt()
    assert fork.worktree == session.worktree
    helm.forget(fork.id)
    assert (await helm.session(fork.id)).worktree == session.worktree  # so a later process finds it, too
    assert session.worktree is not None
    assert session.worktree.session_id == session.id
    await helm.extras.changes.discard(session.id)


# --- only shown changes are applied ----------------------------------------------------------------------------------


async def test_only_the_reviewed_diff_is_applied(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path
) -> None:
    session = await work(helm, "write", git_repo)
    changes = helm.extras.changes
    shown = (await changes.diff(session.id)).diff
    assert session.worktree is not None
    (session.worktree.path / "made.txt").write_text("something else\n", encoding="utf-8")
    (session.worktree.path / "later.txt").write_text("later\n", encoding="utf-8")
    git(session.worktree.path, "checkout", "--quiet", "README.md")
    with pytest.raises(DiffChanged) as caught:
        await changes.apply(session.id, digest=shown.digest)
    told = caught.value.details
    assert told["shown"] == shown.digest
    assert {file["path"]: file["change"] for file in told["files"]} == {
        "made.txt": "changed",
        "later.txt": "new",
        "README.md": "gone",
    }
    assert "+something else" in told["diff"]
    assert git(git_repo, "status", "--porcelain") == ""
    now = (await changes.diff(session.id)).diff
    assert told["digest"] == now.digest
    applied = await changes.apply(session.id, digest=now.digest.upper())
    assert (applied.digest, applied.stat) == (now.digest, now.stat)
    assert (git_repo / "made.txt").read_text(encoding="utf-8") == "something else\n"


async def test_without_a_digest_the_last_shown_diff_is_applied(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path
) -> None:
    session = await work(helm, "write", git_repo)
    changes = helm.extras.changes
    await changes.diff(session.id, viewer="one")
    assert session.worktree is not None
    (session.worktree.path / "made.txt").write_text("something else\n", encoding="utf-8")
    with pytest.raises(DiffChanged, match=r"made\.txt \(changed\)"):
        await changes.apply(session.id, viewer="one")
    assert not (git_repo / "made.txt").exists()
    with pytest.raises(ConfirmationNeeded):
        await changes.apply(session.id, viewer="another, who was shown nothing")
    assert not (git_repo / "made.txt").exists()
    await changes.diff(session.id, viewer="one")
    await changes.apply(session.id, viewer="one")
    assert (git_repo / "made.txt").read_text(encoding="utf-8") == "something else\n"


async def test_an_unknown_digest_is_refused_with_the_whole_change(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path
) -> None:
    session = await work(helm, "write", git_repo)
    with pytest.raises(DiffChanged) as caught:
        await helm.extras.changes.apply(session.id, digest="0" * 64)
    assert {file["path"] for file in caught.value.details["files"]} == {"README.md", "made.txt"}
    assert "made.txt" in caught.value.details["stat"]


async def is_gone(pid: int) -> None:
    with anyio.fail_after(SECONDS):
        while True:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            await anyio.sleep(0.02)


DAEMON = "(setsid sh -c 'echo $$ > ../../daemon; while :; do date +%N > tick.txt; sleep 0.05; done' >/dev/null 2>&1 &)"


@on_its_own_engine
async def test_commands_left_running_end_before_their_changes_are_applied(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    """Also a daemon that has left its parent, and also from another process than the one that runs the engine."""
    model.on("serve", run(f"{DAEMON}; echo $$ > ../../pid; exec sleep 600", yield_ms=500), say("it runs"))
    async with (
        HelmsmanService(settings, env=codex_home.env) as helm,
        HelmsmanService(settings, env=codex_home.env) as other,
    ):
        session = await helm.start(
            "serve", cwd=git_repo, worktree=True, approval_policy="never", sandbox="danger-full-access"
        )
        assert await session.wait(until="end", timeout=SECONDS)
        assert session.worktree is not None
        pid = int((settings.state_dir / "pid").read_text(encoding="utf-8"))
        daemon = int((settings.state_dir / "daemon").read_text(encoding="utf-8"))
        await helm.task_writer.write()  # the other one reads there that the turn has ended
        async with await anyio.open_process(["sleep", "600"], cwd=session.worktree.path) as bystander:
            try:
                applied = await other.extras.changes.apply(session.id)
                assert bystander.returncode is None, "a person's own program in the worktree was ended"
            finally:  # otherwise the end of the block would wait for it, and hide the error
                bystander.kill()
        await is_gone(pid)
        await is_gone(daemon)
        assert any(command.startswith("sleep 600") for command in applied.ended)
        assert any("tick.txt" in command for command in applied.ended)
        assert (git_repo / "tick.txt").read_text() == (session.worktree.path / "tick.txt").read_text()


async def test_the_sandbox_around_a_command_is_not_its_own_command(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("serve", run("echo ready > ready.txt; exec sleep 600", yield_ms=500), say("it runs"))
    session = await work(helm, "serve", git_repo)
    assert session.worktree is not None
    with anyio.fail_after(SECONDS):
        while not (session.worktree.path / "ready.txt").exists():
            await anyio.sleep(0.05)
    applied = await helm.extras.changes.apply(session.id)
    assert [command.partition(" (pid")[0] for command in applied.ended] == ["sleep 600"]


# --- discard ---------------------------------------------------------------------------------------------------------


async def test_a_discarded_worktree_leaves_nothing_and_says_what_went(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path
) -> None:
    session = await work(helm, "write", git_repo)
    gone = await helm.extras.changes.discard(session.id)
    assert {file.path for file in gone.files} == {"README.md", "made.txt"}
    assert not gone.worktree.path.exists()
    assert git(git_repo, "branch", "--format=%(refname:short)").split() == ["main"]
    assert git(git_repo, "worktree", "list").count("\n") == 1
    assert session.worktree is None
    with pytest.raises(InvalidInput, match="was discarded"):
        await helm.extras.changes.apply(session.id)
    with pytest.raises(WorktreeError, match="is gone"):
        await helm.extras.changes.diff(session.id)
    for goes_on in (helm.say, helm.fork):
        with pytest.raises(InvalidInput, match="no longer exists"):
            await goes_on(session.id, "look")


async def test_a_worktree_that_has_become_a_link_is_neither_shown_nor_applied(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    model.on("begin", run("echo x > a.txt"), say("done"))
    session = await work(helm, "begin", git_repo)
    assert session.worktree is not None
    place, private = session.worktree.path, tmp_path / "private"
    private.mkdir()
    (private / "keep").touch()
    place.rename(f"{place}.old")
    place.symlink_to(private)
    for act in (helm.extras.changes.diff, helm.extras.changes.apply):
        with pytest.raises(WorktreeError, match=f"replaced by a link to {private}"):
            await act(session.id)
    assert sorted(one.name for one in git_repo.iterdir()) == [".git", "README.md"]


@on_its_own_engine
async def test_commands_left_running_end_before_their_worktree_goes(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("serve", run("echo $$ > ../../pid; exec sleep 600", yield_ms=300), say("it runs"))
    session = await helm.start(
        "serve", cwd=git_repo, worktree=True, approval_policy="never", sandbox="danger-full-access"
    )
    assert await session.wait(until="end", timeout=SECONDS)
    pid = int((helm.settings.state_dir / "pid").read_text(encoding="utf-8"))
    os.kill(pid, 0)
    await helm.extras.changes.discard(session.id)
    with anyio.fail_after(SECONDS):
        while True:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                break
            await anyio.sleep(0.02)


# --- other processes -------------------------------------------------------------------------------------------------


@on_its_own_engine
async def test_the_next_process_can_look_apply_and_discard(
    settings: Settings, codex_home: CodexHome, scripted: ScriptedModel, git_repo: Path
) -> None:
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session_id = (await work(helm, "write", git_repo)).id
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        assert (await helm.extras.changes.diff(session_id)).scope == "worktree"
        await helm.extras.changes.apply(session_id)
        await helm.extras.changes.discard(session_id)
        assert await helm.extras.changes.worktrees() == ()
    assert (git_repo / "made.txt").exists()


@on_its_own_engine
async def test_a_session_that_another_process_runs_is_busy(
    settings: Settings, codex_home: CodexHome, scripted: ScriptedModel, git_repo: Path
) -> None:
    async with (
        HelmsmanService(settings, env=codex_home.env) as first,
        HelmsmanService(settings, env=codex_home.env) as second,
    ):
        session = await first.start("hang", cwd=git_repo, worktree=True, **OPTIONS)
        with anyio.fail_after(SECONDS):
            await scripted.wait_for_request(1)
        await first.task_writer.write()
        with pytest.raises(SessionBusy):
            await second.extras.changes.discard(session.id)
        (known,) = await second.extras.changes.worktrees()
        assert known.use == "running"
        await session.interrupt()


@pytest.mark.long
@on_its_own_engine
async def test_a_worktree_that_a_fork_in_another_process_works_in_is_busy(
    settings: Settings, codex_home: CodexHome, scripted: ScriptedModel, git_repo: Path
) -> None:
    async with (
        HelmsmanService(settings, env=codex_home.env) as first,
        HelmsmanService(settings, env=codex_home.env) as second,
    ):
        session = await work(first, "write", git_repo)
        await first.task_writer.write()
        fork = await second.fork(session.id, "hang")
        await second.task_writer.write()
        for call in (first.extras.changes.apply, first.extras.changes.discard):
            with pytest.raises(SessionBusy, match=fork.id):
                await call(session.id)
        assert session.worktree is not None
        release(session.worktree)  # what the end of the process would do
        (known,) = await second.extras.changes.worktrees()
        assert known.use == "running"
        assert await second.extras.changes.leftovers() == ()
        await fork.interrupt()
        assert len(await second.extras.changes.leftovers()) == 1


@on_its_own_engine
async def test_a_worktree_whose_session_left_no_trace_can_still_be_dropped(
    settings: Settings, codex_home: CodexHome, scripted: ScriptedModel, git_repo: Path
) -> None:
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session_id = (await work(helm, "write", git_repo)).id
    for file in settings.codex_home.rglob("rollout-*.jsonl"):
        file.unlink()
    for file in settings.state_dir.glob("registry*"):
        file.unlink()
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        assert (await helm.extras.changes.diff(session_id)).scope == "worktree"
        await helm.extras.changes.discard(session_id)
        with pytest.raises(SessionNotFound):
            await helm.extras.changes.discard(session_id)


@on_its_own_engine
async def test_worktrees_left_by_a_process_are_found_and_pruned(
    settings: Settings, codex_home: CodexHome, scripted: ScriptedModel, git_repo: Path
) -> None:
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await work(helm, "write", git_repo)
        (known,) = await helm.extras.changes.worktrees()
        assert (known.use, known.worktree.session_id) == ("in use", session.id)
        assert await helm.extras.changes.leftovers() == ()
        tree = known.worktree
    release(tree)  # what the end of the process does
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        (left,) = await helm.extras.changes.leftovers()
        assert left.worktree.session_id == session.id
        assert [known.use for known in await helm.extras.changes.worktrees()] == ["left over"]
        (gone,) = await helm.extras.changes.prune([left])
        assert gone.worktree.session_id == session.id
        assert await helm.extras.changes.worktrees() == ()


async def test_a_session_in_two_repositories_works_in_both_and_nowhere_else(
    helm: HelmsmanService, scripted: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    lib = make_repository(tmp_path / "lib")
    scripted.on("both", run("echo a > made.txt; cp made.txt ../lib-*/; touch ../trap || true"), say("done"))
    trees = WorktreeOptions(add_dirs=(lib,))
    session = await helm.start("both", cwd=git_repo, worktree=trees, **OPTIONS)
    assert await session.wait(until="end", timeout=SECONDS)
    tree = session.worktree
    assert tree is not None
    (other,) = tree.others
    assert other.session_id == session.id
    assert str(other.path) in json.dumps(scripted.requests[-1].body)  # the model is told where
    assert (other.path / "made.txt").exists(), "the command has run"
    assert not (tree.path.parent / "trap").exists(), "the sandbox holds what is neither repository"
    changed = await helm.extras.changes.diff(session.id)
    assert [file.path for file in changed.diff.files] == [f"{git_repo.name}/made.txt", "lib/made.txt"]
    applied = await helm.extras.changes.apply(session.id, digest=changed.diff.digest)
    assert (applied.repository, applied.others) == (git_repo, (lib,))
    assert (lib / "made.txt").read_text(encoding="utf-8") == "a\n"
    in_trees = await helm.extras.publishing.commit(session.id, "Bring both", digest=changed.diff.digest, applied=True)
    assert [(one.directory, git(one.directory, "show", "--format=%s", "--name-only")) for one in in_trees] == [
        (git_repo, "Bring both\n\nmade.txt\n"),
        (lib, "Bring both\n\nmade.txt\n"),
    ]
    made = await helm.extras.publishing.commit(session.id, "Both", digest=changed.diff.digest)
    assert [one.branch for one in made] == [tree.branch, other.branch]
    await helm.extras.changes.discard(session.id)
    assert not other.path.exists()
