"""Whatever is done in a worktree, the main tree has the same content once it is applied."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helmsman.errors import ApplyConflict
from helmsman.git import lifecycle, tree_changes
from helmsman.testing.repository import git
from tests.fuzz.effort import fuzzed
from tests.git.contents import content, everything

pytestmark = [pytest.mark.needs_git, pytest.mark.rare]

names = st.sampled_from(
    ["a", "b", "with space", "ünï", "-dash", 'quo"te', "new\nline", "back\\slash", "tab\t", "*", "#x"]
)
"""Few, so that edits meet."""

paths = st.lists(names, min_size=1, max_size=3).map("/".join)
lines = st.lists(st.sampled_from([b"one", b"two", b"three\r", b"", b"\xff\xfe", b"<<<<<<< x"]), max_size=12)
contents = (
    lines.map(b"\n".join)
    | lines.map(lambda some: b"".join(line + b"\n" for line in some))
    | st.binary(max_size=40)
    | st.just(b"")
)

edits = st.one_of(
    st.tuples(st.just("write"), paths, contents),
    st.tuples(st.just("append"), paths, contents),
    st.tuples(st.just("rename"), paths, paths),
    st.tuples(st.just("link"), paths, paths),
    st.tuples(st.just("delete"), paths),
    st.tuples(st.just("executable"), paths, st.booleans()),
    st.tuples(st.just("stage")),
    st.tuples(st.just("commit")),
)


def clear(root: Path, path: Path) -> None:
    """Make room for a file: nothing at its place, nothing but directories above it."""
    for place in (*reversed(path.relative_to(root).parents), path.relative_to(root)):
        here = root / place
        if here.is_symlink() or here.is_file():
            here.unlink()
        elif here == path and here.is_dir():
            shutil.rmtree(here)
    path.parent.mkdir(parents=True, exist_ok=True)


def do(root: Path, edit: tuple[object, ...]) -> None:
    match edit:
        case ("write", str(name), bytes(text)):
            clear(root, root / name)
            (root / name).write_bytes(text)
        case ("append", str(name), bytes(text)) if (root / name).is_file():
            (root / name).write_bytes((root / name).read_bytes() + text)
        case ("rename", str(name), str(new)) if (root / name).is_file() and not new.startswith(name + "/"):
            kept = (root / name).read_bytes()
            (root / name).unlink()
            clear(root, root / new)
            (root / new).write_bytes(kept)
        case ("link", str(name), str(target)):
            clear(root, root / name)
            (root / name).symlink_to(target)
        case ("delete", str(name)) if (root / name).is_symlink() or (root / name).is_file():
            (root / name).unlink()
        case ("executable", str(name), bool(executable)) if (root / name).is_file():
            (root / name).chmod(0o755 if executable else 0o644)
        case ("stage",):
            git(root, "add", "--all")
        case ("commit",):
            git(root, "add", "--all")
            git(root, "commit", "--quiet", "--allow-empty", "--message=Some")


@fuzzed(12)
@given(before=st.lists(edits, max_size=6), after=st.lists(edits, max_size=10))
@example(before=[], after=[("write", "a/a", b""), ("stage",), ("write", "a", b""), ("link", "a", "a")])
def test_the_main_tree_gets_the_content_of_the_worktree(
    before: list[tuple[object, ...]], after: list[tuple[object, ...]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        main = Path(folder) / "main"
        git(Path(folder), "init", "--quiet", str(main))
        for edit in (*before, ("commit",)):
            do(main, edit)
        index = (main / ".git" / "index").read_bytes()
        tree = lifecycle.create(main, Path(folder) / "state")
        for edit in after:
            do(tree.path, edit)
        diff = tree_changes.diff(tree)
        assert tree_changes.apply(tree).files == diff.files
        assert content(main) == content(tree.path)
        assert tree_changes.diff_of_directory(main, state_dir=main.with_name("state")) == diff
        assert (main / ".git" / "index").read_bytes() == index
        lifecycle.discard(tree)


@fuzzed(12)
@given(
    before=st.lists(edits, max_size=6),
    after=st.lists(edits, max_size=6),
    meanwhile=st.lists(edits, max_size=6),
    committed=st.booleans(),
)
def test_applying_onto_a_tree_that_moved_on_is_all_or_nothing(
    before: list[tuple[object, ...]],
    after: list[tuple[object, ...]],
    meanwhile: list[tuple[object, ...]],
    *,
    committed: bool,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        main = Path(folder) / "main"
        git(Path(folder), "init", "--quiet", str(main))
        for edit in (*before, ("commit",)):
            do(main, edit)
        tree = lifecycle.create(main, Path(folder) / "state")
        for edit in after:
            do(tree.path, edit)
        for edit in (*meanwhile, *([("commit",)] if committed else [])):
            do(main, edit)
        found = everything(main)
        try:
            applied = tree_changes.apply(tree, allow_dirty=True)
        except ApplyConflict:
            assert everything(main) == found
        else:
            touched = {file.path for file in applied.files} | {file.old_path for file in applied.files}
            before_and_after = found[0].items() ^ content(main).items()
            assert {path for path, _ in before_and_after} <= touched
            assert everything(main)[1:] == found[1:]
        lifecycle.discard(tree)
