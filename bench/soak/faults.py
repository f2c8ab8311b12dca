"""Who kills what in a soak, and when. The times are random; the seed makes them the same again."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from helmsman.agents.codex.detached.records import read_records

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from bench.soak.servers import Server
    from bench.soak.works import Books

BETWEEN_ENGINE_KILLS = (12.0, 40.0)
BETWEEN_SERVER_KILLS = (15.0, 45.0)


async def kill_engines(state_dir: Path, books: Books, random: Random) -> None:
    """Now and then, kill a detached Codex; more rarely the keeper that looks after it."""
    while True:
        await anyio.sleep(random.uniform(*BETWEEN_ENGINE_KILLS))
        records = [record for record in read_records(state_dir) if record.is_running]
        if not records:
            continue
        record = random.choice(records)
        victim = "keeper of an engine" if random.random() < 0.2 else "engine"
        with suppress(ProcessLookupError):
            os.kill((record.codex if victim == "engine" else record.keeper).pid, signal.SIGKILL)
            books.counts[f"{victim} killed"] += 1


async def kill_server(server: Server, books: Books, random: Random) -> None:
    """Now and then, kill a server with all its clients connected."""
    while True:
        await anyio.sleep(random.uniform(*BETWEEN_SERVER_KILLS))
        server.kill()
        books.counts["server killed"] += 1
