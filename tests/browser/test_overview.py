"""The overview: found by words of the transcript, filtered in the address, acted on; a new session; all of it on a phone."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.testing import (
    CodexHome,
    ScriptedModel,
    add,
    ask_user,
    call_tool,
    patch,
    question,
    request_permissions,
    run,
    say,
)
from tests.browser.chromium import SECONDS, Page
from tests.browser.test_appearance import AXE, TOO_SMALL, TOO_WIDE, findings

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.long]

PIXEL = base64.b64encode(
    base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
).decode()


async def told(helm: HelmsmanService, prompt: str, **options: Any) -> Session:
    session = await helm.start(prompt, **options)
    with anyio.fail_after(SECONDS):
        await session.wait()
    return session


async def act(page: Page, name: str) -> None:
    await page.click("[data-part=actions]")
    await page.click(f"[data-action={name}]")
    await page.until("document.querySelector('dialog [data-yes]') !== null")


async def serious(page: Page) -> list[str]:
    return await findings(page) if AXE.exists() else []


async def test_sessions_are_found_by_what_was_said_and_filtered_in_the_address(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("boat", run("echo quicksilver"), say("Varnished with a marlinspike."))
    model.on("sail", say("Sewn."))
    boat = await told(helm, "Paint the boat", cwd=folder, full_auto=True)
    sail = await told(helm, "Mend the sail", cwd=folder)
    await page.until("document.querySelectorAll('.row').length === 2")
    await page.until_text(".row .spent", "s")  # how long it has worked
    await page.press("/")
    await page.write("marlin quick")
    await page.until_text(".row .excerpt", "marlinspike")
    marked = await page.get("[...document.querySelectorAll('.rows mark')].map((one) => one.innerText)")
    assert marked == ["quick", "quick", "marlin"]  # in the command, its output and the answer
    assert await page.get("[...document.querySelectorAll('.row')].map((one) => one.dataset.session)") == [boat.id]
    await page.get("document.querySelector('.search input').value = '->'")
    await page.press("x")
    await page.press("Escape")
    await page.until("document.querySelectorAll('.row').length === 2")

    states = "document.querySelector('[aria-label=\"Filter by state\"]')"
    await page.get(f"{states}.value = 'error', {states}.dispatchEvent(new Event('change'))")
    await page.until_text(".rows", "No sessions match these filters")
    assert await page.get("location.hash") == "#/?state=error"
    project = json.dumps(str(folder))
    await page.get(f"location.hash = '#/?state=done&project=' + encodeURIComponent({project})")
    await page.until("document.querySelectorAll('.row').length === 2")
    await page.call("Page.reload")  # a bookmarked link
    await page.until(f"document.querySelectorAll('.row').length === 2 && {states}.value === 'done'")
    await page.click(f".row[data-session='{sail.id}']")
    await page.until_text(".agent_message", "Sewn.")
    await page.press("Escape")
    await page.until("location.hash.includes('state=done')")
    assert await serious(page) == []


@pytest.mark.rare
async def test_a_session_is_renamed_reviewed_forked_compacted_taken_back_and_archived(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.otherwise(say("Said."))
    session = await told(helm, "First words", cwd=folder)
    with anyio.fail_after(SECONDS):
        await (await helm.say(session.id, "Second words")).wait()
    await page.click(".row")
    await page.until_text(".user_message", "Second words")
    await page.click("[data-part=actions]")
    assert await serious(page) == []
    await page.click("[data-action=rename]")
    await page.until("document.activeElement.name === 'name'")
    await page.write("The naming")
    await page.press("Enter")
    await page.until_text("h1", "The naming")
    await page.until_text(".row .summary", "The naming")

    await act(page, "review")  # this is no repository: that is said where it was asked
    await page.click("dialog [data-yes]")
    await page.until_text("dialog .note", "git")
    await page.press("Escape")

    await act(page, "rollback")
    await page.until_text("dialog .lost", "Turn 2: Second words")
    await page.click("dialog [data-yes]")
    await page.until("document.querySelector('dialog') === null")
    assert len(await helm.history(session.id)) == 1

    await act(page, "compact")
    await page.click("dialog [data-yes]")
    await page.until_text(".entries", "summarised")
    with anyio.fail_after(SECONDS):
        await session.wait()

    await act(page, "fork")
    await page.write("Third words")
    await page.click("dialog [data-yes]")
    await page.until_text(".user_message", "Third words")
    forked = (await page.get("location.hash")).removeprefix("#/s/")
    assert forked != session.id
    with anyio.fail_after(SECONDS):
        await (await helm.session(forked)).wait()

    await page.until_text(".state", "Done")
    await act(page, "archive")
    await page.click("dialog [data-yes]")
    await page.until(f"location.hash === '#/' && !document.querySelector('[data-session=\"{forked}\"]')")
    await page.get(f"location.hash = '#/s/{forked}'")
    await page.until_text(".user_message", "Third words")
    await page.click("[data-part=actions]")
    await page.click("[data-action=unarchive]")
    await page.until(f"document.querySelector('[data-session=\"{forked}\"]') !== null")


async def test_a_new_session_knows_what_is_configured_and_takes_images(
    page: Page, helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    model.otherwise(say("Seen."))
    taken = await told(helm, "Work apart", cwd=git_repo, worktree=True)
    assert taken.worktree is not None
    await page.until("document.querySelector('[aria-label=\"Filter by project\"]').length === 2")
    await page.press("n")
    place = "document.querySelector('dialog [name=workingDirectory]')"
    await page.until(f"{place}.value === {json.dumps(str(git_repo.resolve()))}")
    await page.until_text(".configured", "it asks: when it wants more")
    await page.until("document.querySelectorAll('dialog select[name=model] option').length > 1")
    await page.until("document.querySelector('dialog select[name=effort]').options.length > 1")

    typed = json.dumps(str(git_repo.parent / git_repo.name[:3]))
    await page.get(f"{place}.value = {typed}, {place}.dispatchEvent(new Event('input'))")
    whole = json.dumps(str(git_repo))
    await page.until(f"[...document.querySelectorAll('dialog datalist option')].some(({{value}}) => value === {whole})")
    tree = json.dumps(os.path.relpath(taken.worktree.path))
    await page.get(f"{place}.value = {tree}, document.querySelector('dialog textarea').value = 'look'")
    await page.click("dialog [type=submit]")
    await page.until_text("dialog .note", f"is the worktree of session {taken.id}")
    await page.get(f"{place}.value = {whole}")

    drop = """(name, type, data) => {
        const given = new DataTransfer();
        given.items.add(new File([Uint8Array.from(atob(data), (one) => one.charCodeAt(0))], name, {type}));
        document.querySelector('dialog form').dispatchEvent(new DragEvent('drop', {dataTransfer: given, cancelable: true}));
    }"""
    await page.get(f"({drop})('notes.txt', 'text/plain', 'aGk=')")
    await page.until_text("dialog .pictures-part .note", "notes.txt: this is no PNG")
    await page.get(f"({drop})('fake.png', 'image/png', 'aGk=')")
    await page.until_text("dialog .pictures-part .note", "fake.png: This is no PNG")
    await page.get(f"({drop})('dot.png', 'image/png', '{PIXEL}')")
    await page.until("document.querySelector('dialog .pictures img') !== null")
    assert await serious(page) == []
    await page.click("dialog [type=submit]")
    await page.until_text(".agent_message", "Seen.")
    assert "data:image/png" in str(model.requests[-1].body)

    # The next message takes images as well; a running turn would not.
    model.on("compare", say("The same."))
    await page.until_text(".composer [type=submit]", "Send")
    await page.get(f"({drop.replace('dialog form', '.composer')})('dot.png', 'image/png', '{PIXEL}')")
    await page.until("document.querySelector('.composer .pictures img') !== null")
    await page.click(".composer textarea")
    await page.write("compare")
    await page.click(".composer [type=submit]")
    await page.until_text(".transcript", "The same.")
    assert str(model.requests[-1].body).count("data:image/png") == 2
    assert await page.get("document.querySelectorAll('.composer .pictures img').length") == 0


ANSWERS = {
    "command": "[data-answer=approve]",
    "change": "[data-answer=approve]",
    "permission": "[data-answer=approve]",
    "tool": "[data-answer=accept], .question [type=submit]",
}


async def test_every_question_is_answered_on_a_phone_and_approve_is_on_its_first_screen(
    page: Page,
    codex_home: CodexHome,
    helm: HelmsmanService,
    model: ScriptedModel,
    folder: Path,
    mcp_server_config: dict[str, Any],
) -> None:
    codex_home.configure(mcp_servers=mcp_server_config)
    codex_home.configure(features={"request_permissions_tool": True, "default_mode_request_user_input": True})
    long = "echo " + " ".join(f"word{number}" for number in range(400))
    model.on("command", run(long, escalate="it is needed"), say("done"))
    model.on("change", patch(add("made.txt", "line\n" * 80)), say("done"))
    model.on("permission", request_permissions("need the net", network=True), say("done"))
    model.on("tool", call_tool("lab", "write", {"key": "k", "text": "t"}), say("done"))
    model.on("form", call_tool("lab", "ask", {}), say("done"))
    model.on("choice", ask_user(question("Which colour?", "Red", "Blue", id="colour")), say("done"))
    await page.resize(390, 844)
    for prompt in (*ANSWERS, "form", "choice"):
        policy = "untrusted" if prompt == "change" else "on-request"
        session = await told(helm, prompt, cwd=folder, sandbox="workspace-write", approval_policy=policy)
        assert session.questions, prompt
        await page.until("document.querySelector('.home .question') !== null")
        if prompt == "command":
            seen = await page.get(
                "document.querySelector('[data-answer=approve]').getBoundingClientRect().bottom <= innerHeight"
            )
            assert seen
            scrolls = """[...document.querySelectorAll('body *')].filter((one) => one.checkVisibility()
                && /auto|scroll/.test(getComputedStyle(one).overflowY) && one.scrollHeight > one.clientHeight + 1
                && one.clientHeight > 100).map((one) => one.className)"""
            assert await page.get(scrolls) == ["page"]
            assert await serious(page) == []
        assert not await page.get(TOO_WIDE), prompt
        assert await page.get(TOO_SMALL) == [], prompt
        with anyio.fail_after(3 * SECONDS):
            while session.questions:
                answered = session.questions[0].id
                await answer(page, prompt)
                await page.until("document.querySelector('.question:not([inert])') === null")
                while answered in [question.id for question in session.questions]:
                    await session.feed.changed()
                await session.wait()
        assert session.status == "done", prompt
    assert "Blue" in str(model.requests[-1].body)


async def answer(page: Page, prompt: str) -> None:
    if prompt == "choice":
        await page.click(".question [data-answer=Blue]")
    elif prompt == "form" and await page.count(".question input"):
        await page.click(".question input")
        await page.write("Ada")
        await page.click(".question [type=submit]")
    else:
        await page.click(ANSWERS.get(prompt, ANSWERS["tool"]))
