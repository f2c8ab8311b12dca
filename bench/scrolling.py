"""Measure frame times while scrolling in a real Chromium: 20,000 entries, and 5,000 changed lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from tests.browser.chromium import find_chromium, running_chromium
from tests.browser.smoothness import LINES, LONGEST, Frames, large_change, scrolled, something_done

from bench.figures import Row
from bench.model import ASK_STREAM
from bench.place import NothingToMeasure, Place, open_place
from helmsman.base.concurrency import background_tasks
from helmsman.httpd.listening import MCP_PATH, HttpOptions
from helmsman.httpd.server import serve_http
from helmsman.service import HelmsmanService
from helmsman.settings import load_settings
from helmsman.web.login import Logins

if TYPE_CHECKING:
    from pathlib import Path

    from tests.browser.chromium import Page

ENTRIES = 20_000


async def measure() -> list[Row]:
    program = find_chromium()
    if program is None:
        raise NothingToMeasure("There is no Chromium here. Install one, or name it with HELMSMAN_TEST_CHROMIUM.")
    async with open_place() as place:
        profile = place.folder / "chromium"
        profile.mkdir()
        with running_chromium(program, profile) as chromium:
            async with chromium.page() as page:
                return await _in_page(place, page)


async def _in_page(place: Place, page: Page) -> list[Row]:
    home = place.home("scrolling")
    flags = {"codex_path": str(place.binary), "detach": False, "state_dir": str(home.path / "helmsman")}
    logins = Logins(secure=False)
    async with HelmsmanService(load_settings(flags, home.env), env=home.env) as helm, background_tasks() as tasks:
        listening, addresses = anyio.Event(), list[str]()

        def announce(address: str, _token_file: Path) -> None:
            addresses.append(address.removesuffix(MCP_PATH))
            listening.set()

        tasks.start_soon(serve_http, helm, HttpOptions(port=0), announce, logins)
        await listening.wait()
        session = await helm.start(ASK_STREAM, cwd=place.repository)
        while session.state.turn_id is None:
            await session.feed.changed()
        for number in range(ENTRIES):
            something_done(session, number)
        large_change(session)
        await page.goto(addresses[0] + logins.new_code().path)
        await page.until("document.querySelector('#live')?.dataset.state === 'live'")
        await page.get(f"location.hash = '#/s/{session.id}'")
        await page.until_text(".command_execution", f"echo {ENTRIES - 1}")
        transcript = await scrolled(page, ".transcript .scroller")
        await page.get(f"location.hash = '#/s/{session.id}/changes'")
        await page.until(f"document.querySelectorAll('.lines .line').length === {LINES}")
        diff = await scrolled(page, ".changes")
        await helm.interrupt(session.id)
        tasks.cancel_scope.cancel()
    return [
        _row(f"Scrolling a transcript of {ENTRIES} entries", transcript),
        _row(f"Scrolling a diff of {LINES} lines", diff),
    ]


def _row(what: str, frames: Frames) -> Row:
    return Row(
        what=f"{what}, while a turn runs",
        goal=f"no frame over {LONGEST:g} ms",
        helmsman=f"longest frame {frames.longest:.0f} ms",
        beside=f"median {frames.median:.0f} ms, 95 % within {frames.nearly_all:.0f} ms",
        met=frames.longest <= LONGEST,
    )
