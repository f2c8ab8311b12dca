"""The tool `codex` in plain words, through the Python client, on a real Codex."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from pydantic import BaseModel, ValidationError

from helmsman import Helmsman
from helmsman.mcp.server import build_server
from helmsman.shapes.task_contract import LocalResumeInput, LocalRunInput, SafetyInput
from helmsman.tasks.registry import REGISTRY_NAME
from helmsman.testing import hang, run, say, usage
from mcp import Client
from tests.mcp.caller import Caller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from helmsman.settings import Settings
    from helmsman.testing import CodexHome, ScriptedModel

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, tools=("router",))


@pytest.fixture(params=["legacy", "auto"])
async def codex(request: pytest.FixtureRequest, helm: Helmsman) -> AsyncIterator[Caller]:
    async with Client(build_server(helm), mode=request.param) as client:
        yield Caller(client)


def at(place: Path) -> dict[str, Any]:
    return {"context": {"working_dir": str(place)}}


async def test_run_check_wait_and_results(codex: Caller, model: ScriptedModel, folder: Path) -> None:
    model.on("parser", run("true"), say("The parser is fixed."))
    started = await codex("codex", request="fix the parser", **at(folder))
    assert (started["acknowledged"], started["action"], started["nextAction"]) == (True, "run", "await")
    assert started["task"]["id"].startswith("T-local-")
    assert (started["task"]["mode"], started["task"]["agent"]) == ("local", "codex")
    assert started["task"]["alias"] == "fix-parser"
    checked = await codex("codex", request="check my task")
    assert checked["action"] == "check"
    assert checked["task"]["id"] == started["task"]["id"]
    done = await codex("codex", request="wait for it")
    assert (done["action"], done["task"]["status"]) == ("wait", "completed")
    assert done["resultSummary"]["text"] == "The parser is fixed."
    results = await codex("codex", request=f"show me the results of {started['task']['id']}")
    assert results["action"] == "results"
    assert results["resultSummary"]["text"] == "The parser is fixed."
    assert results["resultSummary"]["usage"]["inputTokens"] > 0
    assert "The parser is fixed." in results["userMessage"]


async def test_two_tasks_are_told_apart_by_number_alias_and_id(
    codex: Caller, model: ScriptedModel, folder: Path
) -> None:
    model.on("hang", hang())
    first = (await codex("codex", request="hang on the first thing", **at(folder)))["task"]
    second = (await codex("codex", request="hang on the second thing", **at(folder)))["task"]
    asked = await codex("codex", request="cancel my task")
    assert (asked["acknowledged"], asked["nextAction"]) == (False, "choose")
    assert [choice["id"] for choice in asked["choices"]] == [second["id"], first["id"]]
    cancelled = await codex("codex", request="cancel number 2")
    assert (cancelled["task"]["id"], cancelled["task"]["status"]) == (first["id"], "canceled")
    assert "Stopped Codex's turn" in cancelled["userMessage"]
    checked = await codex("codex", request=f"check {second['alias']}")
    assert (checked["task"]["id"], checked["task"]["status"]) == (second["id"], "working")
    cancelled = await codex("codex", request=f"cancel {second['id']}")
    assert cancelled["task"]["status"] == "canceled"
    again = await codex("codex", request=f"cancel {second['id']}")
    assert again["task"]["status"] == "canceled"
    assert "not running any more" in again["userMessage"]


async def test_a_dry_run_does_nothing_and_explains_itself(codex: Caller, helm: Helmsman, folder: Path) -> None:
    planned = await codex("codex", request="fix the setup script", dryRun=True, explain=True, **at(folder))
    assert planned["action"] == "run"
    assert "Nothing was done" in planned["userMessage"]
    assert planned["decisionTrace"]
    assert "task" not in planned
    assert helm.sessions == {}


async def test_nothing_happens_before_it_is_confirmed(codex: Caller, model: ScriptedModel, folder: Path) -> None:
    model.otherwise(say("done"))
    asked = await codex("codex", request="fix it", safety={"require_confirmation": True}, **at(folder))
    assert asked["nextAction"] == "confirm"
    assert "fix it" in asked["confirmation"]["wouldDo"]
    token = asked["confirmation"]["token"]
    other = await codex.error("codex", request="fix another", safety={"confirmation_token": token}, **at(folder))
    assert other["code"] == "invalid_input"
    assert model.requests == []
    begun = await codex("codex", request="fix it", safety={"confirmation_token": token}, **at(folder))
    assert begun["task"]["status"] in ("pending", "working")
    assert (await codex("codex", request="wait for it"))["task"]["status"] == "completed"


async def test_a_confirmation_holds_for_the_limit_that_was_shown(codex: Caller, folder: Path) -> None:
    shown = {"require_confirmation": True, "max_cost_usd": 2}
    asked = await codex("codex", request="fix it", safety=shown, **at(folder))
    assert "at most $2" in asked["confirmation"]["wouldDo"]
    without = {"confirmation_token": asked["confirmation"]["token"]}
    assert (await codex.error("codex", request="fix it", safety=without, **at(folder)))["code"] == "invalid_input"


async def test_null_means_left_out(codex: Caller) -> None:
    planned = await codex("codex", request="fix it", hints=None, context=None, safety=None, dryRun=True)
    assert planned["action"] == "run"


async def test_an_unknown_task_is_an_error_that_helps(codex: Caller) -> None:
    answer = await codex.error("codex", request="check T-local-000000000000")
    assert answer["error"]["code"] == "task_not_found"
    assert answer["acknowledged"] is False
    nothing = await codex.error("codex", request="check my task")
    assert nothing["error"]["code"] == "task_not_found"


async def test_nothing_asked_is_nothing_done(codex: Caller) -> None:
    answer = await codex("codex", request="   ")
    assert (answer["action"], answer["acknowledged"]) == ("none", False)


async def test_a_task_that_cannot_begin_says_why(codex: Caller, folder: Path) -> None:
    missing = await codex.error("codex", request="fix it", context={"working_dir": str(folder / "missing")})
    assert missing["code"] == "invalid_input"


async def test_the_guide_for_github_is_made_for_this_repository(codex: Caller, folder: Path) -> None:
    guide = await codex("codex", request="set up GitHub for this repository", **at(folder))
    assert guide["action"] == "setup"
    assert "GitHub" in guide["userMessage"]


async def test_a_question_is_shown_with_the_task(
    codex: Caller, helm: Helmsman, model: ScriptedModel, codex_home: CodexHome, folder: Path
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("made"))
    started = await codex("codex", request="touch a file", **at(folder))
    asking = await codex("codex", request="wait for it")
    assert (asking["nextAction"], asking["task"]["inputRequired"]) == ("answer", True)
    assert asking["pendingQuestion"]["type"] == "command_approval"
    await helm.respond(
        started["task"].get("sessionId") or asking["task"]["sessionId"], asking["pendingQuestion"]["id"], ["deny"]
    )
    assert (await codex("codex", request="wait for it"))["task"]["status"] == "completed"


async def test_a_task_that_costs_too_much_is_stopped(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.otherwise([run("true"), usage(2_000_000)], hang())
    async with Helmsman(settings, env=codex_home.env) as helm, Client(build_server(helm)) as client:
        codex = Caller(client)
        begun = await codex("codex", request="spend", safety={"max_cost_usd": 0.5}, **at(folder))
        stopped = await codex("codex", request=f"wait for {begun['task']['id']}")
    assert stopped["task"]["status"] == "canceled"
    assert "its limit is $0.5" in stopped["task"]["note"]


async def test_the_answer_does_not_wait_for_codex(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "codex"
    broken.write_text("#!/bin/sh\necho 'codex-cli 0.163.0'\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    async with (
        Helmsman(replace(settings, codex_path=broken), env=codex_home.env) as helm,
        Client(build_server(helm)) as client,
    ):
        codex = Caller(client)
        begun = await codex("codex", request="fix it", **at(folder))
        assert begun["task"]["status"] in ("pending", "failed")
        with anyio.fail_after(30):
            ended = await codex("codex", request="wait for it")
        assert ended["task"]["status"] == "failed"
        assert ended["resultSummary"]["error"]["code"] in ("engine_start_failed", "codex_not_found")


async def test_nothing_is_begun_that_cannot_be_registered(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    (settings.state_dir / REGISTRY_NAME).mkdir(parents=True)
    settings.state_dir.chmod(0o700)
    model.otherwise(say("done"))
    async with Helmsman(settings, env=codex_home.env) as helm, Client(build_server(helm)) as client:
        answer = await Caller(client).error("codex", request="fix the parser", **at(folder))
        assert answer["error"]["code"] == "registry_unavailable"
        other = await helm.start("something else", cwd=folder)
        await other.wait(until="end", timeout=60)
        assert list(helm.sessions) == [other.id]


async def test_a_number_means_the_choices_that_this_client_was_offered(
    helm: Helmsman, model: ScriptedModel, folder: Path
) -> None:
    """Over HTTP many clients share one server."""
    model.on("hang", hang())
    server = build_server(helm)
    async with Client(server) as one_client, Client(server) as other_client:
        one, other = Caller(one_client), Caller(other_client)
        this, that, third = [
            (await one("codex", request=f"hang on {thing}", **at(folder)))["task"]["id"]
            for thing in ("this", "that", "the third")
        ]
        assert len((await one("codex", request="cancel my task"))["choices"]) == 3
        asked = await other("codex", request=f"check {this} and {that}")
        assert [choice["id"] for choice in asked["choices"]] == [that, this]
        cancelled = await one("codex", request="cancel number 1")
        assert (cancelled["task"]["id"], cancelled["task"]["status"]) == (third, "canceled")


async def test_more_work_for_a_task_goes_on_where_its_session_works(
    codex: Caller, model: ScriptedModel, folder: Path
) -> None:
    model.otherwise(say("done"))
    first = await codex("codex", request="fix the parser", **at(folder))
    done = await codex("codex", request="wait for it")
    more = {"operation": "run", "taskId": first["task"]["id"]}
    planned = await codex("codex", request="now the lexer", hints=more, dryRun=True)
    assert f"send this to the session of {first['task']['id']}" in planned["userMessage"]
    second = await codex("codex", request="now the lexer", hints=more)
    assert second["task"]["sessionId"] == done["task"]["sessionId"]
    assert f"in {folder}." in second["userMessage"]
    assert (await codex("codex", request=f"wait for {second['task']['id']}"))["task"]["status"] == "completed"
    refused = await codex.error("codex", request="and that", hints={**more, "mode": "cloud"})
    assert refused["error"]["code"] == "invalid_input"


@pytest.mark.parametrize(
    "arguments",
    [
        {"context": {"working_dir": ""}},
        {"context": {"repo_root": ""}},
        {"safety": {"max_cost_usd": 0}},
        {"hints": {"timeoutMs": 0}},
        {"hints": {"pollFrequencyMs": 0}},
        {"hints": {"operation": "delete"}},
        {"hints": {"mode": "moon"}},
        {"hints": {"taskId": " "}},
    ],
)
async def test_a_value_that_means_nothing_is_refused(helm: Helmsman, arguments: dict[str, Any]) -> None:
    async with Client(build_server(helm)) as client:
        assert (await Caller(client).error("codex", request="fix the parser", **arguments))["code"] == "invalid_input"
    assert helm.sessions == {}


@pytest.mark.parametrize("contract", [SafetyInput, LocalRunInput, LocalResumeInput])
async def test_a_limit_that_is_no_number_is_refused(contract: type[BaseModel]) -> None:
    """Nothing costs more than that, so it would be no limit. Some clients' JSON can spell it."""
    for limit in ("nan", "inf"):
        with pytest.raises(ValidationError, match="finite number"):
            contract.model_validate({"task": "x", "thread_id": "x", "max_cost_usd": float(limit)})


async def test_no_words_make_a_wait_longer_than_a_hint_may(
    helm: Helmsman, model: ScriptedModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helmsman.mcp.router_tool._LONGEST_WAIT_SECONDS", 0.1)
    model.on("hang", hang())
    async with Client(build_server(helm)) as client:
        codex = Caller(client)
        begun = await codex("codex", request="hang on", **at(folder))
        waited = await codex("codex", request=f"wait 500 hours for {begun['task']['id']}")
        assert (waited["action"], waited["nextAction"]) == ("wait", "await")
