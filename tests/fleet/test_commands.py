"""`helmsman fleet` on a fleet without any machine: what it shows, and what it says is missing."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.fleet.test_doors import helmsman

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

FAILED, USAGE = 1, 2


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Of somebody who knows of no fleet."""
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
