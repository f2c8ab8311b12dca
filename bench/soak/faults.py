"""Kill processes in a soak at random times, reproducible by the seed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio
from tests.left_processes import hub_processes

from helmsman.agents.supervisor.records import read_records
from helmsman.hub.launch import LOCK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from random import Random

    from bench.soak.servers import HttpServer, Pipes
    from bench.soak.works import Books

BETWEEN_ENGINE_KILLS: Final = (12.0, 40.0)
BETWEEN_HUB_KILLS: Final = (4.0, 20.0)
BETWEEN_HUB_STOPS: Final = (20.0, 45.0)
BETWEEN_CLIENT_KILLS: Final = (8.0, 25.0)
BETWEEN_PORT_KILLS: Final = (20.0, 60.0)
STOPPED: Final = (1.0, 10.0)
"""Seconds for which a hub is stopped."""


async def kill_engines(state_dir: Path, books: Books, random: Random) -> None:
    """Now and then, kill a detached Codex, or the supervisor that looks after it."""
    while True:
        await anyio.sleep(random.uniform(*BETWEEN_ENGINE_KILLS))
        records = [record for record in read_records(state_dir) if record.is_running]
        if not records:
            continue
        record = random.choice(records)
        victim = "supervisor of an engine" if random.random() < 0.3 else "engine"
        with suppress(ProcessLookupError):
            os.kill((record.child if victim == "engine" else record.supervisor).pid, signal.SIGKILL)
            books.counts[f"{victim} killed"] += 1


async def kill_hubs(state_dir: Path, books: Books, random: Random) -> None:
    """Now and then, kill the hub, whatever it does."""
    while True:
        await anyio.sleep(random.uniform(*BETWEEN_HUB_KILLS))
        kill_hub(state_dir, books)


async def kill_hubs_in_a_row(count: int, state_dir: Path, books: Books, random: Random) -> None:
    """Kill this many hubs, some of them while they start."""
    until = books.hub_deaths + count
    while books.hub_deaths < until:
        if random.random() < 0.4:
            await anyio.sleep(random.uniform(0.05, 1))
        else:
            await until_there_is_one(state_dir)
            await anyio.sleep(random.uniform(0, 3))
        kill_hub(state_dir, books)


async def until_there_is_one(state_dir: Path) -> None:
    """Wait for a hub that has told who it is."""
    while True:
        if set(map(str, hub_processes(state_dir))) & set(_known(state_dir)):
            return
        await anyio.sleep(0.02)


def _known(state_dir: Path) -> list[str]:
    """Return the hub that has identified itself."""
    return (state_dir / LOCK).read_text(encoding="ascii").split()[1:2]


def kill_hub(state_dir: Path, books: Books) -> None:
    known = _known(state_dir)
    for pid in hub_processes(state_dir):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            books.counts["hub killed" if str(pid) in known else "hub killed while it started"] += 1
            books.hub_deaths += 1


async def stop_hubs(state_dir: Path, books: Books, random: Random) -> None:
    """Stop the hub occasionally for a while. It may be killed while stopped."""
    while True:
        await anyio.sleep(random.uniform(*BETWEEN_HUB_STOPS))
        for pid in hub_processes(state_dir):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                books.counts["hub stopped for a while"] += 1
                try:
                    await anyio.sleep(random.uniform(*STOPPED))
                finally:
                    os.kill(pid, signal.SIGCONT)


async def kill_clients(clients: Sequence[Pipes], books: Books, random: Random) -> None:
    """Now and then, kill the pipe of one client."""
    while True:
        await anyio.sleep(random.uniform(*BETWEEN_CLIENT_KILLS))
        pipes = random.choice(clients)
        for pid in tuple(pipes.open):
            pipes.kill(pid)
            books.counts["pipe killed"] += 1


async def kill_port(server: HttpServer, books: Books, random: Random) -> None:
    """Now and then, kill the process that has a port, with all its clients connected."""
    while True:
        await anyio.sleep(random.uniform(*BETWEEN_PORT_KILLS))
        server.kill()
        books.counts["process with a port killed"] += 1
