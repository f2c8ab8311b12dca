"""Tests of hostile values in a fleet's database, and of what is stored there."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.base.caller_context import FLEET_URL
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput
from helmsman.fleet.owned_task import NotOwner, OwnedTask
from helmsman.fleet.pump import EventPump
from helmsman.model.events import CommandExecution, ItemEnded, ItemStarted, ItemUpdated, Notice
from helmsman.store.address import checked_address
from helmsman.store.log import NewEvent
from helmsman.testing import ScriptedModel, say
from tests.fleet.conftest import SECONDS, Fleet

pytestmark = pytest.mark.anyio

KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"


async def test_values_with_a_secret_are_not_stored_in_a_fleet(fleet: Fleet) -> None:
    with pytest.raises(InvalidInput, match="secret"):
        await fleet.start(f"deploy with {KEY}")
    with pytest.raises(InvalidInput, match="secret"):
        await fleet.start("deploy", metadata={"note": f"API_KEY={KEY}"})
    with pytest.raises(InvalidInput, match="secret"):
        await fleet.client.steer("T-fleet-1", f"use {KEY}")
    tables = await fleet.client.database.all(
        "select table_schema || '.' || table_name as name from information_schema.tables "
        "where table_schema in ('helmsman', 'helmsman_store')"
    )
    assert len(tables) > 10
    for table in tables:
        assert re.fullmatch(r"\w+\.\w+", table["name"])
        rows = await fleet.client.database.all(f"select * from {table['name']}")
        assert KEY not in str(rows), table["name"]


async def test_a_secret_that_an_agent_says_is_in_no_column(fleet: Fleet, model: ScriptedModel) -> None:
    """Neither whole nor in the pieces that it came in. The transcript, `rollouts`, is stored as it is."""
    model.on("tell", say("It is ", KEY[:20], KEY[20:30], f"{KEY[30:]} and ", "that is all."))
    await fleet.worker("one")
    done = await fleet.ended(await fleet.start("tell"))
    assert done.result == "It is [redacted] and that is all."
    stored = await fleet.client.database.all("select body from helmsman_store.events")
    assert "It is " in str(stored)
    pieces = (KEY[:20], KEY[20:30], KEY[30:])
    names = ("questions", "orders")
    for table in (
        *(f"helmsman.{name}" for name in names),
        "helmsman_store.tasks",
        "helmsman_store.notices",
        "helmsman_store.outcomes",
        "helmsman_store.events",
    ):
        rows = await fleet.client.database.all(f"select * from {table}")
        assert [piece for piece in pieces if piece in str(rows)] == [], table


async def claimed_task(fleet: Fleet) -> tuple[Any, OwnedTask]:
    """Start a task, and claim it for a worker that only has a row."""
    task = await fleet.start("work")
    [owned], _ = await OwnedTask.claim(fleet.client.database, await fleet.idle_worker("one"), 1)
    return task, owned


async def test_a_nul_that_postgres_cannot_store_is_replaced_wherever_it_comes_from(fleet: Fleet) -> None:
    """Also where JSON escapes it. A text about it stays as it is."""
    await fleet.start("say \0 or \\u0000", metadata={"why": "\0"})
    [owned], _ = await OwnedTask.claim(fleet.client.database, await fleet.idle_worker("one"), 1)
    await owned.update(note="at \0", progress={"text": "\0"})
    await owned.finish({"status": "completed", "result": "said \0"})
    done = await fleet.client.get(owned.id)
    replaced = "\N{REPLACEMENT CHARACTER}"
    assert (done.instruction, done.policy) == (f"say {replaced} or \\u0000", {"why": replaced})
    assert (done.result, done.status) == (f"said {replaced}", "completed")


async def test_an_item_that_has_not_ended_is_stored_without_half_a_secret(fleet: Fleet) -> None:
    """Agents send the output of a command again and again while it grows."""
    database = fleet.client.database
    _, owned = await claimed_task(fleet)
    pump = EventPump(owned)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group:
            group.start_soon(pump.run)
            half = CommandExecution(id="c", command="show", status="in_progress", output=KEY[:12])
            pump.put(ItemStarted(session_id="s", turn_id="t", item=half))
            pump.put(ItemUpdated(session_id="s", turn_id="t", item=half))
            pump.put(ItemEnded(session_id="s", turn_id="t", item=replace(half, status="completed", output=KEY)))
            await pump.close()
    stored = str(await database.all("select body from helmsman_store.events"))
    assert stored.count("show") >= 3
    assert KEY[:12] not in stored
    assert "[redacted]" in stored


WRITES: dict[str, tuple[Any, ...]] = {
    "add_events": ([NewEvent.of(Notice(session_id="s", kind="engine", message="late"))],),
    "add_rollout": ("session", "file", 0, b"late"),
    "put_piece": ("result", 0, b"late"),
    "close_question": ("q",),
    "take_order": ("order",),
    "finish": ({"status": "completed", "result": "late"},),
}


async def test_writes_of_a_task_at_the_same_time_do_not_wait_for_each_other_until_one_fails(fleet: Fleet) -> None:
    _, owned = await claimed_task(fleet)
    async with anyio.create_task_group() as writers:
        for number in range(10):
            writers.start_soon(owned.put_piece, "result", number, b"")
            writers.start_soon(partial(owned.update, note=str(number)))
            writers.start_soon(owned.close_question, "q")
    row = await fleet.client.database.one("select revision from helmsman_store.tasks where id = %s", (owned.id,))
    assert row == {"revision": owned.row["revision"] + 20}


@pytest.mark.parametrize("by", ["put back", "claimed"])
async def test_a_worker_that_has_lost_its_task_writes_nothing_of_it(fleet: Fleet, by: str) -> None:
    """It was stopped for longer than its lease, and the task waits for another one, or has another one by now."""
    database = fleet.client.database
    task, owned = await claimed_task(fleet)
    changed = "status = 'pending'" if by == "put back" else "epoch = epoch + 1"
    await database.all(f"update helmsman_store.tasks set {changed} where id = %s returning 1 as one", (task.id,))

    async def stored() -> str:
        tables = [f"helmsman.{name}" for name in ("questions", "rollouts", "bundles", "orders")]
        tables += [f"helmsman_store.{name}" for name in ("tasks", "events", "sessions")]
        return str([await database.all(f"select * from {table}") for table in tables])

    before = await stored()
    for name, arguments in WRITES.items():
        with pytest.raises(NotOwner):
            await getattr(owned, name)(*arguments)
    with pytest.raises(NotOwner):
        await owned.update(note="late")
    assert await stored() == before


AWAY = "postgresql://me@db.example/fleet"
HERE = "postgresql://me@localhost/fleet"


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)
    file = tmp_path / "services"
    file.write_text(
        "[away]\nhost=db.example\n[number]\nhostaddr=192.0.2.7\n[plain]\nhost=db.example\nsslmode=disable\n"
        "[checked]\nhost=db.example\nsslmode=verify-full\n[here]\nhost=/run/postgresql\n",
        encoding="ascii",
    )
    monkeypatch.setenv("PGSERVICEFILE", str(file))


@pytest.mark.parametrize(
    ("url", "env"),
    [
        (f"{HERE}?hostaddr=192.0.2.7", {}),
        (HERE, {"PGHOSTADDR": "192.0.2.7"}),
        ("postgresql:///fleet", {"PGHOST": "db.example"}),
        ("postgresql:///fleet?service=away", {}),
        ("postgresql:///fleet?service=number", {}),
        (f"{HERE}?service=number", {}),
        ("postgresql:///fleet?service=plain", {}),
        ("postgresql:///fleet", {"PGSERVICE": "away"}),
        ("postgresql:///fleet?service=away", {"PGSERVICE": "here"}),
        (AWAY, {"PGSSLMODE": "disable"}),
        (AWAY, {"PGSSLMODE": "allow"}),
        (f"{AWAY}?sslmode=prefer", {"PGSSLMODE": "verify-full"}),
        ("postgresql://me@localhost,db.example/fleet", {}),
        (f"{HERE}?host=db.example", {}),
        (f"{HERE}?hostaddr=127.0.0.1,192.0.2.7&host=a,b", {}),
        ("postgresql://me@%64b.example/fleet", {}),
        (f"{AWAY}?gssencmode=prefer", {}),
        (f"{AWAY}?sslmode=prefer&sslmode=allow", {}),
    ],
)
def test_any_connection_to_another_machine_is_encrypted(
    url: str, env: dict[str, str], services: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert checked_address(url, FLEET_URL).endswith("sslmode=require")
    assert os.environ.get("PGSERVICE") == env.get("PGSERVICE")


@pytest.mark.parametrize(
    ("url", "env"),
    [
        (HERE, {}),
        ("postgresql:///fleet", {}),
        (f"{AWAY}?hostaddr=127.0.0.1", {}),
        ("postgresql://me@%2Frun%2Fpostgresql/fleet", {}),
        ("postgresql:///fleet?host=@abstract", {}),
        ("postgresql:///fleet?service=here", {}),
        ("postgresql:///fleet?service=checked", {}),
        (AWAY, {"PGSSLMODE": "verify-full"}),
        (f"{AWAY}?sslrootcert=system", {}),
        (f"{AWAY}?sslmode=disable", {}),
        (f"{AWAY}?sslmode=verify-full", {"PGSSLMODE": "disable"}),
    ],
)
def test_an_address_that_is_safe_or_declared_stays_as_it_is(
    url: str, env: dict[str, str], services: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert checked_address(url, FLEET_URL) == url
