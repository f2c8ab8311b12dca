"""Start a supervised process."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.agents.supervisor.directory import (
    AGENT_SOCKET,
    forget,
    make_directory,
    private_directory,
    socket_path,
)
from helmsman.agents.supervisor.records import ENGINES, read_record
from helmsman.errors import EngineLost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from helmsman.agents.supervisor.client import Owner
    from helmsman.agents.supervisor.lease_watchdog import ProcessLease
    from helmsman.agents.supervisor.records import ProcessRecord

GREETING_ID: Final = "helmsman"
"""The id of the request that greets a process. Its answer tells the supervisor that the process is up."""

START_TIMEOUT: Final = 60.0
"""How long a supervisor may take to report that its child is up: at least this, and twice the time of the child."""


async def start_supervised(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    directory: Path | None,
    state_dir: Path,
    idle: float,
    owner: Owner,
    watcher: str,
    greeting: Sequence[str],
    about: Mapping[str, Any],
    listens: bool = False,
    for_starter: bool = True,
    ready_seconds: float | None = None,
) -> ProcessRecord:
    """Start an agent with a supervisor, and greet it. Without a `directory` it runs in that of its record.

    Args:
        argv: The command. With `listens`, `{socket}` in it is replaced by the path of the socket it has to listen on.
        watcher: The class that knows what runs in the agent, as `module:Class`.
        greeting: The lines the agent gets first. The first one is a request with the id `GREETING_ID`.
        about: More fields of the record: `agent` and `place` at least. Without `engine_id` the process is an engine itself.
        listens: The agent speaks WebSocket on a Unix socket. Otherwise it speaks lines on its standard streams.
        for_starter: End the agent if this process dies before it hears that the agent is up.
        ready_seconds: How long the agent may take until it answers the greeting.

    Raises:
        EngineLost: It did not come up. No process is left behind. Details: `exit_code`, `stderr`.
    """
    name = secrets.token_hex(4)
    place = await anyio.to_thread.run_sync(lambda: private_directory(state_dir.resolve() / ENGINES))
    listens_at = socket_path(place / name, AGENT_SOCKET) if listens else None
    order = {
        "argv": [word.replace("{socket}", str(listens_at)) for word in argv] if listens else list(argv),
        "env": dict(env),
        "cwd": str(directory or place / name),
        "idle": idle,
        "watcher": watcher,
        "greeting": list(greeting),
        "answer": GREETING_ID,
        "epoch": owner.epoch,
        "for_starter": for_starter,
        "successor": owner.successor,
        "listens_at": None if listens_at is None else str(listens_at),
        "about": {"engine_id": name, **about},
        **({} if ready_seconds is None else {"ready_seconds": ready_seconds}),
    }
    await start_supervisor(place / name, order, owner.lease)
    record = await anyio.to_thread.run_sync(read_record, place / name)
    if record is None:
        forget(place / name)
        raise EngineLost("It ended at once. Run `helmsman doctor` to find out why.")
    return record


async def start_supervisor(directory: Path, order: Mapping[str, Any], lease: ProcessLease | None) -> None:
    """Start a supervisor with a directory that does not exist yet; see `process` for the order.

    Raises:
        EngineLost: The agent did not come up. Details: `exit_code`, `stderr`.
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
        nullcontext((None, None)) if lease is None else lease.shared() as (descriptor, lease_order),
        anyio.move_on_after(max(START_TIMEOUT, 2 * float(order.get("ready_seconds", 0)))),
    ):
        # Not from the current directory (-P), where a repository could put a module of any name.
        process = await anyio.run_process(
            [sys.executable, "-P", "-m", "helmsman.agents.supervisor.process"],
            input=json.dumps({**order, "lease": lease_order}).encode(),
            stderr=subprocess.PIPE,
            cwd=directory,
            check=False,
            start_new_session=True,
            pass_fds=() if descriptor is None else (descriptor,),
        )
        said = process.stdout or process.stderr
    try:
        answer = json.loads(said)
    except ValueError:
        answer = {"stderr": said.decode("utf-8", "replace")}
    if answer.get("ready") is True:
        return
    await anyio.to_thread.run_sync(_clear_up, directory)
    code = answer.get("exit_code")
    raise _did_not_start(
        "It did not answer in time" if code is None else f"It exited ({code})", code, answer.get("stderr")
    )


def _did_not_start(reason: str, exit_code: object = None, stderr: object = None) -> EngineLost:
    return EngineLost(f"{reason}. Run `helmsman doctor` to find out why.", exit_code=exit_code, stderr=stderr)


def _clear_up(directory: Path) -> None:
    record = read_record(directory)
    if record is None:
        forget(directory)
    else:
        record.stop()
