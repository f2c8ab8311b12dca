"""500 sessions, a transcript of 20,000 events, a diff of 5,000 lines: every part can be reached, and scrolling is smooth."""

from __future__ import annotations

import uuid
from pathlib import Path

import anyio
import pytest

from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, say
from tests.browser.chromium import SECONDS, Page
from tests.browser.smoothness import LINES, LONGEST, Frames, large_change, scrolled, something_done

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.rare]

EVENTS = 20_000
MOST_IN_THE_PAGE = 500
MOST_WORK = 30
"""Milliseconds of the processor for a frame, on average. How long each takes, `python -m bench scrolling` tells: on a
machine that is busy with other tests nobody could say whose fault a long one is."""


def is_smooth(frames: Frames) -> bool:
    print(f"frames: median {frames.median:.0f} ms, longest {frames.longest:.0f} ms, work {frames.work:.1f} ms")
    return frames.median < LONGEST and frames.work < MOST_WORK


async def test_500_sessions_are_scrolled_through(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("", say("ok"))
    session = await helm.start("one of many", cwd=folder)
    with anyio.fail_after(SECONDS):
        await session.wait()
    info = await helm.agent_records.find(session.id)
    assert info is not None
    assert info.path is not None
    content = info.path.read_text(encoding="utf-8")
    for _ in range(499):
        copy = str(uuid.uuid4())
        path = info.path.with_name(info.path.name.replace(session.id, copy))
        path.write_text(content.replace(session.id, copy), encoding="utf-8")
    await page.call("Page.reload")
    await page.until("document.querySelectorAll('.row').length >= 100")
    await page.until(
        """(() => {
            const scroller = document.querySelector('.list-pane .scroller');
            scroller.scrollTop = scroller.scrollHeight;
            return document.querySelectorAll('.row').length === 500;
        })()"""
    )
    assert len(set(await page.get("[...document.querySelectorAll('.row')].map((one) => one.href)"))) == 500
    await page.get(f"document.querySelector('.row[data-session=\"{session.id}\"]').focus()")
    await page.press("Enter")
    await page.until_text(".agent_message", "ok")


async def test_a_transcript_of_20000_events_is_read_from_both_ends(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("work", say("almost", gate, " done"))
    session = await helm.start("work", cwd=folder)
    with anyio.fail_after(SECONDS):
        await gate.reached()

    for number in range(EVENTS):
        something_done(session, number)
    await page.click(".row")
    await page.until_text(".command_execution", f"echo {EVENTS - 1}")
    await page.until_text(".position", "20,00")
    assert await page.count(".entry") <= MOST_IN_THE_PAGE
    await page.until("document.querySelector('.entries').lastElementChild.getBoundingClientRect().top < innerHeight")

    something_done(session, EVENTS)  # the reader is at the end, so new content comes into view
    await page.until_text(".command_execution", f"echo {EVENTS}")
    await page.until("document.querySelector('.entries').lastElementChild.getBoundingClientRect().top < innerHeight")

    assert is_smooth(await scrolled(page, ".transcript .scroller"))

    scroll = "document.querySelector('.transcript .scroller').scrollTop"
    await page.until(f"{scroll} = 0; document.querySelector('.entry').dataset.index <= {EVENTS - 1000}")
    assert await page.count(".entry") <= MOST_IN_THE_PAGE
    await page.click(".jumps button:first-of-type")
    await page.until_text(".user_message", "work")
    await page.until("document.querySelector('.entry').dataset.index === '0'")
    await page.until(f"{scroll} = 1e9; [...document.querySelectorAll('.entry')].at(-1).dataset.index > 600")
    shown = await page.get("[...document.querySelectorAll('.entry')].map((one) => Number(one.dataset.index))")
    assert shown == list(range(shown[0], shown[-1] + 1))
    assert len(shown) <= MOST_IN_THE_PAGE
    await page.click(".jumps button:last-of-type")
    await page.until_text(".command_execution", f"echo {EVENTS}")
    gate.release()
    await page.until_text(".state", "Done")
    await page.until_text(".command_execution", f"echo {EVENTS}")


async def test_a_diff_of_5000_lines_is_scrolled_through(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("work", say("almost", gate, " done"))
    session = await helm.start("work", cwd=folder)
    with anyio.fail_after(SECONDS):
        await gate.reached()
    large_change(session)
    await page.get(f"location.hash = '#/s/{session.id}/changes'")
    await page.until(f"document.querySelectorAll('.lines .line').length === {LINES}")  # all, though drawn bit by bit
    assert is_smooth(await scrolled(page, ".changes"))
    await page.get(f"location.hash = '#/s/{session.id}/changes/src%2Ffile_19.py/77'")
    await page.until_text(".found", "total_77")
    gate.release()
    await page.until_text(".state", "Done")
