"""`python -m bench.fleet`: the figures of a fleet on this machine, as JSON and as the table of docs/appendix/fleet.md."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import psycopg
from tests.postgres import Postgres

from bench.fleet import load
from bench.fleet.fleet import LEASE, draft, machines
from bench.fleet.pages import DOCS, put
from bench.fleet.report import as_page
from helmsman.base.concurrency import sleep_until
from helmsman.fleet.client import FleetClient
from helmsman.fleet.setup import init_fleet
from helmsman.fleet.values import session_of
from helmsman.model.answered_by import PROGRAM
from helmsman.model.events import Notice, TurnEnded

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

_PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


def spread(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {"p50": round(at(0.5) * 1000, 1), "p95": round(at(0.95) * 1000, 1), "p99": round(at(0.99) * 1000, 1)}


async def ended(client: FleetClient, task_id: str, seconds: float = 120) -> None:
    _, has = await client.until(task_id, lambda task: not task.is_running, timeout=seconds)
    assert has


async def remarks(client: FleetClient, task_id: str) -> list[tuple[str, float, float]]:
    """Return what the machine of a task remarked, and when it did so and when it was seen."""
    found: list[tuple[str, float, float]] = []
    session_id, cursor, has_ended = session_of(task_id), 0, False
    while not has_ended:
        changed = client.watch(task_id)
        page = await client.log(session_id, cursor)
        now, cursor = time.time(), page.cursor
        notices = [event for event in page.events if isinstance(event, Notice)]
        found += [(event.message, 0.0 if event.at is None else event.at.timestamp(), now) for event in notices]
        has_ended = any(isinstance(event, TurnEnded) for event in page.events)
        if not page.events:
            await sleep_until(changed, 5)
    return found


def _client(url: str, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "bench.fleet.client", url, str(count)], **_PIPES)


async def enqueueing(url: str, count: int) -> dict[str, Any]:
    """Run three clients concurrently, each in a process."""
    clients = [_client(url, count // 3) for _ in range(3)]
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
    began = time.monotonic()
    for client in clients:
        assert client.stdin is not None
        client.stdin.write(b"go\n")
        client.stdin.flush()
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline() == b"done\n"
    took = time.monotonic() - began
    for client in clients:
        client.communicate()
        assert client.returncode == 0
    return {"enqueue per second, three clients": round(count / took)}


async def listing(url: str) -> dict[str, Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "insert into helmsman_store.tasks "
            "(id, origin, alias, session_id, status, body, created_at, updated_at, queue) "
            "select 'T-' || n, 'fleet', 'a-' || n, n::text, 'pending', '{\"instruction\": \"wait\"}', 0, 0, 'elsewhere' "
            "from generate_series(1, 10000) n"
        )
        connection.execute("analyze helmsman_store.tasks")
    async with FleetClient(url) as client:
        await client.database.tasks(lambda tasks: tasks.list(limit=50))
        times = []
        for _ in range(20):
            began = time.monotonic()
            await client.database.tasks(lambda tasks: tasks.list(limit=50, status=["pending"]))
            times.append(time.monotonic() - began)
        began = time.monotonic()
        assert (await client.waiting())["elsewhere"] == 10_000
        counted = time.monotonic() - began
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("delete from helmsman_store.tasks where queue = 'elsewhere'")
    return {"list 50 of 10,000 queued": spread(times), "count them": round(counted * 1000, 1)}


async def latencies(url: str, folder: Path, count: int) -> dict[str, Any]:
    starts: list[float] = []
    events: list[float] = []
    answers: list[float] = []
    cancels: list[float] = []
    with machines(url, 4, folder, capacity=8):
        async with FleetClient(url) as client, anyio.create_task_group() as tasks:

            async def told(**spec: Any) -> None:
                task = await client.enqueue(draft(**spec))
                for remark, at, seen in await remarks(client, task.id):
                    if remark == "begun":
                        starts.append(at - task.created_at.timestamp())
                    elif remark == "beat":
                        events.append(seen - at)

            async def asked() -> None:
                task = await client.enqueue(draft(asks=True))
                _, asks = await client.until(task.id, lambda task: task.input_required, timeout=60)
                assert asks
                given = time.time()
                await client.answer(task.id, "q", ["yes"], PROGRAM)
                answers.extend(at - given for remark, at, _ in await remarks(client, task.id) if remark == "answered")

            async def canceled() -> None:
                task = await client.enqueue(draft(seconds=60))
                await client.until(task.id, lambda task: task.status == "working", timeout=60)
                given = time.time()
                await client.cancel(task.id)
                cancels.extend(at - given for remark, at, _ in await remarks(client, task.id) if remark == "stopping")

            for number in range(count):
                kinds: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
                    partial(told, events=20, pause=0.05),
                    asked,
                    canceled,
                )
                tasks.start_soon(kinds[number % 3])
                await anyio.sleep(0.15)
    return {
        "start": spread(starts),
        "event": spread(events),
        "answer": spread(answers),
        "cancel begins": spread(cancels),
    }


async def takeover(url: str, folder: Path, count: int) -> dict[str, Any]:
    took = []
    for _ in range(count):
        with machines(url, 2, folder, capacity=1) as (one, two):
            async with FleetClient(url) as client:
                await anyio.sleep(1.6 * LEASE)
                task = await client.enqueue(draft(seconds=30))
                now, _ = await client.until(task.id, lambda task: task.status == "working", timeout=30)
                victim = one if now.placement["machine"] == "m0" else two
                os.kill(victim.pid, signal.SIGKILL)
                killed = time.monotonic()
                await client.until(
                    task.id,
                    lambda task: task.status == "working" and task.placement["attempt"] == 2,
                    timeout=60,
                )
                took.append((time.monotonic() - killed) / LEASE)
                await client.cancel(task.id)
    return {
        "takeover in leases": {"median": round(statistics.median(took), 2), "most": round(max(took), 2), "lease": LEASE}
    }


async def growth(url: str, folder: Path, count: int) -> dict[str, Any]:
    """Measure throughput: tasks of 0.5 s per second, four at a time on each machine."""
    rates = {}
    for machines_there in (1, 2, 4, 8):
        async with FleetClient(url) as client:
            tasks = [await client.enqueue(draft(seconds=0.5)) for _ in range(count)]
            with machines(url, machines_there, folder):
                began = time.monotonic()
                for task in tasks:
                    await ended(client, task.id)
                rates[machines_there] = round(count / (time.monotonic() - began), 1)
    return {"tasks of 0.5 s a second, by machines": rates}


async def measure(url: str, folder: Path, *, quick: bool) -> dict[str, Any]:
    await init_fleet(url)
    found: dict[str, Any] = {}
    found |= await listing(url)
    found |= await latencies(url, folder, 30 if quick else 150)
    found |= await load.measure(url, folder, 3 if quick else 50, 5 if quick else 30)
    found |= await takeover(url, folder, 1 if quick else 5)
    found |= await growth(url, folder, 40 if quick else 120)
    found |= await enqueueing(url, 100 if quick else 900)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer of each, and no page is written")
    arguments = parser.parse_args()
    folder, before = Path(tempfile.mkdtemp(prefix="helmsman-fleet-")), os.getloadavg()[0]
    with Postgres(folder, options=("-c", "shared_preload_libraries=pg_stat_statements")) as server:
        found = anyio.run(lambda: measure(server.url(), folder, quick=arguments.quick))
    print(json.dumps({"load": before, "processors": os.cpu_count(), **found}, indent=2))
    page = as_page(found, before)
    if arguments.quick:
        print(page)
    else:
        put(DOCS / "appendix" / "fleet.md", page)


if __name__ == "__main__":
    main()
