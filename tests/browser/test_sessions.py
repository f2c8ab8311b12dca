"""Sessions in the browser: listed, followed live, started, steered, interrupted, searched."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.model.events import AgentState, CollabToolCall, ItemEnded
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.shapes.sub_agents import sub_agents_of
from helmsman.testing import ScriptedModel, add, fail, patch, run, say, spawn_agent, wait_agents
from tests.browser.chromium import SECONDS, Page
from tests.browser.test_appearance import AXE, findings

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.long]


async def settled(session: Session) -> Session:
    with anyio.fail_after(SECONDS):
        await session.wait()
    return session


async def test_sessions_are_listed_and_opened_with_keys(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("", say("It is done."))
    for prompt in ("older work", "newer work"):
        await settled(await helm.start(prompt, cwd=folder))
    await page.until("document.querySelectorAll('.row').length === 2")
    shown = await page.get("[...document.querySelectorAll('.row .summary')].map((one) => one.textContent)")
    assert shown == ["newer work", "older work"]
    for key in ("j", "j", "k", "j"):
        await page.press(key)
    assert "older work" in await page.get("document.activeElement.innerText")
    await page.press("Enter")
    await page.until_text("h1", "older work")
    await page.until_text(".agent_message", "It is done.")
    assert await page.text(".row[aria-current=page] .summary") == "older work"
    assert await page.get("document.title") == "older work · Helmsman"
    await page.press("Escape")
    await page.until_text("h1", "Nothing is waiting for you")


async def test_sub_agents_are_a_tree_of_links_to_their_transcripts(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("Delegate", [spawn_agent("Count the files")], [wait_agents()], [say("Delegated.")])
    model.on("Count the files", say("There are three."))
    session = await settled(await helm.start("Delegate", cwd=folder))
    await page.click(".row")
    await page.until_text(".agents > li > a", "Count the files")
    await page.until_text(".agents > li", " done ")
    # Codex lets only the session start sub-agents, unless it is configured otherwise.
    (counting,) = sub_agents_of(session)
    call = CollabToolCall(id="call", prompt="Read one of them", agents=(AgentState(id="reading", status="running"),))
    session.apply(ItemEnded(session_id=session.id, agent_id=counting.id, item=call))
    await page.get("location.reload()")
    await page.until_text(".agents > li > ul > li", "Read one of them running")
    assert not AXE.exists() or await findings(page) == []
    await page.click(".agents > li > a")
    await page.until_text(".agent_message", "There are three.")


async def test_a_list_that_changes_while_the_button_is_down_loses_no_click(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("", say("It is done."))
    await settled(await helm.start("older work", cwd=folder))
    await page.until_text(".row", "older work")
    await page.until("document.querySelector('.row .mark').matches('.good')")
    x, y = await page.get("(({x, y}) => [x + 40, y + 20])(document.querySelector('.row').getBoundingClientRect())")
    read = "performance.getEntriesByType('resource').filter(({name}) => name.includes('/api/sessions?limit')).length"
    before = await page.get(read)
    await page.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
    await settled(await helm.start("newer work", cwd=folder))
    await page.until(f"{read} > {before}")
    await page.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)
    await page.until_text("h1", "older work")
    await page.until("document.querySelectorAll('.row').length === 2")


async def test_a_turn_is_followed_as_it_happens(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    gate, last = model.gate(), model.gate()
    steps = [run("echo first output"), patch(add("made.txt", "one\ntwo\n"))]
    model.on("work", *steps, say("Half of it, ", gate, "and the rest", last, "."))
    session = await helm.start("work on it", cwd=folder, full_auto=True)
    await page.click(".row")
    await page.until_text(".command_execution", "first output")
    await page.until_text(".file_change .diff", "+two")
    await page.until_text(".agent_message", "Half of it,")
    assert "and the rest" not in await page.text(".entries")
    assert await page.text(".state") == "Running"
    gate.release()
    await page.until_text(".agent_message", "and the rest")
    last.release()
    await settled(session)
    await page.until_text(".state", "Done")
    await page.until("document.querySelector('.row .mark').matches('.good')")


async def test_a_session_is_started_from_the_page(page: Page, model: ScriptedModel, folder: Path) -> None:
    model.on("write a poem", say("Roses are red."))
    await page.press("n")
    await page.until("document.activeElement.name === 'prompt'")
    await page.write("write a poem")
    await page.get(f"document.querySelector('dialog [name=workingDirectory]').value = {json.dumps(str(folder))}")
    await page.click("dialog [type=submit]")
    await page.until_text(".agent_message", "Roses are red.")
    assert await page.count("dialog") == 0
    await page.until_text(".row .summary", "write a poem")


async def test_a_failed_start_is_shown_in_the_dialog(page: Page, tmp_path: Path) -> None:
    await page.click("#new")
    await page.write("do something")
    nowhere = json.dumps(str(tmp_path / "nowhere"))
    await page.get(f"document.querySelector('dialog [name=workingDirectory]').value = {nowhere}")
    await page.click("dialog [type=submit]")
    await page.until_text("dialog .note", "nowhere")
    await page.press("Escape")
    await page.until("document.querySelector('dialog') === null")


async def test_a_running_turn_is_steered_and_a_resting_session_continues(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("begin", say("thinking ", gate, "about it"))
    model.on("be brief", say("brief"))
    model.on("and now the tests", say("tests written"))
    session = await helm.start("begin", cwd=folder)
    await page.click(".row")
    await page.until_text(".agent_message", "thinking")
    await page.press("m")
    await page.write("be brief")
    await page.press("Enter")
    await page.until("document.querySelector('.composer textarea').value === ''")
    gate.release()
    await settled(session)
    await page.until_text(".user_message", "be brief")
    await page.until_text(".composer [type=submit]", "Send")
    await page.click(".composer textarea")
    await page.write("and now the tests")
    await page.press("Enter")
    await page.until_text(".agent_message", "tests written")
    assert session.turn_count == 2
    await page.click("[role=tab]:nth-child(3)")
    await page.until("document.querySelectorAll('.turn-row').length === 2")
    await page.click(".turns li:nth-child(2) .turn-row")
    await page.until("document.querySelector('[role=tab]').ariaSelected === 'true'")
    await page.until_text(".agent_message", "tests written")


async def test_a_turn_is_interrupted(page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path) -> None:
    gate = model.gate()
    model.on("work", say("at it ", gate))
    session = await helm.start("work for ever", cwd=folder)
    await page.click(".row")
    await page.until_text(".agent_message", "at it")
    await page.click("[data-part=actions]")
    await page.click("[data-action=interrupt]")
    await page.click("dialog [data-yes]")
    await page.until_text(".state", "Interrupted")
    assert session.status == "interrupted"
    assert not await page.get("document.querySelector('.actions .danger').checkVisibility()")


async def test_a_session_that_waits_for_its_limit_goes_on_by_its_button(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    reached = fail(429, error_type="usage_limit_reached", resets_at=int(time.time()) + 7200)
    model.on("work", reached, say("Done after all."))
    session = await helm.start("work", cwd=folder, on_limit="wait")
    await page.get(f"location.hash = '#/s/{session.id}'")
    await page.until_text(".session .note", "Usage limit reached.")
    await page.until_text(".facts", "1 turn")
    await page.until("[...document.querySelectorAll('.actions button:not([hidden])')].length === 3")
    assert "Stop waiting" in await page.text(".session .actions button:nth-of-type(2)")
    await page.click(".session .actions button")
    await page.until_text(".agent_message", "Done after all.")
    await page.until("[...document.querySelectorAll('.actions button:not([hidden])')].length === 1")


async def test_a_search_finds_sessions_and_tasks(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("", say("ok"))
    for prompt in ("paint the boat", "mend the sail"):
        await settled(await helm.start(prompt, cwd=folder))
    await page.until("document.querySelectorAll('.row').length === 2")
    await page.press("/")
    await page.until("document.activeElement.type === 'search'")
    await page.write("sail")
    await page.until_text(".rows h2", "Tasks")
    found = "[...document.querySelectorAll('.row .summary')].map((one) => one.textContent).join()"
    await page.until(f"{found} === 'mend the sail,mend the sail'")  # the session once it is indexed
    await page.press("Enter")
    await page.press("Enter")
    await page.until_text("h1", "mend the sail")
    await page.press("/")
    await page.write("no such words")
    await page.until_text(".rows", "Nothing found")
    await page.press("Escape")
    await page.until("document.querySelectorAll('.row').length === 2")


HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'><b>bold</b>"


async def test_output_of_codex_stays_text(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path, asks: dict[str, Any]
) -> None:
    (folder / "hostile.txt").write_text(f"{HOSTILE}\n\x1b[31mred\x1b[0m\n", encoding="utf-8")
    made = patch(add("page.html", HOSTILE))
    message = f"{HOSTILE}\n\n```html\n{HOSTILE}\n```\n`{HOSTILE}` **{HOSTILE}**"
    asking = run(f"echo {json.dumps(HOSTILE)}", escalate=HOSTILE)
    model.on("<img", run("cat hostile.txt"), made, asking, say(message))
    await helm.start(f"Show {HOSTILE}", cwd=folder, full_auto=True)
    await page.until_text(".home .question", HOSTILE)
    await page.click(".row")
    await page.until_text("h1", HOSTILE)
    await page.until_text(".command_execution .output", f"{HOSTILE}\nred")
    await page.until_text(".file_change .diff", HOSTILE)
    await page.click("[data-answer=approve]")
    await page.until_text(".agent_message pre", HOSTILE)
    await page.until_text(".agent_message code", HOSTILE)
    assert await page.get("window.hacked === undefined")
    assert await page.count("main img, main script, main b, .list-pane img, .list-pane b") == 0
