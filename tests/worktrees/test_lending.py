"""A worktree with other files in it for a while, and then exactly as it was."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from helmsman import worktrees
from helmsman.errors import WorktreeError
from helmsman.testing.repository import git
from helmsman.worktrees.lending import lend, put_back
from helmsman.worktrees.records import lent_to

if TYPE_CHECKING:
    from pathlib import Path


def _state(root: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in root.rglob("*") if path.is_file() and path.name != ".git")
    return {str(path.relative_to(root)): (path.stat().st_mode & 0o777, path.read_bytes()) for path in files}


def _worked_in(main: Path, state_dir: Path) -> worktrees.Worktree:
    tree = worktrees.assign(worktrees.create(main, state_dir), "session")
    (tree.path / "poem.txt").write_text("changed\n", encoding="utf-8")
    (tree.path / "new").mkdir()
    (tree.path / "new" / "file.txt").write_text("new\n", encoding="utf-8")
    (tree.path / "run.sh").chmod(0o755)
    (tree.path / "picture").unlink()
    (tree.path / "kept.log").write_text("ignored\n", encoding="utf-8")
    (tree.path / ".gitignore").write_text("*.log\nbuild/\n", encoding="utf-8")
    (tree.path / "build").mkdir()
    (tree.path / "build" / "made").write_text("by a set-up\n", encoding="utf-8")
    git(tree.path, "add", "run.sh")
    return tree


def test_the_files_of_a_tree_stand_in_it_and_then_what_was_there(main: Path, state_dir: Path) -> None:
    tree = _worked_in(main, state_dir)
    before, patch, status = _state(tree.path), worktrees.diff(tree).patch, git(tree.path, "status", "--short")
    with lend(tree) as lent:
        lent.put(lent.base)
        assert (tree.path / "poem.txt").read_text(encoding="utf-8").startswith("line 1\n")
        assert (tree.path / "picture").exists()
        assert not (tree.path / "new").exists()
        assert (tree.path / "build" / "made").exists()
        assert worktrees.diff(tree).patch == patch  # of what the session did, not of what stands there
        (tree.path / "poem.txt").write_text("by a check\n", encoding="utf-8")
        (tree.path / "junk.txt").write_text("by a check\n", encoding="utf-8")
        changes = {"poem.txt": b"other\n", "pack/inner.txt": None, "new/file.txt": lent.now}
        lent.put(lent.mixed(lent.base, changes))
        assert (tree.path / "poem.txt").read_text(encoding="utf-8") == "other\n"
        assert not (tree.path / "pack").exists()
        assert (tree.path / "new" / "file.txt").exists()
        with pytest.raises(WorktreeError, match="already"), lend(tree):
            pass
    assert _state(tree.path) == before
    assert worktrees.diff(tree).patch == patch
    assert git(tree.path, "status", "--short") == status


def test_links_that_a_check_plants_lead_nowhere(main: Path, state_dir: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "inner.txt").write_text("outside\n", encoding="utf-8")
    tree = worktrees.create(main, state_dir)
    (tree.path / "built" / "deep").mkdir(parents=True)
    (tree.path / "built" / "deep" / "app").write_text("built\n", encoding="utf-8")
    (tree.path / "built" / ".gitignore").write_text("*\n", encoding="utf-8")
    with lend(tree) as lent:
        assert "built/deep/app" in lent.set_aside(0)
        assert not (tree.path / "built" / "deep" / "app").exists()
        shutil.rmtree(tree.path / "pack")
        (tree.path / "pack").symlink_to(outside)
        (tree.path / "more").symlink_to(outside)
        shutil.rmtree(tree.path / "built")
        (tree.path / "built").symlink_to(outside)
    assert [one.name for one in outside.iterdir()] == ["inner.txt"]
    assert (tree.path / "built" / "deep" / "app").read_text(encoding="utf-8") == "built\n"
    assert (outside / "inner.txt").read_text(encoding="utf-8") == "outside\n"
    assert (tree.path / "pack" / "inner.txt").read_text(encoding="utf-8") == "inner\n"
    assert not (tree.path / "pack").is_symlink()
    assert worktrees.diff(tree).files == ()


def test_what_a_killed_process_had_exchanged_is_put_back_by_the_next(
    main: Path, state_dir: Path, tmp_path: Path
) -> None:
    tree = _worked_in(main, state_dir)
    before, patch = _state(tree.path), worktrees.diff(tree).patch
    kept = tmp_path / "kept"
    with lend(tree) as lent:
        shutil.copytree(lent_to(tree), kept)
        lent.put(lent.base)
        killed = _state(tree.path)
    for name in {*before, *killed}:
        (tree.path / name).unlink(missing_ok=True)
    for name, (mode, content) in killed.items():
        (tree.path / name).parent.mkdir(parents=True, exist_ok=True)
        (tree.path / name).write_bytes(content)
        (tree.path / name).chmod(mode)
    shutil.copytree(kept, lent_to(tree))
    assert worktrees.diff(tree).patch == patch
    assert worktrees.adopt(state_dir, "session") is not None
    assert _state(tree.path) == before
    assert not lent_to(tree).exists()
    put_back(tree)
