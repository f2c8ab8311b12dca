"""Supervisor of one agent process: `python -m helmsman.agents.supervisor.process`.

An agent that outlives the hub needs a process that logs its output, drains its standard error, reaps it, and ends it with
all its descendants. The supervisor reads an order from its standard input, starts the agent as its child, writes their
record (`directory`), greets the agent, and reports through its standard output whether the agent is up. The agent speaks on
its standard streams, or listens on a Unix socket to which the supervisor connects; clients reach it through the supervisor
(`relay`). The supervisor ends when the agent has ended, on SIGTERM, when no client was attached and nothing ran for the idle
time, or when the lease is lost (`lease_watchdog`).

It forks once more, so that the process that started it has no child to wait for. It starts before the first turn can, so it
imports little. POSIX only.

The hub sets whether it is needed (`directory.mark_needed`) and holds a lock while it is attached. If it was killed, the
supervisor starts the next one, with a command that came with the order, so that no file decides which program runs.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.supervisor.directory import (
    DESCENDANTS,
    LOG_NAME,
    OUTPUT,
    WAKE,
    forget,
    has_record,
    is_draining,
    is_needed,
    try_claim,
    write_content,
)
from helmsman.agents.supervisor.relay import LineFraming, Relay, connect_websocket
from helmsman.base.caller_context import for_others, umask_in
from helmsman.base.files import replace_file
from helmsman.base.process_ending import TERMINATED_SECONDS, end_group, end_processes, send_signal
from helmsman.base.processes import (
    KEPT_MARK,
    KILL,
    Process,
    descendants,
    parents_of,
    running_process,
    still_running,
    with_variable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from helmsman.agents.supervisor.lease_watchdog import LeaseWatchdog
    from helmsman.agents.supervisor.relay import Framing, Watcher

# --- the process tree ------------------------------------------------------------------------------------------------
# On Linux a supervisor is a subreaper: all processes that its child starts stay its descendants, including daemons that
# fork twice, also after the child has died. In case the supervisor is killed, it writes a list of its descendants from
# time to time, and all of them carry the path of its directory in their environment.


MARK: Final = KEPT_MARK

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def become_subreaper(*, really: bool = True) -> None:
    """Make orphaned descendants children of this process, which has to reap them; or stop doing so."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(really))


def end_with_parent() -> None:
    """Let the system terminate a child when the supervisor dies. Called in the child before it executes its program."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class Descendants:
    """Descendants of this process."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / DESCENDANTS
        self._written: frozenset[Process] = frozenset()

    def write_down(self) -> None:
        """Write the list. Not durable: it is of no use once the machine has restarted."""
        found = descendants(Process.me())
        if found != self._written:
            self._written = found
            with contextlib.suppress(OSError):
                replace_file(self._file, json.dumps(sorted(found)), durable=False)

    def seen(self) -> frozenset[Process]:
        """Return the descendants where they would be lost with the child; none where they stay descendants."""
        return frozenset() if sys.platform == "linux" else descendants(Process.me())

    def sweep(
        self, seen: frozenset[Process], wait: Callable[[float], object], *, grace: float = TERMINATED_SECONDS
    ) -> None:
        """End all descendants, and those `seen` before. `wait` sleeps, and reaps processes that have ended."""
        end_processes(lambda: descendants(Process.me()) | still_running(seen), grace=grace, wait=wait)


def surviving_descendants(directory: Path) -> frozenset[Process]:
    """Return the processes that a killed supervisor has left running."""
    found: set[Process] = set()
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
        for pid, started in json.loads((directory / DESCENDANTS).read_bytes()):
            process = Process(int(pid), str(started))
            if process.is_alive():
                found |= {process, *descendants(process)}
    ourselves = parents_of(os.getpid())  # one of them may have started this process
    return frozenset(found | {one for one in with_variable(MARK, str(directory)) if one.pid not in ourselves})


# --- ending from outside ---------------------------------------------------------------------------------------------

STOP_TIMEOUT: Final = 20.0
"""Timeout for a supervisor to end its child: it interrupts, terminates and kills, each within a limit."""

CHILD_GRACE: Final = 2.0
"""Seconds that a child without a supervisor may take after SIGTERM."""

KILLED_GRACE: Final = 5.0
"""Timeout for the system to remove a process that was killed."""

_POLL: Final = 0.02


def stop_supervised(directory: Path, sockets: Sequence[Path], supervisor: Process, child: Process) -> None:
    """End a supervisor, its agent and all that it has started. Blocks for a bounded time."""
    _end_alone(supervisor, STOP_TIMEOUT)
    started = surviving_descendants(directory)  # the supervisor was killed, or hung
    if child.is_alive():
        started |= {child, *descendants(child)}
    # Descendants may start more processes, so look again until none is left. The environment of one that is just
    # executing a program cannot be read, so look once more after a moment.
    for _ in range(2):
        end_processes(lambda: still_running(started) | surviving_descendants(directory), grace=CHILD_GRACE)
        _end_alone(child, CHILD_GRACE)
        time.sleep(_POLL)
    forget(directory, *sockets)


def _end_alone(process: Process, seconds: float) -> None:
    """End a process, also if this process runs below it: `end_processes` would leave it out."""
    for number, grace in ((signal.SIGTERM, seconds), (KILL, KILLED_GRACE)):
        send_signal(process, number)
        deadline = time.monotonic() + grace
        while process.is_alive() and time.monotonic() < deadline:
            time.sleep(_POLL)


# --- the log of its standard error -----------------------------------------------------------------------------------

LOG_BYTES: Final = 256 * 1024
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Log:
    """End of a log on disk, without secrets, bounded to twice the limit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = b""
        self._size = 0

    def write(self, data: bytes) -> None:
        lines, newline, self._unfinished = (self._unfinished + data).rpartition(b"\n")
        key = lines.rfind(b"-----BEGIN ")
        if key >= 0 and b"PRIVATE KEY" in lines[key : key + 70] and lines.find(b"-----END ", key) < 0:
            # Later pieces of a key would not be recognised.
            lines, self._unfinished = lines[:key], lines[key:] + newline + self._unfinished
        if len(self._unfinished) > LOG_BYTES:
            lines, newline, self._unfinished = lines + self._unfinished, b"\n", b""
        if newline:
            self._append(lines.decode("utf-8", "replace") + "\n")

    def _append(self, text: str) -> None:
        from helmsman.base.redaction import redact

        shown = redact(COLOURS.sub("", text)).encode()[-LOG_BYTES:]
        with contextlib.suppress(OSError):  # a full disk must not stop the process
            if self._size + len(shown) > LOG_BYTES:
                # One older file is kept, so that the limit is at most doubled.
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
                self._size = 0
            with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
                file.write(shown)
            self._size += len(shown)

    @property
    def tail(self) -> str:
        with contextlib.suppress(OSError):
            return self._path.read_text(encoding="utf-8", errors="replace")
        return ""


# --- the next hub ----------------------------------------------------------------------------------------------------

_ALONE_SECONDS: Final = 1.0
"""Seconds before the supervisor starts a hub: a connected client starts one sooner."""
_LONGEST_SECONDS: Final = 60.0
"""Longest pause between two attempts."""
_HUB_LOOK_SECONDS: Final = 0.25
_HUB_SELDOM_SECONDS: Final = 60.0


class Successor:
    """Starter of the next hub. An empty `command` starts no hub."""

    def __init__(self, directory: Path, command: Sequence[str], log: Callable[[bytes], None]) -> None:
        self._directory = directory
        self._command = tuple(map(str, command))
        self._log = log
        self._alone_since: float | None = None
        self._patience = _ALONE_SECONDS

    def until_next_look(self) -> float:
        """Return the seconds until the next check, unless the supervisor is woken."""
        return _HUB_LOOK_SECONDS if self._command and is_needed(self._directory) else _HUB_SELDOM_SECONDS

    def look(self, *, nobody_attached: bool) -> None:
        """Start the next hub if one is needed and none has been attached for a while."""
        now = time.monotonic()
        if not self._command or not nobody_attached or not is_needed(self._directory):
            # A hub came, or none is needed: begin to count again.
            self._alone_since, self._patience = None, _ALONE_SECONDS
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since >= self._patience:
            # Longer each time, since a hub that cannot start would be started for ever.
            self._alone_since, self._patience = now, min(2 * self._patience, _LONGEST_SECONDS)
            self._log(b"supervisor: no hub is attached, so the next one is started\n")
            try:
                _start_elsewhere(self._command)
            except OSError as error:
                self._log(f"supervisor: the hub cannot be started: {error}\n".encode())


def _start_elsewhere(command: tuple[str, ...]) -> None:
    """Start a program that is no descendant of the supervisor.

    Orphans become children of a subreaper, so the supervisor is none for that moment.
    """
    become_subreaper(really=False)
    try:
        # A second fork, so that the hub becomes a child of init and not of an agent's supervisor.
        between = os.fork()
        if between == 0:
            try:
                if os.fork() == 0:
                    os.setsid()
                    os.execv(command[0], command)  # noqa: S606 - there is nothing to shell out to
            finally:
                os._exit(0)
        os.waitpid(between, 0)
    finally:
        become_subreaper()


# --- the program -----------------------------------------------------------------------------------------------------

READY_TIMEOUT: Final = 30.0
"""Timeout of a child's answer to its greeting, unless the order says otherwise.

It takes a tenth of a second, or seconds on a busy machine.
"""

_READY_POLL: Final = 0.01
_LOOK_SECONDS: Final = 60.0
_LOOKS_PER_IDLE_TIME: Final = 4
_DRAINING_LOOK_SECONDS: Final = 5.0
_UNANSWERED_SECONDS: Final = 24 * 60 * 60.0
"""Seconds for which an open question keeps a child without a client alive."""

_BELOW_SECONDS: Final = 5.0
_INTERRUPT_SECONDS: Final = 5.0
_INPUT_CLOSED_GRACE: Final = 5.0
_DELIVERING_SECONDS: Final = 5.0
TERMINATED_GRACE: Final = 5.0
LAST_LOG_NAME: Final = "last-exit.log"
"""Log of the last child that ended unexpectedly, next to the directories."""


class Idleness:
    """Knows when a child has been unused for long enough."""

    def __init__(self, directory: Path, watcher: Watcher, idle: float) -> None:
        self._directory = directory
        self._watcher = watcher
        self._idle = idle
        self._used_at = time.monotonic()
        self._unanswered_since: float | None = None

    def until_next_look(self) -> float:
        """Return the seconds until the next check."""
        if is_draining(self._directory):
            return min(_DRAINING_LOOK_SECONDS, self._idle)
        return min(_LOOK_SECONDS, self._idle / _LOOKS_PER_IDLE_TIME)

    def may_end(self, *, nobody_attached: bool) -> bool:
        """Return whether the child has been unused for long enough."""
        now = time.monotonic()
        if not nobody_attached:
            self._used_at, self._unanswered_since = now, None
            return False
        if now - self._used_at < self._idle and not is_draining(self._directory):
            return False
        working, waiting = map(bool, self._watcher.activity())
        if working or not waiting:
            self._unanswered_since = None
        elif self._unanswered_since is None:
            self._unanswered_since = now
        # An open question keeps it alive for a day: the user may be away.
        if working or (waiting and now - (self._unanswered_since or now) < _UNANSWERED_SECONDS):
            self._used_at = now
            return False
        return True


class Supervisor:
    """Owns one child from its start to its end."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self._directory = Path(order["directory"])
        self._socket = Path(order["socket"])
        self._log = Log(self._directory / LOG_NAME)
        self._selector = selectors.DefaultSelector()
        # Signals wake the selector through this pair.
        self._signals, self._wakeup = socket.socketpair()
        self._told_to_end = False
        self._look_now = False
        module, _, name = str(order["watcher"]).partition(":")
        self._watcher: Watcher = getattr(importlib.import_module(module), name)()
        self._descendants = Descendants(self._directory)
        self._successor = Successor(self._directory, order.get("successor", ()), self._log.write)
        self._listens_at = None if order.get("listens_at") is None else Path(order["listens_at"])
        self._relay: Relay
        self._watchdog: LeaseWatchdog | None = None
        # Only workers of a fleet have leases, so others need not import it.
        if (lease := order.get("lease")) is not None:
            from helmsman.agents.supervisor.lease_watchdog import LeaseWatchdog

            self._watchdog = LeaseWatchdog(lease)
        self._lost_because: str | None = None

    def run(self, report: int) -> None:
        """Start the child, report whether it is up, and supervise it until its end."""
        # Before the child starts, so that none of its orphans escapes.
        become_subreaper()
        self._watch_signals()
        try:
            child = self._start()
        except (OSError, ValueError) as error:
            _report(report, {"ready": False, "stderr": f"Error: {error}"})
            self._forget()
            return
        if self._watchdog is not None:
            self._watchdog.watch(lambda reason: self._kill(child, reason))
        try:
            self._write_record(child)
            came_up = self._wait_until_it_is_up(child)
            stderr = "" if came_up else self._log.tail
            # The starter may have died; then a process that was started only for it ends.
            is_told = _report(report, {"ready": came_up, "exit_code": child.returncode, "stderr": stderr})
            if came_up and (is_told or not self._order.get("for_starter")):
                self._import_the_rest()
                self._supervise(child)
        except Exception:
            self._log.write(traceback.format_exc().encode())
            raise
        finally:
            # Also after an error: no child may be left without a supervisor.
            self._end(child)
            self._say_farewell(child)
            if self._lost_because is not None:
                self._log.write(f"supervisor: killed, because {self._lost_because}\n".encode())
            if child.returncode and (self._lost_because is not None or not self._told_to_end):
                # Its directory is removed below, and the log explains what happened.
                with contextlib.suppress(OSError):
                    shutil.move(self._directory / LOG_NAME, self._directory.parent / LAST_LOG_NAME)
            self._forget()

    def _start(self) -> subprocess.Popen[bytes]:
        self._relay = Relay(
            self._selector,
            self._watcher,
            self._socket,
            self._directory / OUTPUT,
            epoch=int(self._order.get("epoch", 0)),
            **self._order.get("output", {}),
            log=self._log.write,
            end=self._be_told_to_end,
        )
        streams = subprocess.PIPE if self._listens_at is None else subprocess.DEVNULL
        child = subprocess.Popen(
            self._order["argv"],
            env={**for_others(self._order["env"]), MARK: str(self._directory)},
            # Without a working directory it runs in that of its record, where no repository can influence it.
            cwd=self._order.get("cwd", self._directory),
            stdin=streams,
            stdout=streams,
            stderr=subprocess.PIPE,
            start_new_session=True,
            umask=umask_in(self._order["env"]),
            preexec_fn=end_with_parent,
        )
        assert child.stderr is not None
        # Nothing here may block: one loop serves the agent, its clients and its log.
        os.set_blocking(child.stderr.fileno(), False)
        self._selector.register(child.stderr.fileno(), selectors.EVENT_READ, self._read_stderr)
        self._stderr = child.stderr.fileno()
        if child.stdin is not None and child.stdout is not None:
            # A copy, so that the file object can be closed without closing the descriptor.
            self._greet(LineFraming(), os.dup(child.stdin.fileno()), child.stdout.fileno())
            child.stdin.close()
        return child

    def _greet(self, framing: Framing, stdin: int, stdout: int) -> None:
        self._relay.begin(framing, stdin, stdout, self._order["greeting"], self._order["answer"])

    def _write_record(self, child: subprocess.Popen[bytes]) -> None:
        supervisor, process = running_process(os.getpid()), running_process(child.pid)
        if supervisor is None or process is None:
            return  # it has ended already, which the next check shows
        write_content(
            self._directory,
            {
                **self._order["about"],
                "directory": str(self._directory),
                "socket": str(self._socket),
                "listens_at": None if self._listens_at is None else str(self._listens_at),
                "supervisor": supervisor,
                "child": process,
                "idle": float(self._order["idle"]),
                "started_at": time.time(),
            },
        )

    def _forget(self) -> None:
        forget(self._directory, self._socket, *(() if self._listens_at is None else (self._listens_at,)))

    def _import_the_rest(self) -> None:
        """Import late dependencies now: Helmsman may be upgraded or removed while its agents run."""
        for name in ("helmsman.base.redaction", "helmsman.errors"):
            importlib.import_module(name)

    # --- waiting -----------------------------------------------------------------------------------------------------

    def _watch_signals(self) -> None:
        self._signals.setblocking(False)
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGCHLD, WAKE):
            signal.signal(number, lambda *_: None)  # the wakeup socket says which it was
        for number in (signal.SIGINT, signal.SIGHUP):
            # A terminal that is closed must not end agents.
            signal.signal(number, signal.SIG_IGN)
        self._selector.register(self._signals, selectors.EVENT_READ, self._read_signals)

    def _read_signals(self, _events: int) -> None:
        numbers = self._signals.recv(4096)
        self._told_to_end |= signal.SIGTERM in numbers
        self._look_now |= WAKE in numbers

    def _read_stderr(self, _events: int) -> None:
        data = os.read(self._stderr, 65536)
        if data:
            self._log.write(data)
        else:
            self._selector.unregister(self._stderr)

    def _be_told_to_end(self) -> None:
        self._told_to_end = True

    def _wait(self, child: subprocess.Popen[bytes], seconds: float) -> bool:
        """Wait for events or the timeout, and handle them. Return whether the child lives."""
        for key, events in self._selector.select(max(0.0, seconds)):
            key.data(events)
        return self._reap(child)

    def _reap(self, child: subprocess.Popen[bytes]) -> bool:
        """Reap the child and adopted orphans. Return whether the child lives. No other code may wait for the child."""
        # As a subreaper it gets all orphans, and has to reap them.
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == child.pid:
                    child.returncode = os.waitstatus_to_exitcode(status)
        return child.returncode is None

    def _wait_until_it_is_up(self, child: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + float(self._order.get("ready_seconds", READY_TIMEOUT))
        is_connected = self._listens_at is None
        if not is_connected:
            import websockets.client  # noqa: F401 - while the child starts
        while self._reap(child) and not self._told_to_end and time.monotonic() < deadline:
            if not is_connected:
                is_connected = self._connect()
            if self._relay.answer is not None:
                return True
            # There is nothing to wait for until the child listens, so poll.
            self._wait(child, deadline - time.monotonic() if is_connected else _READY_POLL)
        self._wait(child, 0)  # read its last output
        return False

    def _connect(self) -> bool:
        """Connect to a child that listens. Return False if it does not listen yet."""
        assert self._listens_at is not None
        if not self._listens_at.exists():
            return False
        try:
            framing, self._connection = connect_websocket(self._listens_at)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        # Two descriptors for one connection: the relay closes input and output separately.
        self._greet(framing, os.dup(self._connection.fileno()), self._connection.fileno())
        return True

    def _supervise(self, child: subprocess.Popen[bytes]) -> None:
        idleness = Idleness(self._directory, self._watcher, float(self._order["idle"]))
        next_look = next_list = 0.0
        while self._reap(child) and not self._told_to_end:
            now = time.monotonic()
            # The list is for the case that the supervisor is killed.
            if now >= next_list:
                self._descendants.write_down()
                self._relay.retry()
                next_list = time.monotonic() + _BELOW_SECONDS
            if self._look_now or now >= next_look:
                self._look_now = False
                if not has_record(self._directory):
                    return  # the directory was removed: no client will find this child again
                # The claim fails while a client is attached, and keeps one from attaching during the check.
                with try_claim(self._directory) as nobody_attached:
                    is_alone = nobody_attached and not self._relay.has_owner
                    if idleness.may_end(nobody_attached=is_alone):
                        self._told_to_end = True
                        self._end(child)  # within the claim, so that no client attaches to a child that ends
                        return
                self._successor.look(nobody_attached=is_alone)
                next_look = time.monotonic() + min(idleness.until_next_look(), self._successor.until_next_look())
            self._wait(child, min(next_look, next_list) - time.monotonic())
        if self._told_to_end and self._lost_because is None:
            self._interrupt(child)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _kill(self, child: subprocess.Popen[bytes], reason: str) -> None:
        """Kill the child immediately: another worker may be about to continue its work.

        Runs in the watchdog's thread.
        """
        # Both are set before the signal, so that the loop reports the reason.
        self._lost_because, self._told_to_end = reason, True
        if child.returncode is None:
            _signal_group(child.pid, signal.SIGKILL)
        self._wakeup.send(bytes([signal.SIGCHLD]))  # the rest of the end is as usual
        # Also what has left the child's group.
        self._descendants.sweep(frozenset(), time.sleep, grace=0)

    def _interrupt(self, child: subprocess.Popen[bytes]) -> None:
        """Interrupt running turns, so that the agent records them as interrupted. Terminated, it may lose them."""
        for line in self._watcher.interrupt():
            self._relay.send_to_child(line)
        deadline = time.monotonic() + _INTERRUPT_SECONDS
        while any(self._watcher.activity()) and self._reap(child) and time.monotonic() < deadline:
            self._wait(child, deadline - time.monotonic())

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        """End the child, in order, and then all its descendants."""
        # Closing the input is the gentlest end, for an agent that reads it.
        if self._listens_at is None and self._reap(child):
            self._relay.close_input()
            self._wait_for_end(child, _INPUT_CLOSED_GRACE)
        started = self._descendants.seen()  # without a subreaper they are lost with the child
        if self._reap(child):
            _signal_group(child.pid, signal.SIGTERM)
            started |= self._wait_for_end(child, TERMINATED_GRACE)
        if self._reap(child):
            _signal_group(child.pid, signal.SIGKILL)
            started |= self._wait_for_end(child, TERMINATED_GRACE)
        if sys.platform != "linux":  # elsewhere the group may hold processes that are no descendants
            end_group(child.pid, lambda: self._reap(child))
        self._descendants.sweep(started, lambda seconds: self._wait(child, seconds))

    def _wait_for_end(self, child: subprocess.Popen[bytes], seconds: float) -> frozenset[Process]:
        """Return the descendants seen during the wait: the child may just have started a process."""
        seen = self._descendants.seen()
        deadline = time.monotonic() + seconds
        while self._reap(child) and time.monotonic() < deadline:
            self._wait(child, min(0.02, deadline - time.monotonic()))
            seen |= self._descendants.seen()
        return seen

    def _say_farewell(self, child: subprocess.Popen[bytes]) -> None:
        self._relay.ended(child.returncode, self._log.tail)
        deadline = time.monotonic() + _DELIVERING_SECONDS
        while not self._relay.has_delivered_all and time.monotonic() < deadline:
            # The owner has to read the last lines before the files are removed.
            self._wait(child, deadline - time.monotonic())
        self._relay.close()


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _report(report: int, message: Mapping[str, Any]) -> bool:
    """Report to the process that started the supervisor. Return False if that one is gone."""
    try:
        os.write(report, json.dumps(message).encode())
    except OSError:
        return False
    finally:
        os.close(report)
    return True


def main() -> None:
    order = json.load(sys.stdin)
    # The starter must not have to wait for the supervisor.
    if os.fork():
        os._exit(0)
    os.setsid()
    report = os.dup(1)  # not inherited by the child, unlike the three below
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    Supervisor(order).run(report)


if __name__ == "__main__":
    main()
