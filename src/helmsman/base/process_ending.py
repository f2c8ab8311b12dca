"""End processes: ask first, then make sure. Every place that ends processes other than its own child uses `end_processes`.

SIGTERM comes first, because a shell that is killed leaves its locks behind: a killed `pyenv rehash` makes every later login
shell on the machine wait for a minute. What a process starts when it is asked to end may be the `rm` that removes its lock,
so that is not asked. SIGKILL follows a second later.

A list of processes can be outrun: one that forks and exits all the time has another pid whenever it is signalled. So the
second step stops a whole set at once where the system can do that: a PID namespace (`kill(-1)` from inside reaches every
process of it, and no fork slips through), and a process group. Only then is it listed and killed.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.processes import KILL, Process, parent_of, parents_of, process_groups, running_process, still_running
from helmsman.base.stop_namespace import CHILD_WAS_KILLED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator


TERMINATED_SECONDS: Final = 1.0
"""Time between SIGTERM and SIGKILL, for all processes together: one that keeps starting others gains none."""

END_SECONDS: Final = 6.0
_POLL: Final = 0.02
_HELPER_SECONDS: Final = 5.0
_STOP_NAMESPACE: Final = Path(__file__).with_name("stop_namespace.py")


def send_signal(process: Process, number: int) -> None:
    """Signal exactly this process, if it lives; another one that has its pid by now is not signalled."""
    if not hasattr(os, "pidfd_open"):
        if process.is_alive():
            with suppress(OSError):
                os.kill(process.pid, number)
        return
    with suppress(OSError):
        descriptor = os.pidfd_open(process.pid)
        try:
            # Checked after the handle was opened: from here on the pid cannot be reused.
            if process.is_alive():
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def end_processes(
    find: Callable[[], Collection[Process]],
    *,
    patience: float = 0.0,
    grace: float = TERMINATED_SECONDS,
    seconds: float = END_SECONDS,
    wait: Callable[[float], object] = time.sleep,
    namespace: Process | None = None,
) -> frozenset[Process]:
    """End all processes that `find` returns, and repeat until it returns none. Blocks; cheap if none is found.

    Args:
        find: Returns the running processes to end. It is called again after every signal.
        patience: Time before SIGTERM, for processes about to exit: `pyenv rehash` takes its lock a moment before it can
            release it on a signal.
        grace: Time between SIGTERM and SIGKILL; 0 kills immediately.
        seconds: Give up after this time.
        wait: Sleeps. A caller that must reap its children passes its own function.
        namespace: Pid 1 of the PID namespace that all of them are in, if they are in one. The last check then runs while
            the namespace is stopped: most other checks miss a process that forks and exits all the time.

    Returns:
        The processes that remain: none unless the time was up; `namespace` itself if a process in it prevented the last
        check.
    """
    began = time.monotonic()
    # Pid 1 of a namespace ignores SIGTERM, and its end would end all others without a chance to clean up.
    asked = set() if namespace is None else {namespace}  # that is never asked to end
    while True:
        # Anew in each round, since processes start others while they end.
        left = _but_ourselves(find())
        passed = time.monotonic() - began
        if not left and namespace is not None:
            left = _kill(find, left, namespace)
        if not left or passed > seconds:
            return left
        if passed < patience:
            pass
        elif passed < patience + grace:
            # It may be the `rm` that removes a lock of the process that was asked to end.
            fresh = {process for process in left - asked if not _is_started_by(process, asked)}
            signal_all(fresh, signal.SIGTERM)
            asked |= fresh
        else:
            _kill(find, left, namespace)
        wait(_POLL)


def _is_started_by(process: Process, asked: Collection[Process]) -> bool:
    """Return whether a process that was asked to end has started this one: it may be what releases its locks."""
    parent = parent_of(process.pid)
    return any(one.pid == parent for one in asked)


def end_group(group: int, reap: Callable[[], object] = lambda: None) -> None:
    """End a process group in the same way. Blocks; `reap` reaps its leader if that is a child of this process."""
    deadline = time.monotonic() + TERMINATED_SECONDS
    with suppress(OSError):  # the group does not exist, or has ended
        os.killpg(group, signal.SIGTERM)
        while time.monotonic() < deadline:
            reap()
            # Raises when nothing of the group is left.
            os.killpg(group, 0)
            time.sleep(_POLL)
        os.killpg(group, KILL)


def signal_all(processes: Iterable[Process], number: int) -> None:
    """Signal these processes, but no others that have reused their pids."""
    for process in processes:
        send_signal(process, number)


def _but_ourselves(found: Collection[Process]) -> frozenset[Process]:
    """Leave out this process and its parents, for example if it runs in a command of an agent.

    The first process of the system or container is not a parent of a process that `docker exec` starts.
    """
    if not found:
        return frozenset()
    # Never the first process of the system, and never an ancestor of this one.
    ourselves = {0, 1} | parents_of(os.getpid())
    return frozenset(process for process in found if process.pid not in ourselves)


def _kill(
    find: Callable[[], Collection[Process]], left: frozenset[Process], namespace: Process | None
) -> frozenset[Process]:
    """Kill the processes that `find` returns while their namespaces are stopped.

    Returns:
        Those processes; or `namespace` if there were none but the namespace could not be stopped.
    """
    inits = {init for process in left if (init := namespace_init(process)) is not None}
    prevented: set[Process] = set()
    with ExitStack() as stopped:
        # Stop all namespaces before listing: a process that forks all the time would outrun the list.
        for init in inits | ({namespace} if namespace is not None else set()):
            if not stopped.enter_context(stopped_namespace(init)) and init == namespace:
                prevented.add(init)
        left = _but_ourselves(find())
        pids = {process.pid for process in left}
        for group, members in process_groups().items() if left else ():
            # Only groups of which every member is to end.
            if group > 1 and members <= pids:  # also reaches what the members fork at this moment
                with suppress(OSError):
                    os.killpg(group, KILL)
        signal_all(left, KILL)
    return left or still_running(prevented)


def namespace_init(process: Process) -> Process | None:
    """Return pid 1 of a process's outermost PID namespace, or None if it shares ours."""
    with suppress(OSError):
        ours, pid, found = _pid_namespace("self"), process.pid, None
        # Upwards, until the parent is in this namespace: that process is pid 1 of the outermost one.
        while pid > 1 and _pid_namespace(pid) != ours:
            found, pid = running_process(pid), parent_of(pid) or 0
        return found
    return None


def _pid_namespace(pid: int | str) -> tuple[int, int]:
    status = os.stat(f"/proc/{pid}/ns/pid")  # noqa: PTH116 - called for many processes
    return status.st_dev, status.st_ino


@contextmanager
def stopped_namespace(init: Process) -> Iterator[bool]:
    """Stop all processes of a PID namespace but its pid 1 for the length of the block, if the system lets us.

    A helper does it, since a process with threads cannot join a user namespace. It continues them when its input is
    closed, so also if this process is killed. It is in its own session, so that no Ctrl-C ends it before.

    Yields:
        False if a process of the namespace prevented it: that can signal the helper as soon as it is in there.
    """
    try:
        namespace, ours = _pid_namespace(init.pid), _pid_namespace("self")
    except OSError:
        namespace = ours = (0, 0)
    # Nothing to join: the lists above reach all processes.
    if namespace == ours or not init.is_alive():
        yield True
        return
    try:
        helper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_STOP_NAMESPACE), *map(str, (init.pid, *namespace))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # A Ctrl-C must not end the helper, or the stopped processes would stay stopped.
            start_new_session=True,
        )
    except OSError:
        yield True
        return
    assert helper.stdin is not None
    assert helper.stdout is not None
    try:
        yield _has_stopped(helper)
    finally:
        helper.stdin.close()
        helper.stdout.close()
        try:
            helper.wait(_HELPER_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(helper.pid, KILL)  # not reaped, so the group is its own
            helper.wait()


def _has_stopped(helper: subprocess.Popen[bytes]) -> bool:
    """Wait for the answer of the helper: a byte when all have stopped, its exit code if that cannot be done."""
    assert helper.stdout is not None
    if not select.select([helper.stdout], [], [], _HELPER_SECONDS)[0]:
        return False  # its child was stopped
    # Other failures, such as a kernel that forbids it, must not hold up the end.
    return helper.stdout.read(1) == b"." or helper.wait() != CHILD_WAS_KILLED
