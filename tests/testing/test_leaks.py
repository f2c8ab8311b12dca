from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from helmsman.testing import leaks
from tests.left_processes import stuck_sandboxes

WAIT = [sys.executable, "-c", "import sys; sys.stdin.read()"]

TWO_HALVES = 'exec 3<>"$0"; (exec -a bwrap dd bs=8 count=1 <&3) & echo $!; read -r _'


@pytest.fixture
def waiting() -> Iterator[subprocess.Popen[bytes]]:
    """A child that runs until its input closes."""
    with subprocess.Popen(WAIT, stdin=subprocess.PIPE) as child:
        yield child


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_process_is_found_by_its_marker_wherever_it_is_in_the_tree() -> None:
    marker = uuid.uuid4().hex
    marked = os.environ | {leaks.MARKER_VARIABLE: marker}
    before = leaks.child_processes()
    grandchild = f"import subprocess, sys; subprocess.Popen({WAIT!r}); print('started', flush=True)"

    with subprocess.Popen(
        [sys.executable, "-c", grandchild],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=marked,
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"started\n"
        child.wait(10)
        (found,) = leaks.marked_processes(marker)
        assert "sys.stdin.read()" in str(found)
        assert leaks.wait_until_gone(marker, before, grace=0.1) == {found}
        leaks.end({found})
        assert leaks.wait_until_gone(marker, before) == set()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_inner_half_of_a_sandbox_is_stuck_once_the_outer_one_is_gone(tmp_path: Path) -> None:
    marker = uuid.uuid4().hex
    before = leaks.child_processes()
    os.mkfifo(tmp_path / "word")
    with subprocess.Popen(
        ["bwrap", "-c", TWO_HALVES, tmp_path / "word"],
        executable="/bin/bash",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {leaks.MARKER_VARIABLE: marker},
    ) as outer:
        assert outer.stdin is not None
        assert outer.stdout is not None
        inner = int(outer.stdout.readline())
        assert stuck_sandboxes(marker) == set()
        outer.stdin.close()
        outer.wait(10)
        while not (found := leaks.marked_processes(marker)):  # the system may not tell of it while it changes parents
            assert Path(f"/proc/{inner}").exists()
        (stuck,) = found
        assert stuck.pid == inner
        while not stuck_sandboxes(marker):  # it may be on its way
            assert Path(f"/proc/{inner}").exists()
        assert "state S" in leaks.report({stuck})
        leaks.end({stuck})
        assert leaks.wait_until_gone(marker, before) == set()


def test_own_children_are_seen_and_those_there_before_are_not_counted(waiting: subprocess.Popen[bytes]) -> None:
    children = leaks.child_processes()
    (child,) = (process for process in children if process.pid == waiting.pid)

    assert leaks.wait_until_gone("no such marker", set(), grace=0.1) >= {child}
    assert leaks.wait_until_gone("no such marker", children) == set()


@pytest.mark.skipif(sys.platform == "win32", reason="needs exec")
def test_a_child_that_executes_another_program_is_the_one_that_was_there_before() -> None:
    script = "read line; exec cat"
    with subprocess.Popen(["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        before = leaks.child_processes()
        child.stdin.write(b"go\nseen\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"seen\n"
        (now,) = (process for process in leaks.child_processes() if process.pid == child.pid)
        assert (now.command, now in before) == ("cat", True)
        child.stdin.close()


def test_an_unreaped_child_is_a_zombie(waiting: subprocess.Popen[bytes]) -> None:
    assert waiting.stdin is not None
    waiting.stdin.close()
    os.waitid(os.P_PID, waiting.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is left as it is

    (child,) = (process for process in leaks.child_processes() if process.pid == waiting.pid)

    assert child.zombie
    assert "nobody waited" in str(child)


def test_children_can_be_listed_without_proc(waiting: subprocess.Popen[bytes]) -> None:
    listed = leaks.children_from_ps()

    assert [process.pid for process in listed if "sys.stdin.read()" in process.command] == [waiting.pid]
    assert not any("ppid=" in process.command for process in listed)
