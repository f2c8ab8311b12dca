"""Clean rooms: a fresh checkout in the state directory in which checks run.

An agent's work is written as one tree object. The room then gets the files of exactly one tree at a time: that one, the
base, or a mixture of both. Nothing is copied from the agent's worktree, and no sandbox of an agent may write to the state
directory, so leftover processes, ignored files, renamed directories and nested repositories have no effect on a check.

What a check leaves in the room is removed before the next one: each run begins with a fresh checkout. Files that a set-up
command installed stay, and are compared by inode and change time; the room is made anew if one of them changed.

The order in which a check first reads files is told by their access times, which need no privileges: with `relatime` the
first read after a write updates them. Where a file system does not record reads, `reads` is None.

All functions block; call them in threads.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import stat
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.git import Git
from helmsman.base.patches import one_at_a_time
from helmsman.base.snapshot import scratch, take_snapshot
from helmsman.base.structs import replace
from helmsman.base.temporary import clear_abandoned, temporary_directory
from helmsman.worktrees.changes import TreeDiff, check_present, compare
from helmsman.worktrees.included_files import include
from helmsman.worktrees.lifecycle import remove_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from helmsman.worktrees.records import Worktree

_FILE_MODES: Final = ("100644", "100755", "120000")
_TICK_SECONDS: Final = 0.02
"""More than the kernel's clock for file times needs to advance, so that a read differs from the write before it."""
_GIT: Final = ".git"

_About = tuple[int, int, int, int]


class CleanRoom:
    """A directory that holds the files of one tree at a time. Made by `open_room`.

    `now` is the tree of the agent's work, `base` that of the commit it began with, `change` their difference.
    """

    def __init__(self, git: Git, tree: Worktree, now: str, change: TreeDiff) -> None:
        self._git = git
        self.worktree = tree
        self.now = now
        self.change = change
        self.base = git.text("rev-parse", "--verify", f"{tree.base}^{{tree}}")
        self._installed: dict[str, _About] = {}
        self.is_set_up = False

    @property
    def path(self) -> Path:
        """The directory of the room."""
        return self._git.work_tree

    def begin(self) -> None:
        """Have the files of the base in an empty room, and what `.worktreeinclude` names of the user's checkout.

        Raises:
            WorktreeError: A file cannot be written.
        """
        self._installed, self.is_set_up = {}, False
        remove_contents(self.path)
        self._write(self.base)
        include(replace(self.worktree, path=self.path))

    def put(self, tree: str) -> bool:
        """Have the files of a tree in the room, freshly written, beside what was installed.

        Returns False, and writes nothing, if what was installed is not what it was: `begin` again.

        Raises:
            WorktreeError: A file cannot be written.
        """
        if not self.is_set_up or not self._clear():
            return False
        self._write(tree)
        time.sleep(_TICK_SECONDS)
        return True

    def _write(self, tree: str) -> None:
        self._git.run("read-tree", "--reset", tree)
        self._git.run("checkout-index", "--all", "--force", "--quiet")

    def keep_installed(self) -> None:
        """Note all files that are in the room and not in its tree as installed: they stay there."""
        tracked = {*self._git.names("ls-files", "-z")}
        self._installed = {path: about for path, about in _walk(self.path) if path not in tracked}
        self.is_set_up = True

    @property
    def installed(self) -> frozenset[str]:
        """The files that came with the set-up, or from the user's checkout."""
        return frozenset(self._installed)

    def reads(self) -> tuple[str, ...] | None:
        """The files of the tree that were read since they were written, in the order of their first reads; None where the
        file system does not record that.
        """
        if not _records_reads(self.path.parent):
            return None
        found: list[tuple[int, str]] = []
        for path in self._git.names("ls-files", "-z"):
            with suppress(OSError):
                status = (self.path / path).lstat()
                if stat.S_ISREG(status.st_mode) and status.st_atime_ns > status.st_mtime_ns:
                    found.append((status.st_atime_ns, path))
        return tuple(path for _, path in sorted(found))

    def _clear(self) -> bool:
        """Remove all but what was installed; whether that is still what it was."""
        there = dict(_walk(self.path))
        if any(there.get(path) != about for path, about in self._installed.items()):
            return False
        for path in there.keys() - self._installed.keys():
            with suppress(FileNotFoundError):
                (self.path / path).unlink()
        for folder, _, _ in os.walk(self.path, topdown=False):
            if Path(folder) != self.path and not Path(folder).is_symlink():
                with suppress(OSError):
                    Path(folder).rmdir()  # installed files may be in it
        return True

    # --- trees -------------------------------------------------------------------------------------------------------

    def mixed(self, on: str, changes: Mapping[str, str | bytes | None]) -> str:
        """A tree like `on` with some files changed: as another tree has them, with other content, or removed."""
        removed: list[bytes] = []
        entries: list[bytes] = []
        for path, source in changes.items():
            if isinstance(source, bytes):
                mode, blob = self.entry(on, path)
                blob = self._git.run("hash-object", "-w", "--stdin", stdin=source).output.decode().strip()
                entries.append(_index_line(mode or _FILE_MODES[0], blob, path))
                continue
            mode, blob = (None, "") if source is None else self.entry(source, path)
            if mode is None:
                removed.append(_index_line("0", "0" * len(on), path))
            else:
                entries.append(_index_line(mode, blob, path))
        self._git.run("read-tree", "--reset", on)
        for lines in (removed, entries):  # a link may have to go before the files of a folder can come back
            if lines:
                self._git.run("update-index", "-z", "--replace", "--index-info", stdin=b"".join(lines))
        return self._git.text("write-tree")

    def content(self, tree: str, path: str) -> bytes | None:
        """The content of a file in a tree; None where there is no such file."""
        mode, blob = self.entry(tree, path)
        return None if mode not in _FILE_MODES else self._git.run("cat-file", "blob", blob).output

    def tree_of(self, commit: str) -> str:
        """The tree of a commit.

        Raises:
            WorktreeError: There is no such commit.
        """
        return self._git.text("rev-parse", "--verify", f"{commit}^{{tree}}")

    def links(self, tree: str) -> dict[str, str]:
        """The symbolic links of a tree, and where they lead, from its root; what leads outside begins with `/` or `..`."""
        found: dict[str, str] = {}
        for entry in self._git.names("ls-tree", "-r", "-z", tree):
            about, _, path = entry.partition("\t")
            if about.startswith(_FILE_MODES[2]):
                leads = os.fsdecode(self._git.run("cat-file", "blob", about.split()[2]).output)
                found[path] = posixpath.normpath(posixpath.join(posixpath.dirname(path), leads))
        return found

    def files(self, tree: str) -> dict[str, str]:
        """All files of a tree, each with its mode."""
        entries = (entry.partition("\t") for entry in self._git.names("ls-tree", "-r", "-z", tree))
        return {path: about.split()[0] for about, _, path in entries}

    def changed(self, before: str, after: str) -> dict[str, str]:
        """The files in which two trees differ, each with `A`, `M`, `D` or `T`. A rename is a deletion and an addition."""
        listed = self._git.names("diff-tree", "-r", "-z", "--name-status", "--no-renames", before, after)
        return dict(zip(listed[1::2], listed[::2], strict=True))

    def patch(self, before: str, after: str, *paths: str) -> str:
        """The diff of two trees, without context: of these files, or of all."""
        options = ("-r", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--patch", "--unified=0")
        prefixes = ("--src-prefix=a/", "--dst-prefix=b/")
        output = self._git.run("diff-tree", *options, *prefixes, before, after, "--", *map(_literal, paths)).output
        return output.decode("utf-8", "replace")

    def naming(self, tree: str, word: str) -> tuple[str, ...]:
        """The files of a tree that have a word."""
        asked = ("grep", "--name-only", "-z", "--word-regexp", "--fixed-strings", "-I", "-e", word, tree)
        listed = self._git.run(*asked, accept=(0, 1)).output.split(b"\0")
        return tuple(os.fsdecode(one.partition(b":")[2]) for one in listed if one)

    def entry(self, tree: str, path: str) -> tuple[str | None, str]:
        """The mode and the object of a path in a tree; None where there is none."""
        found = self._git.run("ls-tree", "-z", tree, "--", _literal(path)).output.partition(b"\t")[0].split()
        return (found[0].decode(), found[2].decode()) if len(found) == 3 else (None, "")


@contextmanager
def open_room(tree: Worktree) -> Iterator[CleanRoom]:
    """Make a clean room for what is in a worktree now; it is gone after the block.

    Raises:
        WorktreeError: The worktree is gone, or git cannot read it, or the room cannot be made.
    """
    check_present(tree)
    main = tree.main_git
    with temporary_directory(tree.state_dir, "room") as folder:
        name = f"{tree.name}-room-{uuid.uuid4().hex[:8]}"
        path = Path(folder) / name
        room = Git(work_tree=path, git_dir=main.common_dir / "worktrees" / name, place=tree.state_dir)
        try:
            with one_at_a_time(main):
                _forget_abandoned(main.common_dir, tree.state_dir)
                main.run_unviewed("worktree", "add", "--quiet", "--no-checkout", "--detach", str(path), tree.base)
            room.run("read-tree", "--reset", "HEAD")  # git in a check sees the base committed, and the change not
            with scratch(tree.own_git) as own, scratch(room, own.objects) as git:
                snapshot = take_snapshot(own, tree.included)
                change = compare(own, tree.base, snapshot.tree, snapshot)
                yield CleanRoom(git, tree, snapshot.tree, change)
        finally:
            with one_at_a_time(main):
                close_room(path, room.git_dir)


def close_room(path: Path, git_dir: Path) -> None:
    """Remove a room and git's record of it."""
    remove_folder(path)
    remove_folder(git_dir)
    with suppress(OSError):
        git_dir.parent.rmdir()


def _forget_abandoned(common_dir: Path, state_dir: Path) -> None:
    """Remove git's records of rooms whose process was killed."""
    clear_abandoned(state_dir)
    for record in (common_dir / "worktrees").glob("*-room-*"):
        with suppress(OSError, UnicodeDecodeError):
            room = Path((record / "gitdir").read_text(encoding="utf-8").rstrip("\n"))
            if not record.is_symlink() and room.is_relative_to(state_dir) and not room.exists():
                shutil.rmtree(record)


def remove_contents(folder: Path) -> None:
    """Empty a room, but for its link to the repository."""
    for one in folder.iterdir():
        if one.name == _GIT:
            continue
        if one.is_dir() and not one.is_symlink():
            remove_folder(one)
        else:
            one.unlink()


def _walk(root: Path) -> Iterator[tuple[str, _About]]:
    """All files below a directory but `.git` at its top, each with what changes when the file does."""
    folders = [""]
    while folders:
        below = folders.pop()
        with os.scandir(root / below) as entries:
            for entry in entries:
                path = f"{below}{entry.name}"
                if path == _GIT:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{path}/")
                    continue
                status = entry.stat(follow_symlinks=False)
                yield path, (status.st_ino, status.st_mode, status.st_size, status.st_ctime_ns)


def _records_reads(folder: Path) -> bool:
    """Whether reading a file is seen by its access time."""
    probe = folder / f"probe-{uuid.uuid4().hex}"
    try:
        probe.write_bytes(b"probe")
        os.utime(probe, ns=(0, time.time_ns()))
        probe.read_bytes()
        return probe.stat().st_atime_ns > 0
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)


def _index_line(mode: str, blob: str, path: str) -> bytes:
    return f"{mode} {blob}\t".encode() + os.fsencode(path) + b"\0"


def _literal(path: str) -> str:
    return f":(literal){path}"
