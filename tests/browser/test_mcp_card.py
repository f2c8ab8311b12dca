"""The card of a question, in a page that answers it as a host of MCP Apps does."""

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
    card = card_content("ui://helmsman/codex/question")
    async with chromium.page() as page:
        await page.goto(f"{server}/none")  # without the content policy of the dashboard
        shown = await page.get(f"({HOST})({json.dumps(card.text)}, {json.dumps(content)})")
    assert shown["buttons"] == offered
    assert "echo 0" in shown["text"]
    assert ("too long to approve here" in shown["text"]) == (lines > 1)
