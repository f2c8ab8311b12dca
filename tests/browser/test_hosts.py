"""Other machines in the browser, beside this one: what they do, ask and change, also when one is slow, lost, or lies."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import load_settings
from helmsman.agents.acp.agent import AcpAgent
from helmsman.agents.acp.profile import OwnAgent
from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, add, make_repository, patch, run, say
from helmsman.testing.fake_acp_agent import FakeAcpAgent, says, waits
from tests.browser.chromium import SECONDS, Page
from tests.hub.conftest import Place, place
from tests.hub.other_machine import NAME
from tests.hub.test_hosts import break_line, here, known
from tests.hub_service import hub_of

__all__ = ["here", "known", "place"]

pytestmark = [
    *(pytest.mark.anyio, pytest.mark.browser, pytest.mark.rare),
    pytest.mark.skipif(sys.platform == "win32", reason="there are no hubs"),
]


@pytest.fixture
async def helm(known: Place, tmp_path: Path) -> AsyncIterator[HelmsmanService]:
    """This machine with its own agent; the other one has Codex."""
    mine = FakeAcpAgent(tmp_path / "mine")
    mine.on("local", says("At it."), waits())
    own = AcpAgent(OwnAgent("mine", "My agent", mode="ask", runs_repository_files=False), tuple(mine.command))
    settings = load_settings({"detach": False}, known.env, tmp_path)
    async with HelmsmanService(settings, env=known.env, agents=(own,)) as helm:
        yield helm


async def fill(page: Page, **values: Any) -> None:
    for name, value in values.items():
        one = f"document.querySelector('dialog [name={name}]')"
        await page.get(f"(({one}.value = {json.dumps(value)}), {one}.dispatchEvent(new Event('input')))")


async def choose(page: Page, select: str, value: str) -> None:
    await page.get(
        f"((one) => {{ one.value = {json.dumps(value)}; one.dispatchEvent(new Event('change')); }})"
        f"(document.querySelector({json.dumps(select)}))"
    )


@asynccontextmanager
async def lost(known: Place, helm: HelmsmanService) -> AsyncIterator[None]:
    """The line to the other machine breaks, and is not found again while the block runs."""
    ssh = Path(known.env["PATH"].partition(os.pathsep)[0]) / "ssh"
    aside = ssh.rename(ssh.with_name("aside"))
    ssh.write_text("#!/bin/sh\necho 'no route' >&2; exit 255\n", encoding="utf-8")
    ssh.chmod(0o755)
    break_line(hub_of(helm.hosts.opened[NAME])._connector)
    yield
    aside.rename(ssh)


async def test_work_on_another_machine_is_begun_answered_reviewed_and_applied(
    page: Page, helm: HelmsmanService, known: Place, place: Place, model: ScriptedModel, tmp_path: Path
) -> None:
    repository, local = make_repository(tmp_path / "shop"), tmp_path / "local"
    local.mkdir()  # no ssh is taken from where a session may write
    model.on("fix it", run("touch /tmp", escalate="please"), patch(add("fixed.txt", "fixed\n")), say("All **said**."))
    await page.until_text(f".machines [data-machine={NAME}]", "connected")
    await page.get("window.same = true")  # it is never loaded anew

    await page.click("#new")
    await choose(page, "dialog [data-machine]", NAME)
    await page.until("document.querySelector('dialog select[name=agent]').value === 'codex'")
    await page.until("document.querySelector('dialog [name=workingDirectory]').value !== ''")
    await fill(page, workingDirectory=str(repository)[:-1])
    await page.until(f"document.querySelector('dialog option[value^={json.dumps(str(repository))}]') !== null")
    await fill(page, prompt="fix it", workingDirectory=str(repository))
    await choose(page, "dialog [name=sandbox]", "workspace-write")
    await choose(page, "dialog [name=approvalPolicy]", "on-request")
    await page.click("dialog input[name=worktree]")
    await page.click("dialog button[type=submit]")
    await page.until_text(".session .question .where", NAME)
    session_id = (await page.get("location.hash")).removeprefix("#/s/")
    assert session_id.startswith(f"{NAME}:")
    assert await page.get("document.title.startsWith('(1)')")
    await page.until_text(".facts .host", NAME)

    # From any other page a notice leads there; the overview has the question, and says where it is asked.
    await page.get("location.hash = '#/'")
    await page.until_text(".home .question .where", NAME)
    await page.until_text(".rows h2", "Waiting for you")
    await page.click(".home [data-answer=approve]")
    await page.until_text("h1", "Nothing is waiting for you")
    await page.until("document.title === 'Helmsman'")

    await page.get(f"location.hash = '#/s/{session_id}'")
    await page.until_text(".agent_message strong", "said")
    await page.click("[role=tab]:nth-of-type(2)")
    await page.until_text(".changes .file-head", "fixed.txt")
    await page.click("[data-apply]")
    await page.until_text(".obstacle", f"on {NAME}")
    assert (repository / "fixed.txt").read_text(encoding="utf-8") == "fixed\n"

    # Side by side with what is here, told apart, and filtered.
    first = await helm.start("local work", cwd=local, agent="mine", unenforced=True)
    await page.get("location.hash = '#/'")
    marks = "[...document.querySelectorAll('.row')].map((one) => one.querySelector('.host')?.textContent ?? '').join()"
    await page.until(f"{marks} === ',{NAME}'")
    await choose(page, '[aria-label="Filter by machine"]', NAME)
    await page.until(f"{marks} === '{NAME}' && location.hash === '#/?host={NAME}'")
    await choose(page, '[aria-label="Filter by machine"]', ".")
    await page.until(f"{marks} === ''")
    await choose(page, '[aria-label="Filter by machine"]', "")

    await page.get("location.hash = '#/tasks'")
    await page.until_text(".tasks .host", NAME)
    gate = model.gate()
    model.on("slow", say(gate, "Too late."))
    slow = await (await helm.hosts.get(NAME)).start("slow", cwd=str(repository))
    await page.click(f'[data-task^="{NAME}:"] [aria-label^="Cancel"]')
    await page.click("dialog.confirm [data-yes]")
    with anyio.fail_after(SECONDS):
        assert await slow.wait(until="end")
    assert slow.status == "interrupted"
    gate.release()

    # Lost, and found again automatically.
    await page.get(f"location.hash = '#/s/{session_id}'")
    await page.until_text(".session .facts .host", NAME)
    async with lost(known, helm):
        await page.until_text(".session .note", f"{NAME} is away")
        await page.get("location.hash = '#/'")
        await page.until_text(f".machines [data-machine={NAME}]", "away")
        await page.until_text(f".list-pane [data-away={NAME}]", "is lost")
        assert await page.count(f".row .host[data-host={NAME}]") == 2  # last known state
    await page.until_text(f".machines [data-machine={NAME}]", "connected")
    await page.until("document.querySelector('[data-away]') === null")

    # A machine that hangs holds up nothing here.
    with place.stopped_hub():
        second = await helm.start("local work, too", cwd=local, agent="mine", unenforced=True)
        await page.until(f"{marks}.split(',').filter((one) => !one).length === 2", 10)
    assert await page.get("window.same")
    for session in (first, second):
        await session.interrupt()


_INJECTED = "<img src=x onerror='window.harmed = true'>"


class Liar:
    """Machine with a hostile name."""

    is_connected = True
    is_lost = False

    async def page(self, _method: str, target: str, _body: bytes) -> tuple[int, bytes]:
        session = {
            "sessionId": "a/../../b",
            "summary": _INJECTED,
            "timestamp": "9999-01-01T00:00:00Z",
            "agent": _INJECTED,
        }
        question: dict[str, Any] = {
            "id": "q",
            "sessionId": "a",
            "title": _INJECTED,
            "lines": [{"label": _INJECTED, "text": _INJECTED}],
        }
        question["questions"] = [{"options": ["approve", _INJECTED], "labels": {_INJECTED: _INJECTED}}]
        told: dict[str, Any] = {
            "/api/sessions": {"sessions": [session, session | {"sessionId": "c", "directory": 7, "costUsd": "x"}, {}]},
            "/api/questions": {"questions": [question, question | {"id": "r", "questions": 7}, {"id": "s"}]},
            "/api/tasks": {"tasks": [{"taskId": "t", "instruction": _INJECTED, "url": "javascript:0"}, {}]},
            "/api/overview": {"directories": [7, _INJECTED], "running": _INJECTED, "version": _INJECTED},
            "/api/agents": {"agents": 7},
        }
        return 200, json.dumps(told.get(target.partition("?")[0], {})).encode()

    @asynccontextmanager
    async def page_changes(self, _target: str, _last: str | None) -> AsyncIterator[Liar]:
        yield self

    async def next(self) -> tuple[str, str, str]:
        """Return an event of the stream of changes."""
        return "changes", json.dumps({"changes": [{"sessionId": "a", "kinds": ["status", "nonsense"]}]}), "x\r\ny"

    async def close(self) -> None:
        pass


@pytest.fixture
def liar(helm: HelmsmanService, monkeypatch: pytest.MonkeyPatch) -> Liar:
    liar = Liar()

    async def get(_name: str) -> Liar:
        return liar

    monkeypatch.setattr(helm.hosts, "get", get)
    monkeypatch.setitem(helm.hosts._open, NAME, liar)
    return liar


async def test_output_of_a_hostile_machine_is_only_text(
    liar: Liar, page: Page, helm: HelmsmanService, tmp_path: Path
) -> None:
    await page.until_text(".row .host", NAME)
    await page.until_text(".question .where", NAME)
    await page.until_text(".question.unreadable", "cannot be shown")
    session = await helm.start("local work", cwd=tmp_path, agent="mine", unenforced=True)
    await page.until_text(".row", "local work")
    assert await page.count(f".row .host[data-host={NAME}]") == 1
    assert await page.get(f"document.querySelector('.row[href*=\"{NAME}:\"]').hash") == f"#/s/{NAME}:a%2F..%2F..%2Fb"
    await page.get("location.hash = '#/tasks'")
    await page.until_text(".tasks", "local work")
    await page.until_text(".tasks .host", NAME)
    await page.click("#new")
    await choose(page, "dialog [data-machine]", NAME)
    await choose(page, "dialog [data-machine]", "")
    await page.until("document.querySelectorAll('dialog select[name=agent] option').length > 1")
    await page.press("Escape")
    await page.get("(location.hash = '#/', document.querySelector('input[type=search]').value = 'local')")
    await page.get("document.querySelector('input[type=search]').dispatchEvent(new Event('input'))")
    await page.get(f"location.hash = '#/s/{NAME}:a'")
    await page.until_text(".session h1", "cannot be read")
    assert await page.count("main img, .list-pane img") == 0
    assert not await page.get("window.harmed ?? false")
    await session.interrupt()
