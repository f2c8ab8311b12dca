"""No question is answered by accident: not by a key or a click that was meant for something else."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.testing import ScriptedModel, run, say
from tests.browser.chromium import SECONDS, Page

pytestmark = [pytest.mark.long, pytest.mark.anyio, pytest.mark.browser]

FOCUSED = "document.activeElement.matches('.question')"
SETTLED = "document.querySelector('.question')?.dataset.settled === 'yes'"
HELD_BACK = "document.querySelector('.question .hint-early')?.innerText.includes('too soon')"


async def ask(helm: HelmsmanService, model: ScriptedModel, directory: Path, name: str) -> Session:
    """A session that asks whether it may make a file of this name."""
    model.on(f"make {name}", run(f"touch {name}", escalate="it is needed"), say("All said."))
    session = await helm.start(f"make {name}", cwd=directory, full_auto=True)
    with anyio.fail_after(SECONDS):
        while session.status != "awaiting_approval":
            await session.feed.changed()
    return session


@pytest.fixture
async def asking(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> Session:
    return await ask(helm, model, folder, "one")


async def done(session: Session) -> None:
    with anyio.fail_after(SECONDS):
        while session.status != "done":
            await session.feed.changed()


async def a_moment(page: Page, card: str = "document.querySelector('.question')") -> None:
    """Until an answer would count: the question was in view long enough, and no key was pressed lately."""
    await page.until(f"{card}?.dataset.settled === 'yes'")
    await page.get("import('/answering.js').then(({MOMENT}) => new Promise((done) => setTimeout(done, MOMENT + 250)))")


# --- keys ------------------------------------------------------------------------------------------------------------


async def test_keys_after_a_slash_go_to_the_search(page: Page, asking: Session) -> None:
    for place in ("", "tasks", "usage", "session"):
        await page.get("location.hash = '#/'")
        await page.until_text(".question", "touch one")
        await page.until(SETTLED)
        await page.press("y")  # the question has the focus, and one more `y` would answer it
        assert await page.get(FOCUSED)
        await a_moment(page)
        if place:
            await page.get(f"location.hash = {json.dumps(f'#/s/{asking.id}' if place == 'session' else f'#/{place}')}")
            await page.until(f"document.body.dataset.view === {json.dumps(place)}")
        await page.type_quickly("/api")
        await page.until("document.querySelector('.search input').value === 'api'")
        assert asking.status == "awaiting_approval"
        await page.press("Escape")
        await page.get("document.querySelector('.search input').value = ''")


async def test_in_a_narrow_window_too_a_slash_takes_what_follows(page: Page, asking: Session) -> None:
    await page.resize(360, 720)
    await page.get(f"location.hash = '#/s/{asking.id}'")
    await page.until_text(".session .question", "touch one")
    await page.get("document.querySelector('[data-answer=approve]').scrollIntoView({block: 'center'})")
    await page.until(SETTLED)
    await page.type_quickly("/api")
    await page.until("document.querySelector('.search input').value === 'api'")
    assert asking.status == "awaiting_approval"


async def test_a_held_key_answers_one_question_at_most(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path, asking: Session
) -> None:
    others = [await ask(helm, model, folder, name) for name in ("two", "three")]
    await page.until("document.querySelectorAll('.question').length === 3")
    await page.press("y")
    await a_moment(page)
    await page.hold("y", times=30, release=False)
    await done(asking)
    await page.until("document.querySelectorAll('.question').length === 2")
    await a_moment(page)
    await page.hold("y", times=30)  # still the same press, and then without what marks a repetition:
    assert [one.status for one in others] == ["awaiting_approval"] * 2
    await page.hold("y", times=1, release=False)
    await page.hold("y", times=1, release=False)
    await page.press("y")
    assert [one.status for one in others] == ["awaiting_approval"] * 2
    await a_moment(page)
    await page.press("y")
    await done(others[0])
    assert others[1].status == "awaiting_approval"


async def test_a_key_answers_only_the_question_that_has_the_focus(page: Page, asking: Session, folder: Path) -> None:
    await page.until(SETTLED)
    await page.press("y")
    await page.until_text(".question", "Press y again")
    assert asking.status == "awaiting_approval"
    await page.press("y")
    assert await page.get(HELD_BACK)  # too soon to have been meant
    assert asking.status == "awaiting_approval"
    await a_moment(page)
    await page.press("y")
    await done(asking)
    assert (folder / "one").exists()


async def test_words_that_are_typed_answer_nothing(page: Page, asking: Session) -> None:
    await page.until(SETTLED)
    await page.press("y")
    await a_moment(page)
    for key in "banana and yes any":
        await page.press(key)
    assert asking.status == "awaiting_approval"


async def test_keys_typed_after_a_question_closed_answer_no_other(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path, asking: Session
) -> None:
    other = await ask(helm, model, folder, "two")
    await page.until("document.querySelectorAll('.question').length === 2")
    await page.press("n")
    await a_moment(page)
    await page.press("n")
    await page.until("document.activeElement.matches('.question textarea')")
    await page.write("not b")
    await helm.respond(asking.id, asking.questions[0].id, ["deny"])  # another client was faster
    await page.until("document.querySelectorAll('.question').length === 1")
    await a_moment(page)
    for key in "anana":
        await page.press(key)
    assert other.status == "awaiting_approval"


async def test_a_key_with_a_modifier_is_not_an_answer(page: Page, asking: Session) -> None:
    await page.until(SETTLED)
    await page.press("y")
    for modifier in (1, 2, 4):
        await a_moment(page)
        pressed = {"key": "y", "code": "KeyY", "windowsVirtualKeyCode": 89, "modifiers": modifier}
        for kind in ("rawKeyDown", "keyUp"):
            await page.call("Input.dispatchKeyEvent", type=kind, **pressed)
        assert asking.status == "awaiting_approval"
        assert not await page.get(HELD_BACK)


async def test_a_question_that_is_out_of_view_is_shown_before_it_is_answered(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    sessions = [await ask(helm, model, folder, f"file-{number}") for number in range(6)]
    await page.resize(1280, 420)
    await page.until("document.querySelectorAll('.question').length === 6")
    last = "document.querySelector('.question:last-child')"
    button = f"{last}.querySelector('[data-answer=approve]')"
    await page.get(f"{last}.focus({{preventScroll: true}})")
    await a_moment(page)
    assert await page.get(f"{button}.getBoundingClientRect().top > innerHeight")
    await page.press("y")
    await page.until(f"{button}.getBoundingClientRect().bottom < innerHeight + 1")
    assert sessions[-1].status == "awaiting_approval"
    await a_moment(page, last)
    await page.press("y")
    await done(sessions[-1])


async def test_a_window_that_was_in_the_background_waits_again(page: Page, asking: Session) -> None:
    await page.until(SETTLED)
    await page.press("y")
    await a_moment(page)
    await page.call("Emulation.setFocusEmulationEnabled", enabled=False)
    await page.get("window.dispatchEvent(new Event('blur'))")
    await page.call("Emulation.setFocusEmulationEnabled", enabled=True)
    await page.press("y")
    assert asking.status == "awaiting_approval"
    assert await page.get(HELD_BACK)


# --- the pointer -----------------------------------------------------------------------------------------------------


async def test_a_question_that_slides_under_the_pointer_is_not_answered(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path, asking: Session
) -> None:
    other = await ask(helm, model, folder, "two")
    await page.until("document.querySelectorAll('.question').length === 2")
    await page.until("[...document.querySelectorAll('.question')].every((one) => one.dataset.settled === 'yes')")
    x, y = await page.get(
        """(() => {
            const box = document.querySelector('[data-answer=approve]').getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        })()"""
    )
    await helm.respond(asking.id, asking.questions[0].id, ["deny"])  # by another client, just before the click
    under = f"document.elementFromPoint({x}, {y}).closest('[data-answer=approve]') !== null"
    await page.until(f"document.querySelectorAll('.question').length === 1 && {under}")
    await page.click_at(x, y)
    assert await page.get(HELD_BACK)
    assert other.status == "awaiting_approval"
    await page.click("[data-answer=approve]")
    await done(other)


async def test_a_question_that_has_just_come_up_takes_no_click(page: Page, asking: Session) -> None:
    await page.until("document.querySelector('[data-answer=approve]') !== null")
    await page.until(SETTLED)
    await page.get("location.hash = '#/tasks'")
    await page.until("document.body.dataset.view === 'tasks'")
    await page.get("location.hash = '#/'")
    x, y = await page.until(
        """(() => {
            const box = document.querySelector('[data-answer=approve]')?.getBoundingClientRect();
            return box?.width ? [box.x + box.width / 2, box.y + box.height / 2] : null;
        })()"""
    )
    await page.click_at(x, y)
    assert asking.status == "awaiting_approval"
    assert await page.get(HELD_BACK)


async def test_enter_held_on_a_button_answers_once(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path, asking: Session
) -> None:
    other = await ask(helm, model, folder, "two")
    await page.until("document.querySelectorAll('.question').length === 2")
    await page.get("document.querySelector('[data-answer=approve]').focus()")
    await a_moment(page)
    await page.hold("Enter", times=20)
    await done(asking)
    assert other.status == "awaiting_approval"
