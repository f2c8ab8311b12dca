"""A fleet that was saved with pg_dump goes on from there after a restore, with the commands of the documentation."""

from __future__ import annotations

import re
import shutil
import subprocess
import uuid
from pathlib import Path

import psycopg
import pytest

from helmsman.fleet.client import FleetClient
from helmsman.fleet.owned_task import NotOwner, OwnedTask
from helmsman.fleet.queue import requeue_work
from tests.fleet.conftest import SECONDS, Fleet
from tests.postgres import Postgres, postgres_programs

pytestmark = pytest.mark.anyio


def documented(program: str) -> list[str]:
    """Return the options that the documentation gives for a program of Postgres."""
    page = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text(encoding="utf-8")
    (options,) = re.findall(rf"\b{program} (-\S.*) fleet\.dump", page)
    return [option for option in str(options).split() if "://" not in option]


def run_program(name: str, *arguments: str) -> None:
    programs = postgres_programs()
    assert programs is not None
    program = shutil.which(name, path=f"{programs}") or shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed.")
    done = subprocess.run([program, *arguments], check=False, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr


async def test_a_restored_fleet_continues_with_the_state_of_the_backup(
    fleet: Fleet, postgres: Postgres, tmp_path: Path
) -> None:
    one = await fleet.idle_worker("one", lease=2)
    running = await fleet.start("x", session_id="S", idempotency_key="key")
    waiting = await fleet.start("x", session_id="S")
    (owned,), _ = await OwnedTask.claim(fleet.client.database, one, 1)
    await owned.add_rollout("session", "file", 0, b"said")
    dump, name = tmp_path / "fleet.dump", f"restored_{uuid.uuid4().hex[:8]}"
    run_program("pg_dump", *documented("pg_dump"), str(dump), fleet.url)
    await owned.add_rollout("session", "file", 4, b" after the backup")
    later = await fleet.start("x")

    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(
            psycopg.sql.SQL("create database {} template template0").format(psycopg.sql.Identifier(name))
        )
    try:
        run_program("pg_restore", *documented("pg_restore"), postgres.url(name), str(dump))
        async with FleetClient(postgres.url(name)) as client:
            assert {task.id for task in (await client.database.tasks(lambda tasks: tasks.list()))[0]} == {
                running.id,
                waiting.id,
            }
            await client.database.all("delete from helmsman.workers returning 1")  # its lease runs out
            await requeue_work(client.database)
            fleet.client = client
            assert (await fleet.start("x", idempotency_key="key")).id == running.id
            newer = await fleet.start("x", session_id="S")
            two = await fleet.idle_worker("two")
            claimed = []
            while tasks := (await OwnedTask.claim(client.database, two, 5))[0]:
                for task in tasks:
                    claimed.append((task.id, task.epoch))
                    await task.finish({"status": "completed"})
            assert claimed == [(running.id, 2), (waiting.id, 1), (newer.id, 1)]
            assert later.id not in {task.id for task in (await client.database.tasks(lambda tasks: tasks.list()))[0]}
            parts = await client.database.all("select data from helmsman.rollouts")
            assert [part["data"] for part in parts] == [b"said"]
            with pytest.raises(NotOwner):
                await OwnedTask(client.database, owned.row).finish({"status": "completed"})
    finally:
        with psycopg.connect(postgres.url(), autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL("drop database {} with (force)").format(psycopg.sql.Identifier(name)))
