"""What keeps a working tree from harm when a change comes into it: each guard, through each way in.

A worktree's changes and a diff (a cloud task's, for one) come in through one client, `helmsman.git.patches`. The change is
made in a worktree here; the second way takes the same as a diff.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import pytest

from helmsman.errors import ApplyConflict, DirtyTree, WorktreeError
from helmsman.git import lifecycle, tree_changes
from helmsman.git.patches import apply_patch
from helmsman.git.worktree import Worktree
from helmsman.testing.repository import git, make_repository
from tests.git.contents import content, everything

pytestmark = [pytest.mark.long, pytest.mark.needs_git]


class HubConnector(Protocol):
    """Brings what was changed in a worktree into its main tree."""

    def __call__(self, tree: Worktree, *, allow_dirty: bool = False) -> object: ...


def as_a_diff(tree: Worktree, *, allow_dirty: bool = False) -> object:
    diff = tree_changes.diff(tree).patch.decode("utf-8", "surrogateescape")
    return apply_patch(tree.repository, diff, allow_dirty=allow_dirty, state_dir=tree.state_dir)


@pytest.fixture(params=[tree_changes.apply, as_a_diff], ids=["worktree", "diff"])
def bring(request: pytest.FixtureRequest) -> HubConnector:
    way: HubConnector = request.param
    return way


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def edit(root: Path, line: int, text: str) -> None:
    lines = (root / "poem.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    write(root / "poem.txt", "".join([*lines[: line - 1], f"{text}\n", *lines[line:]]))


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=More")


def test_the_index_is_left_alone(bring: HubConnector, tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "third")
    write(tree.path / "deep" / "new", "x")
    (tree.path / "pack" / "inner.txt").unlink()
    index = (main / ".git" / "index").read_bytes()
    bring(tree)
    assert (main / ".git" / "index").read_bytes() == index
    shown = git(main, "status", "--porcelain", "--untracked-files=all").splitlines()
    assert shown == [" D pack/inner.txt", " M poem.txt", "?? deep/new"]
    assert not (main / "pack").exists()


def test_existing_changes_are_not_applied_again(bring: HubConnector, tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "third")
    write(tree.path / "new", "n")
    edit(main, 3, "third")  # as if a crash had cut it short
    bring(tree)
    assert content(main) == content(tree.path)
    before = everything(main)
    bring(tree)
    assert everything(main) == before


def test_a_conflict_with_what_is_committed_touches_nothing(bring: HubConnector, tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "of the worktree")
    write(tree.path / "other", "fits")
    edit(main, 3, "of the main tree")
    commit(main)
    before = everything(main)
    with pytest.raises(ApplyConflict) as caught:
        bring(tree)
    assert caught.value.details["conflicts"] == ["poem.txt"]
    assert everything(main) == before


def test_a_program_that_merges_is_not_run(
    bring: HubConnector, main: Path, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "gitconfig"
    git(main, "config", "--file", str(own), "merge.odd.driver", f"touch '{tmp_path}/ran'")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(own))
    write(main / ".gitattributes", "poem.txt merge=odd\n")
    commit(main)
    tree = lifecycle.create(main, state_dir)
    edit(tree.path, 3, "of the worktree")
    edit(main, 5, "of the main tree")
    commit(main)
    with pytest.raises(ApplyConflict, match=r"poem\.txt"):
        bring(tree)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("in_the_way", ["file", "link", "directory", "file for a directory"])
def test_untracked_things_in_the_way_are_conflicts(
    bring: HubConnector, tree: Worktree, main: Path, tmp_path: Path, in_the_way: str
) -> None:
    write(tree.path / "new" / "file", "mine")
    match in_the_way:
        case "file":
            write(main / "new" / "file", "yours")
        case "link":
            (tmp_path / "elsewhere").mkdir()
            (main / "new").symlink_to(tmp_path / "elsewhere")
        case "directory":
            write(main / "new" / "file" / "precious", "yours")
        case _:
            write(main / "new", "yours")
    before = everything(main)
    with pytest.raises(ApplyConflict) as caught:
        bring(tree, allow_dirty=True)
    assert caught.value.details["conflicts"] == ["new/file"]
    with pytest.raises((ApplyConflict, DirtyTree)):
        bring(tree)
    assert everything(main) == before
    assert not (tmp_path / "elsewhere" / "file").exists()


def test_an_ignored_file_in_the_way_is_a_conflict_too(bring: HubConnector, tree: Worktree, main: Path) -> None:
    write(tree.path / ".gitignore", "")
    write(tree.path / "a.log", "mine")
    write(main / "a.log", "yours")
    with pytest.raises(ApplyConflict, match=r"a\.log"):
        bring(tree)
    assert (main / "a.log").read_text(encoding="utf-8") == "yours"


@pytest.mark.parametrize("staged", [False, True])
def test_a_dirty_tree_is_refused_unless_allowed(
    bring: HubConnector, tree: Worktree, main: Path, *, staged: bool
) -> None:
    edit(tree.path, 3, "third")
    write(main / "README.md", "mine\n")
    if staged:
        git(main, "add", "README.md")
    before = everything(main)
    with pytest.raises(DirtyTree) as caught:
        bring(tree)
    assert caught.value.details["files"] == ["README.md"]
    assert everything(main) == before
    bring(tree, allow_dirty=True)
    assert (main / "README.md").read_text(encoding="utf-8") == "mine\n"
    assert "third" in (main / "poem.txt").read_text(encoding="utf-8")
    assert git(main, "diff", "--cached", "--name-only") == ("README.md\n" if staged else "")


@pytest.mark.parametrize("staged", [False, True])
def test_a_dirty_file_that_the_change_touches_is_a_conflict(
    bring: HubConnector, tree: Worktree, main: Path, *, staged: bool
) -> None:
    edit(tree.path, 3, "of the worktree")
    edit(main, 18, "not committed")
    if staged:
        git(main, "add", "poem.txt")
        write(main / "poem.txt", git(main, "show", "HEAD:poem.txt"))
    before = everything(main)
    with pytest.raises(ApplyConflict) as caught:
        bring(tree, allow_dirty=True)
    assert caught.value.details["reasons"] == {"poem.txt": "uncommitted changes in it"}
    assert everything(main) == before


def test_a_submodule_that_was_moved_on_is_refused(
    bring: HubConnector, main: Path, state_dir: Path, tmp_path: Path
) -> None:
    library = make_repository(tmp_path / "library")
    git(main, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    commit(main)
    tree = lifecycle.create(main, state_dir)
    git(tree.path, "-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init")
    git(tree.path / "lib", "commit", "--quiet", "--allow-empty", "--message=Moved on")
    edit(tree.path, 3, "third")
    before = everything(main)
    with pytest.raises(WorktreeError, match="lib: git repositories of their own"):
        bring(tree)
    assert everything(main) == before


def test_a_sparse_checkout_gets_what_was_changed_outside_of_it(
    bring: HubConnector, main: Path, state_dir: Path
) -> None:
    git(main, "sparse-checkout", "set", "--no-cone", "/README.md")
    tree = lifecycle.create(main, state_dir)
    git(tree.path, "sparse-checkout", "disable")
    write(tree.path / "poem.txt", "changed\n")
    bring(tree)
    assert (main / "poem.txt").read_text(encoding="utf-8") == "changed\n"
    assert not (main / "run.sh").exists()


def test_line_endings_follow_the_attributes_that_come_along(bring: HubConnector, tree: Worktree, main: Path) -> None:
    write(tree.path / ".gitattributes", "*.bat text eol=crlf\n")
    (tree.path / "a.bat").write_bytes(b"one\r\ntwo\r\n")
    bring(tree)
    assert (main / "a.bat").read_bytes() == b"one\r\ntwo\r\n"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="Needs permissions that count.")
def test_a_file_that_cannot_be_written_puts_all_back(bring: HubConnector, tree: Worktree, main: Path) -> None:
    edit(tree.path, 3, "third")
    (tree.path / "README.md").unlink()
    write(tree.path / "pack" / "inner.txt", "changed")
    write(tree.path / "new", "n")
    before = everything(main)
    (main / "pack").chmod(0o500)
    try:
        with pytest.raises(WorktreeError):
            bring(tree)
    finally:
        (main / "pack").chmod(0o700)
    assert everything(main) == before
    bring(tree)
    assert content(main) == content(tree.path)


def test_a_failing_filter_puts_all_back(
    bring: HubConnector, tree: Worktree, main: Path, own_filter: Callable[..., None]
) -> None:
    (tree.path / "README.md").unlink()
    (tree.path / "run.sh").chmod(0o755)
    (tree.path / "pack" / "inner.txt").unlink()
    write(tree.path / ".gitattributes", "*.odd filter=odd\n")
    write(tree.path / "a.odd", "x")
    own_filter("odd", clean="cat", smudge="false", required="true")
    before = everything(main)
    with pytest.raises(WorktreeError):
        bring(tree)
    assert everything(main) == before


def test_several_at_once_do_not_mix(bring: HubConnector, main: Path, state_dir: Path) -> None:
    trees = [lifecycle.create(main, state_dir) for _ in range(4)]
    for number, tree in enumerate(trees):
        write(tree.path / f"file {number}", str(number))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda tree: bring(tree, allow_dirty=True), trees))
    assert sorted(git(main, "status", "--porcelain").splitlines()) == [f'?? "file {number}"' for number in range(4)]
