"""A fleet in the browser: where and when a new session is done, and the page of machines, their load and their queue."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import anyio
import pytest

from helmsman import Helmsman, load_settings
from helmsman.testing import ScriptedModel, hang, say
from tests.browser.chromium import SECONDS, Chromium, Page
from tests.fleet.conftest import Fleet, fleet, fleet_url, postgres, postgres_server
from tests.fleet.test_clients import FULL, client_env, helmsman
from tests.hub.test_http import Dashboard

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.rare]

__all__ = ["fleet", "fleet_url", "postgres", "postgres_server"]


@pytest.fixture
def env(fleet: Fleet) -> dict[str, str]:
    """Of a machine that runs none of the work."""
    return client_env(fleet)


@pytest.fixture
async def page(fleet: Fleet, env: dict[str, str], chromium: Chromium) -> AsyncIterator[Page]:
    dashboard = Dashboard(env, fleet.directory)
    async with dashboard.turned_on() as shown, chromium.page() as page:
        await page.goto(f"{shown['address']}#login={shown['code']}")
        await page.until("document.querySelector('#live')?.dataset.state === 'live'")
        yield page
        assert page.problems == []
    await helmsman(env, "engines", "stop", "--all")  # it was asked for its models


async def test_a_session_is_placed_and_the_machines_their_load_and_what_waits_are_shown_on_a_phone_too(
    page: Page, fleet: Fleet, env: dict[str, str], model: ScriptedModel
) -> None:
    await fleet.worker("one", "--capacity", "1", "--label", "gpu")
    model.on("long work", hang())
    model.on("placed work", say("never"))
    async with Helmsman(load_settings({}, env, fleet.directory), env=env) as helm:
        first = await helm.start("long work", cwd=fleet.directory, **FULL)
        await fleet.until(await fleet.client.get(first.task_ids[0]), "working")

        await page.click("#new-session, button.primary")
        await page.until(
            "document.querySelector('dialog .placing') && !document.querySelector('dialog .placing').hidden"
        )
        await page.click("dialog .placing summary")
        fields = {"prompt": "placed work", "machine": "one", "labels": "gpu", "priority": "7", "deadlineSec": "3600"}
        fields |= {"workingDirectory": str(fleet.directory), "onMachineLoss": "fail"}
        for name, value in fields.items():
            await page.get(f"document.querySelector('dialog [name={name}]').value = {json.dumps(value)}")
        await page.click("dialog button[type=submit]")
        await page.until("location.hash.startsWith('#/s/fleet-')")
        with anyio.fail_after(SECONDS):
            while len(tasks := (await fleet.client.database.tasks(lambda tasks: tasks.list()))[0]) < 2:
                await anyio.sleep(0.05)
        facts = tasks[0].placement
        assert (facts["host"], facts["labels"], facts["priority"]) == ("one", ["gpu"], 7)
        assert "deadline" in facts

        for width in (1280, 390):
            await page.resize(width, 844)
            await page.get("location.hash = '#/engines'")
            await page.until("document.querySelector('[data-ready=yes] .machine') !== null")
            assert "1 of 1 task" in await page.text(".machine")
            assert "labels gpu" in await page.text(".machine")
            assert await page.get("document.querySelector('.machine .load').value") == 1
            assert await page.text(".machine .work a") == "long work"
            await page.until_text("[aria-label='What waits']", "placed work")
            await page.until_text("[aria-label='What waits']", "priority 7")
            assert await page.get("document.documentElement.scrollWidth <= innerWidth")
            await page.get("location.hash = '#/'")
            await page.until("document.querySelector('.machine') === null")

        await page.get("location.hash = '#/engines'")
        await page.until("document.querySelector('.machine .work a') !== null")
        await page.click(".machine .work a")
        await page.until(f"location.hash === '#/s/{first.id}'")
        await helm.interrupt(first.id)
