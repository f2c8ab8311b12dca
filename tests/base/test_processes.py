"""Tests of identifying processes, and of ending their descendants at any depth and in any group."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from helmsman.base import processes as module
from helmsman.base.process_ending import end_processes, signal_all
from helmsman.base.processes import (
    KILL,
    Process,
    descendants,
    from_ps,
    running_process,
    started_before,
    started_now,
    still_running,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the system does not tell")

NEST = r"""
import os, subprocess, sys, time
depth = int(sys.argv[1])
if depth:
    subprocess.Popen([sys.executable, "-c", sys.argv[2], str(depth - 1), sys.argv[2]], start_new_session=True)
os.write(1, b"ready\n")  # at once, whatever the others write
time.sleep(600)
"""


def below(pid: int) -> frozenset[Process]:
    process = running_process(pid)
    assert process is not None
    return descendants(process)


@pytest.fixture
def nest() -> Iterator[subprocess.Popen[str]]:
    """A process with a child and a grandchild, each in a session of its own."""
    root = subprocess.Popen([sys.executable, "-c", NEST, "2", NEST], stdout=subprocess.PIPE, text=True)
    assert root.stdout is not None
    for _ in range(3):
        assert root.stdout.readline() == "ready\n"
    left = below(root.pid)
    yield root
    root.kill()
    root.wait()
    root.stdout.close()
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process.pid, KILL)


def test_children_and_grandchildren_are_found(nest: subprocess.Popen[str]) -> None:
    assert len(below(nest.pid)) == 2


def test_a_process_without_children_has_no_descendants() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as alone:
        assert below(alone.pid) == frozenset()


def test_they_are_killed_after_their_parent_has_gone(nest: subprocess.Popen[str]) -> None:
    found = below(nest.pid)
    nest.kill()
    nest.wait()
    assert still_running(found) == found
    assert end_processes(lambda: still_running(found)) == frozenset()
    assert still_running(found) == frozenset()


def test_a_process_that_reuses_the_pid_is_not_killed(nest: subprocess.Popen[str]) -> None:
    others = {Process(process.pid, "another time") for process in below(nest.pid)}
    assert still_running(others) == frozenset()
    signal_all(others, KILL)
    assert len(below(nest.pid)) == 2


def test_there_is_nothing_below_a_process_that_has_ended_or_is_the_systems(nest: subprocess.Popen[str]) -> None:
    """All that is found below a process gets ended: its pid may be another one's by now, or have been 0 all the time."""
    process = running_process(nest.pid)
    assert process is not None
    assert len(descendants(process)) == 2
    first = running_process(1) or Process(1, "")
    for nothing in (process._replace(started="another time"), Process(0, ""), Process(1, ""), first):
        assert descendants(nothing) == frozenset()


def test_a_system_without_proc_is_asked_by_ps(nest: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        subprocess.run(["ps", "-A"], stdout=subprocess.DEVNULL, check=True, timeout=10)
    except OSError:
        pytest.skip("there is no ps")
    monkeypatch.setattr(module, "_has_proc", lambda: False)
    found = below(nest.pid)
    assert len(found) == 2
    assert still_running({Process(process.pid, "another time") for process in found}) == frozenset()
    assert still_running(found) == found


def test_a_system_that_tells_nothing_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_has_proc", lambda: False)
    monkeypatch.setattr(module, "_PS", "/nowhere/ps")
    assert descendants(Process(2, "boot:1")) == frozenset()


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)


def test_this_process_is_alive() -> None:
    me = Process.me()
    assert me.pid == os.getpid()
    assert me.is_alive()


def test_a_pid_with_another_start_time_is_another_process() -> None:
    assert not Process.me()._replace(started="long ago").is_alive()
    assert not Process.me()._replace(started="").is_alive()


@pytest.mark.parametrize("has_proc", [True, False])
def test_a_process_that_ended_is_dead_also_before_its_parent_noticed(
    has_proc: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_has_proc", lambda: has_proc)
    with sleeper() as child:
        process = running_process(child.pid)
        assert process is not None
        assert process.is_alive()
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and still has its pid
        assert not process.is_alive()
    assert not process.is_alive()


@pytest.mark.parametrize("pid", [0, -1, 2**31 - 1])
def test_an_invalid_process_is_dead(pid: int) -> None:
    assert running_process(pid) is None


def test_ps_names_the_same_process_whatever_the_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_has_proc", lambda: False)
    here = running_process(os.getpid())
    assert here is not None
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert running_process(os.getpid()) == here
    assert here in {process for process, _ in from_ps("-A")}


def test_without_ps_no_process_counts_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_has_proc", lambda: False)
    monkeypatch.setattr(module, "_PS", "/nowhere/ps")
    assert running_process(os.getpid()) is None


@pytest.mark.skipif(sys.platform != "linux", reason="there are no PID namespaces")
def test_the_proc_of_another_namespace_tells_nothing() -> None:
    """There `unshare --pid` would be pid 1 of the whole system, and what it asks about other processes than it signals."""
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], check=False).returncode:
        pytest.skip("no namespaces for this user")
    code = """import os
from helmsman.base.processes import *
print(os.getpid(), running_process(1), Process.me().is_alive(), parents_of(1), process_groups())
print(with_variable("PATH", os.environ["PATH"]))"""
    asked = subprocess.run(
        [*inside, sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert asked.stdout == "1 None False frozenset({1}) {}\nfrozenset()\n"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are looked for")
def test_processes_started_before_and_after_a_moment_are_distinguished(nest: subprocess.Popen[str]) -> None:
    moment = started_now()
    assert moment is not None
    assert all(started_before(one, moment) for one in below(nest.pid))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as later:
        newer = running_process(later.pid)
        assert newer is not None
        assert not started_before(newer, moment)
