"""The process that owns another one: `python -m helmsman.agents.keeper.process`.

A process that outlives whoever wanted it still needs somebody who drains its standard error, reaps it and ends it, with all
that it has started. The keeper starts it as its child, writes down who they are (`places`), and says through its standard
output whether it came up; what it is to start it reads from its standard input. A child listens by itself, or is on a pipe
and reached through the keeper (`pipe`). Then the keeper waits: until the child ends, until it is told to end it (SIGTERM),
until nobody has been attached and nothing has run for the idle time, or until its `leash` is cut.

It belongs to nobody: it forks once more, so that whoever started it has no child to wait for. It starts before the first
turn can, so it imports little, and the rest when the child is up. POSIX only.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
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

from helmsman.agents.keeper.below import MARK, Below, become_subreaper, end_with_parent
from helmsman.agents.keeper.log import Log
from helmsman.agents.keeper.places import LOG_NAME, OUTPUT, forget, has_record, is_draining, try_claim, write_content
from helmsman.agents.keeper.successor import Successor
from helmsman.base.process_ending import end_group
from helmsman.base.processes import running_process
from helmsman.base.surroundings import for_others, umask_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.agents.keeper.leash import OnLeash
    from helmsman.agents.keeper.pipe import Pipe
    from helmsman.agents.keeper.watcher import Watcher
    from helmsman.base.processes import Process

READY_TIMEOUT: Final = 30.0
"""How long a child may take until it listens, or answers, unless the order says otherwise; a tenth of a second was seen, or
seconds on a busy machine."""

_READY_POLL: Final = 0.01
_LOOK_SECONDS: Final = 60.0
_LOOKS_PER_IDLE_TIME: Final = 4
_DRAINING_LOOK_SECONDS: Final = 5.0
_UNANSWERED_SECONDS: Final = 24 * 60 * 60.0
"""A question holds a child that nobody is attached to for so long, and no longer. So does one that does not answer us."""

_BELOW_SECONDS: Final = 5.0
_INTERRUPT_SECONDS: Final = 5.0
_INPUT_CLOSED_GRACE: Final = 5.0
_DELIVERING_SECONDS: Final = 5.0
TERMINATED_GRACE: Final = 5.0
LAST_LOG_NAME: Final = "last-exit.log"
"""What the last child that ended without being told to had said, kept beside the directories."""

WAKE: Final = getattr(signal, "SIGUSR1", signal.SIGTERM)
"""Tells a keeper to look again at once, for example because its child is to be drained."""


class Idleness:
    """Knows when a child has been of no use for long enough."""

    def __init__(self, directory: Path, watcher: Watcher, idle: float, log: Log) -> None:
        self._directory = directory
        self._watcher = watcher
        self._idle = idle
        self._log = log
        self._used_at = time.monotonic()
        self._unanswered_since: float | None = None

    def until_next_look(self) -> float:
        """In how many seconds it is worth asking again."""
        if is_draining(self._directory):
            return min(_DRAINING_LOOK_SECONDS, self._idle)
        return min(_LOOK_SECONDS, self._idle / _LOOKS_PER_IDLE_TIME)

    def may_end(self, *, nobody_attached: bool) -> bool:
        """Whether the child has been of no use for long enough."""
        now = time.monotonic()
        if not nobody_attached:
            self._used_at, self._unanswered_since = now, None
            return False
        if now - self._used_at < self._idle and not is_draining(self._directory):
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
        """Whether anything is at work, and whether anything waits for an answer (a child that gives us none, too)."""
        from helmsman.errors import EngineError

        try:
            found = self._watcher.activity()
        except EngineError as error:
            self._log.write(f"keeper: {error}\n".encode())
            return False, True
        return bool(found.working), bool(found.waiting)


class Keeper:
    """Owns one child for as long as it lives."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self._directory = Path(order["directory"])
        self._socket = Path(order["socket"])
        self._log = Log(self._directory / LOG_NAME)
        self._selector = selectors.DefaultSelector()
        self._signals, self._wakeup = socket.socketpair()
        self._told_to_end = False
        self._look_now = False
        module, _, name = str(order["watcher"]).partition(":")
        self._watcher: Watcher = getattr(importlib.import_module(module), name)(self._socket)
        self._idleness = Idleness(self._directory, self._watcher, float(order["idle"]), self._log)
        self._below = Below(self._directory)
        self._successor = Successor(self._directory, order.get("successor", ()), self._log.write)
        self._pipe: Pipe | None = None
        self._leash: OnLeash | None = None
        if (said := order.get("leash")) is not None:
            from helmsman.agents.keeper.leash import OnLeash

            self._leash = OnLeash(said)
        self._cut_because: str | None = None

    def run(self, report: int) -> None:
        """Start the child, say how that went, and look after it until its end."""
        become_subreaper()
        self._watch_signals()
        try:
            child = self._start()
        except (OSError, ValueError) as error:
            _report(report, {"ready": False, "stderr": f"Error: {error}"})
            forget(self._directory, self._socket)
            return
        if self._leash is not None:
            self._leash.watch(lambda reason: self._cut(child, reason))
        try:
            self._write_record(child)
            came_up = self._wait_until_it_is_up(child)
            stderr = "" if came_up else self._log.tail
            is_told = _report(report, {"ready": came_up, "exit_code": child.returncode, "stderr": stderr})
            if came_up and (is_told or not self._order.get("for_starter")):
                self._import_the_rest()
                self._keep(child)
        except Exception:
            self._log.write(traceback.format_exc().encode())
            raise
        finally:
            self._end(child)
            self._say_farewell(child)
            if self._cut_because is not None:
                self._log.write(f"keeper: it was killed, because {self._cut_because}\n".encode())
            if child.returncode and (self._cut_because is not None or not self._told_to_end):
                with contextlib.suppress(OSError):
                    shutil.move(self._directory / LOG_NAME, self._directory.parent / LAST_LOG_NAME)
            forget(self._directory, self._socket)

    def _start(self) -> subprocess.Popen[bytes]:
        on_pipe = self._order.get("pipe")
        if on_pipe is not None:
            from helmsman.agents.keeper.pipe import Pipe

            self._pipe = Pipe(
                self._selector,
                self._watcher,
                self._socket,
                self._directory / OUTPUT,
                epoch=int(on_pipe.get("epoch", 0)),
                **on_pipe.get("output", {}),
                log=self._log.write,
                end=self._be_told_to_end,
            )
        child = subprocess.Popen(
            self._order["argv"],
            env={**for_others(self._order["env"]), MARK: str(self._directory)},
            cwd=self._order.get("cwd", self._directory),
            stdin=subprocess.DEVNULL if on_pipe is None else subprocess.PIPE,
            stdout=subprocess.DEVNULL if on_pipe is None else subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            umask=umask_in(self._order["env"]),
            preexec_fn=end_with_parent,
        )
        assert child.stderr is not None
        os.set_blocking(child.stderr.fileno(), False)
        self._selector.register(child.stderr.fileno(), selectors.EVENT_READ, self._read_stderr)
        self._stderr = child.stderr.fileno()
        if self._pipe is not None and on_pipe is not None:
            assert child.stdin is not None
            assert child.stdout is not None
            self._pipe.begin(
                os.dup(child.stdin.fileno()), child.stdout.fileno(), on_pipe["greeting"], on_pipe["answer"]
            )
            child.stdin.close()
        return child

    def _write_record(self, child: subprocess.Popen[bytes]) -> None:
        keeper, process = running_process(os.getpid()), running_process(child.pid)
        if keeper is None or process is None:
            return  # it has ended already, which the next look shows
        write_content(
            self._directory,
            {
                **self._order["about"],
                "id": self._directory.name,
                "directory": str(self._directory),
                "socket": str(self._socket),
                "keeper": keeper,
                "codex": process,  # the child, whatever it is: earlier versions know it by this name
                "idle": float(self._order["idle"]),
                "started_at": time.time(),
                "on_pipe": self._pipe is not None,
            },
        )

    def _import_the_rest(self) -> None:
        """What we need later, while it is there: Helmsman may be upgraded or removed while its engines live."""
        self._watcher.import_the_rest()
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
        """Wait until something happens or the time is up, and take in what has happened; whether the child lives."""
        for key, events in self._selector.select(max(0.0, seconds)):
            key.data(events)
        return self._reap(child)

    def _reap(self, child: subprocess.Popen[bytes]) -> bool:
        """Whoever has ended below us, and has nobody else, is ours to reap; so nobody but us may wait for the child."""
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
        while self._reap(child) and not self._told_to_end and time.monotonic() < deadline:
            if _listens(self._socket) if self._pipe is None else self._pipe.answer is not None:
                return True
            self._wait(child, _READY_POLL if self._pipe is None else deadline - time.monotonic())
        self._wait(child, 0)  # what it said at its end
        return False

    def _keep(self, child: subprocess.Popen[bytes]) -> None:
        next_look = next_list = next_needed = 0.0
        while self._reap(child) and not self._told_to_end:
            now = time.monotonic()
            if now >= next_list:
                self._below.write_down()
                if self._pipe is not None:
                    self._pipe.retry()
                next_list = time.monotonic() + _BELOW_SECONDS
            if self._look_now or now >= next_needed:
                with try_claim(self._directory) as nobody_attached:
                    is_alone = nobody_attached and not self._has_owner
                self._successor.look(nobody_attached=is_alone)
                next_needed = time.monotonic() + self._successor.until_next_look()
            if self._look_now or now >= next_look:
                self._look_now = False
                if not has_record(self._directory):
                    return  # somebody removed it: nobody will ever find this child again
                with try_claim(self._directory) as nobody_attached:
                    if self._idleness.may_end(nobody_attached=nobody_attached and not self._has_owner):
                        self._told_to_end = True
                        self._end(child)  # within the claim, so that nobody attaches to a child that ends
                        return
                next_look = time.monotonic() + self._idleness.until_next_look()
            self._wait(child, min(next_look, next_list, next_needed) - time.monotonic())
        if self._told_to_end and self._cut_because is None:
            self._interrupt(child)

    @property
    def _has_owner(self) -> bool:
        return self._pipe is not None and self._pipe.has_owner

    # --- the end -----------------------------------------------------------------------------------------------------

    def _cut(self, child: subprocess.Popen[bytes], reason: str) -> None:
        """It may not go on, and there is no time to ask it to stop: somebody else may be about to. In the leash's thread."""
        self._cut_because, self._told_to_end = reason, True
        if child.returncode is None:
            _signal_group(child.pid, signal.SIGKILL)
        self._wakeup.send(bytes([signal.SIGCHLD]))  # the rest of its end is as always
        self._below.sweep(frozenset(), time.sleep, grace=0)

    def _interrupt(self, child: subprocess.Popen[bytes]) -> None:
        """A child that is terminated may wait for its turns, or lose them; interrupted, they are written down as such."""
        from helmsman.errors import EngineError

        try:
            lines = self._watcher.interrupt()
            if self._pipe is None:
                return
            for line in lines:
                self._pipe.send_to_child(line)
            deadline = time.monotonic() + _INTERRUPT_SECONDS
            while any(self._watcher.activity()) and self._reap(child) and time.monotonic() < deadline:
                self._wait(child, deadline - time.monotonic())
        except EngineError as error:
            self._log.write(f"keeper: {error}\n".encode())

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        """End the child, in order, and then all that is still below us."""
        if self._pipe is not None and self._reap(child):
            self._pipe.close_input()
            self._wait_for_end(child, _INPUT_CLOSED_GRACE)
        started = self._below.seen()  # where there are no subreapers, they are lost with the child
        if self._reap(child):
            _signal_group(child.pid, signal.SIGTERM)
            started |= self._wait_for_end(child, TERMINATED_GRACE)
        if self._reap(child):
            _signal_group(child.pid, signal.SIGKILL)
            started |= self._wait_for_end(child, TERMINATED_GRACE)
        if sys.platform != "linux":  # elsewhere what is in the group need not be below us
            end_group(child.pid, lambda: self._reap(child))
        self._below.sweep(started, lambda seconds: self._wait(child, seconds))

    def _wait_for_end(self, child: subprocess.Popen[bytes], seconds: float) -> frozenset[Process]:
        """What was seen below us meanwhile: the child may just have been starting something."""
        seen = self._below.seen()
        deadline = time.monotonic() + seconds
        while self._reap(child) and time.monotonic() < deadline:
            self._wait(child, min(0.02, deadline - time.monotonic()))
            seen |= self._below.seen()
        return seen

    def _say_farewell(self, child: subprocess.Popen[bytes]) -> None:
        if self._pipe is None:
            return
        self._pipe.ended(child.returncode, self._log.tail)
        deadline = time.monotonic() + _DELIVERING_SECONDS
        while not self._pipe.has_delivered_all and time.monotonic() < deadline:
            self._wait(child, deadline - time.monotonic())
        self._pipe.close()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.settimeout(1)
        probe.connect(str(path))
        return True
    return False


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _report(report: int, message: Mapping[str, Any]) -> bool:
    """Tell whoever has had the child started; False where that one is gone."""
    try:
        os.write(report, json.dumps(message).encode())
    except OSError:
        return False
    finally:
        os.close(report)
    return True


def main() -> None:
    order = json.load(sys.stdin)
    if os.fork():
        os._exit(0)
    os.setsid()
    report = os.dup(1)  # not inherited by the child, unlike the three below
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    keeper = Keeper(order)
    keeper.run(report)


if __name__ == "__main__":
    main()
