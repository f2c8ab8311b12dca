"""Copy ignored files that a worktree needs, such as `.env`, as listed in the repository's `.worktreeinclude`.

The file has gitignore syntax, and git interprets the patterns. Only files that git ignores in the main tree are copied:
no tracked or untracked files, nothing outside the repository, no links and nothing behind one, up to a size limit. The
copied files are recorded with the worktree and never count as changes of the session, even if `.gitignore` changes.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final

from helmsman.base.files import put_file, temporary_directory
from helmsman.base.sanitize import named
from helmsman.base.truncate import listed
from helmsman.errors import WorktreeError
from helmsman.git.snapshot import nul_separated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from helmsman.git.command import Git
    from helmsman.git.worktree import Worktree

INCLUDE_FILE: Final = ".worktreeinclude"
_MOST_BYTES: Final = 64 * 1024 * 1024
_MOST_FILES: Final = 2000
"""Enough for configuration, not for dependencies; a set-up command installs those."""
_PATTERNS_BYTES: Final = 64 * 1024
_NAMED: Final = 8
_LINK: Final = "links are not followed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Included:
    """Copied files, and a note about copied and skipped files; None if no file was named."""

    files: tuple[str, ...] = ()
    note: str | None = None


def include(tree: Worktree) -> Included:
    """Copy the files named by `.worktreeinclude` of the main tree into a new worktree. Blocks.

    Raises:
        WorktreeError: Git failed.
    """

    def copy(path: str, content: IO[bytes], status: os.stat_result) -> str | None:
        target = tree.path / path
        # A link of the commit may lead out of the worktree.
        if _behind_a_link(tree.path, path):
            return _LINK
        if os.path.lexists(target):
            return "it is in the last commit"
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as written:
            shutil.copyfileobj(content, written)
        target.chmod(stat.S_IMODE(status.st_mode) & 0o777)
        return None

    return _each_named(tree.main_git, copy, "Copied into the worktree")


def pack_included(git: Git, into: Path) -> Included:
    """Archive the files named by `.worktreeinclude` of a working tree, for another machine. Blocks.

    Raises:
        WorktreeError: Git failed.
    """
    with tarfile.open(into, "x", format=tarfile.GNU_FORMAT) as archive:

        def add(path: str, content: IO[bytes], status: os.stat_result) -> str | None:
            data = content.read(status.st_size)  # read completely first: the file may have shrunk
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), stat.S_IMODE(status.st_mode) & 0o777
            archive.addfile(entry, io.BytesIO(data))
            return None

        included = _each_named(git, add, "Sent along")
        if included.files:
            with _opened(git.work_tree / INCLUDE_FILE) as (content, status):
                add(INCLUDE_FILE, content, status)  # git may ignore the include file, too
        return included


def unpack_included(archive: Path, root: Path, place: Path) -> None:
    """Extract such an archive into a working tree, without following links or replacing files. Blocks.

    Raises:
        WorktreeError: The archive contains a forbidden entry, or a file cannot be written.
    """
    room, files = _MOST_BYTES, 0
    try:
        with tarfile.open(archive, "r:") as entries, temporary_directory(place, "included") as name:
            beside = Path(name) / "file"
            for entry in entries:
                path = PurePosixPath(entry.name)
                room, files = room - entry.size, files + 1
                # File systems of macOS ignore case.
                odd = (
                    path.is_absolute()
                    or not path.parts
                    or any(part.casefold() in ("..", ".git") for part in path.parts)
                )
                content = entries.extractfile(entry) if entry.isreg() and not odd else None
                # One more, because `.worktreeinclude` is sent along.
                if content is None or room < 0 or files > _MOST_FILES + 1:
                    raise WorktreeError(f"The files that were sent along cannot be placed: {named(entry.name)}.")
                with beside.open("wb") as written:
                    shutil.copyfileobj(content, written)
                beside.chmod(entry.mode & 0o777)
                if not os.path.lexists(root / path):
                    put_file(root, path, beside, beside=f".helmsman-{files}", like=root)
    except (OSError, ValueError, tarfile.TarError) as error:
        raise WorktreeError(f"The files that were sent along cannot be placed: {error}. Send them again.") from error


def _each_named(git: Git, take: Callable[[str, IO[bytes], os.stat_result], str | None], done: str) -> Included:
    """Call `take` with each named file; it returns the reason for skipping one, or None."""
    root = git.work_tree
    patterns = root / INCLUDE_FILE
    if patterns.is_symlink() or not patterns.is_file():
        return Included()
    try:
        if patterns.stat().st_size > _PATTERNS_BYTES:
            return Included(note=f"{INCLUDE_FILE} is larger than {_PATTERNS_BYTES} bytes, so nothing was copied.")
        paths = _named_and_ignored(git)
    except OSError as error:
        return Included(note=f"{INCLUDE_FILE} cannot be read ({error.strerror}), so nothing was copied.")
    taken: list[str] = []
    left: dict[str, list[str]] = {}
    room = _MOST_BYTES
    for path in paths:
        reason: str | None = _LINK
        try:
            if not _behind_a_link(root, path):
                with _opened(root / path) as (content, status):
                    if not stat.S_ISREG(status.st_mode):
                        reason = "it is no ordinary file"
                    elif status.st_size > room or len(taken) >= _MOST_FILES:
                        reason = f"more than {_MOST_BYTES // 1024 // 1024} MB or {_MOST_FILES} files are not copied"
                    else:
                        reason = take(path, content, status)
                        room -= status.st_size
        except OSError as error:
            reason = error.strerror or "it cannot be read"
        if reason is None:
            taken.append(path)
        else:
            left.setdefault(reason, []).append(path)
    return Included(files=tuple(taken), note=_note(done, taken, left))


@contextmanager
def _opened(source: Path) -> Iterator[tuple[IO[bytes], os.stat_result]]:
    # The file may have become a link or a pipe since it was listed; opening a pipe waits for a writer.
    opened = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(opened, "rb") as content:
        yield content, os.fstat(content.fileno())


def _named_and_ignored(git: Git) -> list[str]:
    # With `--exclude-from` alone, git's own rules do not count. Which of the files it ignores is asked below.
    others = ("ls-files", "-z", "--others", "--ignored", f"--exclude-from={git.work_tree / INCLUDE_FILE}")
    with git.viewed() as seen:
        # A nested repository is listed as a directory.
        found = [path for path in seen.names(*others) if not path.endswith("/")]
        if not found:
            return []
        # Exits with 1 if none is ignored.
        answer = seen.run("check-ignore", "-z", "--stdin", stdin=nul_separated(found), accept=(0, 1))
    ignored = {os.fsdecode(path) for path in answer.output.split(b"\0") if path}
    return [path for path in found if path in ignored]


def _behind_a_link(root: Path, path: str) -> bool:
    parts = PurePosixPath(path).parts
    return any((root / Path(*parts[:count])).is_symlink() for count in range(1, len(parts) + 1))


def _note(done: str, copied: Sequence[str], left: dict[str, list[str]]) -> str | None:
    told: list[str] = []
    if copied:
        told.append(f"{done}, as {INCLUDE_FILE} says: {_some(copied)}.")
    told += [f"Not copied: {_some(paths)} ({reason})." for reason, paths in left.items()]
    return " ".join(told) or None


def _some(paths: Iterable[str]) -> str:
    return listed(map(named, paths), _NAMED)
