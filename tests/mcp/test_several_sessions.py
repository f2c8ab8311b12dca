"""One call waits for several sessions, and the default toolset brings the work of a session home, on a real Codex."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, add, hang, patch, run, say
from mcp import Client
from tests.mcp.caller import Caller
from tests.shared_engine import on_shared_engine

pytestmark = [pytest.mark.anyio, on_shared_engine]


@pytest.fixture
async def codex(helm: HelmsmanService) -> AsyncIterator[Caller]:
    async with Client(build_server(helm)) as client:
        yield Caller(client)


async def begun(codex: Caller, prompt: str, folder: Path, **more: Any) -> str:
    free = {"approvalPolicy": "never", "sandbox": "workspace-write", "workingDirectory": str(folder)}
    session_id: str = (await codex("codex_start", prompt=prompt, **free | more))["sessionId"]
    return session_id


async def test_a_wait_for_several_returns_with_the_first_that_ends(
    codex: Caller, model: ScriptedModel, folder: Path
) -> None:
    model.on("slow", hang())
    model.on("quick", say("quick is done"))
    slow, quick = await begun(codex, "slow", folder), await begun(codex, "quick", folder)
    waited = await codex("codex_wait", sessionIds=[slow, quick], timeoutSec=60)
    assert (waited["sessionId"], waited["status"], waited["result"]) == (quick, "done", "quick is done")
    assert [(one["sessionId"], one["status"]) for one in waited["sessions"]] == [(slow, "active"), (quick, "done")]
    both = await codex("codex_wait", sessionIds=[slow, quick], until="all", timeoutSec=0.2)
    assert {one["sessionId"]: one["status"] for one in both["sessions"]} == {slow: "active", quick: "done"}
    shown = await codex.client.call_tool("codex_wait", {"sessionIds": [slow, quick], "until": "all", "timeoutSec": 0})
    assert f"The others: {slow} active" in str(shown.content), "clients that show only text learn it, too"
    await codex("codex_interrupt", sessionId=slow)
    over = await codex("codex_wait", sessionIds=[slow, quick], until="all", timeoutSec=60)
    assert [one["status"] for one in over["sessions"]] == ["interrupted", "done"]


async def test_a_wait_for_all_returns_when_one_of_them_asks(codex: Caller, model: ScriptedModel, folder: Path) -> None:
    model.on("slow", hang())
    model.on("ask", run("touch made.txt", escalate="please"), say("made"))
    slow = await begun(codex, "slow", folder)
    asks = await begun(codex, "ask", folder, approvalPolicy="on-request", sandbox="read-only")
    waited = await codex("codex_wait", sessionIds=[slow, asks], until="all", timeoutSec=60)
    assert (waited["sessionId"], waited["status"]) == (asks, "awaiting_approval")
    question = waited["pendingQuestion"]["id"]
    wrong = await codex.error("codex_respond", sessionId=asks, id=question, answers=["yes: but only once"])
    assert wrong["code"] == "answer_invalid"
    await codex("codex_respond", sessionId=asks, id=question, answers=["No: touches production"])
    assert (await codex("codex_wait", sessionId=asks, timeoutSec=60))["status"] == "done"
    assert not (folder / "made.txt").exists()
    await codex("codex_interrupt", sessionId=slow)


@pytest.mark.parametrize("given", [{}, {"sessionId": "a", "sessionIds": ["b"]}, {"sessionIds": []}])
async def test_a_wait_needs_to_know_for_what(codex: Caller, given: dict[str, Any]) -> None:
    assert "sessionIds" in (await codex.error("codex_wait", **given))["message"]


async def test_a_worktree_is_brought_home_with_the_default_tools(
    codex: Caller, model: ScriptedModel, git_repo: Path
) -> None:
    model.otherwise(patch(add("new.txt", "new\n")), say("written"))
    session_id = await begun(codex, "write it", git_repo, worktree=True)
    result = await codex.client.call_tool("codex_wait", {"sessionId": session_id, "timeoutSec": 60})
    assert "Changed: new.txt (+1 -0)" in result.content[0].text  # type: ignore[union-attr]
    assert not (git_repo / "new.txt").exists()
    assert "+new" in (await codex("codex_diff", sessionId=session_id))["diff"]
    await codex("codex_apply", sessionId=session_id)
    assert (git_repo / "new.txt").read_text() == "new\n"
    await codex("codex_discard", sessionId=session_id)


async def test_an_option_is_taken_behind_options_and_at_the_top(
    codex: Caller, model: ScriptedModel, folder: Path
) -> None:
    model.otherwise(say("done"))
    first = await begun(codex, "a", folder, options={"idempotencyKey": "one", "developerInstructions": "Be brief."})
    assert await begun(codex, "a", folder, idempotencyKey="one", developerInstructions="Be brief.") == first
    await codex.until_settled(first)
    unknown = await codex.error("codex_start", prompt="a", options={"idempotencyKei": "x"})
    assert "Did you mean idempotencyKey" in unknown["message"]
    twice = await codex.error("codex_start", prompt="a", idempotencyKey="x", options={"idempotencyKey": "y"})
    assert "given twice" in twice["message"]


async def test_the_id_of_a_task_stands_for_its_session(codex: Caller, model: ScriptedModel, folder: Path) -> None:
    model.otherwise(say("done"))
    started = await codex("codex_start", prompt="a", workingDirectory=str(folder), sandbox="read-only")
    waited = await codex("codex_wait", sessionId=started["taskId"], timeoutSec=60)
    assert (waited["sessionId"], waited["status"]) == (started["sessionId"], "done")
    assert (await codex.error("codex_wait", sessionId="T-local-000000000000"))["code"] == "task_not_found"


async def test_the_installed_agents_are_listed_with_what_they_can_do(codex: Caller) -> None:
    agents = {one["agent"]: one for one in (await codex("codex_agents"))["agents"]}
    assert agents["codex"]["installed"]
    assert {"steer", "fork", "review"} <= set(agents["codex"]["can"])


async def test_an_effort_that_no_model_has_is_refused(codex: Caller, folder: Path) -> None:
    refused = await codex.error("codex_start", prompt="a", workingDirectory=str(folder), effort="ultrahigh")
    assert (refused["code"], "medium" in refused["message"]) == ("invalid_input", True)


async def test_a_result_that_does_not_fit_the_output_schema_is_reported(
    codex: Caller, model: ScriptedModel, folder: Path
) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    model.on("words", say("no JSON at all"))
    model.on("wrong", say('{"n": "one"}'))
    model.on("right", say('{"n": 1}'))
    notes: dict[str, Any] = {}
    for prompt in ("words", "wrong", "right"):
        session_id = await begun(codex, prompt, folder, options={"outputSchema": schema})
        notes[prompt] = (await codex.until_settled(session_id)).get("note")
    assert "is not JSON" in notes["words"]
    assert "does not fit the output schema" in notes["wrong"]
    assert notes["right"] is None
