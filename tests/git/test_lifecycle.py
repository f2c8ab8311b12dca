"""Worktrees are made beside each other, removed without a trace, and found again when their process has died."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helmsman.base.structs import replace
from helmsman.errors import InvalidInput, WorktreeError
from helmsman.git import lifecycle, tree_changes
from helmsman.git.worktree import Worktree, release, worktree_of
from helmsman.testing.repository import git
from tests.git.contents import content, everything

pytestmark = pytest.mark.needs_git

SECONDS = 30


def record(tree: Worktree) -> Path:
    return tree.state_dir / "worktree-records" / f"{tree.name}.json"


def git_files(main: Path) -> set[str]:
    return {str(path.relative_to(main)) for path in (main / ".git").rglob("*") if path.name not in ("logs", "helmsman")}


# --- made ------------------------------------------------------------------------------------------------------------


def test_a_worktree_has_what_the_last_commit_has_on_its_own_branch(main: Path, state_dir: Path) -> None:
    clean = content(main)
    (main / "README.md").write_text("not committed\n", encoding="utf-8")
    (main / "loose").write_text("untracked", encoding="utf-8")
    tree = lifecycle.create(main, state_dir)
    assert content(tree.path) == clean
    assert tree.path.is_relative_to(state_dir)
    assert git(tree.path, "branch", "--show-current").strip() == tree.branch
    assert tree.branch.startswith("helmsman/main-")
    assert tree.base == git(main, "rev-parse", "HEAD").strip()


def test_several_are_made_at_once_on_one_repository(main: Path, state_dir: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        trees = list(pool.map(lambda _: lifecycle.create(main, state_dir), range(16)))
        assert len({tree.path for tree in trees}) == len({tree.branch for tree in trees}) == 16
        assert all((tree.path / "poem.txt").exists() for tree in trees)
        list(pool.map(lifecycle.discard, trees))
    assert git(main, "branch", "--format=%(refname:short)").split() == ["main"]


def test_written_files_are_private_to_this_user(tree: Worktree, main: Path) -> None:
    assert stat.S_IMODE(record(tree).stat().st_mode) == 0o600
    assert stat.S_IMODE(record(tree).parent.stat().st_mode) == 0o700
    written = json.loads(record(tree).read_text(encoding="utf-8"))
    assert written["repository"] == str(main)
    assert written["ownerPid"] == os.getpid()
    assert (written["path"], written["branch"], written["base"]) == (str(tree.path), tree.branch, tree.base)


def test_a_worktree_is_found_by_its_session(tree: Worktree, state_dir: Path) -> None:
    assert worktree_of(state_dir, "one") is None
    assigned = lifecycle.assign(tree, "one")
    assert assigned.session_id == "one"
    assert worktree_of(state_dir, "one") == assigned
    assert worktree_of(state_dir, "another") is None


def test_a_record_that_cannot_be_written_does_not_stop_a_session(tree: Worktree, state_dir: Path) -> None:
    folder = record(tree).parent
    folder.rename(state_dir / "away")
    folder.write_text("not a directory", encoding="utf-8")
    assert lifecycle.assign(tree, "one").session_id == "one"
    folder.unlink()
    (state_dir / "away").rename(folder)


@pytest.mark.parametrize(
    "damage",
    [b"", b"[]", b"\xff", b"{}", b'{"base": null}', b"[" * 100_000, "path", "branch", "git_dir", "created_at"],
)
def test_a_record_that_cannot_be_understood_leads_nowhere(tree: Worktree, state_dir: Path, damage: bytes | str) -> None:
    tree = lifecycle.assign(tree, "one")
    if isinstance(damage, bytes):
        record(tree).write_bytes(damage)
    else:
        written = json.loads(record(tree).read_text(encoding="utf-8"))
        record(tree).write_text(json.dumps(written | {damage: "/"}), encoding="utf-8")
    found = worktree_of(state_dir, "one")
    assert found is None or found == tree  # its path follows from the record's name, whatever it says


def test_work_begins_at_the_same_place_in_the_worktree(main: Path, state_dir: Path) -> None:
    assert (tree := lifecycle.create(main / "pack", state_dir)).directory == tree.path / "pack"
    (main / "made" / "by hand").mkdir(parents=True)
    inside = lifecycle.create(main / "made" / "by hand", state_dir)
    assert inside.directory == inside.path / "made" / "by hand"
    assert inside.directory.is_dir()
    assert tree_changes.diff(inside).files == ()


def test_a_place_that_the_last_commit_leads_elsewhere_is_not_followed(
    main: Path, state_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (main / "turn").symlink_to(tmp_path / "elsewhere")
    git(main, "add", "turn")
    git(main, "commit", "--quiet", "--message=Link")
    (main / "turn").unlink()
    (main / "turn").mkdir()
    tree = lifecycle.create(main / "turn", state_dir)
    assert tree.directory == tree.path


def test_nothing_is_left_when_making_fails(main: Path, state_dir: Path) -> None:
    git(main, "branch", "helmsman")  # git cannot have helmsman/… beside it
    before = everything(main)
    with pytest.raises(WorktreeError):
        lifecycle.create(main, state_dir)
    assert everything(main) == before
    assert list((state_dir / "worktrees").iterdir()) == list((state_dir / "worktree-records").glob("main-*")) == []


def test_a_missing_git_is_said_so(main: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorktreeError, match="Install git"):
        lifecycle.create(main, state_dir)


# --- discarded -------------------------------------------------------------------------------------------------------


def test_discarding_leaves_no_trace_and_says_what_went(main: Path, state_dir: Path) -> None:
    before, files = everything(main), git_files(main)
    tree = lifecycle.create(main, state_dir)
    (tree.path / "new").write_text("n", encoding="utf-8")
    git(tree.path, "add", ".")
    git(tree.path, "commit", "--quiet", "--message=Work of an hour")
    (tree.path / "poem.txt").unlink()
    discarded = lifecycle.discard(tree)
    assert [line.partition(" ")[2] for line in discarded.commits] == ["Work of an hour"]
    assert [(file.path, file.kind) for file in discarded.files] == [("new", "added"), ("poem.txt", "deleted")]
    assert not discarded.branch_kept
    assert everything(main) == before
    gits_own = (".git/objects", ".git/packed-refs")  # what git keeps of anything that was deleted, until it tidies up
    assert {path for path in git_files(main) - files if not path.startswith(gits_own)} == set()
    assert not tree.path.exists()
    assert list(record(tree).parent.glob("main-*")) == []


def test_discarding_again_is_no_error(tree: Worktree) -> None:
    lifecycle.discard(tree)
    again = lifecycle.discard(tree)
    assert (again.commits, again.files, again.branch_kept) == ((), (), False)


def test_commits_that_are_elsewhere_too_are_not_said_to_be_lost(tree: Worktree, main: Path) -> None:
    git(tree.path, "commit", "--quiet", "--allow-empty", "--message=Kept")
    git(main, "branch", "kept", tree.branch)
    git(tree.path, "checkout", "--quiet", "--detach")
    git(tree.path, "commit", "--quiet", "--allow-empty", "--message=On no branch")
    assert [line.partition(" ")[2] for line in lifecycle.discard(tree).commits] == ["On no branch"]
    assert git(main, "branch", "--format=%(refname:short)").split() == ["kept", "main"]


def test_a_branch_that_the_main_tree_is_on_is_kept(tree: Worktree, main: Path) -> None:
    git(tree.path, "checkout", "--quiet", "--detach")
    git(main, "checkout", "--quiet", tree.branch)
    assert lifecycle.discard(tree).branch_kept
    assert git(main, "rev-parse", "HEAD").strip() == tree.base
    assert not record(tree).exists()


def test_a_worktree_can_be_discarded_in_any_state(main: Path, state_dir: Path) -> None:
    trees = [lifecycle.create(main, state_dir) for _ in range(4)]
    (trees[0].path / ".git").unlink()
    git(main, "worktree", "lock", str(trees[1].path))
    (trees[2].path / "closed" / "inner").mkdir(parents=True)
    (trees[2].path / "closed" / "inner" / "file").write_text("x", encoding="utf-8")
    (trees[2].path / "closed").chmod(0o500)
    git(main, "worktree", "remove", "--force", str(trees[3].path))
    for tree in trees:
        lifecycle.discard(tree)
    assert git(main, "worktree", "list").count("\n") == 1
    assert list((state_dir / "worktrees").iterdir()) == list(record(trees[0]).parent.glob("main-*")) == []


def test_a_worktree_of_a_repository_that_is_gone_can_be_discarded(tree: Worktree, main: Path, tmp_path: Path) -> None:
    main.rename(tmp_path / "moved")
    lifecycle.discard(tree)
    assert not tree.path.exists()
    assert not record(tree).exists()


# --- left over -------------------------------------------------------------------------------------------------------

OWNER = """
import sys
from pathlib import Path
from helmsman.git import lifecycle
from helmsman.git import tree_changes
from helmsman.git.worktree import worktree_of
tree = lifecycle.assign(lifecycle.create(Path(sys.argv[1]), Path(sys.argv[2])), "of-the-dead")
(tree.path / "work").write_text("x", encoding="utf-8")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner(main: Path, state_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has made a worktree and lives on."""
    command = [sys.executable, "-c", OWNER, str(main), str(state_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def die(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(SECONDS)


def test_leftovers_of_a_killed_process_are_found_and_pruned(
    owner: subprocess.Popen[str], main: Path, state_dir: Path
) -> None:
    mine = lifecycle.create(main, state_dir)
    assert lifecycle.leftovers(state_dir) == ()
    die(owner)
    (found,) = lifecycle.leftovers(state_dir)
    assert found.worktree.session_id == "of-the-dead"
    assert found.files is not None
    assert [file.path for file in found.files] == ["work"]
    (discarded,) = lifecycle.prune([found])
    assert discarded.worktree == found.worktree
    assert not found.worktree.path.exists()
    assert mine.path.exists()
    assert lifecycle.leftovers(state_dir) == ()


def test_a_session_that_still_runs_in_an_engine_is_no_leftover(owner: subprocess.Popen[str], state_dir: Path) -> None:
    die(owner)
    assert lifecycle.leftovers(state_dir, running={"of-the-dead"}) == ()


def test_a_worktree_taken_up_by_another_process_is_no_leftover(owner: subprocess.Popen[str], state_dir: Path) -> None:
    die(owner)
    (found,) = lifecycle.leftovers(state_dir)
    taken = lifecycle.adopt(state_dir, "of-the-dead")
    assert taken == found.worktree
    assert lifecycle.leftovers(state_dir) == ()


def test_a_worktree_whose_maker_was_killed_before_it_named_the_session_is_reported_by_the_directory(
    main: Path, state_dir: Path
) -> None:
    tree = lifecycle.create(main, state_dir)
    directory = str(tree.directory)
    assert lifecycle.adopt(state_dir, "one", directory) is None, "its maker lives, and will name the session"
    release(tree)
    assert lifecycle.adopt(state_dir, "other", str(main)) is None
    assert lifecycle.adopt(state_dir, "one", directory) == replace(tree, session_id="one")
    assert worktree_of(state_dir, "one") is not None
    assert lifecycle.adopt(state_dir, "two", directory) == replace(tree, session_id="one"), "a fork works in it, too"


def test_a_worktree_that_another_process_uses_is_not_pruned(owner: subprocess.Popen[str], state_dir: Path) -> None:
    tree = worktree_of(state_dir, "of-the-dead")
    assert tree is not None
    assert lifecycle.prune([lifecycle.Leftover(worktree=tree, files=())]) == ()
    assert tree.path.exists()


def test_a_leftover_whose_files_are_gone_is_still_offered(
    owner: subprocess.Popen[str], main: Path, state_dir: Path
) -> None:
    die(owner)
    tree = worktree_of(state_dir, "of-the-dead")
    assert tree is not None
    git(main, "worktree", "remove", "--force", str(tree.path))
    (found,) = lifecycle.leftovers(state_dir)
    assert found.files is None
    lifecycle.prune([found])
    assert tree.branch not in git(main, "branch")


def test_without_any_state_there_are_no_leftovers(tmp_path: Path) -> None:
    assert lifecycle.leftovers(tmp_path / "never made") == ()
    assert not (tmp_path / "never made").exists()


# --- repositories of other shapes ------------------------------------------------------------------------------------


def test_a_directory_outside_of_a_repository_is_refused(tmp_path: Path, state_dir: Path) -> None:
    with pytest.raises(InvalidInput, match="not in the working tree"):
        lifecycle.create(tmp_path, state_dir)


def test_a_repository_without_a_commit_is_refused(tmp_path: Path, state_dir: Path) -> None:
    git(tmp_path, "init", "--quiet")
    with pytest.raises(InvalidInput, match="no commit yet"):
        lifecycle.create(tmp_path, state_dir)


def test_a_bare_repository_is_refused(tmp_path: Path, state_dir: Path) -> None:
    git(tmp_path, "init", "--quiet", "--bare")
    with pytest.raises(InvalidInput, match="a bare repository"):
        lifecycle.create(tmp_path, state_dir)


def test_the_git_directory_itself_is_refused(main: Path, state_dir: Path) -> None:
    with pytest.raises(InvalidInput, match="not in the working tree"):
        lifecycle.create(main / ".git" / "refs", state_dir)


def test_a_damaged_repository_is_refused_with_what_git_says(main: Path, state_dir: Path) -> None:
    (main / ".git" / "config").write_text("[core\n", encoding="utf-8")
    with pytest.raises(WorktreeError, match="config"):
        lifecycle.create(main, state_dir)


def test_a_state_directory_given_from_here_is_found_from_elsewhere(
    main: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tree = lifecycle.assign(lifecycle.create(main, Path("state")), "one")
    assert tree.path.is_absolute()
    assert worktree_of(Path("state"), "one") == tree == worktree_of(tmp_path / "state", "one")
