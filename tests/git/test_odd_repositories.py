"""Repositories of unusual shapes: each tells the whole story, or says clearly which part it cannot."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from helmsman.errors import WorktreeError
from helmsman.git import lifecycle, tree_changes
from helmsman.git.worktree import Worktree
from helmsman.testing.repository import git, make_repository
from tests.git.contents import content

pytestmark = [pytest.mark.rare, pytest.mark.needs_git]


def whole_story(directory: Path, state_dir: Path) -> Worktree:
    """Make, change, look, apply, discard."""
    tree = lifecycle.create(directory, state_dir)
    (tree.path / "README.md").write_text("# Changed\n", encoding="utf-8")
    (tree.path / "new").write_text("new\n", encoding="utf-8")
    assert [file.path for file in tree_changes.diff(tree).files] == ["README.md", "new"]
    tree_changes.apply(tree)
    assert (tree.repository / "README.md").read_text(encoding="utf-8") == "# Changed\n"
    assert (tree.repository / "new").read_text(encoding="utf-8") == "new\n"
    lifecycle.discard(tree)
    assert not tree.path.exists()
    return tree


@pytest.mark.parametrize("name", ["with space", "ünï ☂", "two\nlines", "colon:and\"quote'", "-dash", "…", "$HOME;`x`"])
def test_the_path_may_have_any_name(tmp_path: Path, name: str) -> None:
    main = make_repository(tmp_path / name)
    whole_story(main, tmp_path / f"state of {name}")
    assert git(main, "worktree", "list", "--porcelain").count("worktree ") == 1


def test_a_detached_head(main: Path, state_dir: Path) -> None:
    git(main, "checkout", "--quiet", "--detach")
    whole_story(main, state_dir)


def test_a_linked_worktree_of_the_person(main: Path, state_dir: Path, tmp_path: Path) -> None:
    git(main, "worktree", "add", "--quiet", str(tmp_path / "linked"))
    before = content(main)
    assert whole_story(tmp_path / "linked", state_dir).repository == tmp_path / "linked"
    assert content(main) == before


def test_a_linked_worktree_of_a_bare_repository(main: Path, state_dir: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", str(main), "store.git")
    git(tmp_path / "store.git", "worktree", "add", "--quiet", str(tmp_path / "linked"))
    whole_story(tmp_path / "linked", state_dir)


def test_a_worktree_of_a_worktree_of_ours(tree: Worktree, main: Path, state_dir: Path) -> None:
    before = content(main)
    inner = lifecycle.create(tree.directory, state_dir)
    (inner.path / "new").write_text("n", encoding="utf-8")
    tree_changes.apply(inner)
    assert (tree.path / "new").exists()
    assert content(main) == before
    lifecycle.discard(inner)


def test_a_worktree_of_a_worktree_that_is_gone_leaves_no_branch(tree: Worktree, main: Path, state_dir: Path) -> None:
    inner = lifecycle.create(tree.directory, state_dir)
    lifecycle.discard(tree)
    assert not lifecycle.discard(inner).branch_kept
    assert git(main, "branch", "--format=%(refname:short)").split() == ["main"]


def with_submodule(main: Path, tmp_path: Path) -> None:
    library = make_repository(tmp_path / "library")
    git(main, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    git(main, "commit", "--quiet", "--message=Submodule")


def test_a_repository_with_submodules(main: Path, state_dir: Path, tmp_path: Path) -> None:
    with_submodule(main, tmp_path)
    whole_story(main, state_dir)
    assert git(main, "submodule", "status").startswith(" ")


def test_a_submodule_as_the_repository(main: Path, state_dir: Path, tmp_path: Path) -> None:
    with_submodule(main, tmp_path)
    assert whole_story(main / "lib", state_dir).repository == main / "lib"


def test_a_submodule_that_was_moved_on_is_shown_and_refused(main: Path, state_dir: Path, tmp_path: Path) -> None:
    with_submodule(main, tmp_path)
    tree = lifecycle.create(main, state_dir)
    git(tree.path, "-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init")
    assert tree_changes.diff(tree).files == ()
    git(tree.path / "lib", "commit", "--quiet", "--allow-empty", "--message=Moved on")
    assert [file.path for file in tree_changes.diff(tree).files] == ["lib"]
    with pytest.raises(WorktreeError, match="lib: git repositories of their own"):
        tree_changes.apply(tree)
    lifecycle.discard(tree)
    assert git(main, "submodule", "status").startswith(" ")


def test_a_sparse_checkout(main: Path, state_dir: Path) -> None:
    git(main, "sparse-checkout", "set", "--no-cone", "/README.md", "/new")
    assert not (main / "poem.txt").exists()
    whole_story(main, state_dir)
    assert not (main / "poem.txt").exists()


def test_a_sparse_checkout_gets_what_was_changed_outside_of_it(main: Path, state_dir: Path) -> None:
    git(main, "sparse-checkout", "set", "--no-cone", "/README.md")
    tree = lifecycle.create(main, state_dir)
    git(tree.path, "sparse-checkout", "disable")
    (tree.path / "poem.txt").write_text("changed\n", encoding="utf-8")
    (tree.path / "pack" / "more.txt").write_text("more\n", encoding="utf-8")
    tree_changes.apply(tree)
    assert (main / "poem.txt").read_text(encoding="utf-8") == "changed\n"
    assert (main / "pack" / "more.txt").read_text(encoding="utf-8") == "more\n"
    assert not (main / "run.sh").exists()
    assert {file.path for file in tree_changes.diff_of_directory(main, state_dir=main.with_name("state")).files} == {
        "poem.txt",
        "pack/more.txt",
    }


def keep_pointers(main: Path) -> None:
    """As git-lfs does it: what is committed stands for what is in the working tree."""
    git(main, "config", "filter.rot.clean", "tr a-m n-z")
    git(main, "config", "filter.rot.smudge", "tr n-z a-m")
    (main / ".gitattributes").write_text("*.big filter=rot\n", encoding="utf-8")
    (main / "data.big").write_text("abc\n", encoding="utf-8")
    os.utime(main / "data.big", (1e9, 1e9))  # long ago: git need not look into it again
    git(main, "add", ".")
    git(main, "commit", "--quiet", "--message=Big")


def test_files_kept_as_pointers_are_content_in_both_trees(
    main: Path, state_dir: Path, own_filter: Callable[..., None]
) -> None:
    keep_pointers(main)
    own_filter("rot", clean="tr a-m n-z", smudge="tr n-z a-m")
    tree = lifecycle.create(main, state_dir)
    assert (tree.path / "data.big").read_text(encoding="utf-8") == "abc\n"
    assert tree_changes.diff(tree).files == ()
    (tree.path / "data.big").write_text("bcd\n", encoding="utf-8")
    assert "+opq" in tree_changes.diff(tree).text
    tree_changes.apply(tree)
    assert (main / "data.big").read_text(encoding="utf-8") == "bcd\n"


def test_a_filter_that_only_the_repository_defines_is_not_run_and_nothing_is_corrupted(
    main: Path, state_dir: Path, own_filter: Callable[..., None]
) -> None:
    keep_pointers(main)
    refused = r"data\.big needs the filter 'rot'.*git config --global filter\.rot\.clean"
    with pytest.raises(WorktreeError, match=refused):
        lifecycle.create(main, state_dir)
    assert git(main, "worktree", "list", "--porcelain").count("worktree ") == 1
    (main / "README.md").write_text("# Changed\n", encoding="utf-8")
    assert [file.path for file in tree_changes.diff_of_directory(main, state_dir=main.with_name("state")).files] == [
        "README.md"
    ], "other files are no matter"
    (main / "data.big").write_text("bcd\n", encoding="utf-8")
    with pytest.raises(WorktreeError, match=refused):
        tree_changes.diff_of_directory(main, state_dir=main.with_name("state"))
    own_filter("rot", clean="tr a-m n-z", smudge="tr n-z a-m")
    assert "+opq" in tree_changes.diff_of_directory(main, state_dir=main.with_name("state")).text, (
        "and what to do about it helps"
    )


def test_a_shallow_clone(main: Path, state_dir: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{main}", "shallow")
    whole_story(tmp_path / "shallow", state_dir)


def test_a_split_index_and_a_sha256_repository(tmp_path: Path, state_dir: Path) -> None:
    main = tmp_path / "modern"
    git(tmp_path, "init", "--quiet", "--object-format=sha256", str(main))
    git(main, "config", "core.splitIndex", "true")
    (main / "README.md").write_text("# First\n", encoding="utf-8")
    git(main, "add", ".")
    git(main, "commit", "--quiet", "--message=First")
    whole_story(main, state_dir)


def test_a_worktree_in_the_middle_of_a_merge(tree: Worktree, main: Path) -> None:
    for root, text in ((main, "ours\n"), (tree.path, "theirs\n")):
        (root / "README.md").write_text(text, encoding="utf-8")
        git(root, "commit", "--quiet", "--all", "--message=Side")
    assert git(tree.path, "merge-base", "main", "HEAD").strip() == tree.base
    git(tree.path, "config", "merge.conflictStyle", "merge")
    with pytest.raises(Exception, match="returned non-zero"):
        git(tree.path, "merge", "--quiet", "main")
    (file,) = tree_changes.diff(tree).files
    assert (file.path, file.kind) == ("README.md", "modified")
    assert "<<<<<<<" in tree_changes.diff(tree).text


def test_the_variables_of_a_git_hook_do_not_lead_astray(
    main: Path, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    tree = lifecycle.create(main, state_dir)
    (tree.path / "new").write_text("n", encoding="utf-8")
    tree_changes.apply(tree)
    lifecycle.discard(tree)
    assert (main / "new").exists()
    assert content(other).keys() == {"README.md"}
