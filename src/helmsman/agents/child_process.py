"""Child process that is always owned and always reaped.

`open_child` starts a program in its own session (so that a Ctrl-C in the terminal reaches only Helmsman, and the whole
group can be signalled), and drains its standard error into a bounded buffer. At the end of the block it ends the
program in order: close standard input and wait, terminate the group and wait, kill the group, and end all other
descendants. Each wait is bounded, and the ending is shielded from cancellation, so leaving the block leaves no process
behind. On Linux the program runs below a `reaper`, so that this includes daemons with a clean environment.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
import anyio.abc
import anyio.to_thread

from helmsman.agents.supervisor.process import COLOURS
from helmsman.base.caller_context import for_others, umask_in
from helmsman.base.concurrency import background_tasks
from helmsman.base.process_ending import END_SECONDS, end_group, end_processes
from helmsman.base.processes import CHILD_MARK, KILL, Process, descendants, running_process, with_variable
from helmsman.base.redaction import redact
from helmsman.errors import EngineStartFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from anyio.abc import TaskGroup


STDIN_CLOSED_GRACE: Final = 5.0
"""Seconds that a child may take to finish after its input was closed: Codex then stops its commands and saves."""

TERMINATED_GRACE: Final = 2.0
"""Seconds between SIGTERM and SIGKILL."""

MARK: Final = CHILD_MARK
"""Variable that identifies the child in the environment of its descendants."""
_REAPED: Final = sys.platform == "linux"
_REAPER: Final = (sys.executable, "-I", "-S", os.fspath(Path(__file__).with_name("reaper.py")))

STDERR_TAIL_BYTES: Final = 32 * 1024


class Child:
    """Running program. Made by `open_child` only."""

    def __init__(self, process: anyio.abc.Process, mark: str) -> None:
        self._process = process
        self.mark = mark
        self.process = running_process(process.pid) or Process(process.pid, "")
        """Process of the program, or of its reaper."""
        self._stderr = bytearray()
        self._stderr_ended = anyio.Event()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        return self._process.returncode

    @property
    def stdout(self) -> anyio.abc.ByteReceiveStream:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def stdin(self) -> anyio.abc.ByteSendStream:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stderr_tail(self) -> str:
        """End of its standard error, without colours and secrets. For people, never for decisions."""
        return redact(COLOURS.sub("", self._stderr.decode("utf-8", "replace")).strip())

    async def wait(self) -> int:
        return await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Signal the process group of the program or its reaper, which forwards SIGTERM, SIGINT and SIGHUP; see `kill`."""
        # The group may have ended already.
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                self._process.send_signal(number)
            else:
                # A group lives as long as any member, so this also reaches children a dead leader left behind.
                os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kill it and all its descendants."""
        end_processes(self.below, grace=0)
        if not _REAPED:
            self.signal(KILL)

    def below(self) -> frozenset[Process]:
        """Return all that runs below it or was started by it, and on Linux the program itself."""
        return frozenset(
            # Without the reaper itself, which forwards its program's exit code.
            one
            for one in descendants(self.process) | with_variable(MARK, self.mark)
            if one.pid != self.pid
        )

    async def drain_stderr(self) -> None:
        """Keep the end of standard error. Otherwise the child would block after 64 KiB."""
        assert self._process.stderr is not None
        try:
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                async for chunk in self._process.stderr:
                    self._stderr += chunk
                    if len(self._stderr) > 2 * STDERR_TAIL_BYTES:
                        del self._stderr[:-STDERR_TAIL_BYTES]
        finally:
            self._stderr_ended.set()

    async def stderr_ended(self) -> None:
        """Wait until its standard error is read. The caller bounds the wait, because its children may keep it open."""
        await self._stderr_ended.wait()

    async def _exited_within(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self._process.wait()
            return True
        return False

    async def end(self) -> None:
        """End it in order (see the module); returns when it is reaped."""
        # Codex and most agents end, and save their state, when their input is closed.
        with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self.stdin.aclose()
        if not await self._exited_within(STDIN_CLOSED_GRACE):
            self.signal(signal.SIGTERM)
            if not await self._exited_within(TERMINATED_GRACE):
                await anyio.to_thread.run_sync(self.kill)
                if not await self._exited_within(END_SECONDS):
                    self.signal(KILL)
                    await self._process.wait()
        if not _REAPED and sys.platform != "win32":
            await anyio.to_thread.run_sync(end_group, self.pid)  # what the leader left in its group
        # Left by a reaper that was killed.
        await anyio.to_thread.run_sync(end_processes, partial(with_variable, MARK, self.mark))


@asynccontextmanager
async def open_child(
    tasks: TaskGroup, argv: Sequence[str | Path], *, env: Mapping[str, str] | None, cwd: Path | None = None
) -> AsyncIterator[Child]:
    """Run a program for the length of the block; `tasks` must outlive it and drains its standard error.

    Raises:
        EngineStartFailed: The program cannot be run at all.
    """
    mark = secrets.token_hex(8)
    known = for_others(os.environ if env is None else env)
    command = [os.fspath(part) for part in argv]
    if _REAPED:
        # The program is run by the reaper, so `open_process` cannot report that it does not exist.
        places = [cwd or Path()] if os.sep in command[0] else [*map(Path, os.get_exec_path(known))]
        if not any(os.access(place / command[0], os.X_OK) for place in places):  # the reaper could not report it
            raise EngineStartFailed(
                f"Cannot run {command[0]}: there is no such program. Check the path and that it is executable."
            )
        command = [*_REAPER, *command]
    with anyio.CancelScope(shield=True):  # a cancelled spawn could leave a child without an owner
        try:
            process = await anyio.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**known, MARK: mark},
                cwd=cwd,
                start_new_session=True,
                umask=umask_in(os.environ if env is None else env),
            )
        except (OSError, ValueError) as error:
            raise EngineStartFailed(
                f"Cannot run {os.fspath(argv[0])}: {error}. Check the path and that it is executable."
            ) from error
    child = Child(process, mark)
    try:
        tasks.start_soon(child.drain_stderr)
        yield child
    finally:
        with anyio.CancelScope(shield=True):
            await child.end()
            await process.aclose()


# --- one command -----------------------------------------------------------------------------------------------------


class ProgramOutput(NamedTuple):
    """Output of a command. The exit code is None after a timeout or too much output."""

    exit_code: int | None
    stdout: str
    stderr: str
    is_cut: bool = False


async def run_command(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    cwd: Path,
    seconds: float,
    given: bytes = b"",
    limit: int = 1024 * 1024,
) -> ProgramOutput:
    """Run a program to its end. Its time and its output are bounded, and nothing of it is left behind.

    Raises:
        EngineStartFailed: It cannot be run.
    """
    output = bytearray()
    async with background_tasks() as tasks, open_child(tasks, argv, env=env, cwd=cwd) as child:
        with anyio.move_on_after(seconds):
            # A child that has seen enough may close its input before it has read everything.
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await child.stdin.send(given)
            await child.stdin.aclose()
            async for chunk in child.stdout:
                output += chunk
                if len(output) > limit:
                    # More output than expected is no valid answer, so none of it is returned.
                    return ProgramOutput(None, "", child.stderr_tail, is_cut=True)
            await child.wait()
            await child.stderr_ended()
            return ProgramOutput(child.exit_code, output.decode("utf-8", "replace"), child.stderr_tail)
        return ProgramOutput(None, output.decode("utf-8", "replace"), child.stderr_tail)
