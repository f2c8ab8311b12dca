"""Files that others read while they are written, each whole; locks among processes; and where callers may work."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from helmsman.base.processes import running_process
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

_CREATE_SECONDS: Final = 10.0
"""Timeout for another process that is creating a file. It writes a few bytes, but the disk may be slow."""


def replace_file(
    path: Path,
    content: str | bytes,
    *,
    mode: int | None = 0o600,
    last_look: Callable[[], None] | None = None,
    durable: bool = True,
) -> None:
    """Replace a file atomically. A failure leaves no temporary file behind.

    The file is private to this user unless `mode` says otherwise; a `mode` of None uses the umask. `last_look` runs
    right before the new file replaces the old one, and keeps the old one if it raises. Without `durable`, the file is
    not synced to disk: faster, but lost if the machine crashes.

    Raises:
        OSError: It cannot be written.
    """
    # A random name, since several processes may replace the same file.
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    data = content.encode("utf-8") if isinstance(content, str) else content
    # `O_EXCL` refuses a link that another process has put there.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                # Before the rename: after a crash the name could otherwise lead to an empty file.
                os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        if last_look is not None:
            last_look()
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def create_once(path: Path, content: str) -> str:
    """Return the content of a file, after writing `content` if it is empty. Concurrent callers all get the same text.

    A file may be empty because a process was killed before it wrote.

    Raises:
        OSError: It cannot be read or written.
    """
    if not (known := _text_of(path)):
        with file_lock(path.with_name(f"{path.name}.lock"), timeout=_CREATE_SECONDS):
            # Another process may have created it while this one waited for the lock.
            if not (known := _text_of(path)):
                replace_file(path, known := content)
    return known


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


# --- locks ------------------------------------------------------------------------------------------------------------

# Mutual exclusion between processes: a lock on a file, which the system releases when the process dies.


_RETRY_SECONDS: Final = 0.01


@contextmanager
def file_lock(path: Path, *, timeout: float) -> Iterator[None]:
    """Hold a file lock during the block.

    Raises:
        TimeoutError: Another process held it for longer than `timeout` seconds.
        OSError: The file cannot be created.
    """
    deadline = time.monotonic() + timeout
    while (held := take_lock(path)) is None:
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{path} is held by another process")
        time.sleep(_RETRY_SECONDS)
    try:
        yield
    finally:
        release_lock(held)


def take_lock(path: Path) -> int | None:
    """Lock a file until it is released or this process ends. Return None while another process holds the lock.

    Raises:
        OSError: The file cannot be created.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if _try_lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def release_lock(held: int) -> None:
    """Give back what `take_lock` gave."""
    os.close(held)


def _try_lock(descriptor: int) -> bool:
    try:
        # Windows locks one byte; POSIX locks the open file, so the lock ends with the process.
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# --- allowed roots ----------------------------------------------------------------------------------------------------

# Check of paths against the allowed roots (`HELMSMAN_ALLOWED_ROOTS`), used everywhere. Links are resolved first, so a
# link inside a root that leads outside is outside.


def size_and_time(path: Path | os.DirEntry[str]) -> tuple[int, int]:
    """Return the size of a file, and when it changed, in nanoseconds; zeros where it is gone."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def is_one_of(directory: str | None, places: Collection[str] | None) -> bool:
    """Return whether a directory is one of these, also by a symbolic link. Without places, every directory is."""
    if places is None or directory in places:
        return True
    try:
        return directory is not None and os.path.realpath(directory) in places
    except (OSError, ValueError):
        return False


def changed_at(path: Path) -> datetime:
    """Return when a file was last modified, or the epoch if it is gone."""
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        return datetime.fromtimestamp(0, UTC)


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file or directory; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_inside(path: str | os.PathLike[str], roots: Sequence[Path]) -> bool:
    """Return whether it is one of these directories or in one of them. The roots have their links resolved already."""
    place = Path(path)
    try:
        # Links count by their targets, so a link inside a root cannot lead outside.
        resolved = place.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, or no path at all
        return False
    return place.is_absolute() and any(map(resolved.is_relative_to, roots))


def refuse_outside(path: str | os.PathLike[str], roots: Sequence[Path], parameter: str) -> None:
    """Make sure that a place is inside the allowed roots, where there are some.

    Where `parameter` is an id, the caller did not name the place, and the error does not reveal it.

    Raises:
        InvalidInput: It is outside.
    """
    if roots and not is_inside(path, roots):
        allowed = ", ".join(map(str, roots))
        named = "What this id names" if parameter.endswith("_id") else os.fspath(path)
        raise InvalidInput(f"{named} is outside the allowed roots. Choose one inside: {allowed}.", parameter=parameter)


# Write and remove files below a directory without following links.
#
# A process that an agent left behind may replace a directory with a link between a check and a write, so that we
# would write outside. So each directory on the path is opened without following links, and all operations use the
# open directory.


_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def put_file(root: Path, path: PurePath, version: Path, *, beside: str, like: Path) -> None:
    """Put a file or link in place atomically; `beside` is its temporary name.

    Missing directories are created with the permissions that they have below `like`. An empty directory at the path is
    removed.

    Raises:
        OSError: It cannot be written, or part of the path is not a directory of this tree.
    """
    with _opened(root, path.parent, like) as folders:
        at = folders[-1]
        # Left by a call that was killed.
        with suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=at)
        _copy(version, beside, at)
        # A directory at the path of the file is replaced only if it is empty.
        if stat.S_ISDIR(_mode(path.name, at)):
            _remove_empty(path.name, at)
        os.replace(beside, path.name, src_dir_fd=at, dst_dir_fd=at)


def remove_file(root: Path, path: PurePath) -> None:
    """Remove a file or link, and the directories that become empty.

    Raises:
        OSError: It cannot be removed, or part of the path is not a directory of this tree.
    """
    with suppress(FileNotFoundError), _opened(root, path.parent) as folders:
        mode = _mode(path.name, folders[-1])
        if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            os.unlink(path.name, dir_fd=folders[-1])
        for name, above in zip(reversed(path.parent.parts), folders[-2::-1], strict=True):
            try:
                os.rmdir(name, dir_fd=above)
            except OSError:
                # Not empty, and so are none of its parents.
                return


@contextmanager
def _opened(root: Path, inside: PurePath, like: Path | None = None) -> Iterator[list[int]]:
    """Yield the directories from the root to one inside, opened; with `like` those that are missing are made."""
    with ExitStack() as stack:
        folders: list[int] = []

        def step(folder: int) -> None:
            stack.callback(os.close, folder)
            folders.append(folder)

        # The root itself may be reached through a link; everything below may not.
        step(os.open(root, _FOLDER & ~os.O_NOFOLLOW))
        for name in inside.parts:
            like = None if like is None else like / name
            try:
                step(os.open(name, _FOLDER, dir_fd=folders[-1]))
            except FileNotFoundError:
                if like is None:
                    raise
                os.mkdir(name, dir_fd=folders[-1])
                step(os.open(name, _FOLDER, dir_fd=folders[-1]))
                # Set on the open directory, so that the umask does not matter.
                if like.is_dir():
                    os.fchmod(folders[-1], stat.S_IMODE(like.stat().st_mode))
            except OSError as error:
                raise OSError(f"{name!r} on the way to it is no directory, or leads elsewhere ({error})") from error
        yield folders


def _copy(version: Path, name: str, at: int) -> None:
    if version.is_symlink():
        os.symlink(version.readlink(), name, dir_fd=at)
        return
    new = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=at)
    with version.open("rb") as source, os.fdopen(new, "wb") as copy:
        shutil.copyfileobj(source, copy)
        # Before the times are set: a later write would change them again.
        copy.flush()
        about = os.fstat(source.fileno())
        os.fchmod(copy.fileno(), stat.S_IMODE(about.st_mode))
        os.utime(copy.fileno(), ns=(about.st_atime_ns, about.st_mtime_ns))
        with suppress(OSError, AttributeError):  # not available on every system and file system
            for attribute in os.listxattr(source.fileno()):
                os.setxattr(copy.fileno(), attribute, os.getxattr(source.fileno(), attribute))


def _mode(name: str, at: int) -> int:
    """Return the file type, or 0 if there is no file."""
    try:
        return os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0


def _remove_empty(name: str, at: int) -> None:
    """Remove a directory that contains only directories."""
    folder = os.open(name, _FOLDER, dir_fd=at)
    try:
        for inside in os.listdir(folder):  # noqa: PTH208 - a path may be another directory by now
            _remove_empty(inside, folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=at)


# Directories that a session may write, compared with what they were when it was opened.
#
# A session keeps the real path of its directory, and its sandbox is built around that path. If a part of the path has
# become a symbolic link since, the sandbox would be built around the link's target, and the user would still read the
# old path. So a turn is refused if the real path has changed.
#
# The device and the inode are kept too, and a turn in a directory that has another identity at the same real path
# begins with a warning. It is not refused. A checkout of another branch makes directories anew, and file systems
# without a device of their own (network, overlay, btrfs) have another device number after every restart. And such a
# replacement gains nothing: to move a directory to that path, a session must be able to write to both its old and its
# new parent, so it could have written to all that is in them before; and a mount that a sandboxed process makes is
# not seen outside its namespace.


class DirectoryIdentity(NamedTuple):
    """Device and inode of a directory."""

    device: int
    inode: int

    @classmethod
    def at(cls, path: Path | None) -> DirectoryIdentity | None:
        """Return the identity of the directory at a path; None if it does not exist."""
        if path is not None:
            with suppress(OSError):
                status = path.stat()
                return cls(status.st_dev, status.st_ino)
        return None

    @classmethod
    def from_json(cls, kept: Any) -> DirectoryIdentity | None:
        """Parse a stored identity, or None."""
        with suppress(TypeError, ValueError):
            device, inode = kept
            return cls(int(device), int(inode))
        return None

    def replaced_at(self, path: Path) -> str | None:
        """Return a warning if another directory is at the path now."""
        now = self.at(path)
        if now is None or now == self:
            return None
        return (
            f"{path} is another directory than before: it was removed and made again, or replaced. Check its content."
        )


def refuse_moved(whose: str, paths: Iterable[Path]) -> None:
    """Check that a session's directories still have the same real paths. Blocks briefly.

    Raises:
        InvalidInput: One leads elsewhere now.
    """
    for path in paths:
        # Compared as text: a stored directory has its links resolved.
        real = Path(os.path.realpath(path))
        if real != path:
            raise InvalidInput(
                f"The directory of {whose} was {path}, and that path leads to {real} now: a part of it has been replaced "
                f"by a symbolic link. Nothing was started. Put the directory back, or, if {real} is meant, start a new "
                "session there.",
                parameter="cwd",
                directory=str(path),
                leads_to=str(real),
            )


# --- Temporary directories in the state directory ---------------------------------------------------------------------

# If a process is killed, the next one removes its directories.

_PREFIX: Final = "temporary-"


def temporary_directory(place: Path, what: str) -> tempfile.TemporaryDirectory[str]:
    """Return a temporary directory whose name contains the process, so that others can remove it after a crash."""
    return tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-{what}-", dir=place, ignore_cleanup_errors=True)


def clear_abandoned(place: Path) -> None:
    """Remove those of processes that are gone. Blocks."""
    for folder in place.glob(f"{_PREFIX}*"):
        found = re.match(r"\d+", folder.name.removeprefix(_PREFIX))
        # The pid may have been reused by now. Then the directory stays until that process ends, too.
        if found and running_process(int(found[0])) is None:
            shutil.rmtree(folder, ignore_errors=True)
