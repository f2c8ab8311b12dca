"""Processes are asked to end before they are killed, and none outruns the end."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helmsman.base.process_ending import end_group, end_processes, namespace_init, stopped_namespace
from helmsman.base.processes import Process, descendants, running_process, still_running

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell")

LOCKING = """
trap 'rm -f "$1"' EXIT
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


def test_a_group_releases_its_locks_too(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with started("bash", "-c", LOCKING, "bash", str(lock)) as shell:
        end_group(shell.pid, shell.poll)
    assert not lock.exists()


def test_what_does_not_end_when_asked_is_killed_a_moment_later() -> None:
    with started(sys.executable, "-c", STUBBORN) as process:
        left = {one for one in (running_process(process.pid),) if one is not None}
        began = time.monotonic()
        assert end_processes(lambda: still_running(left), grace=0.2) == frozenset()
        assert 0.2 <= time.monotonic() - began < 5


def test_nothing_left_costs_one_look() -> None:
    looks: list[int] = []

    def find() -> frozenset[Process]:
        looks.append(1)
        return frozenset()

    assert end_processes(find) == frozenset()
    assert looks == [1]


@pytest.fixture
def forking() -> Iterator[subprocess.Popen[str]]:
    """A namespace in which processes do nothing but fork and exit, beside a shell and its `sleep`."""
    if shutil.which("unshare") is None or subprocess.run([*NAMESPACE, "true"], check=False).returncode:
        pytest.skip("no namespaces for this user")
    chain = f"{sys.executable} -S -c '{FORKING}' >/dev/null & "
    with started(*NAMESPACE, "sh", "-c", f"{chain * 10} echo ready; sleep 600") as outer:
        yield outer
        outer.kill()


def test_what_keeps_forking_is_ended_and_the_others_go_on(forking: subprocess.Popen[str]) -> None:
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


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
