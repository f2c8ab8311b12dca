"""Tests of applying a diff to a working tree: completely or not at all, with a real git."""

from __future__ import annotations

import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path, PurePath
from typing import Any

import pytest

from helmsman.base.files import put_file, remove_file
from helmsman.errors import ApplyConflict, DirtyTree, InvalidInput, WorktreeError
from helmsman.git import patches
from helmsman.git.patches import apply_patch, settle_writes
from helmsman.testing import git, make_repository

pytestmark = pytest.mark.needs_git

LINES = "".join(f"line {number}\n" for number in range(1, 21))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Repository with files to change; `tmp_path` may contain spaces."""
    repo = make_repository(tmp_path / "a répo")
    (repo / "lines.txt").write_text(LINES, encoding="utf-8")
    (repo / "old.txt").write_text("old\n", encoding="utf-8")
    (repo / "run.sh").write_text("echo\n", encoding="utf-8")
    (repo / "folder").mkdir()
    (repo / "folder" / "file.txt").write_text("file\n", encoding="utf-8")
    (repo / ".gitignore").write_text("*.log\n", encoding="utf-8")
    commit(repo)
    return repo


def commit(repo: Path) -> None:
    git(repo, "add", "--all")
    git(repo, "commit", "--quiet", "--message=More")


def diff_of(repo: Path) -> str:
    """Return the diff of all changes, and restore the tree."""
    git(repo, "add", "--all")
    diff = git(repo, "diff", "--cached", "--binary", "--full-index")
    git(repo, "reset", "--quiet", "--hard")
    return diff


def snapshot(repo: Path) -> dict[str, bytes]:
    """Return every file of the tree, and the index."""
    files = [path for path in repo.rglob("*") if path.is_file() and ".git" not in path.parts]
    return {str(path): path.read_bytes() for path in files} | {"status": git(repo, "status", "--porcelain").encode()}


def test_every_kind_of_change_arrives(repo: Path) -> None:
    (repo / "lines.txt").write_text(LINES.replace("line 5\n", "five\n"), encoding="utf-8")
    (repo / "old.txt").rename(repo / "folder" / "moved.txt")
    (repo / "README.md").unlink()
    (repo / "ünï code.bin").write_bytes(bytes(range(256)))
    (repo / "empty").touch()
    (repo / "run.sh").chmod(0o755)
    wanted = {path: content for path, content in snapshot(repo).items() if path != "status"}
    diff = diff_of(repo)

    applied = apply_patch(repo, diff, state_dir=repo.with_name("state"))

    assert {path: content for path, content in snapshot(repo).items() if path != "status"} == wanted
    assert (repo / "run.sh").stat().st_mode & stat.S_IXUSR
    assert set(applied.files) == {
        "lines.txt",
        "old.txt",
        "folder/moved.txt",
        "README.md",
        "ünï code.bin",
        "empty",
        "run.sh",
    }
    assert not applied.three_way
    assert git(repo, "diff", "--cached") == ""


def test_a_diff_begins_at_the_root_wherever_one_stands(repo: Path) -> None:
    (repo / "lines.txt").write_text("changed\n", encoding="utf-8")
    diff = diff_of(repo)

    applied = apply_patch(repo / "folder", diff.removesuffix("\n"), state_dir=repo.with_name("state"))

    assert applied.repository == repo
    assert (repo / "lines.txt").read_text(encoding="utf-8") == "changed\n"


def test_a_tree_that_moved_on_is_merged(repo: Path) -> None:
    (repo / "lines.txt").write_text(LINES.replace("line 5\n", "five\n"), encoding="utf-8")
    diff = diff_of(repo)
    (repo / "lines.txt").write_text(LINES.replace("line 8\n", "eight\n"), encoding="utf-8")
    commit(repo)

    applied = apply_patch(repo, diff, state_dir=repo.with_name("state"))

    assert applied.three_way
    merged = LINES.replace("line 5\n", "five\n").replace("line 8\n", "eight\n")
    assert (repo / "lines.txt").read_text(encoding="utf-8") == merged


def test_a_change_from_an_unknown_version_is_a_conflict(repo: Path) -> None:
    before = snapshot(repo)
    diff = "diff --git a/old.txt b/old.txt\n--- a/old.txt\n+++ b/old.txt\n@@ -1 +1 @@\n-something else\n+new\n"

    with pytest.raises(ApplyConflict, match="does not fit") as caught:
        apply_patch(repo, diff, state_dir=repo.with_name("state"))

    assert caught.value.details["conflicts"] == ["old.txt"]
    assert snapshot(repo) == before


def test_a_change_that_is_there_already_is_said_to_be(repo: Path) -> None:
    (repo / "old.txt").write_text("new\n", encoding="utf-8")
    git(repo, "add", "--all")
    diff = git(repo, "diff", "--cached").replace("index ", "index 0", 1)
    commit(repo)

    with pytest.raises(ApplyConflict, match="already"):
        apply_patch(repo, diff, state_dir=repo.with_name("state"))


def test_untracked_files_are_a_reason_to_refuse(repo: Path) -> None:
    (repo / "old.txt").write_text("new\n", encoding="utf-8")
    diff = diff_of(repo)
    (repo / "mine.txt").write_text("mine\n", encoding="utf-8")
    before = snapshot(repo)

    with pytest.raises(DirtyTree) as caught:
        apply_patch(repo, diff, state_dir=repo.with_name("state"))
    assert caught.value.details["files"] == ["mine.txt"]
    assert snapshot(repo) == before

    apply_patch(repo, diff, allow_dirty=True, state_dir=repo.with_name("state"))
    assert (repo / "old.txt").read_text(encoding="utf-8") == "new\n"
    assert (repo / "mine.txt").read_text(encoding="utf-8") == "mine\n"


def test_an_ignored_file_where_a_directory_must_be_is_in_the_way(repo: Path) -> None:
    (repo / "README.md").unlink()
    (repo / "AAA.txt").write_text("new\n", encoding="utf-8")
    (repo / "run.sh").chmod(0o755)
    (repo / "build.log").mkdir()
    (repo / "build.log" / "new.txt").write_text("new\n", encoding="utf-8")
    git(repo, "add", "--force", "build.log/new.txt")
    diff = diff_of(repo)
    (repo / "build.log").write_text("an ignored file where the change has a directory\n", encoding="utf-8")
    before = snapshot(repo)

    with pytest.raises(ApplyConflict, match="not a directory"):
        apply_patch(repo, diff, state_dir=repo.with_name("state"))

    assert snapshot(repo) == before
    assert not (repo / "run.sh").stat().st_mode & stat.S_IXUSR


@pytest.mark.parametrize("name", ["../outside.txt", ".git/hooks/post-commit", "/tmp/x", "folder/../../outside.txt"])
def test_nothing_is_written_outside_the_tree(repo: Path, name: str) -> None:
    diff = f"diff --git a/{name} b/{name}\nnew file mode 100755\n--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+evil\n"

    with pytest.raises(ApplyConflict):
        apply_patch(repo, diff, state_dir=repo.with_name("state"))

    assert not (repo.parent / "outside.txt").exists()
    assert not (repo / ".git" / "hooks" / "post-commit").exists()


def test_hooks_of_the_repository_are_not_run(repo: Path, tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch '{witness}'\n", encoding="utf-8")
    hook.chmod(0o755)
    git(repo, "config", "core.fsmonitor", str(hook))
    (repo / "old.txt").write_text("new\n", encoding="utf-8")
    git(repo, "-c", "core.fsmonitor=false", "add", "--all")
    diff = git(repo, "-c", "core.fsmonitor=false", "diff", "--cached")
    git(repo, "-c", "core.fsmonitor=false", "reset", "--quiet", "--hard")
    witness.unlink(missing_ok=True)

    apply_patch(repo, diff, state_dir=repo.with_name("state"))

    assert not witness.exists()


@pytest.mark.parametrize("diff", ["", "\n", "not a diff\n", "diff --git a/x b/x\n@@ broken"])
def test_an_invalid_diff_is_a_conflict_and_no_crash(repo: Path, diff: str) -> None:
    before = snapshot(repo)
    with pytest.raises(ApplyConflict):
        apply_patch(repo, diff, state_dir=repo.with_name("state"))
    assert snapshot(repo) == before


def test_a_place_without_a_repository_or_a_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not in a git repository"):
        apply_patch(tmp_path, "x", state_dir=tmp_path.with_name("state"))
    git(tmp_path, "init", "--quiet")
    with pytest.raises(InvalidInput, match="no commit"):
        apply_patch(tmp_path, "x", state_dir=tmp_path.with_name("state"))


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from types import SimpleNamespace
from helmsman.git import patches
from helmsman.base import files

def kill_at(left):
    def counted(deed):
        def done(*arguments, **named):
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return deed(*arguments, **named)
        return done
    deeds = ("unlink", "replace", "mkdir", "rmdir", "symlink")
    own = {name: counted(deed) if name in deeds else deed for name, deed in vars(os).items()}
    files.os = SimpleNamespace(**own)
    files.shutil.copyfileobj = counted(shutil.copyfileobj)
    Path.unlink = counted(Path.unlink)

bring = patches._Journal.bring
patches._Journal.bring = lambda journal: (kill_at(int(sys.argv[4])), bring(journal))
patches.apply_patch(Path(sys.argv[1]), Path(sys.argv[2]).read_text("utf-8"), state_dir=Path(sys.argv[3]))
"""


def files_of(repo: Path) -> dict[str, bytes | str]:
    files = (path for path in repo.rglob("*") if ".git" not in path.parts)
    return {
        str(path): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in files
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.rare
def test_a_process_that_is_killed_while_it_writes_leaves_all_or_nothing(repo: Path, tmp_path: Path) -> None:
    """Kill it before every single file operation. The user's changes in between stay."""
    (repo / "lines.txt").write_text(LINES.replace("line 5\n", "five\n"), encoding="utf-8")
    (repo / "README.md").unlink()
    (repo / "folder" / "file.txt").unlink()
    (repo / "folder").rmdir()
    (repo / "folder").symlink_to("deep")
    (repo / "old.txt").unlink()
    (repo / "old.txt").symlink_to("lines.txt")
    (repo / "deep").mkdir()
    (repo / "deep" / "file.txt").write_text("new\n", encoding="utf-8")
    after = files_of(repo)
    diff, state = tmp_path / "diff", tmp_path / "state"
    diff.write_text(diff_of(repo), encoding="utf-8")
    before = files_of(repo)
    seen = []
    for moment in range(100):
        words = [sys.executable, "-c", KILLED, str(repo), str(diff), str(state), str(moment)]
        code = subprocess.run(words, check=False).returncode
        seen.append(files_of(repo))
        if seen[-1] not in (before, after):
            (repo / "lines.txt").write_text("typed since\n", encoding="utf-8")
        settle_writes(state)
        assert list(state.glob("writing-*")) == []
        if code == 0:
            break
        assert code == -signal.SIGKILL
        assert files_of(repo) in (before, after, {**before, str(repo / "lines.txt"): b"typed since\n"})
        git(repo, "reset", "--quiet", "--hard")
        git(repo, "clean", "--quiet", "--force", "-d")
    assert seen[-1] == after
    assert sum(found not in (before, after) for found in seen) > 5, "it was in the middle"


def test_files_that_cannot_be_restored_are_not_lost(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (repo / "lines.txt").write_text("new\n", encoding="utf-8")
    (repo / "old.txt").write_text("new\n", encoding="utf-8")
    diff, state, place = diff_of(repo), tmp_path / "state", patches._Journal._put
    failing = [False, True, True]  # the second file, and putting back the first

    def put(journal: Any, version: Path, where: Path) -> None:
        if failing.pop(0):
            raise OSError("no room")
        place(journal, version, where)

    monkeypatch.setattr(patches._Journal, "_put", put)
    with pytest.raises(WorktreeError, match=r"no room.*not be put back is in"):
        apply_patch(repo, diff, state_dir=state)
    (aside,) = state.glob("not-put-back-*")
    assert (aside / "old" / "0").read_text(encoding="utf-8") == LINES
    assert str(aside) in caplog.text


def test_nothing_is_written_or_removed_behind_a_link_that_appears_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace a directory with a link right after it was checked, like a process that an agent left behind."""
    tree, elsewhere, version = tmp_path / "tree", tmp_path / "elsewhere", tmp_path / "version"
    for folder in (tree / "sub", elsewhere):
        folder.mkdir(parents=True)
    (elsewhere / "mine").write_text("mine\n", encoding="utf-8")
    version.write_text("planted\n", encoding="utf-8")
    copy = shutil.copyfileobj

    def exchange(*files: Any) -> None:
        (tree / "sub").rename(tree / "aside")
        (tree / "sub").symlink_to(elsewhere)
        copy(*files)

    monkeypatch.setattr(shutil, "copyfileobj", exchange)
    put_file(tree, PurePath("sub/mine"), version, beside=".beside", like=tree)
    assert (tree / "aside" / "mine").read_text(encoding="utf-8") == "planted\n"
    with pytest.raises(OSError, match="leads elsewhere"):
        put_file(tree, PurePath("sub/mine"), version, beside=".beside", like=tree)
    with pytest.raises(OSError, match="leads elsewhere"):
        remove_file(tree, PurePath("sub/mine"))
    assert {path.name: path.read_text(encoding="utf-8") for path in elsewhere.iterdir()} == {"mine": "mine\n"}
