"""Connect a client to the running hub, or start one.

The process that starts a hub makes its lock and its listening socket, and the hub inherits both. So every other client can
connect immediately, and its messages wait until the hub has imported everything. The lock belongs to the open file, so it is
held from before the hub exists until it is gone, however it ends; nothing is ever removed. A hub may end at any moment, and
its socket closes before its lock is free, so both are tried again in every round.

Imported by pipes, which must start quickly: imports only modules that cost nothing.
"""

from __future__ import annotations

import _socket
import itertools
import os
import sys
import time

from helmsman.base.user_directories import home_directory, usual_state_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeVar

    T = TypeVar("T")

SOCKET = "hub.sock"
LOCK = "hub.lock"
"""Held by the hub. Says its epoch, its pid and its version, for people and tests."""
UP = b"up"
"""Last word in the file until its hub has said farewell."""
LOG = "hub.log"

REPLACE = "replace"
"""Argument of a hub that ends the older one that is there, and takes its place."""
PIPES = "pipes"
"""Argument of a hub that a pipe starts. Such a hub imports the modules for pipes before it accepts a client."""
NEXT, LATER = b"h", b"l"
"""Last byte of a hub to a client: reconnect immediately, or when there is something to send."""
LOCK_FD, LISTENER_FD = 3, 4
"""Descriptors that a hub inherits."""

_STARTS = 4
"""Number of hubs that may end without a word before the client gives up."""
_SILENT = 20
"""Number of silent connections before the client gives up."""
_LONGEST_PAUSE_SECONDS = 1.0
_PATIENCE_SECONDS = 60.0
"""Seconds that a process may hold the lock without listening, and for which a hub that worked is replaced by others."""
_ROUND_SECONDS = 0.01
_BACKLOG = 256
_ADDRESS_BYTES = 100
"""Limit for the address of a Unix socket: 104 bytes on macOS, 108 on Linux."""
_TAIL_BYTES = 2000
_PASSED_ON = ("HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "PATH", "HELMSMAN_STORE", "HELMSMAN_OTEL")
"""Variables that a hub inherits from its first client. All others come with the clients, only for their own calls."""
_PASSED_ON_PREFIXES = ("LC_", "XDG_", "OTEL_")
_SCRIPTS = (b"helmsman", b"codex-helmsman")
_ON = ("", "1", "true", "yes", "on")


class NoHub(Exception):
    """Raised if there can be no hub here. The service then runs inside the process that wanted one."""


class HubFailed(Exception):
    """Raised if hubs do not start. The text has the end of the log."""


def wanted(env: Mapping[str, str]) -> bool:
    """Return whether the environment allows a hub here. Only the hub reads the user's file."""
    return env.get("HELMSMAN_DETACH", "").strip().lower() in _ON and hasattr(os, "posix_spawn")


def hexed(texts: Iterable[str]) -> str:
    """Encode texts as one field of a hello."""
    return ",".join(os.fsencode(text).hex() for text in texts)


def state_directory(env: Mapping[str, str]) -> str:
    """Return the state directory according to the environment.

    Only the hub reads the user's file, which may name another.
    """
    named = env.get("HELMSMAN_STATE_DIR", "")
    if not named:
        return usual_state_directory(env)
    if named == "~" or named.startswith("~/"):
        return home_directory(env) + named[1:]
    return os.path.join(os.getcwd(), named)  # noqa: PTH109, PTH118


def client_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the client's environment for the hub, with its umask, so that files made for it there get the same modes."""
    # The umask can be read only by setting it.
    umask = os.umask(0o077)
    os.umask(umask)
    return {**env, "HELMSMAN_UMASK": f"{umask:03o}"}


class HubConnector:
    """Connector to the hub of one state directory. A hub that it starts gets `words` as arguments."""

    def __init__(self, state: str, *words: str) -> None:
        self.state = state
        self._words = words
        self._starts = 0
        self._connections = 0
        """Numbers of started hubs and of connections since the last hub that welcomed us."""
        self._lost_at: float | None = -_PATIENCE_SECONDS
        """Time at which the last hub that welcomed us was lost; None while it runs, long ago if there was none."""

    def connection(self) -> _socket.socket:
        """Return a connection to the hub, which is started if none runs.

        Raises:
            NoHub: There can be none.
            HubFailed: None comes up.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        if self._lost_at is None:
            self._lost_at = time.monotonic()
        while True:
            # Behind a hub that has worked waits a client: another one is tried in its place for longer.
            is_long = time.monotonic() - self._lost_at > _PATIENCE_SECONDS
            connected = connect(self.state) if self._connections < _SILENT or not is_long else None
            if connected is not None:
                self._connections += 1
                if self._connections > _STARTS:  # one that lives, and has closed on us again and again
                    time.sleep(min(0.05 * self._connections, _LONGEST_PAUSE_SECONDS))
                return connected
            hopeless = is_long and (self._starts >= _STARTS or self._connections >= _SILENT)
            if hopeless or time.monotonic() > deadline:
                raise HubFailed(
                    f"The hub of {self.state} does not start, or does not answer. The end of its log:\n{_tail(self.state)}"
                )
            if start(self.state, *self._words):
                time.sleep(min(0.05 * self._starts, _LONGEST_PAUSE_SECONDS))
                self._starts += 1
            else:
                time.sleep(_ROUND_SECONDS)

    def welcomed(self) -> None:
        """Record that the connected hub works."""
        self._starts, self._connections, self._lost_at = 0, 0, None


def connect(state: str) -> _socket.socket | None:
    """Return a connection to the hub of a state directory, or None if no process of this user listens."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        _with_address(state, SOCKET, connection.connect)
        if _listeners_uid(connection) == os.geteuid():  # a client sends its whole environment
            return connection
    except OSError:
        pass
    connection.close()
    return None


def _listeners_uid(connection: _socket.socket) -> int:
    """Return the user of the process that listens at the other end of a Unix socket."""
    if hasattr(_socket, "SO_PEERCRED"):
        credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    else:  # macOS: LOCAL_PEERCRED
        credentials = connection.getsockopt(0, 1, 76)
    return int.from_bytes(credentials[4:8], sys.byteorder)


def start(state: str, *words: str) -> bool:
    """Start a hub with these arguments. Return False if another process holds the lock.

    Raises:
        NoHub: The state directory is no place for one.
    """
    descriptors: list[int] = []
    try:
        if not _claim(state, descriptors):
            return False
        log = os.open(f"{state}/{LOG}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        lock, listener = descriptors
        descriptors.append(log)
        spawn(state, lock, listener, log, *words)
    except OSError as error:
        raise NoHub(f"{state} is no place for one: {error.strerror or error}") from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return True


def claim_place(state: str) -> bool:
    """Take the lock and the address for this process, which is a hub. Return False if another process holds the lock."""
    descriptors: list[int] = []
    try:
        if not _claim(state, descriptors):
            return False
        for descriptor, number in zip(descriptors, (LOCK_FD, LISTENER_FD), strict=True):
            os.dup2(descriptor, number, inheritable=False)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return True


def _claim(state: str, descriptors: list[int]) -> bool:
    """Append the lock of a new hub and its listening socket. Return False if another process holds the lock."""
    import fcntl

    _make_private(state)
    lock = os.open(f"{state}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    descriptors.append(lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    if below_an_agent(os.getpid()):
        raise NoHub("it was started by an agent of Helmsman's own")
    epoch, *rest = os.pread(lock, 100, 0).split() or [b""]
    os.ftruncate(lock, 0)
    died = b" - - " + UP if rest[2:] == [UP] else b""
    os.pwrite(lock, epoch + died, 0)  # the process named in the lock is gone
    descriptors.append(_listen(state))
    return True


def start_command(state: str) -> tuple[str, ...]:
    """Return a command that starts a hub unless one runs, for a supervisor, which may outlive this version."""
    return (sys.executable, *isolation(), "-m", "helmsman.hub.launch", state)


def start_successor(state: str) -> None:
    """Start a hub of our own version that replaces the older one that is there; if it cannot, nothing happens."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        log = os.open(f"{state}/{LOG}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        spawn(state, nothing, nothing, log, REPLACE)
        os.close(log)
        os.close(nothing)
    except OSError:
        return  # the existing hub continues


def is_newer(version: str, other: str) -> bool:
    """Return whether a version is newer than another one. Parts that are not numbers sort before all numbers."""
    return _numbers(version) > _numbers(other)


def _numbers(version: str) -> tuple[list[int], int]:
    release, _, candidate = version.partition("rc")
    last = int(candidate) if candidate.isdigit() else sys.maxsize  # a release comes after its candidates
    return [int(part) if part.isdigit() else -1 for part in release.split(".")], last


def spawn(state: str, lock: int, listener: int, log: int, *words: str) -> None:
    """Start the process. It forks immediately and is reparented, so this waits only for the fork."""
    import fcntl

    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    # Out of the way of the numbers that they are to have.
    high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in (nothing, nothing, log, lock, listener)]
    os.close(nothing)
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, *isolation(), "-m", "helmsman.cli.hub_process", state, *words],
            environment(state, os.environ),
            file_actions=[(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(high)],
            setsid=True,
        )
    finally:
        for descriptor in high:
            os.close(descriptor)
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return  # our parent had us ignore our children


def environment(state: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a hub, taken from the client that starts it."""
    passed = {name: env[name] for name in env if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)}
    return passed | {"HELMSMAN_STATE_DIR": state}


def below_an_agent(pid: int) -> bool:
    """Return whether Helmsman started a process, directly or not: by a supervisor, a hub, or a service inside a command.

    Linux shows the command lines of the ancestors. Other systems do not, and the answer is False. If an ancestor ends during
    the check, the answer is True.
    """
    if not os.path.exists("/proc/self/stat"):  # noqa: PTH110 - pathlib costs more than the whole pipe
        return False
    try:
        while (pid := parent_of(pid)) > 1:
            words = read(f"/proc/{pid}/cmdline").split(b"\0")
            if _is_helmsman(words):
                return True
    except (OSError, ValueError, IndexError):
        return True
    return False


def _is_helmsman(words: list[bytes]) -> bool:
    """Return whether a process with this command line is Helmsman itself. `env helmsman …` and the like only start one."""
    names = [word.rpartition(b"/")[2] for word in words[:2]]
    if names[0] in _SCRIPTS:
        return True
    if not names[0].lower().startswith((b"python", b"pypy")) and words[0] != os.fsencode(sys.executable):
        return False
    modules = [word for before, word in itertools.pairwise(words) if before == b"-m"]
    return any(name in _SCRIPTS for name in names) or any(one.startswith(b"helmsman") for one in modules)


def parent_of(pid: int) -> int:
    """Return the parent of a process (Linux)."""
    # The name in parentheses may itself have blanks and parentheses.
    return int(read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])


def read(path: str) -> bytes:
    """Return the content of a small file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, 65536):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def isolation() -> list[str]:
    """Return the options that keep a client's variables from deciding the hub's imports, except for the user's site."""
    user_site = getattr(sys.modules.get("site"), "USER_SITE", None)
    return ["-E", "-P"] if user_site and __file__.startswith(user_site) else ["-I"]


def _make_private(state: str) -> None:
    os.makedirs(state, mode=0o700, exist_ok=True)  # noqa: PTH103 - pathlib costs more than the whole pipe
    status = os.stat(state)  # noqa: PTH116
    if status.st_mode & 0o022 or status.st_uid != os.geteuid():
        raise PermissionError(1, "other users can write to it")


def _listen(state: str) -> int:
    """Return a socket that listens at the address of the hub. It replaces a stale one."""
    fresh = f"{SOCKET}.{os.getpid()}"
    path = f"{state}/{fresh}"
    # Left by an earlier process with this pid.
    if os.path.lexists(path):
        os.unlink(path)  # noqa: PTH108
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    _with_address(state, fresh, listener.bind)
    # Before the socket gets its name, so that no other user can connect in between.
    os.chmod(path, 0o600)  # noqa: PTH101
    listener.listen(_BACKLOG)
    os.rename(path, f"{state}/{SOCKET}")  # noqa: PTH104
    return listener.detach()


def _with_address(state: str, name: str, act: Callable[[str], T]) -> T:
    """Use a socket by its address. Where that is too long, the process goes to its directory and back."""
    path = f"{state}/{name}"
    if len(os.fsencode(path)) <= _ADDRESS_BYTES:
        return act(path)
    here = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.chdir(state)
        return act(name)
    finally:
        os.fchdir(here)
        os.close(here)


def _tail(state: str) -> str:
    try:
        return read(f"{state}/{LOG}")[-_TAIL_BYTES:].decode("utf-8", "replace")
    except OSError as error:
        return f"(no log: {error.strerror})"


if __name__ == "__main__":
    start(sys.argv[1])
