"""`python -m bench.fleet.simulation`: a hundred workers on one Postgres, whose agents are scripted.

Leases, queue, claims, events and takeovers are those of real workers. The workers are in three processes; killing the first
kills thirty of them at once. Prints JSON, and compares it with what docs/appendix/fleet.md computes for a hundred machines.

    python -m bench.fleet.simulation --worker URL FIRST COUNT CAPACITY LEASE DIRECTORY
"""

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
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import psycopg
from tests.postgres import Postgres

from bench.fleet import load
from bench.fleet.__main__ import spread
from bench.fleet.fleet import draft
from bench.fleet.machine import QuickWorker
from bench.fleet.pages import DOCS
from helmsman import load_settings
from helmsman.fleet.client import FleetClient
from helmsman.fleet.lease import DeclaredDead
from helmsman.fleet.setup import init_fleet
from helmsman.fleet.worker import WorkerOptions
from helmsman.service import HelmsmanService
from helmsman.steering.shared import Shared

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUPS = (30, 35, 35)
CAPACITY = 4
LEASE = 12.0
BEGIN, END = "<!-- simulated -->\n", "<!-- end of what is simulated -->\n"


async def _work(url: str, first: int, count: int, capacity: int, lease: float, directory: Path) -> None:
    env = {**os.environ, "HELMSMAN_STATE_DIR": str(directory / "service"), "HELMSMAN_DETACH": "0"}
    shared = Shared(directory / "service")
    async with shared, HelmsmanService(load_settings({}, env, directory), env=env, shared=shared) as helm:

        async def one(number: int) -> None:
            options = WorkerOptions(url=url, name=f"m{number}", agents=("codex",), capacity=capacity, lease=lease)
            async with QuickWorker(options, directory / options.name) as worker, anyio.create_task_group() as tasks:

                async def announce() -> None:
                    await worker.ready.wait()
                    print("ready", flush=True)

                tasks.start_soon(announce)
                try:
                    await worker.serve(helm, helm)
                except DeclaredDead:
                    print(f"{options.name} was declared dead while it lived", file=sys.stderr, flush=True)

        async with anyio.create_task_group() as tasks:
            for number in range(first, first + count):
                tasks.start_soon(one, number)


@contextmanager
def _workers(url: str, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    started, first = [], 0
    for count in GROUPS:
        place = Path(tempfile.mkdtemp(dir=folder))
        given = [url, str(first), str(count), str(CAPACITY), str(LEASE), str(place)]
        command = [sys.executable, "-m", "bench.fleet.simulation", "--worker", *given]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        first += count
    try:
        for process, count in zip(started, GROUPS, strict=True):
            assert process.stdout is not None
            for _ in range(count):
                assert process.stdout.readline() == b"ready\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def _query(url: str, sql: Any) -> list[Any]:
    with psycopg.connect(url, autocommit=True, application_name="bench") as connection:
        return connection.execute(sql).fetchall()


async def _starts(client: FleetClient, url: str, count: int, pause: float) -> dict[str, float]:
    """Return the time from enqueue to start, by the clock of the database, of tasks that arrive one after another."""
    tasks = []
    for _ in range(count):
        tasks.append(await client.enqueue(draft(seconds=0.2)))
        await anyio.sleep(pause)
    for task in tasks:
        await client.until(task.id, lambda task: not task.is_running, timeout=120)
    # The log of a task begins with a remark of its worker.
    rows = _query(
        url,
        "select (min(events.at) - tasks.created_at)::float / 1000000 from helmsman_store.tasks "
        "join helmsman_store.sessions on sessions.id = tasks.session_id "
        "join helmsman_store.events on events.session = sessions.number group by tasks.number",
    )
    return spread([seconds for (seconds,) in rows])


async def _takeover(client: FleetClient, url: str, victim: subprocess.Popen[bytes], places: int) -> dict[str, Any]:
    """Fill half of all places with long tasks, kill one process of workers, and wait until others run its tasks."""
    tasks = [await client.enqueue(draft(seconds=600)) for _ in range(places // 2)]
    for task in tasks:
        await client.until(task.id, lambda task: task.status == "working", timeout=60)
    await anyio.sleep(1.6 * LEASE)  # workers judge others after that long
    dead = [f"m{number}" for number in range(GROUPS[0])]
    lost = _query(
        url, "select id, split_part(worker, '~', 1) from helmsman_store.tasks where status = 'working' and epoch = 1"
    )
    ids = [task_id for task_id, machine in lost if machine in dead]
    victim.send_signal(signal.SIGKILL)
    killed, took = time.monotonic(), []
    for task_id in ids:
        _, has = await client.until(
            task_id,
            lambda task: task.status == "working" and task.placement["attempt"] > 1,
            timeout=10 * LEASE,
        )
        assert has, _query(
            url, "select id, status, epoch, worker, queue, body from helmsman_store.tasks where epoch <> 1"
        )
        took.append((time.monotonic() - killed) / LEASE)
    again = _query(url, "select body, epoch from helmsman_store.tasks where epoch > 2")
    print(again, file=sys.stderr)
    return {
        "lost tasks": len(ids),
        "claimed more than twice": len(again),
        "takeover in leases": {"median": round(statistics.median(took), 2), "most": round(max(took), 2)},
    }


async def simulate(url: str, folder: Path, *, quick: bool) -> dict[str, Any]:
    before = os.getloadavg()[0]
    await init_fleet(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create extension if not exists pg_stat_statements")
    count = sum(GROUPS)
    with _workers(url, folder) as processes:
        async with FleetClient(url) as client:
            await anyio.sleep(2 * LEASE)
            async with load.rates(url, 5 if quick else 30) as idle:
                pass
            starts = await _starts(client, url, 20 if quick else 200, 0.1)
            began = time.monotonic()
            short = [await client.enqueue(draft(seconds=0.5)) for _ in range(100 if quick else 800)]
            for task in short:
                await client.until(task.id, lambda task: not task.is_running, timeout=300)
            done = len(short) / (time.monotonic() - began)
            taken = await _takeover(client, url, processes[0], count * CAPACITY)
    twice = _query(url, "select count(*) from helmsman_store.tasks where status = 'completed' and epoch <> 1")
    return {
        "load": before,
        "workers": count,
        "lease": LEASE,
        "idle statements a second, all": round(idle["statements"]),
        "idle statements a second per worker": round(idle["statements"] / count, 2),
        "idle processors of Postgres": round(idle["cpu"], 2),
        "start": starts,
        "tasks of 0.5 s a second": round(done, 1),
        "done twice": twice[0][0],
        **taken,
    }


def as_page(found: dict[str, Any]) -> str:
    took = found["takeover in leases"]
    return f"""\
`make simulate-fleet`: {found["workers"]} workers with {CAPACITY} places each and a lease of {LEASE:g} s, in three
processes, beside Postgres on {os.cpu_count()} processors, load {found["load"]:.1f} before it began. Their agents are
scripted; everything else is real.

| | |
| --- | --- |
| statements a second, all idle | {found["idle statements a second, all"]} |
| that is a worker | {found["idle statements a second per worker"]} |
| processors that Postgres uses for them | {found["idle processors of Postgres"]} |
| enqueue to start, ten tasks a second | p50 {found["start"]["p50"]:.0f} ms, p99 {found["start"]["p99"]:.0f} ms |
| tasks of 0.5 s done in a second | {found["tasks of 0.5 s a second"]} |
| 30 workers killed at once | {found["lost tasks"]} tasks taken over after {took["median"]} leases (at most {took["most"]}) |
| tasks begun again though their worker lived | {found["done twice"] + found["claimed more than twice"]} |
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of each, and no page is written")
    parser.add_argument("--worker", nargs=6, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        url, first, count, capacity, lease, directory = arguments.worker
        anyio.run(_work, url, int(first), int(count), int(capacity), float(lease), Path(directory))
        return
    folder = Path(tempfile.mkdtemp(prefix="helmsman-fleet-"))
    options = ("-c", "shared_preload_libraries=pg_stat_statements", "-c", "max_connections=900")
    with Postgres(folder, options=options) as server:
        found = anyio.run(lambda: simulate(server.url(), folder, quick=arguments.quick))
    print(json.dumps(found, indent=2))
    if not arguments.quick:
        page = DOCS / "appendix" / "fleet.md"
        text = page.read_text(encoding="utf-8")
        head, begin, rest = text.partition(BEGIN)
        assert begin, f"{page} has no place for it."
        page.write_text(f"{head}{BEGIN}\n{as_page(found)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
