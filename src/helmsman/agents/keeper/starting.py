"""Has a keeper start a program, and waits until that is up."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.agents.keeper.below import left_by
from helmsman.agents.keeper.places import forget, make_directory, private_directory, read_content, socket_path
from helmsman.base.process_ending import end_processes, send_signal
from helmsman.base.processes import KILL, Process, descendants, still_running
from helmsman.errors import EngineLost

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from helmsman.agents.keeper.leash import Leash

START_TIMEOUT: Final = 60.0
"""How long the keeper may take to say whether its child came up: twice what it gives the child, and so much at least."""

STOP_TIMEOUT: Final = 20.0
"""How long a keeper may take to end its child: it interrupts, terminates and kills, each within bounds."""

CHILD_GRACE: Final = 2.0
"""How long a child may take after SIGTERM, where its keeper is gone."""

KILLED_GRACE: Final = 5.0
"""How long the system may take to clear away a process that was killed."""

_POLL: Final = 0.02


async def start_keeper(directory: Path, order: Mapping[str, Any], leash: Leash | None) -> None:
    """Have a keeper start a child with a directory of its own, which does not exist yet; see `process` for the order.

    On a `leash` the child ends as soon as that is not renewed.

    Raises:
        EngineLost: It did not come up. Details: `exit_code`, `stderr`.
    """
    socket = socket_path(directory)
    try:
        make_directory(directory)
        private_directory(socket.parent)
    except OSError as error:
        raise _did_not_start(f"There is no place for its socket: {error}") from error
    said = b""
    order = {**order, "directory": str(directory), "socket": str(socket)}
    with (
        nullcontext((None, None)) if leash is None else leash.tied() as (tie, on_leash),
        anyio.move_on_after(max(START_TIMEOUT, 2 * float(order.get("ready_seconds", 0)))),
    ):
        # Not from the current directory (-P), where a repository could put a module of any name.
        process = await anyio.run_process(
            [sys.executable, "-P", "-m", "helmsman.agents.keeper.process"],
            input=json.dumps({**order, "leash": on_leash}).encode(),
            stderr=subprocess.PIPE,
            cwd=directory,
            check=False,
            start_new_session=True,
            pass_fds=() if tie is None else (tie,),
        )
        said = process.stdout or process.stderr
    try:
        answer = json.loads(said)
    except ValueError:
        answer = {"stderr": said.decode("utf-8", "replace")}
    if answer.get("ready") is True:
        return
    await anyio.to_thread.run_sync(_clear_up, directory, socket)
    code = answer.get("exit_code")
    raise _did_not_start(
        "It did not answer in time" if code is None else f"It exited ({code})", code, answer.get("stderr")
    )


def _did_not_start(reason: str, exit_code: object = None, stderr: object = None) -> EngineLost:
    return EngineLost(f"{reason}. Run `helmsman doctor` to find out why.", exit_code=exit_code, stderr=stderr)


def _clear_up(directory: Path, socket: Path) -> None:
    processes = read_processes(directory)
    if processes is None:
        forget(directory, socket)
    else:
        stop_kept(directory, socket, *processes)


def read_processes(directory: Path) -> tuple[Process, Process] | None:
    """The keeper and its child, as their record says; None where there is none that can be understood."""
    try:
        content = read_content(directory)
        keeper, child = content["keeper"], content["codex"]
        return Process(int(keeper[0]), str(keeper[1])), Process(int(child[0]), str(child[1]))
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None


def stop_kept(directory: Path, socket: Path, keeper: Process, child: Process) -> None:
    """End what a keeper keeps, and the keeper. Blocks for a bounded time; afterwards no process is left."""
    end(keeper, STOP_TIMEOUT)
    started = left_by(directory)  # its keeper was killed, or hung
    if child.is_alive():
        started |= descendants(child)
        end(child, CHILD_GRACE)
    end_processes(lambda: still_running(started) | left_by(directory))
    forget(directory, socket)


# --- processes that are not our children -----------------------------------------------------------------------------


def end(process: Process, grace: float) -> None:
    """Terminate a process, and kill it if it does not end."""
    send_signal(process, signal.SIGTERM)
    if not gone_within(process, grace):
        send_signal(process, KILL)
        gone_within(process, KILLED_GRACE)


def gone_within(process: Process, seconds: float) -> bool:
    """Wait until a process has ended, for so long. Blocks."""
    deadline = time.monotonic() + seconds
    while process.is_alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True
