"""Measure the load of idle workers, and of tasks with talking agents, on a fleet's Postgres."""

from __future__ import annotations

import os
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import psycopg

from bench.fleet.fleet import draft, machines
from helmsman.fleet.client import FleetClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MACHINES, TALKING = 4, 8


def _look(url: str) -> dict[str, float]:
    """Return Postgres's statistics so far."""
    with psycopg.connect(url, autocommit=True, application_name="bench") as connection:
        connection.execute("select pg_stat_force_next_flush()")
        row = connection.execute(
            "select (select coalesce(sum(calls), 0) from pg_stat_statements join pg_database on oid = dbid "
            "where datname = current_database()), pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"
        ).fetchone()
        assert row is not None
        pids = [
            pid for (pid,) in connection.execute("select pid from pg_stat_activity where application_name <> 'bench'")
        ]
    return {
        "statements": float(row[0]),
        "kB": float(row[1]) / 1024,
        "cpu": sum(map(_processor_seconds, pids)),
        "at": time.monotonic(),
    }


def _processor_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def connections(url: str, name: str) -> int:
    with psycopg.connect(url, application_name="bench") as connection:
        row = connection.execute(
            "select count(*) from pg_stat_activity where application_name ~ %s and datname = current_database()",
            (name,),
        ).fetchone()
        assert row is not None
        return int(row[0])


@asynccontextmanager
async def rates(url: str, seconds: float) -> AsyncIterator[dict[str, float]]:
    """Yield a dictionary. After the block, it gets the costs per second of the time that follows."""
    rates: dict[str, float] = {}
    yield rates
    before = _look(url)
    await anyio.sleep(seconds)
    after = _look(url)
    passed = after["at"] - before["at"]
    rates |= {name: (after[name] - before[name]) / passed for name in ("statements", "kB", "cpu")}


async def measure(url: str, folder: Path, settled: float, seconds: float) -> dict[str, Any]:
    """Measure workers with the usual lease that watch each other, which they do after one and a half leases."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create extension if not exists pg_stat_statements")
    with machines(url, MACHINES, folder, capacity=TALKING // MACHINES, lease=30):
        await anyio.sleep(settled)
        async with rates(url, seconds) as idle:
            pass
        workers = connections(url, "^helmsman worker") / MACHINES
        async with FleetClient(url) as client:
            tasks = [await client.enqueue(draft(talks=seconds + 4)) for _ in range(TALKING)]
            for task in tasks:
                await client.until(task.id, lambda task: task.status == "working", timeout=30)
            await anyio.sleep(1)
            async with rates(url, seconds) as talking:
                pass
            busy = connections(url, "^helmsman worker") / MACHINES
            per_client = connections(url, "^helmsman client")
            for task in tasks:
                await client.until(task.id, lambda task: not task.is_running, timeout=60)
    return {
        "idle statements a second per worker": round(idle["statements"] / MACHINES, 1),
        "idle processor ms a second per worker": round(idle["cpu"] / MACHINES * 1000, 2),
        "connections per idle worker": workers,
        "connections per busy worker": busy,
        "connections per client": per_client,
        "statements a second per talking task": round((talking["statements"] - idle["statements"]) / TALKING, 1),
        "processor ms a second per talking task": round((talking["cpu"] - idle["cpu"]) / TALKING * 1000, 2),
        "kB written a second per talking task": round((talking["kB"] - idle["kB"]) / TALKING, 1),
    }
