from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from helmsman.tasks.owner import Owner, from_ps, start_time


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)


def test_this_process_is_alive() -> None:
    me = Owner.me()
    assert me.pid == os.getpid()
    assert me.is_alive()


def test_a_pid_with_another_start_time_is_another_process() -> None:
    assert not replace(Owner.me(), started="long ago").is_alive()
    assert not replace(Owner.me(), started="").is_alive()


def test_a_process_that_ended_is_dead_also_before_its_parent_noticed() -> None:
    with sleeper() as child:
        started = start_time(child.pid)
        assert started is not None
        owner = Owner(pid=child.pid, started=started)
        assert owner.is_alive()
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and still has its pid
        assert not owner.is_alive()
    assert not owner.is_alive()


@pytest.mark.parametrize("pid", [0, -1, 2**31 - 1])
def test_what_is_no_process_is_dead(pid: int) -> None:
    assert start_time(pid) is None


def test_ps_tells_processes_apart_too_whatever_the_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    here = from_ps(os.getpid())
    assert here
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert from_ps(os.getpid()) == here
    with sleeper() as child:
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert from_ps(child.pid) is None
    assert from_ps(2**22 + 1) is None


def test_without_ps_nobody_is_called_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert from_ps(os.getpid()) is None
