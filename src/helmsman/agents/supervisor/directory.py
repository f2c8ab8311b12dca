"""Directory of a supervised process: what its supervisor and its clients agree on, on disk.

Each supervised process has a directory that only its user can read. `process.json` is its record (see `records`). A client
holds a shared lock on the file `attached`; the system releases it when the client dies. The supervisor takes the same lock
exclusively before it ends an unused process, so that no client attaches to a process that is about to end. The owner, the
one client that may send input, also holds `owned` exclusively and writes its epoch into it. The file `draining` means that
the process gets no new work. The file `needed` means that an owner must be attached, and the supervisor starts the next hub
if none is.

The supervisor imports this, so it needs only the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LOG_NAME: Final = "stderr.log"
DESCENDANTS: Final = "descendants.json"
OUTPUT: Final = "output"
_RECORD: Final = "process.json"
_DRAINING: Final = "draining"
_NEEDED: Final = "needed"
_ATTACHED: Final = "attached"
_OWNED: Final = "owned"
SOCKET: Final = "supervisor.sock"
AGENT_SOCKET: Final = "agent.sock"
"""Socket of an agent that can be joined from a terminal."""

WAKE: Final = getattr(signal, "SIGUSR1", signal.SIGTERM)
"""Signal that makes a supervisor check now, for example because its child is to be drained."""

_SOCKET_PATH_BYTES: Final = 100
"""Limit for the address of a Unix socket: 104 bytes on macOS, 108 on Linux."""


def make_directory(directory: Path) -> None:
    """Create the directory of a process that is about to be started.

    Raises:
        OSError: It cannot be created.
    """
    private_directory(directory)
    (directory / _ATTACHED).touch(mode=0o600)


def write_content(directory: Path, content: Mapping[str, Any]) -> None:
    replace_file(directory / _RECORD, json.dumps(content, default=str))


def read_content(directory: Path) -> Any:
    """Return the content of the record. Raises whatever reading or parsing it raises."""
    return json.loads((directory / _RECORD).read_bytes())


def has_record(directory: Path) -> bool:
    return (directory / _RECORD).exists()


def mark_draining(directory: Path) -> None:
    with contextlib.suppress(OSError):  # the process has just ended
        (directory / _DRAINING).touch(mode=0o600)


def is_draining(directory: Path) -> bool:
    return (directory / _DRAINING).exists()


def mark_needed(directory: Path, *, needed: bool) -> bool:
    """Set whether an owner must be attached. Return whether that changed."""
    path = directory / _NEEDED
    with contextlib.suppress(OSError):  # the process has just ended
        if needed and not path.exists():
            path.touch(mode=0o600)
            return True
        if not needed:
            path.unlink()
            return True
    return False


def is_needed(directory: Path) -> bool:
    return (directory / _NEEDED).exists()


def forget(directory: Path, *sockets: Path) -> None:
    """Remove the directory and the sockets of a process that has ended."""
    for path in sockets or (socket_path(directory), socket_path(directory, AGENT_SOCKET)):
        with contextlib.suppress(OSError):
            path.unlink()
    with contextlib.suppress(OSError):
        (directory / _RECORD).unlink()  # first, so that no client reads half of the directory
    shutil.rmtree(directory, ignore_errors=True)


# --- where things are ------------------------------------------------------------------------------------------------


def private_directory(path: Path) -> Path:
    """Create a directory that only this user can read, or check that an existing one is.

    Raises:
        PermissionError: It belongs to another user, is a link, or is open to others and that cannot be changed.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Another process may create it at the same time.
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{path} does not belong to this user")
    # An older version, or a umask, may have left it open to others.
    if status.st_mode & 0o077:
        path.chmod(0o700)
    return path


def socket_path(directory: Path, name: str = SOCKET) -> Path:
    """Return the path of a socket: in the directory, or under the runtime directory if that path is too long."""
    path = directory / name
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES:
        return path
    import hashlib  # only here: a supervisor gets its path with its order, and hashlib takes a tenth of its start

    return _runtime_directory() / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.sock"


def _runtime_directory() -> Path:
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    base = Path(given) if given and len(os.fsencode(given)) < _SOCKET_PATH_BYTES - 40 else None
    if base is not None and base.is_dir():
        return base / "helmsman"
    import tempfile

    # Not tempfile.gettempdir() alone: on macOS, and wherever TMPDIR is set, that may be too long itself.
    short = Path(tempfile.gettempdir())
    if len(os.fsencode(short)) > _SOCKET_PATH_BYTES - 40:
        short = Path("/tmp")  # noqa: S108 - directories made in it are checked to belong to this user alone
    return short / f"helmsman-{os.geteuid()}"


# --- who uses it ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def try_attach(directory: Path) -> Iterator[bool]:
    """Attach to the process for the length of the block. Yields False if it is about to end, or has ended."""
    # A shared lock, as several clients may look at a process.
    with _lock(directory, shared=True) as held:
        # The file may have been removed since: then the lock means nothing.
        yield held and has_record(directory)


@contextlib.contextmanager
def try_claim(directory: Path) -> Iterator[bool]:
    """Keep clients from attaching for the length of the block. Yields False if one is attached."""
    with _lock(directory, shared=False) as held:
        yield held


def is_attached(directory: Path) -> bool:
    """Return whether a client is attached."""
    with try_claim(directory) as free:
        return not free


@contextlib.contextmanager
def try_own(directory: Path, epoch: int = 0) -> Iterator[bool]:
    """Be the owner for the length of the block. Yields False while another client is.

    A hub may take over from a hub with a lower epoch, which was stopped or hangs. The supervisor accepts input from one.
    """
    with _lock(directory, shared=False, name=_OWNED) as held:
        path = directory / _OWNED
        if held:
            with contextlib.suppress(OSError):
                path.write_text(str(epoch), encoding="ascii")
        # A hub that hangs still holds its lock, so its epoch decides.
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
        # Only the owner's file may be created here: a missing `attached` means that the process has ended.
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
