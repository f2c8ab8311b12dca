"""The primitives of the router: the local ones on a real Codex.

Those of the cloud are in `test_router_cloud.py`; how all are listed is in `test_listed_schema.py`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from helmsman.base.structs import replace
from helmsman.mcp.primitives import PRIMITIVES
from helmsman.mcp.server import build_server
from helmsman.model.events import CommandExecution
from helmsman.service import HelmsmanService
from helmsman.settings import ConfigFile, Settings
from helmsman.testing import CodexHome, Gate, ScriptedModel, add, hang, patch, run, say, usage
from mcp import Client
from tests.mcp.caller import Caller
from tests.shared_engine import on_its_own_engine, on_shared_engine

pytestmark = [pytest.mark.anyio, pytest.mark.long, on_shared_engine]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, tools=("router",), expose_primitives=True)


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def codex(helm: HelmsmanService) -> AsyncIterator[Caller]:
    async with Client(build_server(helm)) as client:
        yield Caller(client)


@pytest.fixture
def here(git_repo: Path) -> dict[str, Any]:
    return {"working_dir": str(git_repo)}


async def ended(codex: Caller, task_id: str) -> dict[str, Any]:
    waited = await codex("_codex_local_wait", task_id=task_id, timeout_sec=50)
    assert waited["timed_out"] is False
    return waited


# --- how they are offered --------------------------------------------------------------------------------------------


async def test_primitives_are_listed_only_where_they_are_exposed(helm: HelmsmanService, mode: Any) -> None:
    async with Client(build_server(helm), mode=mode) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {
            "codex",
            *(primitive.name for primitive in PRIMITIVES),
        }


@on_its_own_engine
async def test_a_hidden_primitive_is_an_unknown_tool(
    settings: Settings, codex_home: CodexHome, here: dict[str, Any], mode: Any
) -> None:
    async with (
        HelmsmanService(replace(settings, expose_primitives=False), env=codex_home.env) as helm,
        Client(build_server(helm), mode=mode) as client,
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == ["codex"]
        with pytest.raises(MCPError, match="Unknown tool: _codex_local_run") as caught:
            await client.call_tool("_codex_local_run", {"task": "fix it", **here})
        assert caught.value.error.code == types.INVALID_PARAMS
        assert helm.sessions == {}


@pytest.mark.parametrize("primitive", PRIMITIVES, ids=lambda primitive: primitive.name)
async def test_an_argument_that_does_not_exist_is_refused(codex: Caller, primitive: Any) -> None:
    needed = dict.fromkeys(primitive.listed().input_schema.get("required", ()), "x")
    error = await codex.error(primitive.name, **needed, taskId="T-local-000000000000")
    assert (error["code"], error["parameter"]) == ("invalid_input", "taskId")


@pytest.mark.parametrize("tool", ["status", "wait", "cancel", "results"])
@pytest.mark.parametrize("place", ["local", "cloud"])
async def test_an_unknown_task_is_not_found(codex: Caller, place: str, tool: str) -> None:
    error = await codex.error(f"_codex_{place}_{tool}", task_id=f"T-{place}-000000000000")
    assert error["code"] == "task_not_found"
    assert "List the tasks" in error["message"]


# --- run -------------------------------------------------------------------------------------------------------------


async def test_run_gives_a_task_at_once_that_works_on(
    codex: Caller, model: ScriptedModel, here: dict[str, Any]
) -> None:
    gate = Gate()
    model.on("parser", say("The parser ", gate, "is fixed."))
    begun = await codex("_codex_local_run", task="fix the parser", **here)
    assert begun["task_id"].startswith("T-local-")
    assert begun["alias"] == "fix-parser"
    assert begun["status"] in ("pending", "working")
    assert begun["poll_frequency_ms"] > 0
    assert any("_codex_local_wait" in action for action in begun["next_actions"])
    with anyio.fail_after(30):
        await gate.reached()
    gate.release()
    assert (await ended(codex, begun["task_id"]))["result"] == "The parser is fixed."
    by_its_old_name = await codex("codex_local_status", task_id=begun["task_id"])
    told = await codex.client.call_tool("codex_local_status", {"task_id": begun["task_id"]})
    assert getattr(told.content[-1], "text") == "codex_local_status is deprecated: call _codex_local_status."  # noqa: B009 - a union
    assert by_its_old_name["status"] == "completed"


async def test_run_may_touch_only_what_its_mode_says(
    codex: Caller, model: ScriptedModel, here: dict[str, Any], git_repo: Path
) -> None:
    model.on("write", run("echo made > made.txt"), say("tried"))
    quiet = {"approval_policy": "never", **here}
    await ended(codex, (await codex("_codex_local_run", task="write it", **quiet))["task_id"])
    assert not (git_repo / "made.txt").exists()
    begun = await codex("_codex_local_run", task="write it", mode="workspace-write", **quiet)
    await ended(codex, begun["task_id"])
    assert (git_repo / "made.txt").exists()


@on_its_own_engine
@pytest.mark.parametrize("tool", ["_codex_local_run", "_codex_local_exec"])
async def test_the_same_key_gives_the_same_task(
    codex: Caller, model: ScriptedModel, here: dict[str, Any], tool: str
) -> None:
    model.otherwise(say("once"))
    first = await codex(tool, task="do it", idempotency_key="issue-17", **here)
    again = await codex(tool, task="do it", idempotency_key="issue-17", **here)
    assert again["task_id"] == first["task_id"]
    await ended(codex, first["task_id"])
    after = await codex(tool, task="do it", idempotency_key="issue-17", **here)
    other = await codex(tool, task="do it", idempotency_key="issue-18", **here)
    assert after["task_id"] == first["task_id"]
    assert other["task_id"] != first["task_id"]
    await ended(codex, other["task_id"])
    assert len(model.requests) == 2


@on_its_own_engine
async def test_the_same_key_given_twice_at_a_time_or_to_two_servers_runs_once(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, here: dict[str, Any]
) -> None:
    model.otherwise(say("once"))
    ids: list[str] = []

    async def call(codex: Caller) -> None:
        ids.append((await codex("_codex_local_run", task="do it", idempotency_key="k", **here))["task_id"])

    async with (
        HelmsmanService(settings, env=codex_home.env) as one,
        HelmsmanService(settings, env=codex_home.env) as two,
        Client(build_server(one)) as first,
        Client(build_server(two)) as second,
        anyio.create_task_group() as calls,
    ):
        for client in (first, first, second, second):
            calls.start_soon(call, Caller(client))
    assert len(ids) == 4
    assert len(set(ids)) == 1
    assert len(model.requests) <= 1


@on_its_own_engine
@pytest.mark.parametrize(
    ("wrong", "parameter"),
    [
        ({"task": "  \n"}, "prompt"),
        ({"task": "x" * 1_100_000}, "prompt"),
        ({"working_dir": "/no/such/directory"}, "cwd"),
        ({"working_dir": __file__}, "cwd"),
        ({"mode": "full"}, "mode"),
        ({"approval_policy": "always"}, "approval_policy"),
        ({"max_cost_usd": -1}, "max_cost_usd"),
        ({"model": "a\nb"}, "model"),
    ],
    ids=["no task", "a huge task", "no such directory", "a file", "mode", "policy", "negative cost", "model"],
)
@pytest.mark.parametrize("tool", ["_codex_local_run", "_codex_local_exec"])
async def test_a_task_that_makes_no_sense_is_refused(
    codex: Caller, helm: HelmsmanService, here: dict[str, Any], tool: str, wrong: dict[str, Any], parameter: str
) -> None:
    error = await codex.error(tool, **{"task": "fix it", **here, **wrong})
    assert (error["code"], error["parameter"]) == ("invalid_input", parameter)
    assert await helm.tasks.list() == ([], None)


@on_its_own_engine
async def test_one_task_more_than_is_allowed_is_refused_with_what_is_running(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, here: dict[str, Any]
) -> None:
    model.otherwise(hang())
    settings = replace(settings, max_sessions=1)
    async with HelmsmanService(settings, env=codex_home.env) as helm, Client(build_server(helm)) as client:
        codex = Caller(client)
        first = await codex("_codex_local_exec", task="one", **here)
        error = await codex.error("_codex_local_run", task="two", **here)
    assert (error["code"], error["retryable"], error["running"]) == ("too_many_sessions", True, [first["thread_id"]])


@on_its_own_engine
async def test_nothing_runs_outside_the_allowed_roots(
    settings: Settings, codex_home: CodexHome, git_repo: Path, tmp_path: Path
) -> None:
    settings = replace(settings, allowed_roots=(git_repo,))
    async with HelmsmanService(settings, env=codex_home.env) as helm, Client(build_server(helm)) as client:
        codex = Caller(client)
        for tool, arguments in {
            "_codex_local_run": {"task": "fix it"},
            "_codex_cloud_submit": {"task": "fix it", "env_id": "env_1"},
            "_codex_cloud_github_setup": {},
        }.items():
            error = await codex.error(tool, **arguments, working_dir=str(tmp_path))
            assert error["code"] == "invalid_input"
            assert "outside the allowed roots" in error["message"]
        for request in ("fix the parser", "in the cloud: fix it", "set up GitHub"):
            answer = await codex.error("codex", request=request, context={"working_dir": str(tmp_path)})
            assert answer["code"] == "invalid_input"
        assert (await codex("codex", request="fix the parser", dryRun=True, context={"working_dir": str(git_repo)}))[
            "action"
        ]


# --- threads ---------------------------------------------------------------------------------------------------------


@on_its_own_engine
async def test_exec_returns_with_the_thread_and_follows_up_on_it(
    codex: Caller, helm: HelmsmanService, model: ScriptedModel, here: dict[str, Any]
) -> None:
    model.on("remember", say("I shall."))
    model.on("what was", say("It was blue."))
    first = await codex("_codex_local_exec", task="remember blue", **here)
    assert first["thread_id"] in helm.sessions
    await ended(codex, first["task_id"])
    second = await codex("_codex_local_exec", task="what was it?", thread_id=first["thread_id"])
    assert second["thread_id"] == first["thread_id"]
    assert second["task_id"] != first["task_id"]
    assert (await ended(codex, second["task_id"]))["result"] == "It was blue."
    assert "remember blue" in model.requests[-1].user_texts


async def test_exec_takes_no_options_for_a_thread_that_has_its_own(codex: Caller, here: dict[str, Any]) -> None:
    for option in ({"mode": "danger-full-access"}, here, {"idempotency_key": "k"}, {"model": "gpt-5.5"}):
        error = await codex.error("_codex_local_exec", task="go on", thread_id="x", **option)
        assert (error["code"], error["parameter"]) == ("invalid_input", next(iter(option)))


@on_its_own_engine
async def test_resume_continues_with_a_thread_of_an_earlier_server(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, here: dict[str, Any]
) -> None:
    model.on("remember", say("I shall."))
    model.on("what was", say("It was blue."))
    async with HelmsmanService(settings, env=codex_home.env) as helm, Client(build_server(helm)) as client:
        codex = Caller(client)
        first = await codex("_codex_local_exec", task="remember blue", **here)
        await ended(codex, first["task_id"])
    async with HelmsmanService(settings, env=codex_home.env) as helm, Client(build_server(helm)) as client:
        codex = Caller(client)
        second = await codex("_codex_local_resume", thread_id=first["thread_id"], task="what was it?")
        assert (await ended(codex, second["task_id"]))["result"] == "It was blue."
        assert (await codex("_codex_local_status", task_id=first["task_id"]))["status"] == "completed"


async def test_a_thread_that_does_not_exist_or_is_busy_is_refused(
    codex: Caller, model: ScriptedModel, here: dict[str, Any]
) -> None:
    model.otherwise(hang())
    nowhere = "0199a0f2-7c11-7d20-9f0a-3b2d5c8e1f00"
    for tool in ("_codex_local_resume", "_codex_local_exec"):
        assert (await codex.error(tool, thread_id=nowhere, task="go on"))["code"] == "session_not_found"
    busy = (await codex("_codex_local_exec", task="work", **here))["thread_id"]
    for tool in ("_codex_local_resume", "_codex_local_exec"):
        error = await codex.error(tool, thread_id=busy, task="go on")
        assert (error["code"], error["retryable"]) == ("session_busy", True)
    assert (await codex.error("_codex_local_resume", thread_id=busy, task=" "))["code"] == "invalid_input"


# --- look and wait ---------------------------------------------------------------------------------------------------


async def test_status_tells_of_a_task_while_it_works_and_afterwards(
    codex: Caller, model: ScriptedModel, here: dict[str, Any]
) -> None:
    gate = Gate()
    model.on("tests", run("true"), say(gate, "All pass."))
    begun = await codex("_codex_local_run", task="run the tests", **here)
    with anyio.fail_after(30):
        await gate.reached()
    working = await codex("_codex_local_status", task_id=begun["task_id"])
    assert (working["status"], working["input_required"]) == ("working", False)
    assert working["progress"]["text"]
    assert working["last_event_at"]
    gate.release()
    await ended(codex, begun["task_id"])
    done = await codex("_codex_local_status", task_id=begun["alias"])
    assert (done["task_id"], done["status"], done["poll_frequency_ms"]) == (begun["task_id"], "completed", 0)
    assert done["keep_alive_until"] > done["last_event_at"]
    assert "result" not in done
    assert any("_codex_local_results" in action for action in done["next_actions"])


async def test_a_wait_is_notified_of_the_end_and_does_not_look_for_it(
    codex: Caller, model: ScriptedModel, here: dict[str, Any]
) -> None:
    gate = Gate()
    model.on("slow", say(gate, "done"))
    begun = await codex("_codex_local_run", task="slow work", **here)
    waited: list[dict[str, Any]] = []

    async def wait() -> None:
        waited.append(
            await codex("_codex_local_wait", task_id=begun["task_id"], timeout_sec=3600, poll_interval_sec=600)
        )

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await gate.reached()
            gate.release()
    assert (waited[0]["status"], waited[0]["timed_out"], waited[0]["result"]) == ("completed", False, "done")


async def test_a_wait_that_is_too_short_says_so(codex: Caller, model: ScriptedModel, here: dict[str, Any]) -> None:
    model.otherwise(hang())
    begun = await codex("_codex_local_exec", task="hang on", **here)
    for seconds in (0, 0.2):
        waited = await codex("_codex_local_wait", task_id=begun["task_id"], timeout_sec=seconds)
        assert (waited["status"], waited["timed_out"]) == ("working", True)


async def test_a_wait_sends_progress(helm: HelmsmanService, model: ScriptedModel, here: dict[str, Any]) -> None:
    gate = Gate()
    model.on("work", say(gate, "done"))
    heard: list[str] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")
        gate.release()

    async with Client(build_server(helm)) as client:
        begun = await Caller(client)("_codex_local_exec", task="work", **here)
        late = {"task_id": begun["task_id"], "initial_delay_sec": 600, "timeout_sec": 0.3}
        with anyio.fail_after(30):
            await client.call_tool("_codex_local_wait", late, progress_callback=on_progress)
            assert heard == []
            await client.call_tool("_codex_local_wait", {"task_id": begun["task_id"]}, progress_callback=on_progress)
    assert heard[0]


async def test_a_wait_returns_with_the_question_that_codex_asks(
    helm: HelmsmanService, model: ScriptedModel, here: dict[str, Any], mode: Any
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("made"))
    async with Client(build_server(helm), mode=mode) as client:
        codex = Caller(client)
        begun = await codex("_codex_local_run", task="touch a file", approval_policy="on-request", **here)
        asking = await ended(codex, begun["task_id"])
        assert (asking["status"], asking["input_required"]) == ("working", True)
        assert asking["pending_question"]["type"] == "command_approval"
        assert f"approve {begun['task_id']}" in asking["next_actions"][0]
        said = await client.call_tool("_codex_local_status", {"task_id": begun["task_id"]})
        told = await client.call_tool("codex", {"request": f"check {begun['task_id']}"})
        for words in (said.content[0], told.content[0]):
            assert isinstance(words, types.TextContent)
            assert "\nCommand: touch made.txt\n" in words.text
        await helm.respond(asking["thread_id"], asking["pending_question"]["id"], ["deny"])
        assert (await ended(codex, begun["task_id"]))["result"] == "made"


async def test_a_person_answers_in_a_form_while_the_client_waits(
    helm: HelmsmanService, model: ScriptedModel, here: dict[str, Any], git_repo: Path, mode: Any
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("made"))

    async def approve(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"decision": "approve"})

    async with Client(build_server(helm), mode=mode, elicitation_callback=approve) as client:
        codex = Caller(client)
        begun = await codex("_codex_local_run", task="touch a file", approval_policy="on-request", **here)
        with anyio.fail_after(30):
            while (await ended(codex, begun["task_id"]))["status"] != "completed":
                await anyio.sleep(0.02)  # the form may still be open when a wait returns
    assert (git_repo / "made.txt").exists()


@pytest.mark.parametrize(
    "option", [{"timeout_sec": -1}, {"timeout_sec": 4000}, {"poll_interval_sec": -5}, {"initial_delay_sec": -1}]
)
async def test_a_wait_that_makes_no_sense_is_refused(codex: Caller, option: dict[str, float]) -> None:
    error = await codex.error("_codex_local_wait", task_id="T-local-000000000000", **option)
    assert (error["code"], error["parameter"]) == ("invalid_input", next(iter(option)))


@on_its_own_engine
async def test_a_task_that_cannot_begin_has_failed_and_says_why(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, here: dict[str, Any], tmp_path: Path
) -> None:
    broken = tmp_path / "codex"
    broken.write_text("#!/bin/sh\necho 'codex-cli 0.163.0'\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    settings = replace(settings, codex_path=broken)
    async with HelmsmanService(settings, env=codex_home.env) as helm, Client(build_server(helm)) as client:
        codex = Caller(client)
        begun = await codex("_codex_local_exec", task="fix it", **here)
        results = await codex("_codex_local_results", task_id=begun["task_id"])
    for shown in (begun, results):
        assert shown["status"] == "failed"
        assert shown["error"]["code"] in ("engine_start_failed", "codex_not_found")


# --- stop ------------------------------------------------------------------------------------------------------------


@on_its_own_engine
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="Processes are looked up in /proc.")
async def test_cancel_stops_codex_and_its_command_and_says_so(
    codex: Caller, helm: HelmsmanService, model: ScriptedModel, here: dict[str, Any], git_repo: Path
) -> None:
    model.on("sleep", run("echo $$ > pid.new; mv pid.new pid; exec sleep 600"), say("never"))
    options = {"mode": "danger-full-access", "approval_policy": "never", **here}  # no sandbox: its pid is the real one
    begun = await codex("_codex_local_exec", task="sleep", **options)
    with anyio.fail_after(30):
        while not (git_repo / "pid").exists():
            await anyio.sleep(0.02)
        while not any(isinstance(item, CommandExecution) for item in helm.sessions[begun["thread_id"]].items):
            await anyio.sleep(0.02)
    pid = int((git_repo / "pid").read_text(encoding="utf-8"))
    os.kill(pid, 0)
    stopped = await codex("_codex_local_cancel", task_id=begun["task_id"], reason="takes too long")
    assert stopped["status"] == "canceled"
    assert stopped["message"] == "Stopped Codex's turn and 1 running command(s)."
    assert (stopped["note"], stopped["cancel_reason"]) == ("It was cancelled: takes too long", "takes too long")
    with anyio.fail_after(10):
        while Path(f"/proc/{pid}").exists():  # who started it may not have asked yet how it ended
            await anyio.sleep(0.02)
    later = await codex("_codex_local_status", task_id=begun["task_id"])
    assert (later["status"], later["cancel_reason"]) == ("canceled", "takes too long")


async def test_cancelling_what_is_over_changes_nothing(
    codex: Caller, model: ScriptedModel, here: dict[str, Any]
) -> None:
    model.otherwise(say("done"))
    begun = await codex("_codex_local_run", task="work", **here)
    await ended(codex, begun["task_id"])
    answer = await codex("_codex_local_cancel", task_id=begun["task_id"], reason="too late")
    assert answer["status"] == "completed"
    assert answer["message"] == "Stopped nothing: it was no longer running."
    assert not {"note", "cancel_reason"} & answer.keys()


async def test_a_task_is_stopped_while_it_is_still_being_started(
    codex: Caller, model: ScriptedModel, here: dict[str, Any]
) -> None:
    model.otherwise(hang())
    begun = await codex("_codex_local_run", task="work", **here)
    assert (await codex("_codex_local_cancel", task_id=begun["task_id"]))["status"] == "canceled"


@on_its_own_engine
async def test_a_task_of_another_server_is_followed_and_not_stopped_from_here(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, here: dict[str, Any]
) -> None:
    gate = Gate()
    model.otherwise(say(gate, "done"))
    async with (
        HelmsmanService(settings, env=codex_home.env) as one,
        HelmsmanService(settings, env=codex_home.env) as two,
        Client(build_server(one)) as first,
        Client(build_server(two)) as second,
    ):
        begun = await Caller(first)("_codex_local_exec", task="work", **here)
        codex = Caller(second)
        assert (await codex("_codex_local_status", task_id=begun["task_id"]))["status"] == "working"
        error = await codex.error("_codex_local_cancel", task_id=begun["task_id"])
        assert error["code"] == "task_not_ours"
        gate.release()
        assert (await ended(codex, begun["task_id"]))["result"] == "done"


# --- results and cost ------------------------------------------------------------------------------------------------


async def test_results_have_the_message_the_diff_the_tokens_and_the_cost(
    codex: Caller, model: ScriptedModel, here: dict[str, Any]
) -> None:
    gate = Gate()
    tests = "echo '=== 2 failed, 85 passed, 3 skipped in 1.20s ==='"
    model.on(
        "write",
        [say("I write it."), patch(add("made.txt", "made\n"))],
        run(tests),
        [say(gate, "Written."), usage(1_000_000)],
    )
    begun = await codex(
        "_codex_local_exec", task="write a file", mode="workspace-write", approval_policy="never", **here
    )
    unfinished = await codex("_codex_local_results", task_id=begun["task_id"])
    assert unfinished["status"] == "working"
    assert "result" not in unfinished
    gate.release()
    await ended(codex, begun["task_id"])
    results = await codex("_codex_local_results", task_id=begun["task_id"])
    assert (results["status"], results["result"]) == ("completed", "Written.")
    assert results["output"] == "I write it.\n\nWritten."
    assert "+made" in results["diff"]
    assert (results["files_changed"], results["artifacts"]) == (["made.txt"], ["made.txt"])
    assert (results["passed"], results["failed"]) == (85, 2)
    assert results["usage"]["inputTokens"] >= 1_000_000
    assert results["cost_usd"] > 0
    assert results["duration_ms"] >= 0


@pytest.mark.parametrize("tool", ["_codex_local_run", "_codex_local_resume"])
async def test_a_task_that_costs_too_much_is_stopped(
    codex: Caller, model: ScriptedModel, here: dict[str, Any], tool: str
) -> None:
    model.on("begin", say("ready"))
    model.on("spend", [run("true"), usage(2_000_000)], hang())
    where = here
    if tool == "_codex_local_resume":
        first = await codex("_codex_local_exec", task="begin", **here)
        await ended(codex, first["task_id"])
        where = {"thread_id": first["thread_id"]}
    begun = await codex(tool, task="spend", max_cost_usd=0.5, **where)
    stopped = await ended(codex, begun["task_id"])
    assert stopped["status"] == "canceled"
    assert stopped["note"].startswith("It was stopped: it has cost")


async def test_a_task_that_was_over_before_it_could_be_stopped_is_not_said_to_have_been(
    codex: Caller, model: ScriptedModel, here: dict[str, Any]
) -> None:
    model.on("spend", [say("spent"), usage(2_000_000)])
    begun = await codex("_codex_local_run", task="spend", max_cost_usd=0.5, **here)
    done = await ended(codex, begun["task_id"])
    expected = {"completed": "It had ended before it could be stopped", "canceled": "It was stopped"}[done["status"]]
    assert done["note"].startswith(f"{expected}: it has cost")


async def test_a_limit_on_a_model_without_a_price_stops_the_task_and_says_why(
    codex: Caller, model: ScriptedModel, here: dict[str, Any]
) -> None:
    model.otherwise(hang())
    begun = await codex("_codex_local_run", task="spend", model="gpt-unheard-of", max_cost_usd=5, **here)
    stopped = await ended(codex, begun["task_id"])
    assert stopped["status"] == "canceled"
    assert "there is no price for the model gpt-unheard-of" in stopped["note"]


@on_its_own_engine
async def test_a_price_of_ones_own_lets_such_a_model_work(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, here: dict[str, Any], tmp_path: Path
) -> None:
    prices = {"prices": {"gpt-unheard-of": {"input": 1.0, "output": 1.0}}}
    settings = replace(settings, files=(ConfigFile(tmp_path / "helmsman.toml", prices, trusted=True),))
    model.otherwise([say("done"), usage(1000)])
    async with HelmsmanService(settings, env=codex_home.env) as helm, Client(build_server(helm)) as client:
        codex = Caller(client)
        begun = await codex("_codex_local_run", task="spend", model="gpt-unheard-of", max_cost_usd=5, **here)
        assert (await ended(codex, begun["task_id"]))["status"] == "completed"
        assert (await codex("_codex_local_results", task_id=begun["task_id"]))["cost_usd"] == pytest.approx(0.001)
