"""The card of a session, a question and a change, in a page that behaves as a host of MCP Apps does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from helmsman.mcp.apps import card_content
from helmsman.model.questions import Prompt, own_question
from helmsman.shapes.questions import pending_question
from helmsman.testing import say

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.service import HelmsmanService
    from helmsman.testing import ScriptedModel
    from tests.browser.chromium import Chromium

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

HOST = """
(html, content) => new Promise((resolve) => {
  const frame = document.body.appendChild(document.createElement("iframe"));
  addEventListener("message", ({ source, data }) => {
    const tell = (message) => source.postMessage({ jsonrpc: "2.0", ...message }, "*");
    if (data.method === "ui/initialize") tell({ id: data.id, result: { hostCapabilities: { serverTools: {} } } });
    if (data.method === "ui/notifications/initialized") {
      tell({ method: "ui/notifications/tool-result", params: { structuredContent: content } });
    }
    if (data.method === "ui/notifications/size-changed") {
      const { document: card } = frame.contentWindow;
      resolve({ buttons: [...card.querySelectorAll("button")].map((one) => one.textContent), text: card.body.innerText });
    }
  });
  frame.srcdoc = html;
})
"""


@pytest.mark.parametrize(("lines", "offered"), [(1, ["approve", "approve_session", "deny"]), (20_000, ["deny"])])
async def test_a_question_that_is_not_shown_whole_can_only_be_denied(
    chromium: Chromium,
    server: str,
    helm: HelmsmanService,
    model: ScriptedModel,
    folder: Path,
    lines: int,
    offered: list[str],
) -> None:
    model.on("", say("ok"))
    session = await helm.start("begin", cwd=folder)
    await session.wait()
    details: dict[str, Any] = {
        "command": "\n".join(f"echo {number}" for number in range(lines)),
        "directory": str(folder),
    }
    prompt = Prompt(text="May it run?", options=("approve", "approve_session", "deny"))
    question = own_question(session.id, None, prompt, details, "command_approval")
    content = {
        "sessionId": session.id,
        "pendingQuestion": pending_question(session, question).model_dump(mode="json", by_alias=True),
    }
    card = card_content("ui://helmsman/codex/session")
    async with chromium.page() as page:
        await page.goto(f"{server}/none")  # without the content policy of the dashboard
        shown = await page.get(f"({HOST})({json.dumps(card.text)}, {json.dumps(content)})")
    assert shown["buttons"] == offered
    assert "echo 0" in shown["text"]
    assert ("too long to approve here" in shown["text"]) == (lines > 1)


ACTING = """
(html, result, answers) => {
  window.calls = [];
  const frame = document.body.appendChild(document.createElement("iframe"));
  addEventListener("message", ({ source, data }) => {
    const tell = (message) => source.postMessage({ jsonrpc: "2.0", ...message }, "*");
    if (data.method === "ui/initialize") tell({ id: data.id, result: { hostCapabilities: { serverTools: {} } } });
    if (data.method === "ui/notifications/initialized") tell({ method: "ui/notifications/tool-result", params: result });
    if (data.method === "tools/call") {
      calls.push(data.params);
      tell({ id: data.id, result: answers[data.params.name] });
    }
  });
  frame.srcdoc = html;
  window.card = () => frame.contentDocument?.body;
  const buttons = () => [...(card()?.querySelectorAll("button:not(:disabled)") ?? [])];
  window.button = (label) => buttons().find((one) => one.textContent === label);
  return true;
}
"""
DIFF = """\
diff --git a/new.txt b/new.txt
new file mode 100644
--- /dev/null
+++ b/new.txt
@@ -0,0 +1 @@
+<b>hello</b>
"""


def answer_of(text: str, **content: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "structuredContent": content}


async def test_the_card_of_a_session_shows_its_text_and_follows_it_to_the_end(chromium: Chromium, server: str) -> None:
    begun = answer_of("s1: active\nIt <i>works</i>", sessionId="s1", status="active")
    ended = answer_of("s1: done\nAll done", sessionId="s1", status="done")
    card = card_content("ui://helmsman/agent/session")
    async with chromium.page() as page:
        await page.goto(f"{server}/none")
        given = ", ".join(map(json.dumps, (card.text, begun, {"agent_status": ended})))
        await page.get(f"({ACTING})({given})")
        await page.until("card()?.innerText.includes('It <i>works</i>')")
        await page.until("card()?.innerText.includes('All done')")
        assert await page.get("calls") == [{"name": "agent_status", "arguments": {"sessionId": "s1"}}]


@pytest.mark.parametrize(("files", "offered"), [(["new.txt"], ["Apply", "Discard"]), (["new.txt", "b"], ["Discard"])])
async def test_the_card_of_a_change_applies_what_it_shows_whole_and_discards_after_a_second_click(
    chromium: Chromium, server: str, files: list[str], offered: list[str]
) -> None:
    told = {"sessionId": "s1", "scope": "worktree", "about": "All it changed", "stat": "1 file", "digest": "5e88"}
    change = answer_of("", diff=DIFF, files=[{"path": name} for name in files], **told)
    answers = {"codex_apply": answer_of("Brought into /src"), "codex_discard": answer_of("Dropped")}
    card = card_content("ui://helmsman/codex/session")
    async with chromium.page() as page:
        await page.goto(f"{server}/none")
        await page.get(f"({ACTING})({', '.join(map(json.dumps, (card.text, change, answers)))})")
        await page.until(f"button({offered[0]!r}) !== undefined")
        assert await page.get("[...card().querySelectorAll('button')].map((one) => one.textContent)") == offered
        assert "+<b>hello</b>" in await page.get("card().innerText")
        if "Apply" in offered:
            await page.get("button('Apply').click()")
            await page.until("card()?.innerText.includes('Brought into /src')")
            assert await page.get("calls") == [
                {"name": "codex_apply", "arguments": {"sessionId": "s1", "digest": "5e88"}}
            ]
            return
        assert "cannot be applied here" in await page.get("card().innerText")
        await page.get("button('Discard').click()")
        await page.until("button('Discard for good?') !== undefined")
        assert await page.get("calls") == []
        await page.get("button('Discard for good?').click()")
        await page.until("card()?.innerText.includes('Dropped')")
