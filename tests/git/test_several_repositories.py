"""Worktrees of one session in several repositories, and worktrees that start elsewhere than at the last commit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from helmsman.errors import ApplyConflict, InvalidInput, WorktreeError
from helmsman.git import lifecycle, tree_changes
from helmsman.git.patches import settle_writes
from helmsman.git.worktree import Worktree, all_records, places, read_records, worktree_of
from helmsman.testing.repository import git, make_repository
from tests.git.contents import content

pytestmark = pytest.mark.needs_git


@pytest.fixture
def lib(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "libs" / "main")  # of the same name as the other


@pytest.fixture
def both(main: Path, lib: Path, state_dir: Path) -> Worktree:
    tree = lifecycle.create(main, state_dir, add_dirs=[lib])
    (other,) = tree.others
    (tree.path / "made.txt").write_text("made\n", encoding="utf-8")
    git(tree.path, "mv", "poem.txt", "verse.txt")
    (other.path / "README.md").write_text("changed\n", encoding="utf-8")
    (other.path / "rename to.txt").write_text("rename from here\n", encoding="utf-8")
    return tree


def test_a_session_in_two_repositories_has_one_diff_and_one_apply(
    both: Worktree, main: Path, lib: Path, tmp_path: Path, state_dir: Path
) -> None:
    shown = tree_changes.diff(both)
    assert [(file.path, file.old_path, file.kind) for file in shown.files] == [
        ("main/made.txt", None, "added"),
        ("main/verse.txt", "main/poem.txt", "renamed"),
        ("main-2/README.md", None, "modified"),
        ("main-2/rename to.txt", None, "added"),
    ]
    place = tmp_path / "beside"  # the patch fits where both are directories of these names
    for name, source in (("main", main), ("main-2", lib)):
        git(tmp_path, "clone", "--quiet", str(source), str(place / name))
    subprocess.run(["git", "apply"], cwd=place, input=shown.patch, check=True)
    assert (place / "main" / "verse.txt").exists()
    assert (place / "main-2" / "README.md").read_text(encoding="utf-8") == "changed\n"
    named = tree_changes.apply(both, only={"main-2/README.md": None})
    assert [file.path for file in named.files] == ["main-2/README.md"]
    assert git(main, "status", "--porcelain") == ""
    assert {file.path for file in tree_changes.unsaved(both).files} == {file.path for file in shown.files} - {
        "main-2/README.md"
    }
    with pytest.raises(InvalidInput, match="not among these changes"):
        tree_changes.apply(both, only={"README.md": None})
    tree_changes.apply(both)
    assert git(main, "status", "--porcelain", "--untracked-files=all").splitlines() == [
        " D poem.txt",
        "?? made.txt",
        "?? verse.txt",
    ]
    assert not tree_changes.unsaved(both)
    tree_changes.discard_part(both, {"main-2/README.md": None}, check=lambda _: None)
    assert (both.others[0].path / "README.md").read_text(encoding="utf-8").startswith("# ")
    both = lifecycle.assign(both, "S1")
    (known,) = read_records(state_dir)
    assert known == both == worktree_of(state_dir, "S1")
    assert places(state_dir)(str(both.others[0].path / "x")) == str(lib / "x")
    assert len({one.port for one in both.each}) == 2
    gone = lifecycle.discard(known)
    assert not gone.branch_kept
    assert all_records(state_dir) == []
    assert not any(one.path.exists() for one in both.each)
    assert git(lib, "branch", "--list", "helmsman/*") == ""


def test_changes_that_conflict_in_one_repository_leave_both_unchanged(both: Worktree, main: Path, lib: Path) -> None:
    (lib / "README.md").write_text("mine\n", encoding="utf-8")
    git(lib, "commit", "--quiet", "--all", "--message=Mine")
    before = content(main), content(lib)
    with pytest.raises(ApplyConflict, match=r"README\.md"):
        tree_changes.apply(both)
    assert (content(main), content(lib)) == before


def test_a_process_that_is_killed_between_two_repositories_has_written_neither(
    both: Worktree, main: Path, lib: Path, state_dir: Path
) -> None:
    before = content(main), content(lib)
    program = (
        "import os, sys; from pathlib import Path\n"
        "from helmsman.git import patches, tree_changes; from helmsman.git.worktree import read_records\n"
        "put, left = patches._Journal._put, [int(sys.argv[2])]\n"
        "def killed(*arguments):\n"
        "    put(*arguments); left[0] -= 1\n"
        "    left[0] or os._exit(9)\n"
        "patches._Journal._put = killed\n"
        "(tree,) = read_records(Path(sys.argv[1])); tree_changes.apply(tree)\n"
    )
    for files in (1, 3):  # in the first repository, in the second one
        arguments = [sys.executable, "-c", program, str(state_dir), str(files)]
        assert subprocess.run(arguments, check=False, timeout=60).returncode == 9
        assert (content(main), content(lib)) != before
        if files == 1:
            settle_writes(state_dir)  # as the next hub does
        else:
            tree_changes.diff(lifecycle.create(lib, state_dir))  # or the next one that works with either repository
        assert (content(main), content(lib)) == before
    settle_writes(state_dir)
    assert [*state_dir.glob("writing-*"), *state_dir.glob("journal-*")] == []


def test_each_repository_is_named_once(main: Path, state_dir: Path, tmp_path: Path) -> None:
    for place, problem in (
        (main / "pack", "in a repository of this session already"),
        (tmp_path, "not in the working"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            lifecycle.create(main, state_dir, add_dirs=[place])
    assert all_records(state_dir) == []


def test_a_worktree_starts_from_a_branch_a_commit_or_a_pull_request(
    main: Path, state_dir: Path, tmp_path: Path
) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", str(main), "forge.git")
    git(main, "remote", "add", "origin", str(tmp_path / "forge.git"))
    first = git(main, "rev-parse", "HEAD").strip()
    git(main, "checkout", "--quiet", "-b", "side")
    (main / "side.txt").write_text("side\n", encoding="utf-8")
    git(main, "add", ".")
    git(main, "commit", "--quiet", "--message=Side")
    side = git(main, "rev-parse", "HEAD").strip()
    git(main, "push", "--quiet", "origin", "side:refs/pull/7/head", "side:only-there")
    git(main, "checkout", "--quiet", "main")
    git(main, "fetch", "--quiet", "origin")
    git(main, "branch", "--quiet", "-D", "side")
    for start, commit in (("pr:7", side), ("only-there", side), (side[:12], side), ("main~0", first)):
        tree = lifecycle.create(main, state_dir, start=start)
        assert tree.base == commit
        assert (tree.path / "side.txt").exists() == (commit == side)
        assert tree_changes.diff(tree).files == ()
    for start, problem in (("pr:8", "has no pull request 8"), ("nothing", "no branch, tag or commit 'nothing'")):
        with pytest.raises(InvalidInput, match=problem):
            lifecycle.create(main, state_dir, start=start)
    tree = lifecycle.create(main, state_dir, start="pr:7")
    (tree.path / "side.txt").write_text("side\nmore\n", encoding="utf-8")
    with pytest.raises(ApplyConflict, match=r"side\.txt"):  # the main tree does not have the pull request
        tree_changes.apply(tree)


def test_a_worktree_carries_uncommitted_changes_over_and_brings_back_only_its_own(main: Path, state_dir: Path) -> None:
    poem = main / "poem.txt"
    poem.write_text(poem.read_text(encoding="utf-8").replace("line 2\n", "mine\n"), encoding="utf-8")
    (main / "new.txt").write_text("new\n", encoding="utf-8")
    (main / "ignored.log").write_text("", encoding="utf-8")
    (main / "pack" / "inner.txt").unlink()
    before, status = content(main), git(main, "status", "--porcelain")
    tree = lifecycle.create(main, state_dir, start="dirty")
    assert tree.has_uncommitted
    assert (content(main), git(main, "status", "--porcelain")) == (before, status)
    assert "mine\n" in (tree.path / "poem.txt").read_text(encoding="utf-8")
    assert (tree.path / "new.txt").exists()
    assert not (tree.path / "pack").exists()
    assert not (tree.path / "ignored.log").exists()
    assert tree_changes.diff(tree).files == ()
    for place, line in ((tree.path, "line 18\n"), (main, "line 10\n")):  # the user works on meanwhile
        poem = place / "poem.txt"
        poem.write_text(poem.read_text(encoding="utf-8").replace(line, f"new {line}"), encoding="utf-8")
    (tree.path / "new.txt").write_text("new\nmore\n", encoding="utf-8")
    assert [file.path for file in tree_changes.diff(tree).files] == ["new.txt", "poem.txt"]
    tree_changes.apply(tree)
    merged = (main / "poem.txt").read_text(encoding="utf-8")
    assert all(line in merged for line in ("mine\n", "new line 10\n", "new line 18\n"))
    assert (main / "new.txt").read_text(encoding="utf-8") == "new\nmore\n"
    since = tree_changes.commits_since(tree.main_git, tree.published_since, tree.branch)
    assert since == ["Uncommitted changes of main"]  # published with the session's commits, so it is shown
    assert not lifecycle.create(tree.path, state_dir / "other").has_uncommitted


def test_a_commit_is_made_in_every_repository_or_in_none(both: Worktree) -> None:
    (other,) = both.others
    heads = [git(one.path, "rev-parse", "HEAD") for one in both.each]
    shown = tree_changes.diff(both).digest
    lock = other.repository_git_dir / "refs" / "heads" / f"{other.branch}.lock"  # as of another git that writes there
    lock.touch()
    with pytest.raises(WorktreeError):
        tree_changes.commit_worktrees(both, "Rename it in both", digest=shown)
    assert [git(one.path, "rev-parse", "HEAD") for one in both.each] == heads
    lock.unlink()
    made = tree_changes.commit_worktrees(both, "Rename it in both", digest=shown)
    assert [(one.directory, one.branch) for one in made] == [(one.path, one.branch) for one in both.each]
    assert [git(one.path, "status", "--porcelain") for one in both.each] == ["", ""]
    assert tree_changes.is_committed(both)

    (other.path / "more.txt").write_text("more\n", encoding="utf-8")
    (alone,) = tree_changes.commit_worktrees(both, "Only here", digest=tree_changes.diff(both).digest)
    assert alone.directory == other.path
