"""A browser that was remembered: it survives a restart of the server, is revoked, and shows what is pushed to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.base.concurrency import background_tasks
from helmsman.httpd.listening import MCP_PATH, HttpOptions
from helmsman.httpd.server import serve_http
from helmsman.notices.devices import DeviceBook
from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel
from helmsman.web.login import Logins
from tests.browser.chromium import SECONDS, Chromium, Page
from tests.browser.test_notices import ask

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.long]

LIVE = "document.querySelector('#live')?.dataset.state === 'live'"
SHOWN = (
    "navigator.serviceWorker.ready.then((worker) => worker.getNotifications())"
    ".then((all) => all.map((one) => one.title))"
)


@asynccontextmanager
async def served(helm: HelmsmanService, port: int = 0) -> AsyncIterator[tuple[str, Logins]]:
    """A server with a key of its own for cookies, as after each start."""
    logins = Logins(secure=False, devices=DeviceBook(helm.settings.state_dir))
    addresses: list[str] = []
    async with background_tasks() as tasks:
        listening = anyio.Event()

        def announce(address: str, _token_file: Path) -> None:
            addresses.append(address.removesuffix(MCP_PATH))
            listening.set()

        tasks.start_soon(serve_http, helm, HttpOptions(port=port), announce, logins)
        with anyio.fail_after(SECONDS):
            await listening.wait()
        yield addresses[0], logins


async def test_a_browser_is_known_again_after_a_restart_until_it_is_revoked(
    chromium: Chromium, helm: HelmsmanService
) -> None:
    book = DeviceBook(helm.settings.state_dir)
    async with chromium.page() as page:
        async with served(helm) as (address, logins):
            await page.goto(address + logins.new_code().path)
            await page.until(LIVE)
            (device,) = book.all()
            assert device.origin == address
        port = int(address.rpartition(":")[2])
        async with served(helm, port):
            await page.until(LIVE)
            await page.goto(f"{address}/#/engines")
            await page.until_text(".devices", "Chrome")
            await page.until_text(".devices", "this one")
            book.revoke(device.id)
            await page.get("location.hash = '#/tasks'")
            await page.until_text(".login h1", "Log in")
        async with served(helm, port) as (_, logins):
            await page.goto(f"{address}/?again")
            await page.until_text(".login h1", "Log in")
            await page.get(f"location.hash = '#login={logins.new_code().value}'")
            await page.until(LIVE)
            assert [one.id != device.id for one in book.all()] == [True]
        assert page.problems == []


async def test_a_pushed_notification_is_shown_and_its_button_answers_as_the_page_does(
    chromium: Chromium, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    async with chromium.page() as page, served(helm) as (address, logins):
        await page.goto(address + logins.new_code().path)
        await page.until(LIVE)
        await page.allow_notifications()
        session = await ask(helm, model, folder)
        question = session.questions[0]
        registration = await worker_of(page)
        told = {"title": "Codex asks", "body": "touch", "sessionId": session.id, "questionId": question.id}
        await push(page, registration, address, {**told, "choices": ["deny"]})
        await page.until(f"{SHOWN}.then((titles) => titles.includes('Codex asks'))")
        worker = await attached_worker(page)
        window, page.target = page.target, None
        await page.call("Storage.clearCookies", browserContextId=page.context)  # the worker logs in again by its key
        page.target = worker
        await page.get(
            """self.registration.getNotifications().then(([notification]) =>
                self.dispatchEvent(new NotificationEvent("notificationclick", {notification, action: "deny"})))"""
        )
        page.target = window
        with anyio.fail_after(SECONDS):
            while session.status == "awaiting_approval":
                await session.feed.changed()
        await page.until(f"{SHOWN}.then((titles) => titles.length === 0)")
        assert not (folder / "made.txt").exists()
        assert page.problems == []


async def worker_of(page: Page) -> str:
    """Register the page's service worker, without asking a push service. Return the id of its registration."""
    await page.call("ServiceWorker.enable")
    await page.get(
        "navigator.serviceWorker.register('sw.js').then(() => navigator.serviceWorker.ready).then(() => true)"
    )
    with anyio.fail_after(SECONDS):
        while not page.workers:
            await anyio.sleep(0.01)
    return page.workers[-1]


async def push(page: Page, registration: str, origin: str, told: dict[str, Any]) -> None:
    await page.call(
        "ServiceWorker.deliverPushMessage", origin=origin, registrationId=registration, data=json.dumps(told)
    )


async def attached_worker(page: Page) -> str:
    whose, page.target = page.target, None
    targets = (await page.call("Target.getTargets"))["targetInfos"]
    worker = next(one for one in targets if one["type"] == "service_worker" and one["browserContextId"] == page.context)
    attached = await page.call("Target.attachToTarget", targetId=worker["targetId"], flatten=True)
    page.target = whose
    return str(attached["sessionId"])
