"""Tests of the page's appearance: both themes, a narrow window, and no serious finding of axe-core."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.testing import ScriptedModel, add, patch, run, say, think
from tests.browser.chromium import SECONDS, Page
from tests.clients.node import CACHE

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.rare]

AXE = CACHE / "node_modules" / "axe-core" / "axe.min.js"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
LIGHT, DARK = "rgb(244, 246, 248)", "rgb(15, 21, 27)"


@pytest.fixture
async def asking(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> Session:
    """A session with something of everything, that waits for an answer."""
    look = [think("**Looking**\n\naround"), run("echo out; exit 3")]
    ask = run("touch made.txt", escalate="it is needed")
    model.on("touch", look, patch(add("made.txt", "one\n")), ask, say("done, see `made.txt`"))
    session = await helm.start("touch it", cwd=folder, full_auto=True)
    with anyio.fail_after(SECONDS):
        while session.status != "awaiting_approval":
            await session.feed.changed()
    return session


# --- themes ----------------------------------------------------------------------------------------------------------


async def test_the_theme_is_the_systems_until_one_is_chosen(page: Page) -> None:
    await page.prefer("light")
    assert await page.get(BACKGROUND) == LIGHT
    await page.prefer("dark")
    assert await page.get(BACKGROUND) == DARK
    await page.click("#theme")
    assert (await page.get(BACKGROUND), await page.get("document.querySelector('#theme').title")) == (
        LIGHT,
        "Theme: light",
    )
    await page.call("Page.reload")
    await page.until("document.querySelector('#theme')?.title === 'Theme: light'")
    assert await page.get(BACKGROUND) == LIGHT
    await page.click("#theme")
    await page.prefer("light")
    assert await page.get(BACKGROUND) == DARK
    await page.click("#theme")
    assert await page.get(BACKGROUND) == LIGHT


# --- a narrow window -------------------------------------------------------------------------------------------------

TOO_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
SCROLLERS = """
    [...document.querySelectorAll('.session, .session *')].filter((one) => one.checkVisibility() && one.clientHeight > 100
        && /auto|scroll/.test(getComputedStyle(one).overflowY)).length
"""
TOO_SMALL = """
    [...document.querySelectorAll('button, .row, .places a, textarea, input[type=search]')]
        .filter((one) => one.checkVisibility() && !one.matches('.link'))
        .map((one) => [one.innerText || one.tagName, one.getBoundingClientRect()])
        .filter(([, box]) => box.height < 43.5 || box.right > innerWidth + 1)
        .map(([name]) => name)
"""


async def test_a_phone_shows_one_thing_at_a_time_and_everything_can_be_touched(page: Page, asking: Session) -> None:
    await page.resize(390, 844)
    await page.until_text(".home .question", "touch made.txt")
    assert not await page.get(TOO_WIDE)
    assert await page.get(TOO_SMALL) == []
    await page.click(".row")
    await page.until_text(".session .question", "touch made.txt")
    assert not await page.get("document.querySelector('.list-pane, .panel:not([hidden])')?.checkVisibility() ?? false")
    for tab, part, last in (
        ("Question", ".question", "[data-answer=approve]"),
        ("Transcript", ".command_execution", ".composer"),
        ("Question", ".question", "[data-answer=approve]"),
    ):
        await page.get(
            f"[...document.querySelectorAll('.tabs button')].find((one) => one.innerText === '{tab}').click()"
        )
        await page.until(f"document.querySelector('.session {part}')?.checkVisibility()")
        assert await page.get(SCROLLERS) == 1, tab
        assert not await page.get(TOO_WIDE)
        assert [name for name in await page.get(TOO_SMALL) if "Newest" not in name] == []
        assert 0 < await page.get(f"document.querySelector('{last}').getBoundingClientRect().bottom") <= 844, tab
    await page.click("[data-answer=approve]")
    await page.until_text(".command_execution", "out")
    await page.until_text(".state", "Done")
    await page.click(".back")
    await page.until("document.querySelector('.row').checkVisibility()")
    assert asking.status == "done"
    for place, part in (("tasks", ".tasks > li"), ("usage", ".chart svg"), ("rules", ".explain"), ("engines", ".card")):
        await page.get(f"location.hash = '#/{place}'")
        await page.until(f"document.querySelector('{part}') !== null")
        assert not await page.get(TOO_WIDE), place


# --- axe-core --------------------------------------------------------------------------------------------------------


async def findings(page: Page) -> list[str]:
    """What axe-core finds: everything in the light theme, and the contrast in the dark one."""
    script = AXE.read_text(encoding="utf-8")
    await page.get(f"if (!window.axe) {{ {script} }}; true")
    found: list[str] = []
    for theme, what in (("light", ""), ("dark", ', runOnly: ["color-contrast"]')):
        await page.prefer(theme)
        found += await page.get(
            f"""axe.run(document, {{resultTypes: ["violations"]{what}}}).then(({{violations}}) => violations
                .flatMap(({{id, nodes}}) => nodes.map(
                    (node) => `{theme}: ${{id}}: ${{node.html.slice(0, 200)}} ${{node.failureSummary}}`)))"""
        )
    return found


needs_axe = pytest.mark.skipif(
    not AXE.exists(), reason="axe-core is not there: run scripts/fetch_clients.py, which needs npm."
)


@needs_axe
async def test_axe_core_finds_nothing_on_the_empty_overview_of_a_phone(page: Page) -> None:
    await page.resize(360, 720)
    await page.until_text(".home h1", "Nothing is waiting for you")
    assert await findings(page) == []


@needs_axe
async def test_axe_core_finds_nothing_in_either_theme(page: Page, asking: Session) -> None:
    await page.until_text(".home .question", "touch made.txt")
    seen = {"home": await findings(page)}
    await page.click(".row")
    await page.until_text(".session .question", "touch made.txt")
    await page.until_text(".file_change", "made.txt")
    seen["session"] = await findings(page)
    await page.click("[data-answer=deny]")
    seen["reason"] = await findings(page)
    for number, tab in ((2, "changes"), (3, "turns")):
        await page.click(f"[role=tab]:nth-child({number})")
        await page.until(f"document.querySelector('.{tab}').childElementCount > 0")
        seen[tab] = await findings(page)
    for place in ("tasks", "schedules", "usage", "rules", "engines"):
        await page.get(f"location.hash = '#/{place}'")
        await page.until(f"document.body.dataset.view === '{place}' && !main.innerText.includes('Reading…')")
        seen[place] = await findings(page)
    for button, name in (("#new", "new session"), ("#help", "help")):
        await page.click(button)
        seen[name] = await findings(page)
        await page.press("Escape")
    await page.get("location.hash = '#/'")
    await page.click(".list-pane .select")
    await page.click(".list-pane input.selected")
    seen["selecting"] = await findings(page)
    await page.click("[data-selected=label]")
    seen["labels"] = await findings(page)
    await page.press("Escape")
    await page.resize(360, 720)
    await page.until_text(".home .question", "touch made.txt")
    seen["narrow"] = await findings(page)
    for place in ("tasks", "schedules", "usage", "rules", "engines", f"s/{asking.id}", f"s/{asking.id}/changes"):
        await page.get(f"location.hash = '#/{place}'")
        await page.until(f"location.hash === '#/{place}' && !main.innerText.includes('Reading…')")
        seen[f"narrow {place}"] = await findings(page)
    await page.get("location.hash = '#/engines'")
    await page.until("document.body.dataset.view === 'engines' && !main.innerText.includes('Reading…')")
    await page.get("[...main.querySelectorAll('button')].find((one) => one.innerText === 'Log out').click()")
    await page.until_text(".login h1", "Log in")
    seen["login"] = await findings(page)
    assert {place: found for place, found in seen.items() if found} == {}, json.dumps(seen, indent=1)
    assert asking.status == "awaiting_approval"
