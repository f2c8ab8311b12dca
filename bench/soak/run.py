"""Run one soak, from an empty folder to the verdict, and leave no process behind."""

from __future__ import annotations

import itertools
import os
import random
import time
import uuid
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
from tests.left_processes import hub_processes

from bench.soak.clients import OF_EACH_OTHER, OF_FAULTS, Habits, HttpWorker, LibraryWorker, PipeWorker
from bench.soak.faults import (
    kill_clients,
    kill_engines,
    kill_hub,
    kill_hubs,
    kill_hubs_in_a_row,
    kill_port,
    stop_hubs,
)
from bench.soak.gauges import WARM_UP, Gauges
from bench.soak.servers import HttpServer, Pipes
from bench.soak.stories import GOOD_STORIES, STORIES, teach
from bench.soak.verdict import Verdict, judge
from bench.soak.works import Books
from helmsman.agents.supervisor.records import read_records
from helmsman.base.concurrency import background_tasks
from helmsman.base.processes import descendants
from helmsman.testing import ScriptedModel, codex_version, installed_codex, leaks, make_repository
from helmsman.testing.home import HomeTemplates
from helmsman.testing.hubs import end_hub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

CLIENTS: Final = (("legacy", True), ("2026-07-28", True), ("legacy", False), ("2026-07-28", False), ("legacy", True))
"""Clients on pipes: the protocol era of each, and whether a user fills in forms."""
CLIENTS_OF_A_PORT: Final = 2
_READING_SECONDS: Final = 2.0
_GONE_SECONDS: Final = 20.0
_JUDGE_SECONDS: Final = 900.0

_LIMITS: Final = {
    "HELMSMAN_DETACH": "1",
    "APPROVAL_TIMEOUT_MS": "6000",
    "HELMSMAN_FIRST_EVENT_TIMEOUT_MS": "15000",
    "HELMSMAN_INACTIVITY_TIMEOUT_MS": "8000",
    "MAX_SESSIONS": "100",
}


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Result of the soak."""

    seed: int
    how_long: str
    codex: str
    books: Books
    orphans: list[str]
    verdict: Verdict
    client: Gauges
    """Process with a port that ran all the time."""
    hubs: Gauges

    def figures(self) -> Iterator[tuple[str, str]]:
        """Yield the result in figures."""
        client, verdict = self.client, self.verdict
        yield "sessions started", str(verdict.started)
        yield "sessions finished", ", ".join(f"{count} {end}" for end, count in sorted(verdict.ends.items()))
        yield "messages that a hub had taken and not begun when it died", str(len(verdict.not_begun))
        yield "hubs", self.hubs.peaks()
        yield (
            "a client that stayed connected",
            f"{client.peaks()}; {client.memory_per_hour():+.0f} MB an hour, that is {client.memory_per_session():+.0f} KB a "
            f"session (after the first {WARM_UP:.0%} of the time)",
        )

    def must_be_none(self) -> list[tuple[str, list[str]]]:
        """Return violations, with their places."""
        verdict = self.verdict
        return [
            ("sessions lost", verdict.lost),
            ("sessions reported wrongly", verdict.untrue),
            ("things done twice", verdict.doubled),
            ("commands run without a yes", verdict.ran_without_a_yes),
            ("MCP connections lost through the death of a hub", self.books.connections_lost),
            ("orphan processes", self.orphans),
            ("anything else that should never happen", self.books.problems),
        ]


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a soak."""

    env: Mapping[str, str]
    folder: Path
    books: Books
    seed: int

    @property
    def state_dir(self) -> Path:
        return Path(self.env["HELMSMAN_STATE_DIR"])

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def repository(self, name: str) -> Path:
        return make_repository(self.folder / "repositories" / name)

    def numbers(self) -> Iterator[random.Random]:
        """Random numbers for each who needs some, so that they do not depend on who comes first."""
        return map(random.Random, itertools.count(self.seed * 1000))


async def soak(seconds: float, seed: int, folder: Path) -> Outcome:
    """Run a soak in which everything breaks for this many seconds; settling and judging come afterwards."""

    async def hurt(place: Place, numbers: Iterator[random.Random], clients: list[PipeWorker], port: HttpServer) -> None:
        async with background_tasks() as hurting:
            state_dir, books = place.state_dir, place.books
            hurting.start_soon(kill_engines, state_dir, books, next(numbers))
            hurting.start_soon(kill_hubs, state_dir, books, next(numbers))
            hurting.start_soon(stop_hubs, state_dir, books, next(numbers))
            hurting.start_soon(kill_clients, [one.pipes for one in clients], books, next(numbers))
            hurting.start_soon(kill_port, port, books, next(numbers))
            await anyio.sleep(seconds)

    return await _soak(f"{seconds / 60:g} minutes", seed, folder, STORIES, OF_EACH_OTHER | OF_FAULTS, hurt)


async def soak_hubs(kills: int, seed: int, folder: Path) -> Outcome:
    """Run a soak in which only hubs are killed."""

    async def hurt(place: Place, numbers: Iterator[random.Random], _clients: list[PipeWorker], _port: object) -> None:
        await kill_hubs_in_a_row(kills, place.state_dir, place.books, next(numbers))

    return await _soak(f"{kills} hubs", seed, folder, GOOD_STORIES, OF_EACH_OTHER, hurt, only_hubs=True)


async def _soak(
    how_long: str,
    seed: int,
    folder: Path,
    stories: Mapping[str, int],
    bears: frozenset[str],
    hurt: Callable[[Place, Iterator[random.Random], list[PipeWorker], HttpServer], Awaitable[None]],
    *,
    only_hubs: bool = False,
) -> Outcome:
    waits = (0.5, 1) if only_hubs else (0.5, 2, 10)
    books = Books()
    async with ground_for(folder, seed, books, _LIMITS) as ground:
        place, model = ground.place, ground.model
        teach(model, ground.marks)
        async with background_tasks() as tasks:
            repository = place.repository("shared")
            steady, victim = (HttpServer(name, place.env, repository, place.logs) for name in ("steady", "victim"))
            await tasks.start(steady.run)
            await tasks.start(victim.run)
            visitor, hubs = Gauges(steady.pid), Gauges(0)
            async with _readings(visitor, hubs, place, model):
                numbers = place.numbers()
                clients = [
                    PipeWorker(
                        place.env,
                        Habits(books, next(numbers), stories, bears, waits),
                        place.repository(f"of-client-{number}"),
                        place.logs,
                        mode=mode,
                        has_forms=has_forms,
                    )
                    for number, (mode, has_forms) in enumerate(CLIENTS)
                ]
                over = anyio.Event()
                async with anyio.create_task_group() as working:
                    for client in clients:
                        working.start_soon(client.work, over)
                    for server in () if only_hubs else (steady, victim):
                        for _ in range(CLIENTS_OF_A_PORT):
                            habits = Habits(books, next(numbers), stories, bears, waits)
                            working.start_soon(HttpWorker(server, habits, repository).work, over)
                    if not only_hubs:
                        library = LibraryWorker(place.env, books, next(numbers), repository, place.logs)
                        working.start_soon(library.work, over)
                    await hurt(place, numbers, clients, victim)
                    over.set()
            witness = Pipes(place.env, repository, place.logs, mode="legacy")

            async def next_hub() -> None:
                kill_hub(place.state_dir, books)

            with anyio.fail_after(_JUDGE_SECONDS):
                verdict = await judge(witness, next_hub, books, ground.codex_home, ground.marks, only_hubs=only_hubs)
            if steady.starts != 1:
                books.problems.append(f"A process with a port ended by itself, {steady.starts - 1} time(s).")
            await victim.close()
            await steady.close()
    return Outcome(
        seed=seed,
        how_long=how_long,
        codex=ground.codex,
        books=books,
        orphans=ground.orphans,
        verdict=verdict,
        client=visitor,
        hubs=hubs,
    )


@dataclass(slots=True)
class Ground:
    """Environment of a soak: a real Codex with its own home, on a scripted model."""

    place: Place
    model: ScriptedModel
    codex: str
    """Its version."""
    codex_home: Path
    marks: Path
    """Directory in which commands leave a mark for each run."""
    orphans: list[str]
    """Processes that were left running at the end."""


@asynccontextmanager
async def ground_for(folder: Path, seed: int, books: Books, env: Mapping[str, str]) -> AsyncIterator[Ground]:
    """Prepare an empty folder. No process survives the block."""
    binary = installed_codex()
    if binary is None:
        raise RuntimeError("There is no Codex. Install openai-codex-cli-bin, or set HELMSMAN_TEST_CODEX.")
    marker = os.environ[leaks.MARKER_VARIABLE] = uuid.uuid4().hex
    before = leaks.child_processes()
    marks = folder / "marks"
    for directory in (folder / "logs", marks):
        directory.mkdir(parents=True)
    home = HomeTemplates(folder / "template").new_home(binary, folder / "home")
    version = codex_version(binary)
    async with ScriptedModel() as model:
        home.use_model(model.base_url, version)
        home.configure(model_providers={"scripted": {"stream_max_retries": 1}})
        place = Place({**home.env, **env, "CODEX_CLI_PATH": str(binary)}, folder, books, seed)
        ground = Ground(place, model, ".".join(map(str, version)), home.path, marks, [])
        try:
            yield ground
            await anyio.to_thread.run_sync(end_hub, place.state_dir)
            ground.orphans += await anyio.to_thread.run_sync(_orphans, place.state_dir, marker)
        finally:
            with anyio.CancelScope(shield=True):
                ground.orphans += await anyio.to_thread.run_sync(_end_all, place.state_dir, marker, before)
    books.problems += model.problems


@asynccontextmanager
async def _readings(client: Gauges, hubs: Gauges, place: Place, model: ScriptedModel) -> AsyncIterator[None]:
    began = time.monotonic()

    async def read() -> None:
        while True:
            now, works = time.monotonic() - began, len(place.books.works)
            client.read(now, works)
            for hubs.pid in hub_processes(place.state_dir):
                with suppress(OSError, StopIteration):  # killed while we looked
                    hubs.read(now, works)
            model.requests.clear()  # the greatest leak of all, and not needed here
            await anyio.sleep(_READING_SECONDS)

    async with background_tasks() as tasks:
        tasks.start_soon(read)
        yield


def _orphans(state_dir: Path, marker: str) -> list[str]:
    """Return running processes that belong to no engine, after all servers and clients have ended in order."""
    deadline = time.monotonic() + _GONE_SECONDS
    while True:
        records = read_records(state_dir)
        owners = {record.supervisor for record in records} | {record.child for record in records}
        kept = {process.pid for owner in owners for process in (owner, *descendants(owner))}
        orphans = [str(process) for process in leaks.marked_processes(marker) if process.pid not in kept]
        orphans += [f"hub {pid}" for pid in hub_processes(state_dir)]
        if not orphans or time.monotonic() > deadline:
            return orphans
        time.sleep(0.2)


def _end_all(state_dir: Path, marker: str, before: set[leaks.LeftProcess]) -> list[str]:
    """Stop the hub and the engines. Remaining processes are orphans too, and are ended."""
    end_hub(state_dir)
    for record in read_records(state_dir):
        record.stop()
    left = leaks.wait_until_gone(marker, before)
    leaks.end(left)
    return [str(process) for process in left]
