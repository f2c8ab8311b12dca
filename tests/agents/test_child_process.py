"""Tests that a child is owned from its first moment and gone when the block ends."""

from __future__ import annotations

import os
import signal
import sys

import anyio
import pytest

from helmsman.agents import child_process
from helmsman.agents.child_process import open_child
from helmsman.base.concurrency import background_tasks
from helmsman.base.processes import running_process
from helmsman.errors import EngineStartFailed

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="process groups are a POSIX thing"),
]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True:
    time.sleep(3600)
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_closing_its_input_lets_a_child_finish_by_itself() -> None:
    async with background_tasks() as tasks:
        async with open_child(tasks, python("import sys; sys.stdin.read(); sys.exit(7)"), env=None) as child:
            pass
        assert child.exit_code == 7


async def test_a_child_that_ignores_everything_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "STDIN_CLOSED_GRACE", 0.05)
    monkeypatch.setattr(child_process, "TERMINATED_GRACE", 0.05)
    async with background_tasks() as tasks:
        async with open_child(tasks, python(STUBBORN), env=None) as child:
            await child.stdout.receive()
        assert child.exit_code == -signal.SIGKILL


async def test_processes_left_in_the_group_of_a_child_end_with_it() -> None:
    code = """if True:
        import subprocess, sys
        print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(999)"]).pid, flush=True)"""
    async with background_tasks() as tasks:
        async with open_child(tasks, python(code), env=None) as child:
            grandchild = int(await child.stdout.receive())
        with anyio.fail_after(5):
            while is_alive(grandchild):
                await anyio.sleep(0.01)


async def test_a_child_is_gone_even_when_the_block_is_cancelled() -> None:
    async with background_tasks() as tasks:
        with anyio.CancelScope() as scope:
            async with open_child(tasks, python("import sys; sys.stdin.read()"), env=None) as child:
                scope.cancel()
                await anyio.sleep_forever()
        assert child.exit_code is not None


async def test_the_end_of_standard_error_is_kept_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "STDERR_TAIL_BYTES", 1000)
    code = r"""if True:
        import sys
        sys.stderr.write("x" * 500_000 + "\x1b[31mthe end\x1b[0m")
        sys.stderr.flush()
        print("done", flush=True)"""
    async with background_tasks() as tasks:
        async with open_child(tasks, python(code), env=None) as child:
            await child.stdout.receive()
            with anyio.fail_after(5):
                while not child.stderr_tail.endswith("the end"):
                    await anyio.sleep(0.01)
        assert len(child.stderr_tail) < 3000


async def test_a_program_that_cannot_be_run_is_a_clear_error() -> None:
    async with background_tasks() as tasks:
        with pytest.raises(EngineStartFailed, match="Cannot run /no/such/program"):
            async with open_child(tasks, ["/no/such/program"], env=None):
                pass


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell what processes were started with")
async def test_processes_in_a_session_of_their_own_end_with_the_child_that_started_them() -> None:
    """Start a process like a command that Codex was starting when it ended: without a parent."""
    orphan = "import os, time; os.setsid(); print(os.getpid(), flush=True); os.close(1); time.sleep(600)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {orphan!r}]); sys.stdin.read()"
    async with background_tasks() as tasks, open_child(tasks, python(code), env=None) as child:
        pid = int(await child.stdout.receive())
        assert running_process(pid) is not None
    assert running_process(pid) is None
