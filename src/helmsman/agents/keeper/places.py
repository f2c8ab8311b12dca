"""What a keeper and those who use what it keeps agree on, on disk.

Each kept process has a directory of its own, for this user alone: `engine.json` says which processes it is and where it is
reached. Whoever uses it holds a shared lock on the file `attached`; the system gives it back when that process dies, however
it dies. The keeper takes the same lock for itself alone to end what nobody uses, so nobody can attach to something that is
about to end. Who owns a child on a pipe holds the lock `owned` as well, alone, and says its epoch in it. The file `draining`
says: no new work here. The file `needed` says: somebody has to be attached, and the keeper is to see to it.

Imported by the keeper, so it needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LOG_NAME: Final = "stderr.log"
BELOW: Final = "below.json"
OUTPUT: Final = "output"
_RECORD: Final = "engine.json"
_DRAINING: Final = "draining"
_NEEDED: Final = "needed"
_ATTACHED: Final = "attached"
_OWNED: Final = "owned"
_SOCKET: Final = "codex.sock"

_SOCKET_PATH_BYTES: Final = 100
"""The address of a Unix socket holds 104 bytes on macOS, 108 on Linux."""


def make_directory(directory: Path) -> None:
    """A place for something that is to be kept.

    Raises:
        OSError: There is none.
    """
    private_directory(directory)
    (directory / _ATTACHED).touch(mode=0o600)


def write_content(directory: Path, content: Mapping[str, Any]) -> None:
    replace_file(directory / _RECORD, json.dumps(content, default=str))


def read_content(directory: Path) -> Any:
    """What the record says; raises whatever comes of reading and parsing one that makes no sense."""
    return json.loads((directory / _RECORD).read_bytes())


def has_record(directory: Path) -> bool:
    return (directory / _RECORD).exists()


def mark_draining(directory: Path) -> None:
    with contextlib.suppress(OSError):  # it has just ended
        (directory / _DRAINING).touch(mode=0o600)


def is_draining(directory: Path) -> bool:
    return (directory / _DRAINING).exists()


def mark_needed(directory: Path, *, needed: bool) -> bool:
    """Say whether somebody has to be attached; whether that is news."""
    path = directory / _NEEDED
    with contextlib.suppress(OSError):  # it has just ended
        if needed and not path.exists():
            path.touch(mode=0o600)
            return True
        if not needed:
            path.unlink()
            return True
    return False


def is_needed(directory: Path) -> bool:
    return (directory / _NEEDED).exists()


def forget(directory: Path, socket: Path | None = None) -> None:
    """Remove what a kept process left on disk."""
    for path in {socket or socket_path(directory), directory / _SOCKET}:
        with contextlib.suppress(OSError):
            path.unlink()
    with contextlib.suppress(OSError):
        (directory / _RECORD).unlink()  # first of all the directory has, so that nobody reads half of it
    shutil.rmtree(directory, ignore_errors=True)


# --- where things are ------------------------------------------------------------------------------------------------


def private_directory(path: Path) -> Path:
    """Make a directory that only this user can look into, or make sure that one is.

    Raises:
        PermissionError: It belongs to somebody else, or is a link, or others may look into it and that cannot be changed.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{path} does not belong to this user")
    if status.st_mode & 0o077:
        path.chmod(0o700)
    return path


def socket_path(directory: Path) -> Path:
    """Where the engine of a directory listens: in it, or, where that address is too long, under the runtime directory."""
    path = directory / _SOCKET
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES:
        return path
    import hashlib  # only here: a keeper is told where to listen, and it alone takes a tenth of a keeper's start

    return _runtime_directory() / f"{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}.sock"


def _runtime_directory() -> Path:
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    base = Path(given) if given and len(os.fsencode(given)) < _SOCKET_PATH_BYTES - 40 else None
    if base is not None and base.is_dir():
        return base / "helmsman"
    import tempfile

    # Not tempfile.gettempdir() alone: on macOS, and wherever TMPDIR is set, that may be too long itself.
    short = Path(tempfile.gettempdir())
    if len(os.fsencode(short)) > _SOCKET_PATH_BYTES - 40:
        short = Path("/tmp")  # noqa: S108 - what is made in it is checked to be ours alone
    return short / f"helmsman-{os.geteuid()}"


# --- who uses it ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def try_attach(directory: Path) -> Iterator[bool]:
    """Be one who uses the engine, for the length of the block; False when it is about to end or has ended."""
    with _lock(directory, shared=True) as held:
        # A lock on a file that was removed meanwhile is a lock on nothing.
        yield held and has_record(directory)


@contextlib.contextmanager
def try_claim(directory: Path) -> Iterator[bool]:
    """Keep others from attaching, for the length of the block; False when somebody is attached."""
    with _lock(directory, shared=False) as held:
        yield held


def is_attached(directory: Path) -> bool:
    """Whether anybody uses it."""
    with try_claim(directory) as free:
        return not free


@contextlib.contextmanager
def try_own(directory: Path, epoch: int = 0) -> Iterator[bool]:
    """Be the one owner of a child on a pipe, for the length of the block; False while somebody else is.

    A hub takes it from an earlier one, which has been stopped or hangs: its keeper sees to it that only one is heard.
    """
    with _lock(directory, shared=False, name=_OWNED) as held:
        path = directory / _OWNED
        if held:
            with contextlib.suppress(OSError):
                path.write_text(str(epoch), encoding="ascii")
        yield held or (epoch > 0 and 0 < _epoch_in(path) < epoch)


def _epoch_in(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


@contextlib.contextmanager
def _lock(directory: Path, *, shared: bool, name: str = _ATTACHED) -> Iterator[bool]:
    import fcntl

    try:
        descriptor = os.open(directory / name, os.O_RDWR | (os.O_CREAT if name == _OWNED else 0), 0o600)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
