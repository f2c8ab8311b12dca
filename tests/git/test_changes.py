"""What a worktree changed, whatever the change and however far it got towards a commit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helmsman.errors import InvalidInput, WorktreeError
from helmsman.git import lifecycle, tree_changes
from helmsman.git.diff import FileStat
from helmsman.git.tree_changes import TreeDiff
from helmsman.git.worktree import Worktree
from helmsman.testing.repository import git, make_repository
from tests.git.contents import content

pytestmark = pytest.mark.needs_git


def by_path(diff: TreeDiff) -> dict[str, FileStat]:
    return {file.path: file for file in diff.files}


def test_a_fresh_worktree_has_no_changes(tree: Worktree) -> None:
    diff = tree_changes.diff(tree)
    assert (diff.patch, diff.text, diff.files, diff.stat, diff.nested) == (b"", "", (), "", ())


def test_every_kind_of_change_is_reported(tree: Worktree) -> None:
    (tree.path / "poem.txt").rename(tree.path / "verse.txt")
    (tree.path / "picture").write_bytes(bytes(range(255, -1, -1)))
    (tree.path / "run.sh").chmod(0o755)
    (tree.path / "pack" / "inner.txt").unlink()
    (tree.path / "README.md").write_text("# Another\nwith more\n", encoding="utf-8")
    (tree.path / "new.txt").write_text("a\nb\n", encoding="utf-8")
    (tree.path / "noise.log").write_text("ignored", encoding="utf-8")
    files = by_path(tree_changes.diff(tree))
    assert {path: file.kind for path, file in files.items()} == {
        "README.md": "modified",
        "new.txt": "added",
        "pack/inner.txt": "deleted",
        "picture": "modified",
        "run.sh": "mode",
        "verse.txt": "renamed",
    }
    assert files["verse.txt"].old_path == "poem.txt"
    assert files["picture"].binary
    assert (files["README.md"].added, files["README.md"].removed) == (2, 1)


def test_a_copy_of_a_changed_file_is_reported_as_one(tree: Worktree) -> None:
    (tree.path / "copy.txt").write_bytes((tree.path / "poem.txt").read_bytes())
    with (tree.path / "poem.txt").open("a", encoding="utf-8") as poem:
        poem.write("more\n")
    copied = by_path(tree_changes.diff(tree))["copy.txt"]
    assert (copied.kind, copied.old_path) == ("copied", "poem.txt")


def test_committed_staged_and_unstaged_changes_are_one_diff(tree: Worktree) -> None:
    for name in ("committed", "staged", "loose"):
        (tree.path / name).write_text(name, encoding="utf-8")
        if name == "committed":
            git(tree.path, "add", name)
            git(tree.path, "commit", "--quiet", "--message=One")
        elif name == "staged":
            git(tree.path, "add", name)
    assert by_path(tree_changes.diff(tree)).keys() == {"committed", "staged", "loose"}


def test_a_reverted_change_is_no_change(tree: Worktree) -> None:
    (tree.path / "brief").write_text("x", encoding="utf-8")
    git(tree.path, "add", "brief")
    git(tree.path, "commit", "--quiet", "--message=One")
    (tree.path / "brief").unlink()
    assert tree_changes.diff(tree).files == ()


def test_the_patch_gives_the_same_content_elsewhere(tree: Worktree, main: Path, tmp_path: Path) -> None:
    (tree.path / "picture").write_bytes(b"\0" + os.urandom(300))
    (tree.path / "latin").write_bytes(b"caf\xe9\n")
    (tree.path / "run.sh").rename(tree.path / "with space\tand tab")
    (tree.path / "pack" / "inner.txt").write_bytes(b"no newline\r\nat the end")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(main), str(clone))
    patch = tmp_path / "patch"
    patch.write_bytes(tree_changes.diff(tree).patch)
    git(clone, "apply", "--whitespace=nowarn", str(patch))
    assert content(clone) == content(tree.path)


def test_looking_does_not_disturb_the_index_or_the_repository(tree: Worktree, main: Path) -> None:
    (tree.path / "staged").write_text("s", encoding="utf-8")
    git(tree.path, "add", "staged")
    (tree.path / "loose").write_text("l", encoding="utf-8")
    objects = {path for path in (main / ".git" / "objects").rglob("*") if path.is_file()}
    index = (tree.git_dir / "index").read_bytes()
    status = git(tree.path, "status", "--porcelain")
    tree_changes.diff(tree)
    assert (tree.git_dir / "index").read_bytes() == index
    assert {path for path in (main / ".git" / "objects").rglob("*") if path.is_file()} == objects
    assert git(tree.path, "status", "--porcelain") == status
    assert not [path for path in tree.state_dir.iterdir() if path.name.startswith("temporary-")]


def test_a_change_of_the_same_size_at_the_same_moment_is_seen(tree: Worktree) -> None:
    file = tree.path / "README.md"
    file.write_text("# A repositorY\n", encoding="utf-8")
    index = tree.git_dir / "index"
    then = index.stat().st_mtime_ns
    os.utime(file, ns=(then, then))
    assert by_path(tree_changes.diff(tree)).keys() == {"README.md"}


def test_a_file_that_became_a_directory_and_the_other_way_round(tree: Worktree) -> None:
    (tree.path / "poem.txt").unlink()
    (tree.path / "poem.txt").mkdir()
    (tree.path / "poem.txt" / "line").write_text("1", encoding="utf-8")
    (tree.path / "pack" / "inner.txt").unlink()
    (tree.path / "pack").rmdir()
    (tree.path / "pack").write_text("flat", encoding="utf-8")
    kinds = {path: file.kind for path, file in by_path(tree_changes.diff(tree)).items()}
    assert kinds == {"poem.txt": "deleted", "poem.txt/line": "added", "pack/inner.txt": "deleted", "pack": "added"}


def test_a_directory_that_became_a_link_hides_its_files(tree: Worktree, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tree.path / "pack").rename(elsewhere)
    (elsewhere / "inner.txt").write_text("other\n", encoding="utf-8")
    (tree.path / "pack").symlink_to(elsewhere)
    kinds = {path: file.kind for path, file in by_path(tree_changes.diff(tree)).items()}
    assert kinds == {"pack/inner.txt": "deleted", "pack": "added"}


def test_a_name_that_is_not_text_is_shown_all_the_same(tree: Worktree) -> None:
    try:
        Path(os.fsdecode(os.fsencode(tree.path) + b"/\xff\xfe")).write_text("x", encoding="utf-8")
    except OSError:
        pytest.skip("This file system has only names that are text.")
    (file,) = tree_changes.diff(tree).files
    assert file.path == "��"


def test_a_repository_made_inside_is_named_and_not_looked_into(tree: Worktree) -> None:
    make_repository(tree.path / "vendor" / "lib")
    (tree.path / "beside").write_text("x", encoding="utf-8")
    diff = tree_changes.diff(tree)
    assert diff.nested == ("vendor/lib",)
    assert by_path(diff).keys() == {"beside"}


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tree: Worktree) -> None:
    if os.geteuid() == 0:
        pytest.skip("Root can read everything.")
    (tree.path / "secret").write_text("x", encoding="utf-8")
    (tree.path / "secret").chmod(0)
    with pytest.raises(WorktreeError, match="secret"):
        tree_changes.diff(tree)


def test_a_worktree_that_is_gone_is_said_so(tree: Worktree) -> None:
    lifecycle.discard(tree)
    with pytest.raises(WorktreeError, match="is gone"):
        tree_changes.diff(tree)


def test_a_directory_without_a_worktree_shows_what_is_not_committed(main: Path) -> None:
    (main / "new.txt").write_text("x\n", encoding="utf-8")
    (main / "poem.txt").unlink()
    files = by_path(tree_changes.diff_of_directory(main / "pack", state_dir=main.with_name("state")))
    assert {path: file.kind for path, file in files.items()} == {"new.txt": "added", "poem.txt": "deleted"}


def test_a_directory_shows_what_changed_since_a_commit(main: Path) -> None:
    before = git(main, "rev-parse", "HEAD").strip()
    (main / "kept").write_text("x\n", encoding="utf-8")
    git(main, "add", ".")
    git(main, "commit", "--quiet", "--message=Later")
    assert tree_changes.diff_of_directory(main, state_dir=main.with_name("state")).files == ()
    assert by_path(tree_changes.diff_of_directory(main, before, state_dir=main.with_name("state"))).keys() == {"kept"}


@pytest.mark.parametrize("commit", ["no-such", "--output=x", "", "HEAD:README.md"])
def test_a_commit_that_is_none_is_refused(main: Path, commit: str) -> None:
    with pytest.raises(InvalidInput, match="no commit"):
        tree_changes.diff_of_directory(main, commit, state_dir=main.with_name("state"))
    assert not (main / "x").exists()


def test_a_directory_before_the_first_commit_is_all_new(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "first").write_text("1\n", encoding="utf-8")
    assert {
        path: file.kind
        for path, file in by_path(
            tree_changes.diff_of_directory(tmp_path, state_dir=tmp_path.with_name("state"))
        ).items()
    } == {"first": "added"}


def test_a_directory_outside_of_a_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not in the working tree"):
        tree_changes.diff_of_directory(tmp_path, state_dir=tmp_path.with_name("state"))
