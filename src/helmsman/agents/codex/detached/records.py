"""What is known on disk of the engines that outlive the processes using them.

Each has a directory of its own, for this user alone, under `<state directory>/engines`: `engine.json` says which processes
it is, of which Codex, and where it listens. Whoever uses an engine holds a shared lock on the file `attached`; the system
gives it back when that process dies, however it dies. The engine's keeper takes the same lock for itself alone to end an
engine that nobody uses, so nobody can attach to one that is about to end. The file `draining` says: no new work here.

Imported by the keeper, so it needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.files import replace_file
from helmsman.base.processes import Process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from helmsman.agents.codex.binary import CodexBinary

ENGINES: Final = "engines"
LOG_NAME: Final = "stderr.log"
_RECORD: Final = "engine.json"
_DRAINING: Final = "draining"
_ATTACHED: Final = "attached"
_SOCKET: Final = "codex.sock"

_SOCKET_PATH_BYTES: Final = 100
"""The address of a Unix socket holds 104 bytes on macOS, 108 on Linux."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryIdentity:
    """Which Codex an engine is. Another size or time of change at the same path is another Codex."""

    path: str
    size: int
    changed_ns: int
    version: str

    @classmethod
    def of(cls, binary: CodexBinary) -> BinaryIdentity:
        status = binary.path.stat()
        return cls(
            path=str(binary.path), size=status.st_size, changed_ns=status.st_mtime_ns, version=str(binary.version)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """One detached engine. `keeper` is the process that started and will end `codex`; `env_digest` see `digest_of`."""

    id: str
    directory: Path
    socket: Path
    keeper: Process
    codex: Process
    binary: BinaryIdentity
    codex_home: str
    env_digest: str
    idle: float
    started_at: float

    @property
    def is_kept(self) -> bool:
        """Whether its keeper runs; without one nobody would ever end it."""
        return self.keeper.is_alive()

    @property
    def is_running(self) -> bool:
        return self.codex.is_alive()

    @property
    def is_draining(self) -> bool:
        return (self.directory / _DRAINING).exists()


# --- the records -----------------------------------------------------------------------------------------------------


def engine_directories(state_dir: Path) -> list[Path]:
    """Where an engine is, was, or was about to be, oldest first."""
    try:
        entries = [entry for entry in (state_dir / ENGINES).iterdir() if entry.is_dir() and not entry.is_symlink()]
        return sorted(entries, key=lambda entry: (entry.stat().st_mtime, entry.name))
    except OSError:
        return []


def make_engine_directory(directory: Path) -> None:
    """A place for a new engine.

    Raises:
        OSError: There is none.
    """
    private_directory(directory)
    (directory / _ATTACHED).touch(mode=0o600)


def read_record(directory: Path) -> EngineRecord | None:
    """The record in an engine's directory, or None where there is none that can be understood."""
    try:
        content = json.loads((directory / _RECORD).read_bytes())
        keeper, codex, binary = content["keeper"], content["codex"], content["binary"]
        return EngineRecord(
            id=directory.name,
            directory=directory,
            socket=Path(content["socket"]),
            keeper=Process(int(keeper[0]), str(keeper[1])),
            codex=Process(int(codex[0]), str(codex[1])),
            binary=BinaryIdentity(
                path=str(binary["path"]),
                size=int(binary["size"]),
                changed_ns=int(binary["changed_ns"]),
                version=str(binary["version"]),
            ),
            codex_home=str(content["codex_home"]),
            env_digest=str(content["env_digest"]),
            idle=float(content["idle"]),
            started_at=float(content["started_at"]),
        )
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None


def read_records(state_dir: Path) -> list[EngineRecord]:
    """The engines of which something runs, oldest first; what has ended without clearing up is left out."""
    records = (read_record(directory) for directory in engine_directories(state_dir))
    return [record for record in records if record is not None and (record.is_kept or record.is_running)]


def write_record(record: EngineRecord) -> None:
    replace_file(record.directory / _RECORD, json.dumps(asdict(record), default=str))


def mark_draining(record: EngineRecord) -> None:
    with contextlib.suppress(OSError):  # it has just ended
        (record.directory / _DRAINING).touch(mode=0o600)


def forget(directory: Path, socket: Path | None = None) -> None:
    """Remove what an engine left on disk."""
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
    return _runtime_directory() / f"{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}.sock"


def _runtime_directory() -> Path:
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    base = Path(given) if given and len(os.fsencode(given)) < _SOCKET_PATH_BYTES - 40 else None
    if base is not None and base.is_dir():
        return base / "helmsman"
    # Not tempfile.gettempdir() alone: on macOS, and wherever TMPDIR is set, that may be too long itself.
    short = Path(tempfile.gettempdir())
    if len(os.fsencode(short)) > _SOCKET_PATH_BYTES - 40:
        short = Path("/tmp")  # noqa: S108 - what is made in it is checked to be ours alone
    return short / f"helmsman-{os.geteuid()}"


def digest_of(env: Mapping[str, str]) -> str:
    """The variables that change what Codex does, as a fingerprint: work begun with others must not run in this engine.

    Where programs and files are found, how the network and the account are reached, what Codex itself reads. The rest
    (terminals, editors, desktops) differs from window to window and means nothing to it.
    """
    chosen = {name: value for name, value in env.items() if _changes_codex(name)}
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode("utf-8", "surrogateescape")).hexdigest()


_NAMES: Final = frozenset({"HOME", "PATH", "SHELL", "TMPDIR", "USER", "VIRTUAL_ENV", "RUST_LOG"})
_NO_NAMES: Final = frozenset({"CODEX_CLI_PATH", "CODEX_HOME", "CODEX_THREAD_ID"})
"""Ours, compared as what they mean, or another for every session of a Codex that starts us."""
_PREFIXES: Final = ("CODEX_", "OPENAI_", "AZURE_", "AWS_", "SSL_CERT_", "OTEL_")
_SUFFIXES: Final = ("_API_KEY", "_BASE_URL", "_PROXY")


def _changes_codex(name: str) -> bool:
    name = name.upper()
    return name in _NAMES or (name.startswith(_PREFIXES) and name not in _NO_NAMES) or name.endswith(_SUFFIXES)


# --- who uses an engine ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def try_attach(record: EngineRecord) -> Iterator[bool]:
    """Be one who uses the engine, for the length of the block; False when it is about to end or has ended."""
    with _lock(record.directory, shared=True) as held:
        # A lock on a file that was removed meanwhile is a lock on nothing.
        yield held and (record.directory / _RECORD).exists()


@contextlib.contextmanager
def try_claim(directory: Path) -> Iterator[bool]:
    """Keep others from attaching, for the length of the block; False when somebody is attached."""
    with _lock(directory, shared=False) as held:
        yield held


def is_attached(record: EngineRecord) -> bool:
    """Whether anybody uses the engine."""
    with try_claim(record.directory) as free:
        return not free


@contextlib.contextmanager
def _lock(directory: Path, *, shared: bool) -> Iterator[bool]:
    import fcntl

    try:
        descriptor = os.open(directory / _ATTACHED, os.O_RDWR)
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
