"""The other pages: tasks, usage, engines, the way in and out, and a server that goes away."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream

from helmsman.cli.dashboard import write_redirect
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.testing import ScriptedModel, add, patch, rate_limit, run, say, usage
from helmsman.web.login import Logins
from tests.browser.chromium import SECONDS, Chromium, Page

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.rare]


async def settled(session: Session) -> Session:
    with anyio.fail_after(SECONDS):
        await session.wait()
    return session


async def test_tasks_are_listed_filtered_and_canceled(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("quick", say("ok"))
    model.on("endless", say("at it ", gate))
    await settled(await helm.start("quick work", cwd=folder))
    endless = await helm.start("endless work", cwd=folder)
    await page.click(".places a[href='#/tasks']")
    await page.until("document.querySelectorAll('.tasks > li').length === 2")
    await page.until_text(".tasks .pill", "Done")
    await page.click(".segments [data-status='pending,working']")
    await page.until("document.querySelectorAll('.tasks > li').length === 1")
    await page.click(".tasks button")
    await page.click("dialog [data-yes]")
    await page.until("document.querySelector('.toast') !== null")
    await page.until_text("main .empty", "No such tasks")
    assert endless.status == "interrupted"
    await page.click(".segments [data-status='']")
    await page.until_text(".tasks .pill", "Cancelled")
    await page.press("j")
    await page.press("Enter")
    await page.until_text("h1", "endless work")


async def test_usage_is_shown_as_a_chart_and_in_words_and_numbers(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    await page.click(".places a[href='#/usage']")
    await page.until_text("main .empty", "No tokens were spent")
    await page.until_text(".limits", "reports no rate limits")
    limit = rate_limit(90, window_minutes=300, resets_at=int(time.time()) + 7230)
    model.on("", [say("ok"), usage(12_000, 4_000, 700, 100), limit])
    await settled(await helm.start("spend", cwd=folder))
    await page.click(".segments [data-since=all]")
    await page.until("document.querySelectorAll('.chart svg').length === 3")
    assert "12.7k" in await page.text(".usage .tiles")
    await page.get("location.hash = '#/tasks'")
    await page.until("document.title === 'Tasks · Helmsman'")
    await page.get("location.hash = '#/usage'")
    await page.until_text(".limits .tile", "Limit primary, 5 h")
    assert "10 % left" in await page.text(".limits .tile")
    assert "reset in 2 h" in await page.text(".limits .tile")
    own = helm.settings.user_file
    assert own is not None
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text("[budget]\nday_tokens = 12_000\nproject_day_usd = 20\n")
    await page.click(".segments [data-since=all]")
    await page.until_text("[aria-label=Budgets] .tile:first-child", "12.7k of 12.0k")
    assert "used up" in await page.text("[aria-label=Budgets] .tile:first-child")
    assert " of $20" in await page.text("[aria-label=Budgets] .tile:last-child")
    await page.until("document.querySelectorAll('.chart svg').length === 3")
    label = await page.get("document.querySelector('.chart svg').getAttribute('aria-label')")
    assert label.startswith("Tokens per day. The most: 20")
    await page.until("document.querySelectorAll('.chart rect.output').length === 3")
    await page.click("figure details summary")
    await page.until_text("figure table", "12,000")


async def test_engines_are_shown_and_another_device_gets_a_link(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path, chromium: Chromium
) -> None:
    await page.click(".places a[href='#/engines']")
    await page.until_text("main .empty", "No engine runs")
    model.on("", say("ok"))
    await settled(await helm.start("work", cwd=folder))
    await page.until_text(".card", "app-server")
    await page.until_text(".card .pill", "in use")
    await page.click("main .buttons button:first-child")
    await page.until_text(".device-link", "/#login=")
    async with chromium.page() as other:
        await other.goto(await page.get("document.querySelector('.device-link code').textContent"))
        await other.until_text("h1", "Nothing is waiting for you")


async def test_one_logs_out_and_in_again(page: Page, logins: Logins) -> None:
    await page.get("location.hash = '#/engines'")
    await page.until("document.querySelector('main > *').dataset.ready")
    await page.until("document.querySelector('#live').dataset.state === 'live'")
    await page.click("main .buttons button:nth-child(2)")
    await page.until_text("h1", "Log in")
    await page.click(".login input")
    await page.write("wrong")
    await page.press("Enter")
    await page.until_text(".login .note", "This code is wrong")
    await page.get("document.querySelector('.login input').value = ''")
    await page.write(logins.new_code().value)
    await page.press("Enter")
    await page.until("document.body.dataset.view === 'engines'")
    await page.until("document.querySelector('#live').dataset.state === 'live'")


async def test_a_browser_without_a_cookie_is_asked_to_log_in(chromium: Chromium, server: str) -> None:
    async with chromium.page() as page:
        await page.goto(f"{server}/#login=wrong")
        await page.until_text("h1", "Log in")
        await page.until_text(".login .note", "has expired or was used already")
        assert await page.get("location.href") == f"{server}/", "no history keeps a code"
        assert await page.get("document.querySelector('#new').checkVisibility()") is False


async def test_the_file_that_the_browser_is_given_leads_into_the_dashboard(
    chromium: Chromium, server: str, logins: Logins, tmp_path: Path
) -> None:
    """What `helmsman dashboard` does, with the real browser: no secret but in a file of the user's own."""
    code = logins.new_code()
    file = write_redirect(f"{server}/", code.value, tmp_path / "state")
    async with chromium.page() as page:
        await page.call("Page.navigate", url=file.as_uri())
        await page.until(f"location.origin === {server!r} && document.querySelector('#live')?.dataset.state === 'live'")
        assert await page.get("location.href") == f"{server}/"
        assert not logins.is_waiting(code)
        assert page.problems == []
    async with chromium.page() as another:
        await another.call("Page.navigate", url=file.as_uri())
        await another.until_text(".login .note", "was used")


async def test_the_keys_are_explained(page: Page) -> None:
    await page.press("?")
    await page.until_text("dialog", "deny it, with a reason")
    await page.press("Escape")
    await page.until("document.querySelector('dialog') === null")


async def test_the_changes_of_a_turn_are_one_diff(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("", patch(add("one.txt", "first\n"), add("two.txt", "second\n")), run("true"), say("ok"))
    await settled(await helm.start("write", cwd=folder, full_auto=True))
    await page.click(".row")
    await page.click("[role=tab]:nth-child(2)")
    await page.until("document.querySelectorAll('.review-file').length === 2")
    await page.until_text(".changes .lines", "+second")


async def test_it_works_below_a_path_of_a_proxy(
    chromium: Chromium, server: str, logins: Logins, model: ScriptedModel
) -> None:
    model.on("Say hello", say("hello"))
    upstream = int(server.rpartition(":")[2])

    gone = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)

    async def copy(source: SocketStream, target: SocketStream) -> None:
        with suppress(*gone):
            while True:
                await target.send(await source.receive())
        await target.aclose()

    async def forward(client: SocketStream) -> None:
        """Pass on one request, without the first part of its path."""
        said = b""
        async with client, await anyio.connect_tcp("127.0.0.1", upstream) as behind:
            with suppress(*gone):
                while b"\r\n\r\n" not in said:
                    said += await client.receive()
                said = said.replace(b" /below/", b" /", 1).replace(b"Connection: keep-alive\r\n", b"", 1)
                await behind.send(said.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(copy, client, behind)
                    tasks.start_soon(copy, behind, client)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, forward)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with chromium.page() as page:
            await page.goto(f"http://127.0.0.1:{port}/below{logins.new_code().path}")
            await page.until("document.querySelector('#live')?.dataset.state === 'live'")
            await page.click(".places a[href='#/engines']")
            await page.until_text("main", "Helmsman")
            assert page.problems == []
        tasks.cancel_scope.cancel()
