"""Changes written to a working tree, and taken back when one of them cannot be written."""

from __future__ import annotations

import filecmp
import logging
import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from helmsman.base.git import shown
from helmsman.errors import WorktreeError
from helmsman.worktrees.snapshot import nul_separated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helmsman.base.git import Git
    from helmsman.worktrees.changes import RawChange

log = logging.getLogger(__name__)


def write_changes(git: Git, wanted: str, changes: list[RawChange]) -> None:
    """Make the files in question what the tree `wanted` has. `git` is from `scratch`; nothing may be in the way.

    Raises:
        WorktreeError: One could not be written. All is as it was.
    """
    assert git.index is not None
    before = KeptFile(os.fsencode(git.work_tree), os.fsencode(git.index.parent / "kept"))
    try:
        for change in changes:
            before.keep(change.path)
        for change in changes:
            if change.is_deletion:
                remove(before.root, change.path)
        git.run("read-tree", wanted)
        written = [change.path for change in changes if not change.is_deletion]
        for attributes in (True, False):  # which come first: they say how the other files are written
            part = [path for path in written if path.endswith(b".gitattributes") is attributes]
            git.run("checkout-index", "--force", "-z", "--stdin", stdin=nul_separated(part))
    except BaseException as error:
        before.put_back()
        if isinstance(error, OSError):
            raise WorktreeError(
                f"{git.work_tree} cannot be written: {error}. All is as it was. Make it writable, or make room."
            ) from error
        raise


class KeptFile:
    """Files as they were before something is written over them."""

    def __init__(self, root: bytes, store: bytes) -> None:
        self.root = root
        self._store = store
        self._kept: dict[bytes, bytes] = {}
        os.mkdir(store)  # noqa: PTH102 - names of files are bytes

    def keep(self, path: bytes) -> None:
        """Remember a file with its content, mode and time, or that there is none."""
        copy = self._kept[path] = _join(self._store, str(len(self._kept)).encode())
        if _is_file(_join(self.root, path)):
            shutil.copy2(_join(self.root, path), copy, follow_symlinks=False)

    def put_back(self) -> None:
        """Make all of them what they were. One that cannot be put back is said, and the others still are."""
        changed = {path: copy for path, copy in self._kept.items() if not _same(_join(self.root, path), copy)}
        for path in changed:
            with _said(path):
                remove(self.root, path)
        for path, copy in changed.items():
            if _is_file(copy):
                with _said(path):
                    target = _join(self.root, path)
                    os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
                    shutil.copy2(copy, target, follow_symlinks=False)


def remove(root: bytes, path: bytes) -> None:
    """Remove a file, and the directories that are empty without it."""
    if _is_file(_join(root, path)):
        os.unlink(_join(root, path))  # noqa: PTH108
    while path := os.path.dirname(path):  # noqa: PTH120
        try:
            os.rmdir(_join(root, path))  # noqa: PTH106
        except OSError:
            return


@contextmanager
def _said(path: bytes) -> Iterator[None]:
    try:
        yield
    except OSError:
        log.exception("%s could not be put back as it was", shown(path))


def _same(one: bytes, other: bytes) -> bool:
    if not (_is_file(one) and _is_file(other)):
        return _is_file(one) == _is_file(other)
    if os.lstat(one).st_mode != os.lstat(other).st_mode:
        return False
    if os.path.islink(one):  # noqa: PTH114
        return os.readlink(one) == os.readlink(other)  # noqa: PTH115
    return filecmp.cmp(one, other, shallow=False)


def _is_file(path: bytes) -> bool:
    """A file or a link, be it a broken one."""
    return os.path.islink(path) or os.path.isfile(path)  # noqa: PTH113, PTH114


def _join(folder: bytes, path: bytes) -> bytes:
    return os.path.join(folder, path)  # noqa: PTH118
