"""Tests that git applies the diff made from Codex's file changes."""

from __future__ import annotations

import difflib
import itertools
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helmsman.agents.codex.normalise import from_app_server, path_change
from helmsman.git.diff import read_diff
from helmsman.model.change_diff import file_change_diff
from helmsman.model.events import FileChange, ItemEnded, PathChange

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

GOLDEN = Path(__file__).parents[2] / "golden"


def _apply(folder: Path, diff: str) -> None:
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-"],
        cwd=folder,
        input=diff.encode(),
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr.decode()}\n{diff}"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def _read(path: Path) -> str:
    return path.read_bytes().decode()


def _hunks(old: str, new: str) -> str:
    """Return the hunks like Codex: a unified diff without its file headers."""
    lines = itertools.islice(difflib.unified_diff(_lines(old), _lines(new), n=1), 2, None)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    *lines, last = text.split("\n")
    return [f"{line}\n" for line in lines] + ([last] if last else [])


@pytest.mark.parametrize(
    "content", ["one\n", "one\ntwo\n", "no newline at the end", "", "\n\n", "cr\r\nlf\r\n", "+\n-\n"]
)
def test_an_added_file_is_applied(tmp_path: Path, content: str) -> None:
    change = PathChange(path=str(tmp_path / "folder" / "new.txt"), kind="add", diff=content)
    _apply(tmp_path, file_change_diff([change], str(tmp_path)))
    assert _read(tmp_path / "folder" / "new.txt") == content


@pytest.mark.parametrize("content", ["one\n", "one\ntwo\n", "no newline at the end", ""])
def test_a_deleted_file_is_applied(tmp_path: Path, content: str) -> None:
    _write(tmp_path / "gone.txt", content)
    change = PathChange(path=str(tmp_path / "gone.txt"), kind="delete", diff=content)
    _apply(tmp_path, file_change_diff([change], str(tmp_path)))
    assert not (tmp_path / "gone.txt").exists()


@pytest.mark.parametrize(
    "name", ["plain.txt", "with space.txt", "größe.txt", 'quo"te.txt', "back\\slash.txt", "tab\there.txt", "-dash.txt"]
)
def test_a_changed_file_of_any_name_is_applied(tmp_path: Path, name: str) -> None:
    old, new = "one\ntwo\nthree\n", "one\nTWO\nthree\nfour\n"
    _write(tmp_path / name, old)
    change = PathChange(path=str(tmp_path / name), kind="update", diff=_hunks(old, new))
    _apply(tmp_path, file_change_diff([change], str(tmp_path)))
    assert _read(tmp_path / name) == new


@pytest.mark.parametrize("name", ["moved.txt", "a folder/moved here.txt", 'quo"te.txt'])
@pytest.mark.parametrize("new", ["one\ntwo\n", "one\nTWO\n"])
def test_a_moved_file_is_applied(tmp_path: Path, name: str, new: str) -> None:
    old = "one\ntwo\n"
    _write(tmp_path / "old name.txt", old)
    change = PathChange(
        path=str(tmp_path / "old name.txt"),
        kind="update",
        moved_to=str(tmp_path / name),
        diff=_hunks(old, new),
    )
    _apply(tmp_path, file_change_diff([change], str(tmp_path)))
    assert not (tmp_path / "old name.txt").exists()
    assert _read(tmp_path / name) == new


texts = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\x00"), max_size=6), max_size=6).map(
    "\n".join
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(old=texts, new=texts)
def test_any_change_of_text_is_applied(tmp_path: Path, old: str, new: str) -> None:
    file = tmp_path / "file.txt"
    _write(file, old)
    change = PathChange(path=str(file), kind="update", diff=_hunks(old, new))
    if old != new:
        _apply(tmp_path, file_change_diff([change], str(tmp_path)))
    assert _read(file) == new


def test_several_changes_make_one_diff(tmp_path: Path) -> None:
    _write(tmp_path / "a.txt", "a\n")
    _write(tmp_path / "b.txt", "b\n")
    changes = [
        PathChange(path=str(tmp_path / "a.txt"), kind="update", diff=_hunks("a\n", "A\n")),
        PathChange(path=str(tmp_path / "b.txt"), kind="delete", diff="b\n"),
        PathChange(path=str(tmp_path / "c.txt"), kind="add", diff="c\n"),
    ]
    _apply(tmp_path, file_change_diff(changes, str(tmp_path)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "c.txt"]


@pytest.mark.parametrize(
    "recording", sorted(GOLDEN.glob("*/app-server-patch.jsonl")), ids=lambda path: path.parent.name
)
def test_the_patch_of_a_real_codex_is_applied(tmp_path: Path, recording: Path) -> None:
    for name in ("changed.txt", "moved.txt", "gone.txt"):
        _write(tmp_path / name, "one\ntwo\nthree\n")
    messages = [json.loads(line) for line in recording.read_text(encoding="utf-8").splitlines()]
    events = [from_app_server(message["method"], message["params"]) for message in messages]
    patches = [event.item for event in events if isinstance(event, ItemEnded) and isinstance(event.item, FileChange)]
    _apply(tmp_path, file_change_diff(patches[-1].changes, "/repo"))
    assert {path.name: _read(path) for path in tmp_path.iterdir()} == {
        "new.txt": "hello\nworld\n",
        "changed.txt": "one\nTWO\nthree\n",
        "renamed.txt": "one\nTWO\nthree\n",
    }


def test_the_sentence_about_a_move_is_no_part_of_the_diff() -> None:
    raw = {
        "path": "/r/old.txt",
        "kind": {"type": "update", "move_path": "/r/new.txt"},
        "diff": "@@ -1 +1 @@\n-a\n+b\n\n\nMoved to: /r/new.txt",
    }
    assert path_change(raw) == PathChange(
        path="/r/old.txt", kind="update", moved_to="/r/new.txt", diff="@@ -1 +1 @@\n-a\n+b\n", added=1, removed=1
    )


def test_lines_are_counted_by_what_they_are_in_the_file() -> None:
    assert path_change({"kind": {"type": "add"}, "diff": "- not removed\nlast"}).added == 2
    update = path_change({"kind": {"type": "update"}, "diff": "@@ -1,2 +1 @@\n---- a rule\n-two\n+++ plus\n"})
    assert (update.added, update.removed) == (1, 2)


def test_without_a_diff_nothing_is_counted() -> None:
    change = path_change({"path": "a.txt", "kind": "add"})
    assert (change.kind, change.added, change.removed) == ("add", None, None)


def test_paths_outside_the_directory_keep_their_whole_name() -> None:
    diff = file_change_diff([PathChange(path="/etc/hosts", kind="add", diff="x\n")], "/repo")
    assert "+++ b//etc/hosts\n" in diff
    assert read_diff(diff)[0].path == "/etc/hosts"


@pytest.mark.parametrize("path", ["/repo/../etc/hosts", "/repository/x", "/etc/repo/x"])
def test_only_what_lies_in_the_directory_is_distinguished_from_there(path: str) -> None:
    diff = file_change_diff([PathChange(path=path, kind="add", diff="x\n")], "/repo")
    assert read_diff(diff)[0].path.startswith("/")


def test_git_does_not_apply_a_path_outside_to_a_file_inside(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    diff = file_change_diff([PathChange(path=str(outside / "new.txt"), kind="add", diff="x\n")], str(inside))
    with pytest.raises(AssertionError, match="invalid path"):
        _apply(inside, diff)
    assert (list(inside.iterdir()), outside.exists()) == ([], False)


def test_windows_paths_become_relative_too() -> None:
    diff = file_change_diff([PathChange(path="C:\\repo\\src\\a.txt", kind="add", diff="x\n")], "C:\\repo")
    assert "+++ b/src/a.txt\n" in diff
