"""One soak, from an empty folder to the verdict: nothing of it is left running, whatever happens."""

from __future__ import annotations

import os
import random
import time
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from bench.soak.clients import LibraryWorker, McpWorker
from bench.soak.faults import kill_engines, kill_server
from bench.soak.gauges import Gauges
from bench.soak.servers import Server
from bench.soak.stories import teach
from bench.soak.verdict import Verdict, judge
from bench.soak.works import Books
from helmsman.agents.codex.detached.engines import stop_engine
from helmsman.agents.codex.detached.records import read_records
from helmsman.base.concurrency import background_tasks
from helmsman.base.processes import descendants
from helmsman.testing import ScriptedModel, codex_version, installed_codex, leaks, make_repository
from helmsman.testing.home import HomeTemplates
from helmsman.testing.hubs import end_hub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

WORKERS_ON_STEADY: Final = 4
WORKERS_ON_VICTIM: Final = 3
_READING_SECONDS: Final = 2.0
_GONE_SECONDS: Final = 20.0
_JUDGE_SECONDS: Final = 900.0

_LIMITS: Final = {
    "HELMSMAN_DETACH": "1",
    "APPROVAL_TIMEOUT_MS": "4000",
    "HELMSMAN_FIRST_EVENT_TIMEOUT_MS": "15000",
    "HELMSMAN_INACTIVITY_TIMEOUT_MS": "8000",
    "MAX_SESSIONS": "100",
}


@dataclass(slots=True)
class Outcome:
    """All that is known at the end."""

    seed: int
    seconds: float
    codex: str
    books: Books
    verdict: Verdict
    gauges: Gauges
    server_starts: int
    orphans: list[str]


async def soak(seconds: float, seed: int, folder: Path) -> Outcome:
    """Run for so long; the settling and the judging come on top of it."""
    binary = installed_codex()
    if binary is None:
        raise RuntimeError("There is no Codex. Install openai-codex-cli-bin, or set HELMSMAN_TEST_CODEX.")
    marker = os.environ[leaks.MARKER_VARIABLE] = uuid.uuid4().hex
    before = leaks.child_processes()
    logs, marks = folder / "logs", folder / "marks"
    for directory in (logs, marks):
        directory.mkdir(parents=True)
    repository = make_repository(folder / "repository")
    home = HomeTemplates(folder / "template").new_home(binary, folder / "home")
    books = Books()
    async with ScriptedModel() as model:
        teach(model, marks)
        home.use_model(model.base_url, codex_version(binary))
        home.configure(model_providers={"scripted": {"stream_max_retries": 1}})
        env = {**home.env, **_LIMITS, "CODEX_CLI_PATH": str(binary)}
        state_dir = Path(env["HELMSMAN_STATE_DIR"])
        try:
            async with background_tasks() as tasks:
                steady, victim = (Server(name, env, repository, logs) for name in ("steady", "victim"))
                await tasks.start(steady.run)
                await tasks.start(victim.run)
                gauges = Gauges(steady.pid)
                async with _readings(gauges, books, model):
                    await _hurt_and_work(seconds, seed, books, steady, victim, env, repository, logs)
                await victim.close()
                fresh = Server("fresh", env, repository, logs)
                await tasks.start(fresh.run)
                with anyio.fail_after(_JUDGE_SECONDS):
                    verdict = await judge(steady, fresh, books, home.path, marks)
                if steady.starts != 1:
                    books.problems.append(f"The steady server ended by itself, {steady.starts - 1} time(s).")
                await steady.close()
                await fresh.close()
            await anyio.to_thread.run_sync(end_hub, state_dir)
            orphans = await anyio.to_thread.run_sync(_orphans, state_dir, marker)
        finally:
            with anyio.CancelScope(shield=True):
                left = await anyio.to_thread.run_sync(_end_all, state_dir, marker, before)
    books.problems += model.problems
    return Outcome(
        seed=seed,
        seconds=seconds,
        codex=".".join(map(str, codex_version(binary))),
        books=books,
        verdict=verdict,
        gauges=gauges,
        server_starts=victim.starts,
        orphans=[*orphans, *left],
    )


async def _hurt_and_work(
    seconds: float,
    seed: int,
    books: Books,
    steady: Server,
    victim: Server,
    env: Mapping[str, str],
    repository: Path,
    logs: Path,
) -> None:
    """Clients work while faults happen; then the faults end, and the clients finish what they are at."""
    # Each has random numbers of its own, so that they do not depend on who comes first.
    numbers = iter(range(seed * 1000, seed * 1000 + 1000))
    over = anyio.Event()
    async with anyio.create_task_group() as working:
        for server, count in ((steady, WORKERS_ON_STEADY), (victim, WORKERS_ON_VICTIM)):
            for _ in range(count):
                working.start_soon(McpWorker(server, books, random.Random(next(numbers)), repository).work, over)
        library = LibraryWorker(env, books, random.Random(next(numbers)), repository, logs)
        working.start_soon(library.work, over)
        async with background_tasks() as hurting:
            state_dir = Path(env["HELMSMAN_STATE_DIR"])
            hurting.start_soon(kill_engines, state_dir, books, random.Random(next(numbers)))
            hurting.start_soon(kill_server, victim, books, random.Random(next(numbers)))
            await anyio.sleep(seconds)
        over.set()


@asynccontextmanager
async def _readings(gauges: Gauges, books: Books, model: ScriptedModel) -> AsyncIterator[None]:
    began = time.monotonic()

    async def read() -> None:
        while True:
            gauges.read(time.monotonic() - began, len(books.works))
            model.requests.clear()  # they would be the greatest leak of all, and nobody reads them here
            await anyio.sleep(_READING_SECONDS)

    async with background_tasks() as tasks:
        tasks.start_soon(read)
        yield


def _orphans(state_dir: Path, marker: str) -> list[str]:
    """What runs and belongs to no engine, now that all servers and clients have ended in order."""
    deadline = time.monotonic() + _GONE_SECONDS
    while True:
        records = read_records(state_dir)
        kept = {record.keeper.pid for record in records} | {record.codex.pid for record in records}
        kept |= {process.pid for pid in tuple(kept) for process in descendants(pid)}
        orphans = [str(process) for process in leaks.marked_processes(marker) if process.pid not in kept]
        if not orphans or time.monotonic() > deadline:
            return orphans
        time.sleep(0.2)


def _end_all(state_dir: Path, marker: str, before: set[leaks.LeftProcess]) -> list[str]:
    """Stop the hub and the engines; what is left after that is an orphan too, and is ended."""
    end_hub(state_dir)
    for record in read_records(state_dir):
        stop_engine(record)
    left = leaks.wait_until_gone(marker, before)
    leaks.end(left)
    return [str(process) for process in left]
