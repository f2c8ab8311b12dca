"""Processes are asked to end before they are killed, and none outruns the end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from helmsman.base import process_ending, stop_namespace
from helmsman.base.process_ending import end_group, end_processes, namespace_init, stopped_namespace
from helmsman.base.processes import Process, descendants, parent_of, running_process, still_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell")

LOCKING = """
trap 'rm -f "$1"' EXIT
touch "$1"
echo ready
while :; do sleep 0.05; done
"""
RELEASING = """
trap 'sh -c "sleep 0.3; rm -f $1"' EXIT
touch "$1"
echo ready
while :; do sleep 0.05; done
"""
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
)
FORKING = r"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True:  # another pid, another group, as fast as can be
    if os.fork():
        os._exit(0)
    os.setsid()
"""
HEADLESS = r"""
import ctypes, os, sys, threading, time
def go_on():
    print("ready", flush=True)
    time.sleep(600)
threading.Thread(target=go_on).start()
ctypes.CDLL(None).pthread_exit(None)  # only the first thread ends
"""
HUNTING = r"""
import os, signal, sys
number, pid = int(sys.argv[1]), os.getpid()
print("ready", flush=True)
while True:  # whatever process comes next in this namespace
    for next_one in range(pid + 1, pid + 30):
        try:
            os.kill(next_one, number)
        except OSError:
            pass
"""
SLOW_HELPER = """
import os, runpy, signal
os.getppid = signal.pause  # the first call in the namespace: the signal always comes before it has stopped the others
runpy.run_path({path!r}, run_name="__main__")
"""
NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")


def started(*argv: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def below(pid: int) -> frozenset[Process]:
    process = running_process(pid)
    assert process is not None
    return descendants(process)


def test_a_lock_is_released_before_its_holder_is_gone(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with started("bash", "-c", LOCKING, "bash", str(lock)) as shell:
        left = {process for process in (running_process(shell.pid),) if process is not None}
        assert lock.exists()
        assert end_processes(lambda: still_running(left)) == frozenset()
    assert not lock.exists()


def test_a_process_is_not_ended_before_it_released_its_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with started("bash", "-c", RELEASING, "bash", str(lock)) as shell:
        holder = running_process(shell.pid)
        assert holder is not None
        assert end_processes(lambda: still_running({holder, *descendants(holder)})) == frozenset()
    assert not lock.exists()


def test_a_process_that_ends_soon_by_itself_is_not_signalled(tmp_path: Path) -> None:
    """A shell that was given no trap yet leaves its lock behind at any signal."""
    lock = tmp_path / "lock"
    lock.touch()
    with started("bash", "-c", 'echo ready; sleep 0.2; rm "$1"', "bash", str(lock)) as shell:
        holder = running_process(shell.pid)
        assert holder is not None
        assert end_processes(lambda: still_running({holder, *descendants(holder)}), patience=30) == frozenset()
    assert not lock.exists()


def test_a_group_releases_its_locks_too(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with started("bash", "-c", LOCKING, "bash", str(lock)) as shell:
        end_group(shell.pid, shell.poll)
    assert not lock.exists()


def test_a_process_that_ignores_termination_is_killed_a_moment_later() -> None:
    with started(sys.executable, "-c", STUBBORN) as process:
        left = {one for one in (running_process(process.pid),) if one is not None}
        began = time.monotonic()
        assert end_processes(lambda: still_running(left), grace=0.2) == frozenset()
        assert 0.2 <= time.monotonic() - began < 5


def test_ending_no_processes_takes_one_look() -> None:
    looks: list[int] = []

    def find() -> frozenset[Process]:
        looks.append(1)
        return frozenset()

    assert end_processes(find) == frozenset()
    assert looks == [1]


def test_a_process_whose_first_thread_has_ended_is_ended_too() -> None:
    """The system calls it a zombie, and its other threads run."""
    starting = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HEADLESS!r}])"
    with started(sys.executable, "-c", starting) as outer:
        headless = next(iter(below(outer.pid)))
        deadline = time.monotonic() + 20
        while _state(headless.pid) != "Z" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert _state(headless.pid) == "Z"
        assert headless.is_alive()
        assert below(outer.pid) == {headless}
        assert end_processes(lambda: still_running({headless}), grace=0) == frozenset()
        assert outer.wait(20) == 0


@pytest.fixture
def forking() -> Iterator[subprocess.Popen[str]]:
    """A namespace in which processes do nothing but fork and exit, beside a shell and its `sleep`."""
    if shutil.which("unshare") is None or subprocess.run([*NAMESPACE, "true"], check=False).returncode:
        pytest.skip("no namespaces for this user")
    chain = f"{sys.executable} -S -c '{FORKING}' >/dev/null & "
    with started(*NAMESPACE, "sh", "-c", f"{chain * 10} echo ready; sleep 600") as outer:
        yield outer
        outer.kill()


def test_a_process_that_keeps_forking_is_ended_and_others_continue(forking: subprocess.Popen[str]) -> None:
    """Most looks at it find nothing: what was listed has ended, and what it has forked was not listed."""
    sleeping: Process | None = None
    deadline = time.monotonic() + 20
    while sleeping is None and time.monotonic() < deadline:
        sleeping = next((one for one in below(forking.pid) if _name(one.pid) == "sleep"), None)
    assert sleeping is not None
    init = namespace_init(sleeping)
    assert init is not None
    agent = {init, sleeping}

    def forkers() -> frozenset[Process]:
        return descendants(init) - agent

    with stopped_namespace(init):
        looks = [forkers() for _ in range(10)]
        assert all(later <= earlier for earlier, later in pairwise(looks))  # some were exiting already
        assert looks[-1]
    assert end_processes(forkers, grace=0.05, namespace=init) == frozenset()
    with stopped_namespace(init):
        assert forkers() == frozenset()
    assert still_running(agent) == agent
    assert {_state(process.pid) for process in agent} == {"S"}


@pytest.fixture
def sleeping() -> Iterator[tuple[Process, Process]]:
    """Pid 1 of a namespace, and a process in it."""
    if shutil.which("unshare") is None or subprocess.run([*NAMESPACE, "true"], check=False).returncode:
        pytest.skip("no namespaces for this user")
    with started(*NAMESPACE, "sh", "-c", "sleep 600 & echo ready; wait") as outer:
        try:
            init = next(one for one in below(outer.pid) if parent_of(one.pid) == outer.pid)
            yield init, next(iter(descendants(init)))
        finally:
            outer.kill()


def test_a_namespace_continues_if_the_one_that_stopped_it_is_gone(sleeping: tuple[Process, Process]) -> None:
    """Also if it was killed before it could read that all have stopped."""
    init, process = sleeping
    status = Path(f"/proc/{init.pid}/ns/pid").stat()
    helper = [sys.executable, "-I", "-S", stop_namespace.__file__, *map(str, (init.pid, status.st_dev, status.st_ino))]
    reader, writer = os.pipe()
    os.close(reader)
    subprocess.run(helper, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.DEVNULL, timeout=20, check=False)
    os.close(writer)
    assert _state(process.pid) in "SR"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_namespace_that_cannot_be_stopped_is_what_is_left(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process in there signals the helper that comes to stop it: what a look finds then is not all there is."""
    slow = tmp_path / "slow.py"
    slow.write_text(SLOW_HELPER.format(path=stop_namespace.__file__))
    monkeypatch.setattr(process_ending, "_STOP_NAMESPACE", slow)
    monkeypatch.setattr(process_ending, "_HELPER_SECONDS", 1.0)
    if shutil.which("unshare") is None or subprocess.run([*NAMESPACE, "true"], check=False).returncode:
        pytest.skip("no namespaces for this user")
    hunt = f"exec {sys.executable} -S -c '{HUNTING}' {int(number)}"
    with started(*NAMESPACE, "sh", "-c", hunt) as outer:
        try:
            init = next(one for one in below(outer.pid) if parent_of(one.pid) == outer.pid)
            assert end_processes(frozenset, seconds=0.1, namespace=init) == {init}
        finally:
            outer.kill()


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
