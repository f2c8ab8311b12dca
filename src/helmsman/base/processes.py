"""Identify processes, check whether they run, and find what they started. `process_ending` ends them.

The system reuses pids. A pid together with its start time identifies one process, also across reboots. Linux provides
both in /proc, other systems through `ps`.

Codex runs commands in separate process groups. They survive when Codex is terminated or killed, and no signal to its
group reaches them, so find them before ending Codex.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

KEPT_MARK: Final = "KEPT_BY_HELMSMAN"
"""Variable with the supervisor's directory, set for all processes below a supervisor."""
CHILD_MARK: Final = "HELMSMAN_CHILD"
"""Variable with a unique name, set for all processes below an agent without a supervisor."""

_PS: Final = "/bin/ps"  # where every system without /proc has it
_PS_SECONDS: Final = 5.0
_READ_BYTES: Final = 64 * 1024
KILL: Final = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL
_TICKS: Final = 0 if sys.platform == "win32" else os.sysconf("SC_CLK_TCK")
_ENDED_STATES: Final = ("Z", "X", "x")
"""States of a process that has ended. It keeps its pid until its parent reaps it."""
_STATE, _PARENT, _GROUP, _THREADS, _STARTED = 0, 1, 2, 17, 19
"""Positions in /proc/PID/stat, from the state on."""


class Process(NamedTuple):
    """Process, identified by pid and start time. Compare `started` only: its form depends on the system."""

    pid: int
    started: str

    @classmethod
    def me(cls) -> Process:
        """Return this process."""
        return _me(os.getpid())

    def is_alive(self) -> bool:
        """Return whether exactly this process still runs; another one with its pid does not count."""
        return bool(self.started) and running_process(self.pid) == self


@lru_cache(maxsize=1)
def _me(pid: int) -> Process:
    return running_process(pid) or Process(pid, "")


def running_process(pid: int) -> Process | None:
    """Return the running process with this pid, or None if it has ended."""
    if pid <= 0:
        return None
    if not _has_proc():
        return next((process for process, _ in from_ps("-p", str(pid))), None)
    with suppress(OSError):
        return next((process for process, _ in _read_stat(pid)), None)
    return None


def started_now() -> str | None:
    """Return the `started` of a process that starts now; None if the system's values cannot be ordered."""
    if sys.platform != "linux" or not _has_proc():
        return None
    moment = f"{_boot_id()}:{time.clock_gettime_ns(time.CLOCK_BOOTTIME) * _TICKS // 10**9}"
    # A container may have its own time namespace; then the values cannot be compared.
    return moment if started_before(Process.me(), moment) else None  # otherwise /proc uses another clock


def started_before(process: Process, moment: str) -> bool:
    """Return whether a process is older than a moment of `started_now`.

    One of the same hundredth of a second is not.
    """
    return int(process.started.rpartition(":")[2]) < int(moment.rpartition(":")[2])


def descendants(root: Process) -> frozenset[Process]:
    """Return the descendants of exactly this process; empty if it has ended, or if the system does not say.

    A pid alone is not enough: it may belong to another process by now, and callers end what this returns. The first
    processes of the system have no descendants that are ours to end.
    """
    if root.pid <= 1:
        return frozenset()
    children: dict[int, list[Process]] = {}
    running = list(_running())
    # Ended, or its pid belongs to another process.
    if root not in {process for process, _ in running}:
        return frozenset()
    known = {0, *(process.pid for process, _ in running)}
    for process, parent in running:
        # A parent that has ended since its child was read has left it to another one.
        now = parent if parent in known else parent_of(process.pid) or parent
        children.setdefault(now, []).append(process)
    found: list[Process] = []
    parents = [root.pid]
    # The list grows while it is read, so all generations are found.
    for parent in parents:
        found += children.get(parent, [])
        parents += [process.pid for process in children.get(parent, [])]
    return frozenset(found)


def with_variable(name: str, value: str) -> frozenset[Process]:
    """Return the processes with this environment variable, at any depth; empty without /proc."""
    mark, found = f"{name}={value}".encode(), set[Process]()
    for pid in all_pids():
        with suppress(OSError):  # it has ended, or belongs to another user
            # A process may change its environment, but not the copy that it was started with.
            if mark in read_proc(f"/proc/{pid}/environ").split(b"\0"):
                found |= {process for process, _ in _read_stat(pid)}
    return frozenset(found)


def is_marked(pid: int) -> bool:
    """Return whether an agent's process tree started this process; False if unknown."""
    marks = tuple(f"{mark}=".encode() for mark in (KEPT_MARK, CHILD_MARK))
    with suppress(OSError):
        return any(one.startswith(marks) for one in read_proc(f"/proc/{pid}/environ").split(b"\0"))
    return False


def parents_of(pid: int) -> frozenset[int]:
    """Return a process, its parent, the parent of that, and so on, as pids."""
    parents = None if _has_proc() else {process.pid: parent for process, parent in from_ps("-A")}
    line = [pid]
    # A pid may be reused while this runs, and close a circle.
    while (parent := parent_of(line[-1]) if parents is None else parents.get(line[-1])) and parent not in line:
        line.append(parent)
    return frozenset(line)


def parent_of(pid: int) -> int | None:
    """Return the pid of a process's parent; None if it has ended, or without /proc."""
    with suppress(OSError):
        return next((parent for _, parent in _read_stat(pid)), None)
    return None


def process_groups() -> dict[int, set[int]]:
    """Return the pids of all running processes by their process group; empty where there is no /proc."""
    groups: dict[int, set[int]] = {}
    for pid in all_pids():
        # Processes end while they are listed.
        with suppress(OSError):
            fields = _stat_fields(pid)
            if not _has_ended(fields):
                groups.setdefault(int(fields[_GROUP]), set()).add(pid)
    return groups


def still_running(processes: Collection[Process]) -> frozenset[Process]:
    """Return those of the processes that still run."""
    return frozenset(process for process, _ in _running() if process in processes) if processes else frozenset()


def _running() -> Iterator[tuple[Process, int]]:
    """Return every process with its parent, but for those that have ended and only wait to be reaped."""
    return _from_proc() if _has_proc() else from_ps("-A")


def _has_proc() -> bool:
    return _is_own_proc(os.getpid())


@lru_cache(maxsize=1)
def _is_own_proc(pid: int) -> bool:
    """Return whether /proc shows the PID namespace that this process is in.

    `unshare --pid` without `--mount-proc` leaves that of another namespace: its numbers name other processes here.
    """
    try:
        return os.readlink("/proc/self") == str(pid)  # noqa: PTH115 - pathlib makes the start slower
    except OSError:
        return False


def _from_proc() -> Iterator[tuple[Process, int]]:
    for pid in all_pids():
        with suppress(OSError):  # it has ended
            yield from _read_stat(pid)


def all_pids() -> Iterator[int]:
    if not _is_own_proc(os.getpid()):
        return
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - all processes are looked at often: paths take twice as long
    except OSError:
        return
    for name in names:
        if name.isdecimal():
            yield int(name)


def _read_stat(pid: int) -> Iterator[tuple[Process, int]]:
    fields = _stat_fields(pid)
    if not _has_ended(fields):
        yield Process(pid, f"{_boot_id()}:{fields[_STARTED]}"), int(fields[_PARENT])


def _has_ended(fields: list[str]) -> bool:
    """Return whether a process has ended. If only its first thread has ended, its state looks the same."""
    # A first thread that has exited looks like a zombie while others run.
    return fields[_STATE] in _ENDED_STATES and int(fields[_THREADS]) <= 1


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on: pid (name) state ppid …, and the name may contain anything."""
    # The name is in parentheses and may itself contain some.
    return read_proc(f"/proc/{pid}/stat").decode("utf-8", "replace").rpartition(")")[2].split()


def read_proc(path: str) -> bytes:
    """Read a file of /proc, whose size is not known in advance.

    Raises:
        OSError: It does not exist, or belongs to another PID namespace.
    """
    # Numbers of another namespace name other processes.
    if not _is_own_proc(os.getpid()):
        raise FileNotFoundError(path)
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Files of /proc have no size.
        parts: list[bytes] = []
        while part := os.read(file, _READ_BYTES):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(file)


@lru_cache(maxsize=1)
def _boot_id() -> str:
    """Start times count from the start of the system, so they need to say which start."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def from_ps(*which: str) -> Iterator[tuple[Process, int]]:
    """Processes with their parents by `ps`. Language and time zone are fixed, or two could read two different texts."""
    import subprocess  # only here: the supervisor of an engine imports this module, and is to start fast

    if sys.platform == "linux" and not _is_own_proc(os.getpid()):
        return  # `ps` would read the same /proc
    with suppress(OSError, subprocess.SubprocessError):
        listing = subprocess.run(
            [_PS, *which, "-o", "pid=,ppid=,state=,lstart="],
            # Dates depend on language and time zone, and are compared as text.
            env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PS_SECONDS,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        for line in listing.stdout.splitlines():
            pid, parent, state, started = line.split(maxsplit=3)
            if not state.startswith(_ENDED_STATES):
                # `ps` pads days of one digit.
                yield Process(int(pid), " ".join(started.split())), int(parent)
