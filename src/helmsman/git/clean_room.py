"""Clean rooms: fresh checkouts in the state directory in which checks run.

An agent's work is written as one tree object. The room then contains the files of exactly one tree: that one, the base,
or a mixture. Nothing is copied from the agent's worktree, and no agent's sandbox may write to the state directory, so
leftover processes, ignored files, renamed directories and nested repositories cannot affect a check.

Each run starts with a fresh checkout, which removes the files of the previous run. Files installed by a set-up command
stay. They are compared by inode and change time, and the room is rebuilt if one of them changed.

Access times show the order in which a check first reads files, without privileges: with `relatime`, the first read
after a write updates them. `reads` is None if the file system does not record reads.

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

from helmsman.base.files import clear_abandoned, temporary_directory
from helmsman.base.structs import replace
from helmsman.git.command import Git
from helmsman.git.included_files import include
from helmsman.git.lifecycle import remove_folder
from helmsman.git.patches import one_at_a_time
from helmsman.git.snapshot import scratch, take_snapshot
from helmsman.git.tree_changes import TreeDiff, check_present, compare

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from helmsman.git.worktree import Worktree

_FILE_MODES: Final = ("100644", "100755", "120000")
_TICK_SECONDS: Final = 0.02
"""Longer than a tick of the kernel's clock for file times, so that a read differs from the preceding write."""
_GIT: Final = ".git"

_About = tuple[int, int, int, int]


class CleanRoom:
    """Directory with the files of one tree at a time. Created by `open_room`.

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
        """Directory of the room."""
        return self._git.work_tree

    def begin(self) -> None:
        """Empty the room and write the base, plus files that `.worktreeinclude` names in the user's checkout.

        Raises:
            WorktreeError: A file cannot be written.
        """
        self._installed, self.is_set_up = {}, False
        remove_contents(self.path)
        self._write(self.base)
        include(replace(self.worktree, path=self.path))

    def put(self, tree: str) -> bool:
        """Write the files of a tree to the room, next to the installed files.

        Returns False, and writes nothing, if an installed file has changed; call `begin` again.

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
        """Mark all files in the room that are not in its tree as installed, so that they stay."""
        tracked = {*self._git.names("ls-files", "-z")}
        self._installed = {path: about for path, about in _walk(self.path) if path not in tracked}
        self.is_set_up = True

    @property
    def installed(self) -> frozenset[str]:
        """Files from the set-up or from the user's checkout."""
        return frozenset(self._installed)

    def reads(self) -> tuple[str, ...] | None:
        """Return the files of the tree that were read since they were written, in order of their first read.

        None if the file system does not record reads.
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
        """Remove all files except installed ones; return whether those are unchanged."""
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
        """Return `on` with changed files: from another tree, with new content, or removed."""
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
                # Mode 0 removes a path from the index.
                removed.append(_index_line("0", "0" * len(on), path))
            else:
                entries.append(_index_line(mode, blob, path))
        self._git.run("read-tree", "--reset", on)
        # A link may have to be removed before files of a directory with its name are added.
        for lines in (removed, entries):
            if lines:
                self._git.run("update-index", "-z", "--replace", "--index-info", stdin=b"".join(lines))
        return self._git.text("write-tree")

    def content(self, tree: str, path: str) -> bytes | None:
        """Return the content of a file in a tree; None if there is no such file."""
        mode, blob = self.entry(tree, path)
        return None if mode not in _FILE_MODES else self._git.run("cat-file", "blob", blob).output

    def tree_of(self, commit: str) -> str:
        """Return the tree of a commit.

        Raises:
            WorktreeError: There is no such commit.
        """
        return self._git.text("rev-parse", "--verify", f"{commit}^{{tree}}")

    def links(self, tree: str) -> dict[str, str]:
        """Return the symbolic links of a tree with their targets, relative to its root; `/` or `..` lead outside."""
        found: dict[str, str] = {}
        for entry in self._git.names("ls-tree", "-r", "-z", tree):
            about, _, path = entry.partition("\t")
            if about.startswith(_FILE_MODES[2]):
                leads = os.fsdecode(self._git.run("cat-file", "blob", about.split()[2]).output)
                found[path] = posixpath.normpath(posixpath.join(posixpath.dirname(path), leads))
        return found

    def files(self, tree: str) -> dict[str, str]:
        """Return all files of a tree, with their modes."""
        entries = (entry.partition("\t") for entry in self._git.names("ls-tree", "-r", "-z", tree))
        return {path: about.split()[0] for about, _, path in entries}

    def changed(self, before: str, after: str) -> dict[str, str]:
        """Return the files that differ between two trees, with `A`, `M`, `D` or `T`. Renames are not detected."""
        listed = self._git.names("diff-tree", "-r", "-z", "--name-status", "--no-renames", before, after)
        return dict(zip(listed[1::2], listed[::2], strict=True))

    def patch(self, before: str, after: str, *paths: str) -> str:
        """Return the diff of two trees without context, for these files or for all."""
        options = ("-r", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--patch", "--unified=0")
        prefixes = ("--src-prefix=a/", "--dst-prefix=b/")
        output = self._git.run("diff-tree", *options, *prefixes, before, after, "--", *map(_literal, paths)).output
        return output.decode("utf-8", "replace")

    def naming(self, tree: str, word: str) -> tuple[str, ...]:
        """Return the files of a tree that contain a word."""
        # Exits with 1 if no file contains the word, and puts `TREE:` before each name.
        asked = ("grep", "--name-only", "-z", "--word-regexp", "--fixed-strings", "-I", "-e", word, tree)
        listed = self._git.run(*asked, accept=(0, 1)).output.split(b"\0")
        return tuple(os.fsdecode(one.partition(b":")[2]) for one in listed if one)

    def entry(self, tree: str, path: str) -> tuple[str | None, str]:
        """Return mode and object of a path in a tree; the mode is None if the path does not exist."""
        # `MODE TYPE OBJECT<tab>PATH`, or nothing.
        found = self._git.run("ls-tree", "-z", tree, "--", _literal(path)).output.partition(b"\t")[0].split()
        return (found[0].decode(), found[2].decode()) if len(found) == 3 else (None, "")


@contextmanager
def open_room(tree: Worktree) -> Iterator[CleanRoom]:
    """Create a clean room for the current content of a worktree, for the length of the block.

    Raises:
        WorktreeError: The worktree is gone, git cannot read it, or the room cannot be created.
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
            # Git in a check sees the base as committed and the change as uncommitted.
            room.run("read-tree", "--reset", "HEAD")
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
    """Remove git's records of rooms of killed processes."""
    clear_abandoned(state_dir)
    for record in (common_dir / "worktrees").glob("*-room-*"):
        with suppress(OSError, UnicodeDecodeError):
            room = Path((record / "gitdir").read_text(encoding="utf-8").rstrip("\n"))
            if not record.is_symlink() and room.is_relative_to(state_dir) and not room.exists():
                shutil.rmtree(record)


def remove_contents(folder: Path) -> None:
    """Empty a room, except for its link to the repository."""
    for one in folder.iterdir():
        if one.name == _GIT:
            continue
        if one.is_dir() and not one.is_symlink():
            remove_folder(one)
        else:
            one.unlink()


def _walk(root: Path) -> Iterator[tuple[str, _About]]:
    """Yield all files below a directory except the top-level `.git`, with values that change when a file does."""
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
                # A program can set the modification time of a file back, but not its change time.
                yield path, (status.st_ino, status.st_mode, status.st_size, status.st_ctime_ns)


def _records_reads(folder: Path) -> bool:
    """Return whether reading a file updates its access time."""
    probe = folder / f"probe-{uuid.uuid4().hex}"
    try:
        probe.write_bytes(b"probe")
        # Older than the last write: only then does `relatime` record the next read.
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
