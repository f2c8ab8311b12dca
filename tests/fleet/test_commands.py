"""Tests of `helmsman fleet` without any machine: its output, and its advice."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import psycopg
import pytest

from helmsman.fleet.owned_task import OwnedTask
from tests.fleet.conftest import Fleet
from tests.fleet.test_clients import helmsman

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

FAILED, USAGE = 1, 2


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Environment without a fleet."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("HELMSMAN_", "COV"))},
        "HOME": str(tmp_path),
        "HELMSMAN_STATE_DIR": str(tmp_path / "state"),
        "HELMSMAN_DETACH": "0",
    }


async def test_a_fleet_without_machines_says_so_and_its_doctor_finds_that_wrong(
    env: dict[str, str], fleet_url: str
) -> None:
    env["HELMSMAN_FLEET_URL"] = fleet_url
    assert json.loads(await helmsman(env, "fleet", "status", "--json")) == {"machines": [], "waiting": {}}
    assert await helmsman(env, "fleet", "status") == ""
    checks = json.loads(await helmsman(env, "fleet", "doctor", "--json", codes=(FAILED,)))["checks"]
    wrong = [check for check in checks if check["verdict"] == "wrong"]
    assert [(check["name"], "Start `helmsman fleet worker`" in check["text"]) for check in wrong] == [
        ("machines", True)
    ]
    assert "None is up" in await helmsman(env, "fleet", "doctor", codes=(FAILED,))
    await helmsman(env, "fleet", "drain", "nobody", codes=(FAILED, USAGE))


async def test_a_budget_of_the_whole_fleet_is_kept_in_its_database(env: dict[str, str], fleet_url: str) -> None:
    env["HELMSMAN_FLEET_URL"] = fleet_url
    assert json.loads(await helmsman(env, "fleet", "budget", "--json"))["budget"] == {}
    assert "day_usd" in await helmsman(env, "fleet", "budget", "day_usd=25")
    told = json.loads(await helmsman(env, "fleet", "budget", "--json"))
    assert told["budget"] == {"day_usd": 25}
    assert [state["key"] for state in told["today"]] == ["day_usd"]
    await helmsman(env, "fleet", "budget", "decade_usd=25", codes=(FAILED, USAGE))
    assert json.loads(await helmsman(env, "fleet", "budget", "--json"))["budget"] == {"day_usd": 25}


async def test_without_an_address_there_is_no_fleet_to_ask(env: dict[str, str]) -> None:
    for words in (("status",), ("doctor",), ("budget",)):
        await helmsman(env, "fleet", *words, codes=(FAILED, USAGE))


async def test_the_doctor_finds_what_a_role_may_not_do_and_what_no_machine_takes(
    env: dict[str, str], fleet: Fleet
) -> None:
    env["HELMSMAN_FLEET_URL"] = fleet.url

    async def found(*, wrong: bool) -> dict[str, list[str]]:
        codes = (FAILED,) if wrong else (0,)
        checks = json.loads(await helmsman(env, "fleet", "doctor", "--json", codes=codes))["checks"]
        verdicts: dict[str, list[str]] = {}
        for check in checks:
            verdicts.setdefault(check["verdict"], []).append(f"{check['name']}: {check['text']}")
        return verdicts

    one = await fleet.idle_worker("one")
    assert "wrong" not in await found(wrong=False)
    await fleet.start("x", session_id="S")
    await OwnedTask.claim(fleet.client.database, one, 1)
    await fleet.start("x", machine="one")
    await fleet.client.database.all("update helmsman_store.tasks set created_at = created_at - 3600000000 returning 1")
    (waits,) = (await found(wrong=False))["warning"]
    assert waits == "tasks: One has been waiting for 60 min. If all machines are full, add one."

    two = await fleet.idle_worker("two")
    await fleet.client.database.all("delete from helmsman.workers where id = %s returning 1", (one.worker,))
    await fleet.client.database.all(
        "update helmsman.workers set seen = seen - interval '5 min' where id = %s returning 1", (two.worker,)
    )
    await fleet.idle_worker("three")
    told = await found(wrong=True)
    assert told["wrong"] == ["queues: 1 waiting for host:one, which no machine takes."]
    assert [text.partition(" for ")[0] for text in told["warning"]] == [
        "machines: two has been silent",
        "tasks: 1 ran on machines that were lost. A live worker requeues them.",
        "tasks: One has been waiting",
    ]

    with psycopg.connect(fleet.url, autocommit=True) as connection:
        connection.execute("drop role if exists reader; create role reader login")
        connection.execute(
            "grant usage on schema helmsman to reader; grant select on all tables in schema helmsman to reader"
        )
    try:
        env["HELMSMAN_FLEET_URL"] = re.sub("//[^@]*@", "//reader@", fleet.url)
        (rights,) = [text for text in (await found(wrong=True))["wrong"] if text.startswith("rights: ")]
        assert "This role may not use" in rights
        assert "tasks" in rights
    finally:
        with psycopg.connect(fleet.url, autocommit=True) as connection:
            connection.execute("drop owned by reader; drop role reader")
