"""Budgets of a fleet: counted over all its machines, asked about before a turn begins and while it runs."""

from __future__ import annotations

import json

import anyio
import pytest

from helmsman import Helmsman
from helmsman.errors import InvalidSetting
from helmsman.fleet.budgets import FleetBudgets, budget_of_fleet, set_budget
from helmsman.fleet.owned_task import OwnedTask
from helmsman.model.events import Usage
from helmsman.model.options import Placement
from helmsman.settings import load_settings
from helmsman.tasks.prices import Prices
from helmsman.testing import ScriptedModel, always, say
from tests.fleet.conftest import Fleet
from tests.fleet.test_clients import client_env, helmsman

pytestmark = [pytest.mark.anyio, pytest.mark.rare]
SECONDS = 60


async def test_the_budget_and_its_grants_count_on_all_machines(fleet: Fleet) -> None:
    database = fleet.client.database
    with pytest.raises(InvalidSetting, match="day_euro"):
        await set_budget(database, {"day_euro": "5"})
    await set_budget(database, {"day_usd": "10", "project_day_tokens": "1000", "task_usd": "7"})
    machines, claimed = [], {}
    for name in ("one", "two"):
        await fleet.start(name, metadata={"project": "/src/app" if name == "one" else "/src/other"})
        [owned], _ = await OwnedTask.claim(database, await fleet.idle_worker(name), 1)
        claimed[name] = owned
        budgets = FleetBudgets(database, Prices({}))
        budgets.entered(name, owned)
        machines.append(budgets)
    one, two = machines

    async def used_up(machine: FleetBudgets, name: str, usage: Usage) -> list[str]:
        return [state.key for state in await machine.states(name, None, usage) if state.is_used_up]

    assert await used_up(one, "one", Usage(600, 0, 0, 0, 6.0)) == []
    assert await used_up(two, "two", Usage(600, 0, 0, 0, 4.0)) == ["day_usd"], "of both together"
    assert await used_up(one, "one", Usage(1100, 0, 0, 0, 7.5)) == ["day_usd", "project_day_tokens", "task_usd"]
    states = [one for one in await two.states("two", None, Usage(600, 0, 0, 0, 4.0)) if one.is_used_up]
    assert [state.in_words() for state in states] == ["all work of the fleet has used 11.50 of 10 USD today"]
    await two.grant("two", states)
    assert await used_up(one, "one", Usage(1100, 0, 0, 0, 7.5)) == ["project_day_tokens", "task_usd"]
    _, shown = await budget_of_fleet(database, Prices({}))
    assert [(one.key, one.project, one.used, one.granted) for one in shown] == [
        ("day_usd", None, 11.5, 16.5),
        ("project_day_tokens", "/src/app", 1100, None),
        ("project_day_tokens", "/src/other", 600, None),
    ]

    # The next attempt adds to what the task has used before.
    again = await claimed["one"].claim_again()
    assert again is not None
    one.left(claimed["one"])
    one.entered("again", again)
    await again.update(used_before=again.used_before)
    used = {state.key: state.used for state in await one.states("again", None, Usage(100, 0, 0, 0, 1.0))}
    assert used == {"day_usd": 12.5, "project_day_tokens": 1200, "task_usd": 8.5}
    one.entered("approved", again)
    used = {state.key: state.used for state in await one.states("approved", None, Usage(10, 0, 0, 0, 0.5))}
    assert used == {"day_usd": 13, "project_day_tokens": 1210, "task_usd": 9}, (
        "a plan that was approved is another task"
    )
    await one.spent("approved", None, Usage(5, 0, 0, 0, 0.2))
    used = {state.key: state.used for state in await one.states("again", None, Usage(100, 0, 0, 0, 1.0))}
    assert used == {"day_usd": 13, "project_day_tokens": 1210, "task_usd": 9}, "a late report lowers nothing"
    assert await one.states("one", None, Usage(5000)) == [], "it has left"
    await two.states("two", None, Usage(700, 0, 0, 0, 5.0))
    stored = await fleet.client.database.tasks(lambda tasks: tasks.turn_usages())
    assert [usage.usage for usage in stored] == [Usage(1210, 0, 0, 0, 9.0), Usage(700, 0, 0, 0, 5.0)]
    assert [usage.before for usage in stored] == [Usage(1100, 0, 0, 0, 7.5), Usage()], "before the last attempt"


async def test_a_turn_on_one_machine_asks_when_others_have_used_up_the_budget_of_the_fleet(
    fleet: Fleet, model: ScriptedModel
) -> None:
    for name in ("one", "two"):
        await fleet.worker(name)
    # Cut off by a budget, it continues with one more request.
    model.on("work", always(say("done")))
    env = client_env(fleet)
    await helmsman(env, "fleet", "budget", "day_tokens=1")
    async with Helmsman(load_settings({}, env, fleet.directory), env=env) as helm:
        first = await helm.start("work", cwd=fleet.directory, placement=Placement(machine="one"))
        with anyio.fail_after(SECONDS):
            assert await first.wait(until="end")
        assert first.status == "done", fleet.logs()
        second = await helm.start("work", cwd=fleet.directory, placement=Placement(machine="two"))
        with anyio.fail_after(SECONDS):
            assert await second.wait(until="attention")
        [question] = second.questions
        assert "All work of the fleet has used" in question.prompts[0].text
        waits = await fleet.client.until(
            str(second.task_id), lambda task: task.waiting_for == "budget", timeout=SECONDS
        )
        assert waits[1], waits[0]
        usage = json.loads(await helmsman(env, "usage", "--json"))
        assert [(one["key"], one["fleet"], one["isUsedUp"]) for one in usage["budgets"]] == [("day_tokens", True, True)]
        with anyio.fail_after(SECONDS):
            # It asks again if its report of usage comes before its end: a yes grants one token.
            while second.questions:
                await helm.respond(second.id, second.questions[0].id, ["approve"])
                assert await second.wait(until="attention")
        assert second.status == "done", fleet.logs()
        third = await helm.start("work", cwd=fleet.directory, placement=Placement(machine="one"))
        with anyio.fail_after(SECONDS):
            assert await third.wait(until="attention")
        await helm.respond(third.id, third.questions[0].id, ["stop"])
        with anyio.fail_after(SECONDS):
            assert await third.wait(until="end")
        ended = await fleet.client.get(str(third.task_id))
        assert (ended.error or {})["code"] == "budget_exceeded"
