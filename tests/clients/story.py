"""Story that every client plays: start, wait, question, respond, result, say, interrupt, list.

`told` is the sequence of what a client saw, the same for each; `story.mjs` is the story in JavaScript.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.mcp.caller import Caller

TOOLS = [
    *("codex_start", "codex_say", "codex_status", "codex_wait", "codex_respond", "codex_interrupt", "codex_list"),
    *("codex_agents", "codex_diff", "codex_apply", "codex_discard"),
]
QUICK = {"active", "done"}
"""A scripted model may be done before the call has returned."""


async def tell(codex: Caller, directory: Path) -> dict[str, Any]:
    """Tell it through the Python client."""
    told: dict[str, Any] = {"tools": [tool.name for tool in (await codex.client.list_tools()).tools]}
    told["started"] = await codex(
        "codex_start",
        prompt="make it",
        workingDirectory=str(directory),
        sandbox="workspace-write",
        approvalPolicy="on-request",
    )
    session_id = told["started"]["sessionId"]
    told["asked"] = await codex.until_settled(session_id)
    question_id = told["asked"]["pendingQuestion"]["id"]
    told["responded"] = await codex("codex_respond", sessionId=session_id, id=question_id, answers=["approve"])
    told["made"] = await codex.until_settled(session_id)
    told["said"] = await codex("codex_say", sessionId=session_id, message="go on")
    told["continued"] = await codex.until_settled(session_id)
    await codex("codex_say", sessionId=session_id, message="hang")
    told["interrupted"] = await codex("codex_interrupt", sessionId=session_id)
    told["listed"] = await codex("codex_list")
    return told


def check(told: dict[str, Any], directory: Path, *, asked_in_form: bool = False) -> None:
    """Check the result of a story."""
    check_beginning(told, directory, asked_in_form=asked_in_form)
    session_id = told["started"]["sessionId"]
    assert told["said"]["status"] in QUICK
    assert (told["continued"]["result"], told["continued"]["turnCount"]) == ("As you say", 2)
    assert told["interrupted"] == {"sessionId": session_id, "status": "interrupted"}
    (listed,) = told["listed"]["sessions"]
    assert (listed["sessionId"], listed["isActive"], listed["summary"]) == (session_id, False, "make it")


def check_beginning(told: dict[str, Any], directory: Path, *, asked_in_form: bool = False) -> None:
    """What has to be true of the first turn, with its question."""
    assert told["tools"] == TOOLS
    assert told["started"]["status"] in {"active", "awaiting_approval"}
    if asked_in_form:
        (form,) = told["forms"]
        assert "touch made.txt" in form["message"]
    else:
        assert told["asked"]["status"] == "awaiting_approval"
        assert "touch made.txt" in told["asked"]["pendingQuestion"]["details"]["command"]
        assert told["responded"]["status"] in QUICK
    assert (told["made"]["status"], told["made"]["result"]) == ("done", "It is made")
    assert (directory / "made.txt").exists()
