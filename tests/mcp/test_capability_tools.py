"""The toolset `capabilities`: begun, followed, asked and stopped through a client, whatever the procedure of a kind does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from helmsman.base.structs import replace
from helmsman.capabilities.outcomes import jobs
from helmsman.capabilities.outcomes.work import Work
from helmsman.mcp.server import build_server, toolset_tools
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.tasks.outcome import TaskOutcome
from helmsman.testing import ScriptedModel, hang, run, say
from mcp import Client
from tests.listings import count
from tests.mcp.caller import Caller
from tests.mcp.test_tasks import Tasks, unused

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git]

KINDS = ["debug", "review", "plan", "refactor", "test"]
REPORT: dict[str, Any] = {
    "kind": "debug",
    "verified": True,
    "says": "Fixed.",
    "why": "it was asked for",
    "agent": "codex",
    "evidence": [{"ok": True, "what": "The check passes."}],
    "sessionId": None,
    "attempts": 1,
    "candidates": [],
    "seconds": 1.0,
    "tokens": 7,
    "costUsd": None,
    "check": None,
    "before": None,
    "after": None,
    "diff": None,
    "compared": None,
    "applied": "nothing",
    "applyError": None,
    "discarded": [],
    "checkChanges": [],
    "notes": [],
    "reproduced": "test",
    "tests": [],
    "rootCause": None,
}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, tools=("capabilities",))


@pytest.fixture
async def client(helm: HelmsmanService, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Caller]:
    """Debugging here is a turn that does what its request says."""

    async def one_turn(work: Work) -> TaskOutcome:
        work.report_progress("at work")
        done = await work.start("begin", work.wanted.request, sandbox="workspace-write", approval_policy="on-request")
        verified = done.said == "fixed"
        return TaskOutcome(output=done.said, report={**REPORT, "verified": verified}, diff="the diff")

    monkeypatch.setitem(jobs.PROCEDURES, "debug", one_turn)
    async with Client(build_server(helm)) as client:
        yield Caller(client)


async def test_the_five_are_listed_in_few_words_with_what_answers_their_questions(client: Caller) -> None:
    assert [tool.name for tool in (await client.client.list_tools()).tools] == [*KINDS, "agent_respond"]
    told = client.client.instructions or ""
    assert "agent_respond" in told
    assert "codex_" not in told
    assert [tool.name for tool in toolset_tools("capabilities", ("sessions",))] == KINDS, "codex_respond is there"
    for tool in toolset_tools("capabilities", ("sessions",)):
        listed = tool.listed().model_dump(by_alias=True, exclude_none=True, mode="json")
        assert count(listed["inputSchema"]) <= 400
        assert count(listed) <= 1750  # most of it what the report has, which models do not read
        assert "description" in listed["inputSchema"]["properties"]["request"]


async def test_a_call_says_at_once_who_does_it_and_the_same_tool_follows_it_to_its_report(
    client: Caller, model: ScriptedModel, git_repo: Path
) -> None:
    gate = model.gate()
    model.on("fix it", [gate, say("fixed")])
    begun = await client("debug", request="fix it", workingDirectory=str(git_repo), idempotencyKey="k")
    assert (begun["status"], begun["agent"]) == ("working", "codex")
    assert begun["why"].startswith("it is the default agent")
    again = await client("debug", request="fix it", workingDirectory=str(git_repo), idempotencyKey="k")
    assert again["taskId"] == begun["taskId"]
    waited = await client("debug", taskId=begun["taskId"], waitSec=0.1)
    assert (waited["status"], waited["progress"]) == ("working", "at work")
    gate.release()
    done = await client("debug", taskId=begun["taskId"], waitSec=60)
    assert (done["status"], done["verified"]) == ("completed", True)
    assert done["report"] == {key: value for key, value in REPORT.items() if value is not None}
    assert "diff" not in done
    assert (await client("debug", taskId=begun["taskId"], withDiff=True))["diff"] == "the diff"


async def test_an_unverified_job_has_failed_and_shows_its_evidence(
    client: Caller, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("lie", say("Trust me."))
    done = await client("debug", request="lie", workingDirectory=str(git_repo), waitSec=60)
    assert (done["status"], done["verified"], done["report"]["verified"]) == ("failed", False, False)


async def test_a_question_names_its_session_and_is_answered_there(
    client: Caller, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("fixed"))
    asked = await client("debug", request="touch", workingDirectory=str(git_repo), waitSec=60)
    question = asked["pendingQuestion"]
    assert (asked["status"], question["type"]) == ("working", "command_approval")
    await client("agent_respond", sessionId=question["sessionId"], id=question["id"], answers=["approve"])
    assert (await client("debug", taskId=asked["taskId"], waitSec=60))["verified"] is True


async def test_a_form_of_the_client_answers_what_a_job_asks(
    helm: HelmsmanService, client: Caller, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("fixed"))
    shown: list[str] = []

    async def approve(context: Any, params: Any) -> types.ElicitResult:
        shown.append(params.message)
        return types.ElicitResult(action="accept", content={"decision": "approve"})

    async with Client(build_server(helm), mode="legacy", elicitation_callback=approve) as other:
        answer = await Caller(other)("debug", request="touch", workingDirectory=str(git_repo), waitSec=60)
        while answer["status"] == "working":
            answer = await Caller(other)("debug", taskId=answer["taskId"], waitSec=60)
    assert (answer["verified"], len(shown)) == (True, 1)


async def test_a_job_is_stopped_and_what_makes_no_sense_is_refused(
    client: Caller, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("hang", hang())
    begun = await client("debug", request="hang", workingDirectory=str(git_repo), waitSec=0.2)
    for tool, arguments, said in (
        ("debug", {}, "Say what is wanted"),
        ("debug", {"request": "x", "agent": "clod"}, "There is no agent 'clod'"),
        ("debug", {"request": "x", "cancel": True}, "give its taskId"),
        ("debug", {"taskId": begun["taskId"], "request": "x"}, "taskId, timeoutSec, cancel and withDiff alone"),
        ("review", {"taskId": begun["taskId"]}, "Follow it with the tool debug"),
        ("review", {"branch": "main", "commit": "HEAD"}, "Review one thing"),
        ("plan", {"taskId": "T-local-none"}, "There is no task"),
    ):
        assert said in (await client.error(tool, **arguments))["message"]
    stopped = await client("debug", taskId=begun["taskId"], cancel=True)
    assert (stopped["status"], stopped["verified"]) == ("canceled", False)


async def test_a_client_with_tasks_gets_the_wait_as_one_that_asks_and_ends_with_the_report(
    helm: HelmsmanService, client: Caller, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("fixed"))
    tasks = Tasks({"decision": "approve"})
    async with Client(build_server(helm), extensions=[tasks], elicitation_callback=unused) as other:
        done = await Caller(other)("debug", request="touch", workingDirectory=str(git_repo), waitSec=60)
    assert (done["status"], done["report"]["says"]) == ("completed", "Fixed.")
    assert "input_required" in tasks.seen
