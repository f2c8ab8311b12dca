"""The process that owns a detached engine: `python -m helmsman.agents.codex.detached.keeper`, started by `engines.py`.

An engine that outlives the process that wanted it still needs somebody who drains its standard error, reaps it and ends
it. The keeper starts Codex as its child, writes down who they are (`engine_records`), and says through its standard
output whether Codex came up; what it is to start it reads from its standard input. Then it waits: until Codex ends, until
it is told to end Codex (SIGTERM), or until nobody has been attached and nothing has run for the idle time.

It belongs to nobody: it forks once more, so that whoever started it has no child to wait for. It starts before the first
turn can, so it imports little, and the rest when Codex is up. POSIX only.
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

from helmsman.agents.codex.detached.records import (
    LOG_NAME,
    BinaryIdentity,
    EngineRecord,
    forget,
    read_record,
    try_claim,
    write_record,
)
from helmsman.base.processes import descendants, kill, running_process

if TYPE_CHECKING:
    from collections.abc import Mapping

READY_TIMEOUT: Final = 30.0
"""How long Codex may take until it listens; it was seen to need a tenth of a second, or seconds on a busy machine."""

_READY_POLL: Final = 0.01
_LOOK_SECONDS: Final = 60.0
_LOOKS_PER_IDLE_TIME: Final = 4
_DRAINING_LOOK_SECONDS: Final = 5.0
_UNANSWERED_SECONDS: Final = 24 * 60 * 60.0
"""A question holds an engine that nobody is attached to for so long, and no longer. So does one that does not answer us."""

TERMINATED_GRACE: Final = 5.0
LOG_BYTES: Final = 256 * 1024
LAST_LOG_NAME: Final = "last-exit.log"
"""What the last engine that ended without being told to had said, kept beside the directories of the engines."""

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

WAKE: Final = getattr(signal, "SIGUSR1", signal.SIGTERM)
"""Tells a keeper to look again at once, for example because its engine is to be drained."""


class Log:
    """The end of what Codex says on standard error, on disk, without secrets and never more than twice the limit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = b""
        self._size = 0

    def write(self, data: bytes) -> None:
        lines, newline, self._unfinished = (self._unfinished + data).rpartition(b"\n")
        key = lines.rfind(b"-----BEGIN ")
        if key >= 0 and b"PRIVATE KEY" in lines[key : key + 70] and lines.find(b"-----END ", key) < 0:
            # Of a key that comes in pieces, the later ones would not be known for what they are.
            lines, self._unfinished = lines[:key], lines[key:] + newline + self._unfinished
        if len(self._unfinished) > LOG_BYTES:
            lines, newline, self._unfinished = lines + self._unfinished, b"\n", b""
        if newline:
            self._append(lines.decode("utf-8", "replace") + "\n")

    def _append(self, text: str) -> None:
        from helmsman.base.redaction import redact

        shown = redact(_COLOURS.sub("", text)).encode()[-LOG_BYTES:]
        with contextlib.suppress(OSError):  # a full disk must not stop Codex
            if self._size + len(shown) > LOG_BYTES:
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


class Idleness:
    """Knows when an engine has been of no use for long enough."""

    def __init__(self, directory: Path, socket_path: Path, idle: float, log: Log) -> None:
        self._directory = directory
        self._socket = socket_path
        self._idle = idle
        self._log = log
        self._used_at = time.monotonic()
        self._unanswered_since: float | None = None

    def until_next_look(self) -> float:
        """In how many seconds it is worth asking again."""
        if self._is_draining:
            return min(_DRAINING_LOOK_SECONDS, self._idle)
        return min(_LOOK_SECONDS, self._idle / _LOOKS_PER_IDLE_TIME)

    @property
    def _is_draining(self) -> bool:
        record = read_record(self._directory)
        return record is not None and record.is_draining

    def may_end(self, *, nobody_attached: bool) -> bool:
        """Whether the engine has been of no use for long enough."""
        now = time.monotonic()
        if not nobody_attached:
            self._used_at, self._unanswered_since = now, None
            return False
        if now - self._used_at < self._idle and not self._is_draining:
            return False  # too early, whatever goes on in it
        working, waiting = self._activity()
        if working or not waiting:
            self._unanswered_since = None
        elif self._unanswered_since is None:
            self._unanswered_since = now
        if working or (waiting and now - (self._unanswered_since or now) < _UNANSWERED_SECONDS):
            self._used_at = now
            return False
        return True

    def _activity(self) -> tuple[bool, bool]:
        """Whether anything is at work, and whether anything waits for an answer (an engine that gives us none, too)."""
        from helmsman.agents.codex.detached.activity import read_activity
        from helmsman.errors import EngineError

        try:
            found = read_activity(self._socket)
        except EngineError as error:
            self._log.write(f"keeper: {error}\n".encode())
            return False, True
        return bool(found.working), bool(found.waiting)


class Keeper:
    """Owns one Codex for as long as it lives."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self._directory = Path(order["directory"])
        self._socket = Path(order["socket"])
        self._log = Log(self._directory / LOG_NAME)
        self._selector = selectors.DefaultSelector()
        self._signals, self._wakeup = socket.socketpair()
        self._told_to_end = False
        self._look_now = False
        self._idleness = Idleness(self._directory, self._socket, float(order["idle"]), self._log)

    def run(self, report: int) -> None:
        """Start Codex, say how that went, and look after it until its end."""
        self._watch_signals()
        try:
            codex = self._start()
        except (OSError, ValueError) as error:
            _report(report, {"ready": False, "stderr": f"Error: {error}"})
            forget(self._directory, self._socket)
            return
        try:
            self._write_record(codex)
            came_up = self._wait_until_it_listens(codex)
            _report(report, {"ready": came_up, "exit_code": codex.poll(), "stderr": "" if came_up else self._log.tail})
            if came_up:
                _import_the_rest()
                self._keep(codex)
        except Exception:
            self._log.write(traceback.format_exc().encode())
            raise
        finally:
            self._end(codex)
            if not self._told_to_end and codex.returncode:
                with contextlib.suppress(OSError):
                    shutil.move(self._directory / LOG_NAME, self._directory.parent / LAST_LOG_NAME)
            forget(self._directory, self._socket)

    def _start(self) -> subprocess.Popen[bytes]:
        codex = subprocess.Popen(
            self._order["argv"],
            env=self._order["env"],
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert codex.stderr is not None
        os.set_blocking(codex.stderr.fileno(), False)
        self._selector.register(codex.stderr, selectors.EVENT_READ)
        return codex

    def _write_record(self, codex: subprocess.Popen[bytes]) -> None:
        keeper, child = running_process(os.getpid()), running_process(codex.pid)
        if keeper is None or child is None:
            return  # it has ended already, which the next look shows
        write_record(
            EngineRecord(
                id=self._directory.name,
                directory=self._directory,
                socket=self._socket,
                keeper=keeper,
                codex=child,
                binary=BinaryIdentity(**self._order["binary"]),
                codex_home=self._order["codex_home"],
                env_digest=self._order["env_digest"],
                idle=float(self._order["idle"]),
                started_at=time.time(),
            )
        )

    # --- waiting -----------------------------------------------------------------------------------------------------

    def _watch_signals(self) -> None:
        self._signals.setblocking(False)
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGCHLD, WAKE):
            signal.signal(number, lambda *_: None)  # the wakeup socket says which it was
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._selector.register(self._signals, selectors.EVENT_READ)

    def _wait(self, seconds: float) -> None:
        """Wait until something happens or the time is up, and take in what has happened."""
        for key, _ in self._selector.select(max(0.0, seconds)):
            if key.fileobj is self._signals:
                numbers = self._signals.recv(4096)
                self._told_to_end |= signal.SIGTERM in numbers
                self._look_now |= WAKE in numbers
            else:
                data = os.read(key.fd, 65536)
                if data:
                    self._log.write(data)
                else:
                    self._selector.unregister(key.fileobj)

    def _wait_until_it_listens(self, codex: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + READY_TIMEOUT
        while codex.poll() is None and not self._told_to_end and time.monotonic() < deadline:
            if _listens(self._socket):
                return True
            self._wait(_READY_POLL)
        self._wait(0)  # what it said at its end
        return False

    def _keep(self, codex: subprocess.Popen[bytes]) -> None:
        next_look = 0.0
        while codex.poll() is None and not self._told_to_end:
            now = time.monotonic()
            if self._look_now or now >= next_look:
                self._look_now = False
                if read_record(self._directory) is None:
                    return  # somebody removed it: nobody will ever find this engine again
                with try_claim(self._directory) as nobody_attached:
                    if self._idleness.may_end(nobody_attached=nobody_attached):
                        self._told_to_end = True
                        self._end(codex)  # within the claim, so that nobody attaches to an engine that ends
                        return
                next_look = time.monotonic() + self._idleness.until_next_look()
            self._wait(next_look - time.monotonic())
        if self._told_to_end:
            self._interrupt_turns()

    # --- the end -----------------------------------------------------------------------------------------------------

    def _interrupt_turns(self) -> None:
        """Codex that is terminated waits for its turns, or loses them; interrupted, they are written down as such."""
        from helmsman.agents.codex.detached.activity import interrupt_turns
        from helmsman.errors import EngineError

        try:
            interrupt_turns(self._socket)
        except EngineError as error:
            self._log.write(f"keeper: {error}\n".encode())

    def _end(self, codex: subprocess.Popen[bytes]) -> None:
        if codex.poll() is None:
            started = descendants(codex.pid)
            _signal_group(codex.pid, signal.SIGTERM)
            deadline = time.monotonic() + TERMINATED_GRACE
            while codex.poll() is None and time.monotonic() < deadline:
                started |= descendants(codex.pid)  # it may just have been starting one
                self._wait(min(0.02, deadline - time.monotonic()))
            if codex.poll() is None:
                started |= descendants(codex.pid)
                _signal_group(codex.pid, signal.SIGKILL)
                codex.wait()
            kill(started)  # commands run in groups of their own
        _signal_group(codex.pid, signal.SIGKILL)


def _import_the_rest() -> None:
    """What we need later, while it is there: Helmsman may be upgraded or removed while its engines live."""
    for name in ("helmsman.agents.codex.detached.activity", "helmsman.base.redaction", "websockets.sync.client"):
        importlib.import_module(name)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.settimeout(1)
        probe.connect(str(path))
        return True
    return False


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _report(report: int, message: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # whoever wanted to know is gone; the engine will be found by its record
        os.write(report, json.dumps(message).encode())
    os.close(report)


def main() -> None:
    order = json.load(sys.stdin)
    if os.fork():
        os._exit(0)
    os.setsid()
    report = os.dup(1)  # not inherited by Codex, unlike the three below
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    keeper = Keeper(order)
    keeper.run(report)


if __name__ == "__main__":
    main()
