"""The story that every client tells: start, wait, question, respond, result, say, interrupt, list."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mcp.caller import Caller


async def tell(codex: Caller, repo: Path) -> None:
    started = await codex(
        "codex_start",
        prompt="make it",
        workingDirectory=str(repo),
        sandbox="workspace-write",
        approvalPolicy="on-request",
    )
    session_id = started["sessionId"]
    waiting = await codex.until_settled(session_id)
    assert waiting["status"] == "awaiting_approval"
    question = waiting["pendingQuestion"]
    assert "touch made.txt" in question["details"]["command"]
    await codex("codex_respond", sessionId=session_id, id=question["id"], answers=["approve"])
    done = await codex.until_settled(session_id)
    assert (done["status"], done["result"]) == ("done", "It is made")
    assert (repo / "made.txt").exists()
    await codex("codex_say", sessionId=session_id, message="go on")
    assert (await codex.until_settled(session_id))["result"] == "As you say"
    await codex("codex_say", sessionId=session_id, message="hang")
    assert (await codex("codex_interrupt", sessionId=session_id))["status"] == "interrupted"
    (listed,) = (await codex("codex_list"))["sessions"]
    assert (listed["sessionId"], listed["isActive"]) == (session_id, False)
