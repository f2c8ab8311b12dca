"""Fixtures of a fleet: a real Postgres, and workers as separate processes, each with its own home and state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psycopg
import pytest

from helmsman.fleet.client import FleetClient
from helmsman.fleet.owned_task import MachineOffer
from helmsman.fleet.values import FleetDraft
from helmsman.model.inputs import session_options
from helmsman.model.options import Placement, StartOptions, TurnInput
from helmsman.model.request import TurnRequest
from helmsman.tasks.model import Task, TaskDraft
from helmsman.testing import CodexHome, ScriptedModel
from helmsman.testing.home import HomeTemplates
from tests.postgres import Postgres, postgres_programs

SECONDS = 60
LEASE = 4.0
QUIET = ("-c", "autovacuum=off")
"""No process of it comes up in the middle of a test, which would be taken for one that the test left."""


def set_up(server: Postgres) -> None:
    """A fleet in the template that the databases of tests are copies of."""
    made = subprocess.run(
        [sys.executable, "-m", "helmsman", "fleet", "init", server.url("template1")],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert made.returncode == 0, made.stderr


def drop(connection: psycopg.Connection[Any], name: str) -> None:
    """Remove a test's database, and wait until the server has no process for it any more: it would be taken for a leak."""
    connection.execute(psycopg.sql.SQL("drop database {} with (force)").format(psycopg.sql.Identifier(name)))
    until = time.monotonic() + SECONDS
    others = "select 1 from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
    while connection.execute(others).fetchone() is not None and time.monotonic() < until:
        time.sleep(0.02)


@contextmanager
def a_postgres(**more: bool) -> Iterator[Postgres]:
    """Where root runs the tests, Postgres is somebody else, and must reach its files.

    So they are not below pytest's directory: whoever runs pytest next, beside this one, closes that to all others.
    """
    if postgres_programs() is None:
        pytest.skip("There is no Postgres: install Debian's postgresql, or pgserver.")
    with (
        tempfile.TemporaryDirectory(prefix="helmsman-postgres-") as directory,
        Postgres(Path(directory), options=QUIET, **more) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """Server for all tests, which have separate databases. A test that stops it starts it again."""
    with a_postgres() as server:
        set_up(server)
        yield server


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """One that a test may kill."""
    with a_postgres() as server:
        set_up(server)
        yield server


@pytest.fixture
def postgres(request: pytest.FixtureRequest, postgres_server: Postgres) -> Postgres:
    """The one of all tests, or the test's own where it asks for that."""
    if "own_postgres" not in request.fixturenames:
        return postgres_server
    own: Postgres = request.getfixturevalue("own_postgres")
    return own


@pytest.fixture
def fleet_url(postgres: Postgres) -> Iterator[str]:
    """A database with a fleet in it: a copy of one that was set up."""
    name = f"fleet_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(
            psycopg.sql.SQL("create database {} template template1").format(psycopg.sql.Identifier(name))
        )
    yield postgres.url(name)
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        drop(connection, name)


@dataclass
class WorkerProcess:
    """A machine of the fleet."""

    name: str
    process: subprocess.Popen[bytes]
    home: CodexHome
    log: Path
    before: int = 0
    """How long its log was when it was started."""

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        with anyio.fail_after(SECONDS):
            while (code := self.process.poll()) is None:
                await anyio.sleep(0.02)
        return code


@dataclass
class Fleet:
    """What tests do with a fleet."""

    client: FleetClient
    url: str
    binary: Path
    directory: Path
    model: ScriptedModel
    templates: HomeTemplates
    folder: Path
    workers: dict[str, WorkerProcess] = field(default_factory=dict)

    def draft(self, prompt: str, **more: Any) -> FleetDraft:
        """Return a task as a client creates it."""
        session: StartOptions = more.pop("options", {})
        checked = session_options(more.pop("cwd", self.directory), session, ())
        spec = TurnRequest(turn=TurnInput(text=prompt), options=checked).packed()
        assert spec is not None
        spec |= more.pop("spec_more", {})
        task = TaskDraft(
            agent="codex",
            instruction=prompt,
            spec=spec,
            directory=more.pop("directory", str(self.directory)),
            policy=more.pop("metadata", None),
            idempotency_key=more.pop("idempotency_key", None),
        )
        placed = {name: more.pop(name) for name in Placement.__struct_fields__ if name in more}
        return FleetDraft(task=task, placement=Placement(**placed), **more)

    async def start(self, prompt: str, **more: Any) -> Task:
        return await self.client.enqueue(self.draft(prompt, **more))

    def begin_worker(
        self, name: str, *arguments: str, lease: float = LEASE, env: Mapping[str, str] | None = None
    ) -> WorkerProcess:
        from helmsman.testing.binaries import codex_version

        folder = self.folder / name
        home = self.templates.new_home(self.binary, folder) if not folder.exists() else self.workers[name].home
        if name not in self.workers:
            version = codex_version(self.binary)
            home.use_model(self.model.base_url, version)
            home.keep_quiet(version)
        given = {"HELMSMAN_FLEET_URL": self.url, "CODEX_CLI_PATH": str(self.binary), "PYTHONUNBUFFERED": "1"}
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            before = output.tell()
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "helmsman",
                    "fleet",
                    "worker",
                    "--name",
                    name,
                    "--lease",
                    str(lease),
                    *arguments,
                ],
                env={**home.env, **given, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=home.home,
                start_new_session=True,
            )
        worker = self.workers[name] = WorkerProcess(name, process, home, log, before)
        return worker

    async def worker(
        self, name: str, *arguments: str, lease: float = LEASE, env: Mapping[str, str] | None = None
    ) -> WorkerProcess:
        """A machine that takes tasks."""
        worker = self.begin_worker(name, *arguments, lease=lease, env=env)
        await self.until_ready(worker)
        return worker

    async def until_ready(self, worker: WorkerProcess) -> None:
        with anyio.fail_after(SECONDS):
            while b"is part of the fleet" not in worker.log.read_bytes()[worker.before :]:
                assert worker.process.poll() is None, worker.log.read_text(encoding="utf-8")
                await anyio.sleep(0.02)

    async def idle_worker(self, name: str, lease: float = 60) -> MachineOffer:
        """Add a worker that is only a row, and return what it may run."""
        await self.client.database.all(
            "insert into helmsman.workers (id, name, place, lease, labels, agents, capacity, version) "
            "values (%(id)s, %(name)s, %(name)s, %(lease)s, '{}', '{\"codex\": \"\"}', 1, '') returning 1",
            {"id": f"{name}~1", "name": name, "lease": lease},
        )
        return MachineOffer(f"{name}~1", name, ["codex"], [])

    async def ended(self, task: Task, seconds: float = SECONDS) -> Task:
        """The task once all of it has stopped."""
        now, has = await self.client.until(task.id, lambda task: not task.is_running, timeout=seconds)
        assert has, self.logs()
        return now

    async def until(self, task: Task, status: str) -> Task:
        now, has = await self.client.until(task.id, lambda task: task.status == status, timeout=SECONDS)
        assert has, f"{now}\n{self.logs()}"
        return now

    def logs(self) -> str:
        return "\n".join(f"{one.name}: {one.log.read_text(encoding='utf-8')}" for one in self.workers.values())


@pytest.fixture
async def fleet(
    fleet_url: str,
    codex_binary: Path,
    codex_home_templates: HomeTemplates,
    git_repo: Path,
    model: ScriptedModel,
    tmp_path: Path,
) -> AsyncIterator[Fleet]:
    """Without any machine yet."""
    folder = tmp_path / "machines"
    folder.mkdir()
    async with FleetClient(fleet_url) as client:
        fleet = Fleet(client, fleet_url, codex_binary, git_repo, model, codex_home_templates, folder)
        try:
            yield fleet
        finally:
            for worker in fleet.workers.values():
                with suppress(ProcessLookupError):
                    os.kill(worker.process.pid, signal.SIGCONT)
                worker.process.terminate()
            for worker in fleet.workers.values():
                try:
                    await anyio.to_thread.run_sync(worker.process.wait, 20)
                except subprocess.TimeoutExpired:
                    worker.process.kill()
                    worker.process.wait()


@pytest.fixture
async def empty_database(postgres_server: Postgres) -> AsyncIterator[str]:
    """Database without tables."""
    name = f"empty_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(
            psycopg.sql.SQL("create database {} template template0").format(psycopg.sql.Identifier(name))
        )
    yield postgres_server.url(name)
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        drop(connection, name)
