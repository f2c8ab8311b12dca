"""A worktree with other files in it for a while, so that a check runs where its dependencies are; then as it was.

A check depends on what git knows nothing of: installed packages, generated files, paths that a set-up wrote down. So it
runs in the session's own worktree, and the files that git knows are what is exchanged. What was there is written down
first, in the state directory, which nothing in a sandbox can reach. While other files stand there, and should the process
be killed then, `diff` and `apply` tell of what was written down; whoever adopts the worktree next puts it back. What git
does not know and an agent made is no part of its change, so it can be set aside as well.

Nobody else may work in the worktree meanwhile. All of it blocks; call it in threads.
"""

from __future__ import annotations

import os
import posixpath
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from helmsman.base.files import replace_file
from helmsman.base.snapshot import Snapshot, nul_separated, scratch, take_snapshot
from helmsman.errors import WorktreeError
from helmsman.worktrees.records import claim, lent_to

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from helmsman.base.git import Git
    from helmsman.worktrees.records import Worktree

_TREE: Final = "tree"
_ASIDE: Final = "aside"
_lent: set[Path] = set()
"""What is lent in this process."""
_FILE_MODES: Final = ("100644", "100755", "120000")


class Lent:
    """A worktree whose files may be exchanged. Made by `lend`. `now` is the tree of what was in it, `base` that of the
    commit it began with.
    """

    def __init__(self, git: Git, tree: Worktree, now: str, nested: Sequence[str] = ()) -> None:
        self._git = git
        self._nested = nested
        self.worktree = tree
        self.now = now
        self.base = git.text("rev-parse", "--verify", f"{tree.base}^{{tree}}")
        self._stands = now

    def put(self, wanted: str) -> None:
        """Have the files of this tree in the worktree. What git does not know stays where it is.

        Raises:
            WorktreeError: A file cannot be written.
        """
        self._read(self._stands)
        touched = {*self._git.names("ls-files", "-z", "--modified", "--deleted")}
        touched |= {*self._git.names("diff-tree", "-r", "-z", "--name-only", "--no-renames", self._stands, wanted)}
        self._read(wanted)
        there = {*self._git.names("ls-files", "-z")}
        for path in sorted(touched - there, reverse=True):
            self._remove(path)
        self._write(touched & there)
        self._stands = wanted

    def give_back(self) -> None:
        """Have in it what was there, and nothing that came since."""
        self.put(self.now)
        self.recover()

    def recover(self) -> None:
        """The same, where nobody knows what stands in it."""
        self._read(self.now)
        self._write(self._git.names("ls-files", "-z", "--modified", "--deleted"))
        self._stands = self.now
        for path in self._git.names("ls-files", "-z", "--others", "--exclude-standard"):
            if not path.endswith("/") and path not in self.worktree.included:
                self._remove(path)
        try:
            _move_back(lent_to(self.worktree) / _ASIDE, self.worktree.path)
        except OSError as error:
            raise WorktreeError(f"What was set aside of {self.worktree.path} cannot be put back: {error}.") from error

    def set_aside(self, moment: float) -> tuple[str, ...]:
        """Take away until the end what git does not know and was made or changed after a moment (seconds since 1970): it
        would not be applied, so nothing may depend on it.

        Raises:
            WorktreeError: A file cannot be moved.
        """
        found = tuple(self.unknown_since(moment))
        for path in found:
            kept = lent_to(self.worktree) / _ASIDE / path
            try:
                kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                shutil.move(self.worktree.path / path, kept)
            except OSError as error:
                raise WorktreeError(f"{path} cannot be set aside for a check: {error}. Remove it by hand.") from error
        return found

    def _read(self, tree: str) -> None:
        """Have a tree in the index, with what is known of its files: or git would have to read all of them each time."""
        self._git.run("read-tree", "-m", "-i", tree)

    def _write(self, paths: Collection[str]) -> None:
        if paths:
            self._git.run("checkout-index", "--force", "-u", "--quiet", "-z", "--stdin", stdin=nul_separated(paths))

    def _remove(self, path: str) -> None:
        here = self.worktree.path / path
        if any(parent.is_symlink() for parent in here.parents if parent.is_relative_to(self.worktree.path)):
            return
        try:
            with suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
                here.unlink()
            for parent in here.parents:
                if parent == self.worktree.path:
                    break
                parent.rmdir()
        except PermissionError as error:
            raise WorktreeError(f"{here} cannot be removed: {error.strerror}. Remove it by hand.") from error
        except OSError:
            return  # something else is in the directory

    def drop_bytecode(self) -> None:
        """Remove what Python would run in place of the sources, if it says that it need not be compared with them."""
        folders = {posixpath.dirname(path) for path in self._git.names("ls-files", "-z") if path.endswith(".py")}
        for path in self._git.names("ls-files", "-z", "--others", "--", "*.pyc"):
            folder, name = posixpath.split(posixpath.dirname(path))
            if name == "__pycache__" and folder in folders:
                self._remove(path)

    def unknown_since(self, moment: float) -> list[str]:
        """The files that git ignores, and other repositories, that were made or changed after a moment (seconds since
        1970).
        """
        found: list[str] = []
        ignored = self._git.names("ls-files", "-z", "--others", "--ignored", "--exclude-standard")
        for path in (*ignored, *self._nested):
            with suppress(OSError):
                if (self.worktree.path / path).lstat().st_ctime > moment:
                    found.append(path.rstrip("/"))
        return found

    # --- trees -------------------------------------------------------------------------------------------------------

    def mixed(self, on: str, changes: Mapping[str, str | bytes | None]) -> str:
        """A tree like `on` with some files changed: as another tree has them, with other content, or removed."""
        entries: list[bytes] = []
        for path, source in changes.items():
            if isinstance(source, bytes):
                mode, blob = self._entry(on, path)
                blob = self._git.run("hash-object", "-w", "--stdin", stdin=source).output.decode().strip()
                entries.append(_index_line(mode or _FILE_MODES[0], blob, path))
                continue
            mode, blob = (None, "") if source is None else self._entry(source, path)
            entries.append(_index_line(mode or "0", blob or "0" * len(on), path))
        self._read(on)
        if entries:
            self._git.run("update-index", "-z", "--replace", "--index-info", stdin=b"".join(entries))
        return self._git.text("write-tree")

    def content(self, tree: str, path: str) -> bytes | None:
        """What a file holds in a tree; None where there is no such file."""
        mode, blob = self._entry(tree, path)
        return None if mode not in _FILE_MODES else self._git.run("cat-file", "blob", blob).output

    def tree_of(self, commit: str) -> str:
        """The tree of a commit.

        Raises:
            WorktreeError: There is no such commit.
        """
        return self._git.text("rev-parse", "--verify", f"{commit}^{{tree}}")

    def links(self, tree: str) -> dict[str, str]:
        """The symbolic links of a tree that lead to something else in it, and where to."""
        found: dict[str, str] = {}
        for entry in self._git.names("ls-tree", "-r", "-z", tree):
            about, _, path = entry.partition("\t")
            if about.startswith(_FILE_MODES[2]):
                leads = os.fsdecode(self._git.run("cat-file", "blob", about.split()[2]).output)
                target = posixpath.normpath(posixpath.join(posixpath.dirname(path), leads))
                if not target.startswith(("../", "/")) and target not in ("..", "."):
                    found[path] = target
        return found

    def files(self, tree: str) -> tuple[str, ...]:
        """All files of a tree."""
        return tuple(self._git.names("ls-tree", "-r", "-z", "--name-only", tree))

    def changed(self, before: str, after: str) -> dict[str, str]:
        """The files in which two trees differ, each with `A`, `M`, `D` or `T`. A rename is a deletion and an addition."""
        told = self._git.names("diff-tree", "-r", "-z", "--name-status", "--no-renames", before, after)
        return dict(zip(told[1::2], told[::2], strict=True))

    def patch(self, before: str, after: str, *paths: str) -> str:
        """The diff of two trees, without context: of these files, or of all."""
        options = ("-r", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--patch", "--unified=0")
        prefixes = ("--src-prefix=a/", "--dst-prefix=b/")
        output = self._git.run("diff-tree", *options, *prefixes, before, after, "--", *map(_literal, paths)).output
        return output.decode("utf-8", "replace")

    def _entry(self, tree: str, path: str) -> tuple[str | None, str]:
        found = self._git.run("ls-tree", "-z", tree, "--", _literal(path)).output.partition(b"\t")[0].split()
        return (found[0].decode(), found[2].decode()) if len(found) == 3 else (None, "")


def _index_line(mode: str, blob: str, path: str) -> bytes:
    return f"{mode} {blob}\t".encode() + os.fsencode(path) + b"\0"


def _literal(path: str) -> str:
    return f":(literal){path}"


def _move_back(kept: Path, place: Path) -> None:
    """Have in a directory again what was set aside of it. Whatever a check has put in its place goes, links above all."""
    for one in kept.iterdir() if kept.is_dir() else ():
        here = place / one.name
        if here.is_dir() and not here.is_symlink():
            if one.is_dir() and not one.is_symlink():
                _move_back(one, here)
                continue
            shutil.rmtree(here)
        here.unlink(missing_ok=True)
        shutil.move(one, here)


@contextmanager
def lend(tree: Worktree) -> Iterator[Lent]:
    """Exchange files of a worktree in the block; after it, the worktree has what it had.

    Raises:
        WorktreeError: The worktree is gone, lent already, or cannot be read; or something could not be put back: then
            what was there stays written down, and whoever adopts it next tries again.
    """
    kept = lent_to(tree)
    if kept.is_dir() and kept not in _lent and claim(tree):
        put_back(tree)
    with scratch(tree.own_git) as own:
        try:
            kept.mkdir(mode=0o700)
        except FileExistsError:
            raise WorktreeError(f"A check runs in {tree.path} already. Wait for it to end.") from None
        try:
            snapshot = take_snapshot(own, tree.included)
            assert own.objects is not None
            shutil.copytree(own.objects, kept / "objects")
            replace_file(kept / _TREE, snapshot.tree)
        except BaseException:
            shutil.rmtree(kept, ignore_errors=True)
            raise
        lent = Lent(own, tree, snapshot.tree, snapshot.nested)
        _lent.add(kept)
        try:
            yield lent
        finally:
            try:
                lent.give_back()
            finally:
                _lent.discard(kept)
            shutil.rmtree(kept)


def is_lent_here(tree: Worktree) -> bool:
    """Whether a check of this process has the worktree."""
    return lent_to(tree) in _lent


def snapshot_of(git: Git, tree: Worktree, check: Callable[[Collection[str]], None] | None = None) -> Snapshot:
    """What is in a worktree: also while other files stand in it. `git` is from `scratch`, `check` as for `take_snapshot`."""
    known = _written_down(git, tree)
    return take_snapshot(git, tree.included, check) if known is None else Snapshot(tree=known, nested=())


def put_back(tree: Worktree) -> None:
    """Put back what a process that was killed had exchanged, if one was. Blocks.

    Raises:
        WorktreeError: It cannot be.
    """
    kept = lent_to(tree)
    if not kept.is_dir():
        return
    with scratch(tree.own_git) as git:
        now = _written_down(git, tree)
        if now is not None:
            Lent(git, tree, now).recover()
    shutil.rmtree(kept)


def _written_down(git: Git, tree: Worktree) -> str | None:
    kept = lent_to(tree)
    try:
        now = (kept / _TREE).read_text(encoding="utf-8").strip()
        assert git.objects is not None
        shutil.copytree(kept / "objects", git.objects, dirs_exist_ok=True)
    except FileNotFoundError:  # nothing was exchanged yet
        return None
    except OSError as error:
        raise WorktreeError(f"What was in {tree.path} cannot be read: {error}. See whether {kept} is whole.") from error
    return now
