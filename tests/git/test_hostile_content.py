"""Whatever lies in a worktree, looking at it and bringing it over runs no program that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.errors import ApplyConflict
from helmsman.git import lifecycle, tree_changes
from helmsman.git.worktree import Worktree
from helmsman.testing.repository import git, make_repository

pytestmark = pytest.mark.needs_git


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A program that leaves a mark when it is run: `<trap>.sprung`."""
    program = tmp_path / "trap"
    program.write_text(f'#!/bin/sh\necho "$0 $@" >> "{program}.sprung"\ncat\n', encoding="utf-8")
    program.chmod(0o755)
    return program


def sprung(trap: Path) -> str:
    mark = trap.with_name("trap.sprung")
    return mark.read_text(encoding="utf-8") if mark.exists() else ""


def set_traps(git_dir: Path, trap: Path, *, filters: bool) -> None:
    """Configure the program wherever git knows to run one."""
    lines = [
        f'[core]\n\tfsmonitor = "{trap}"\n\thooksPath = "{git_dir}/hooks"\n\tpager = "{trap}"\n\teditor = "{trap}"',
        f'[diff]\n\texternal = "{trap}"',
        f'[diff "trap"]\n\ttextconv = "{trap}"\n\tcommand = "{trap}"',
        f'[merge "trap"]\n\tdriver = "{trap} %A %O %B"',
    ]
    if filters:
        lines.append(f'[filter "trap"]\n\tclean = "{trap}"\n\tsmudge = "{trap}"\n\trequired = true')
    with (git_dir / "config").open("a", encoding="utf-8") as config:
        config.write("\n".join(lines) + "\n")
    (git_dir / "hooks").mkdir(exist_ok=True)
    for name in ("post-checkout", "post-index-change", "reference-transaction", "pre-commit", "post-merge"):
        (git_dir / "hooks" / name).write_text(f'#!/bin/sh\n"{trap}" {name} < /dev/null\n', encoding="utf-8")
        (git_dir / "hooks" / name).chmod(0o755)


def test_the_programs_of_the_repositorys_configuration_are_not_run(main: Path, state_dir: Path, trap: Path) -> None:
    (main / ".gitattributes").write_text("* diff=trap merge=trap\n", encoding="utf-8")
    git(main, "add", ".")
    git(main, "commit", "--quiet", "--message=Attributes")
    set_traps(main / ".git", trap, filters=False)
    tree = lifecycle.create(main, state_dir)
    (tree.path / "poem.txt").write_text("of the worktree\n", encoding="utf-8")
    (tree.path / "new").write_text("n\n", encoding="utf-8")
    assert "+of the worktree" in tree_changes.diff(tree).text
    tree_changes.apply(tree)
    tree_changes.diff_of_directory(main, state_dir=main.with_name("state"))
    lifecycle.discard(tree)
    assert sprung(trap) == ""


def test_a_file_that_needs_a_merge_program_is_a_conflict(main: Path, state_dir: Path, trap: Path) -> None:
    (main / ".gitattributes").write_text("poem.txt merge=trap\n", encoding="utf-8")
    git(main, "add", ".")
    git(main, "commit", "--quiet", "--message=Attributes")
    tree = lifecycle.create(main, state_dir)
    (tree.path / "poem.txt").write_text("of the worktree\n", encoding="utf-8")
    (main / "poem.txt").write_text("of the main tree\n", encoding="utf-8")
    git(main, "commit", "--quiet", "--all", "--message=Moved on")
    git(main, "config", "merge.trap.driver", f"{trap} %A")
    with pytest.raises(ApplyConflict, match=r"poem\.txt"):
        tree_changes.apply(tree)
    assert sprung(trap) == ""


def test_a_git_file_that_leads_elsewhere_is_not_followed(
    tree: Worktree, tmp_path: Path, main: Path, trap: Path
) -> None:
    evil = make_repository(tmp_path / "evil")
    set_traps(evil / ".git", trap, filters=True)
    (tree.path / ".gitattributes").write_text("* filter=trap diff=trap merge=trap\n", encoding="utf-8")
    (tree.path / ".git").write_text(f"gitdir: {evil}/.git\n", encoding="utf-8")
    (tree.path / "poem.txt").write_text("changed\n", encoding="utf-8")
    assert {file.path for file in tree_changes.diff(tree).files} == {".gitattributes", "poem.txt"}
    tree_changes.apply(tree)
    assert (main / "poem.txt").read_text(encoding="utf-8") == "changed\n"
    lifecycle.discard(tree)
    assert sprung(trap) == ""


def test_a_repository_in_the_place_of_a_submodule_is_not_entered(
    main: Path, state_dir: Path, tmp_path: Path, trap: Path
) -> None:
    library = make_repository(tmp_path / "library")
    git(main, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    git(main, "config", "--file=.gitmodules", "submodule.lib.ignore", "none")
    git(main, "commit", "--quiet", "--all", "--message=Submodule")
    tree = lifecycle.create(main, state_dir)
    git(tmp_path, "clone", "--quiet", str(library), str(tree.path / "lib"))
    set_traps(tree.path / "lib" / ".git", trap, filters=True)
    (tree.path / "lib" / ".gitattributes").write_text("* filter=trap diff=trap\n", encoding="utf-8")
    (tree.path / "lib" / "README.md").write_text("changed\n", encoding="utf-8")
    (tree.path / "new").write_text("n", encoding="utf-8")
    assert [file.path for file in tree_changes.diff(tree).files] == ["new"]
    tree_changes.apply(tree)
    set_traps(main / ".git" / "modules" / "lib", trap, filters=True)
    (main / "lib" / ".gitattributes").write_text("* filter=trap diff=trap\n", encoding="utf-8")
    (main / "lib" / "README.md").write_text("changed\n", encoding="utf-8")
    tree_changes.apply(tree)
    tree_changes.diff_of_directory(main, state_dir=main.with_name("state"))
    lifecycle.discard(tree)
    assert sprung(trap) == ""


def test_a_repository_made_inside_is_not_entered(tree: Worktree, trap: Path) -> None:
    inner = make_repository(tree.path / "inner")
    set_traps(inner / ".git", trap, filters=True)
    (inner / ".gitattributes").write_text("* filter=trap diff=trap\n", encoding="utf-8")
    assert tree_changes.diff(tree).nested == ("inner",)
    lifecycle.discard(tree)
    assert sprung(trap) == ""


def test_a_link_out_of_the_worktree_is_brought_over_as_a_link(tree: Worktree, main: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden words", encoding="utf-8")
    (tree.path / "out").symlink_to(tmp_path / "secret")
    (tree.path / "pack" / "inner.txt").unlink()
    (tree.path / "pack").rmdir()
    (tree.path / "pack").symlink_to(tmp_path)
    assert "hidden words" not in tree_changes.diff(tree).text
    tree_changes.apply(tree)
    assert (main / "out").readlink() == tmp_path / "secret"
    assert (main / "pack").is_symlink()
    assert (tmp_path / "secret").read_text(encoding="utf-8") == "hidden words"
    lifecycle.discard(tree)
    assert (tmp_path / "secret").exists()
