"""`.worktreeinclude`: ignored files that a worktree has all the same, and that are no change of its session's."""

from __future__ import annotations

import os
from pathlib import Path

from helmsman.git import lifecycle, tree_changes
from helmsman.git.included_files import include
from helmsman.git.worktree import Worktree, read_records
from helmsman.testing.repository import git


def _named(main: Path, *patterns: str, ignored: str = ".env\n*.local\nsecrets/\n*.log\nlinked\n") -> None:
    (main / ".gitignore").write_text(ignored, encoding="utf-8")
    (main / ".worktreeinclude").write_text("\n".join(patterns) + "\n", encoding="utf-8")
    git(main, "add", ".")
    git(main, "commit", "--quiet", "--message=Ignore")


def _create(main: Path, state_dir: Path) -> tuple[Worktree, str]:
    notes: list[str] = []
    tree = lifecycle.create(main, state_dir, notes.append)
    return tree, " ".join(notes)


def test_only_named_ignored_files_are_copied(main: Path, state_dir: Path) -> None:
    _named(main, ".env", "/secrets/*", "!secrets/not.pem", "new.txt", "poem.txt")
    (main / ".env").write_text("KEY=1\n", encoding="utf-8")
    (main / ".env").chmod(0o600)
    (main / "secrets").mkdir()
    (main / "secrets" / "a.pem").write_text("a\n", encoding="utf-8")
    (main / "secrets" / "not.pem").write_text("b\n", encoding="utf-8")
    (main / "other.local").write_text("not named\n", encoding="utf-8")
    (main / "new.txt").write_text("named, and not ignored\n", encoding="utf-8")
    (main / "poem.txt").write_text("changed, and tracked\n", encoding="utf-8")
    tree, note = _create(main, state_dir)
    assert set(tree.included) == {".env", "secrets/a.pem"}
    assert (tree.path / ".env").read_text(encoding="utf-8") == "KEY=1\n"
    assert (tree.path / ".env").stat().st_mode & 0o777 == 0o600
    assert (tree.path / "poem.txt").read_text(encoding="utf-8").startswith("line 1\n")
    assert not [name for name in ("other.local", "new.txt", "secrets/not.pem") if (tree.path / name).exists()]
    assert note == "Copied into the worktree, as .worktreeinclude says: .env, secrets/a.pem."
    assert next(read_records(state_dir)).included == tree.included


def test_no_link_is_followed_in_either_tree(main: Path, state_dir: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "key").write_text("key\n", encoding="utf-8")
    (main / "linked").symlink_to(outside)
    git(main, "add", ".")
    git(main, "commit", "--quiet", "--message=A link, which the tree has replaced since")
    (main / "linked").unlink()
    git(main, "rm", "--quiet", "--cached", "linked")
    _named(main, "*.local", "linked", ".env")
    git(main, "reset", "--quiet", "--soft", "HEAD~1")  # HEAD has the link, and the tree a directory
    git(main, "reset", "--quiet", "--", "linked")
    git(main, "rm", "--quiet", "--cached", "linked")
    (main / "linked").mkdir()
    (main / "linked" / "planted").write_text("planted\n", encoding="utf-8")
    (main / "one.local").symlink_to(outside / "key")
    (main / ".env").symlink_to("/etc/passwd")
    tree, note = _create(main, state_dir)
    assert tree.included == ()
    assert not (outside / "planted").exists()
    assert not (tree.path / "one.local").exists()
    assert "links are not followed" in note


def test_too_much_is_not_copied_and_said(main: Path, state_dir: Path) -> None:
    _named(main, "*.local")
    with (main / "large.local").open("wb") as file:
        file.truncate(65 * 1024 * 1024)
    (main / "small.local").write_text("small\n", encoding="utf-8")
    tree, note = _create(main, state_dir)
    assert tree.included == ("small.local",)
    assert "Not copied: large.local (more than 64 MB or 2000 files are not copied)." in note


def test_only_ordinary_files_are_copied_and_the_list_of_them_is_bounded(main: Path, state_dir: Path) -> None:
    _named(main, "*.local")
    os.mkfifo(main / "pipe.local")
    (main / "small.local").write_text("small\n", encoding="utf-8")
    tree, _ = _create(main, state_dir)
    assert tree.included == ("small.local",)
    _named(main, *(f"{number}.local" for number in range(100_000)))
    tree, note = _create(main, state_dir)
    assert tree.included == ()
    assert ".worktreeinclude is larger than" in note


def test_a_missing_named_file_is_no_error(main: Path, state_dir: Path) -> None:
    _named(main, "*.local")
    tree, note = _create(main, state_dir)
    assert (tree.included, note) == ((), "")


def test_copied_files_are_neither_in_the_diff_nor_applied(main: Path, state_dir: Path) -> None:
    _named(main, ".env")
    (main / ".env").write_text("KEY=1\n", encoding="utf-8")
    tree, _ = _create(main, state_dir)
    (tree.path / ".gitignore").write_text("", encoding="utf-8")
    (tree.path / ".env").write_text("KEY=leaked\n", encoding="utf-8")
    git(tree.path, "add", "--force", ".env", ".gitignore")
    git(tree.path, "commit", "--quiet", "--message=Everything")
    (tree.path / ".env").write_text("KEY=again\n", encoding="utf-8")
    assert [file.path for file in tree_changes.diff(tree).files] == [".gitignore"]
    tree_changes.apply(tree)
    assert (main / ".env").read_text(encoding="utf-8") == "KEY=1\n"
    assert [file.path for file in lifecycle.discard(tree).files] == [".gitignore"]


def test_without_the_file_nothing_is_copied(main: Path, state_dir: Path) -> None:
    tree, note = _create(main, state_dir)
    assert (tree.included, note) == ((), "")
    assert include(tree).note is None
