"""Where Helmsman ends otherwise than the built-in server of Codex 0.145.0, and to the better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.testing import ScriptedModel, always, call_tool, run, say
from tests.compat import differences
from tests.compat.conftest import BINARY, LAST_WITH_SERVER, WRITES, Bench
from tests.compat.seen import answering
from tests.compat.servers import Message

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.matrix,
    pytest.mark.skipif(BINARY is None, reason=f"needs Codex {LAST_WITH_SERVER}: python scripts/fetch_codex.py"),
]


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("accept", {"result": {"action": "accept", "content": {}}}),
        ("accept with a decision", {"result": {"action": "accept", "content": {"decision": "approved"}}}),
    ],
)
async def test_the_protocols_own_yes_counts(bench: Bench, model: ScriptedModel, name: str, reply: Message) -> None:
    assert name in differences.OTHER_OUTCOMES
    model.on("go", run("touch made.txt", escalate="please"), say("done"))
    made = []
    for server in bench.both:
        async with server.connected() as client:
            answering(client, reply)
            await client.call("codex", {"prompt": "go", **WRITES})
            made.append((server.directory / "made.txt").exists())
    assert made == [False, True]


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_the_protocols_own_no_counts_in_both(bench: Bench, model: ScriptedModel, action: str) -> None:
    model.on("go", run("touch made.txt", escalate="please"), say("done"))
    for server in bench.both:
        async with server.connected() as client:
            answering(client, {"result": {"action": action}})
            result = await client.call("codex", {"prompt": "go", **WRITES})
            assert result["structuredContent"]["content"] == "done"
            assert not (server.directory / "made.txt").exists()


@dataclass(frozen=True)
class Unanswered:
    """A script in which the original leaves its caller waiting."""

    steps: Sequence[Any]
    reply: Message | None = None
    elicits: bool = True
    is_error: bool = False


LEFT_WAITING = {
    "abort": Unanswered([run("touch x", escalate="please")], {"result": {"decision": "abort"}}, is_error=True),
    "error": Unanswered(
        [run("touch x", escalate="please"), say("done")], {"error": {"code": -32601, "message": "no such method"}}
    ),
    "no elicitation": Unanswered([run("touch x", escalate="please"), say("done")], elicits=False),
}


@pytest.mark.rare  # each waits for the original as long as Helmsman's deadline takes
@pytest.mark.parametrize("name", LEFT_WAITING)
async def test_a_call_is_always_answered(bench: Bench, model: ScriptedModel, name: str) -> None:
    assert name in differences.OTHER_OUTCOMES
    script = LEFT_WAITING[name]
    model.on("go", *script.steps)
    answered = []
    for server in bench.both:
        async with server.connected(elicits=script.elicits) as client:
            answering(client, script.reply)
            call = await client.begin_call("codex", {"prompt": "go", **WRITES})
            if server.name == "original":
                await client.until_event("exec_approval_request", call)
                with anyio.move_on_after(3):  # as long as Helmsman's deadline, and as long again
                    await client.answer(call)
                    answered.append("original")
                continue
            result = (await client.answer(call))["result"]
            answered.append(server.name)
            assert result.get("isError", False) is script.is_error
            assert not (server.directory / "x").exists()
            forms = [message for message in client.received if message.get("method") == "elicitation/create"]
            assert bool(forms) is script.elicits
    assert answered == ["helmsman"]


async def test_an_mcp_tools_approval_is_put_to_the_person(
    bench: Bench, model: ScriptedModel, mcp_server_config: dict[str, Any]
) -> None:
    assert "an MCP tool asks" in differences.OTHER_OUTCOMES
    for home in bench.homes.values():
        home.configure(mcp_servers=mcp_server_config)
    model.on("go", call_tool("lab", "write", {"key": "a", "text": "b"}), say("written"))
    async with bench.original.connected() as client:
        answering(client, {"result": {"action": "accept", "content": {}}})
        call = await client.begin_call("codex", {"prompt": "go", **WRITES})
        await client.until_event("elicitation_request", call)  # and no question is asked
        assert not [message for message in client.received if message.get("method") == "elicitation/create"]
    async with bench.helmsman.connected() as client:
        forms = answering(client, {"result": {"action": "accept", "content": {}}})
        result = await client.call("codex", {"prompt": "go", **WRITES})
        assert result["structuredContent"]["content"] == "written"
        assert "lab" in forms[0]["message"]
        assert "written" in model.requests[-1].tool_output


async def test_a_reply_to_a_busy_thread_reaches_the_turn_and_is_answered(bench: Bench, model: ScriptedModel) -> None:
    assert "reply to a busy thread" in differences.OTHER_OUTCOMES
    for server in bench.both:
        gate = model.gate()
        model.on("work", [say("hm", gate), run("true")], say("final"))
        model.on("hurry", always(say("final")))
        async with server.connected() as client:
            first = await client.begin_call("codex", {"prompt": "work", **WRITES})
            with anyio.fail_after(30):
                await gate.reached()
            thread = (await client.until_event("task_started", first))["params"]["_meta"]["threadId"]
            calls = (first, await client.begin_call("codex-reply", {"prompt": "hurry", "threadId": thread}))
            gate.release()
            if server.name == "original":  # one of the two calls gets the answer, the other none
                await client.until_any_answer(calls)
                continue
            for call in calls:
                result = (await client.answer(call))["result"]
                assert result["structuredContent"] == {"threadId": thread, "content": "final"}
            assert "hurry" in model.requests[-1].user_texts


async def test_a_thread_continues_after_the_server_was_restarted(bench: Bench, model: ScriptedModel) -> None:
    assert "reply after a restart" in differences.OTHER_OUTCOMES
    model.on("one", say("first"))
    model.on("two", say("second"))
    results = []
    for server in bench.both:
        async with server.connected() as client:
            thread = (await client.call("codex", {"prompt": "one"}))["structuredContent"]["threadId"]
        async with server.connected() as client:
            results.append(await client.call("codex-reply", {"prompt": "two", "threadId": thread}))
    assert "Session not found" in results[0]["content"][0]["text"]
    assert results[1]["structuredContent"]["content"] == "second"
    assert "one" in model.requests[-1].user_texts


async def test_a_cancelled_turns_command_is_stopped(bench: Bench, model: ScriptedModel) -> None:
    assert "cancelled command" in differences.OTHER_OUTCOMES
    model.on("sleep", run("echo $$ > pid; exec sleep 600"), say("never"))
    server = bench.helmsman
    async with server.connected() as client:
        call = await client.begin_call("codex", {"prompt": "sleep", **WRITES})
        await client.until_event("exec_command_begin", call)
        pid = await _text_in(server.directory / "pid")
        await client.cancel(call)
        await client.until_event("turn_aborted", call)
        with anyio.fail_after(30):
            while _is_sleeping(pid):
                await anyio.sleep(0.02)


async def test_names_of_older_servers_are_taken(bench: Bench, model: ScriptedModel) -> None:
    model.on("go", always(say("ok")))
    for home in bench.homes.values():
        (home.path / "careful.config.toml").write_text('model_verbosity = "low"\n', encoding="utf-8")
    for name, arguments in {"on-failure": {"approval-policy": "on-failure"}, "profile": {"profile": "careful"}}.items():
        assert name in differences.OTHER_OUTCOMES
        results = []
        for server in bench.both:
            async with server.connected() as client:
                results.append(await client.call("codex", {"prompt": "go", **arguments}))
        assert results[0]["isError"] is True
        assert results[1]["structuredContent"]["content"] == "ok"
        if name == "on-failure":
            assert "on-request is used instead" in results[1]["content"][1]["text"]


@pytest.mark.parametrize(
    ("name", "arguments"), [("missing directory", {"cwd": "/no/such/place"}), ("empty prompt", {"prompt": ""})]
)
async def test_impossible_requests_are_refused_before_they_start(
    bench: Bench, model: ScriptedModel, name: str, arguments: Message
) -> None:
    assert name in differences.OTHER_OUTCOMES
    model.on("go", say("ok"))
    for server in bench.both:
        asked = len(model.requests)
        async with server.connected() as client:
            result = await client.call("codex", {"prompt": "go", **arguments})
        if server.name == "original":
            assert len(model.requests) > asked
        else:
            assert len(model.requests) == asked
            assert result["isError"] is True
    model.problems.clear()  # there is no script for an empty prompt


async def test_an_unknown_tool_is_an_error_of_the_protocol(bench: Bench) -> None:
    assert "unknown tool" in differences.OTHER_OUTCOMES
    answers = []
    for server in bench.both:
        async with server.connected() as client:
            answers.append(await client.request("tools/call", {"name": "nothing", "arguments": {}}))
    assert answers[0]["result"]["isError"] is True
    assert answers[1]["error"]["code"] == -32602


async def _text_in(path: Path) -> str:
    with anyio.fail_after(30):
        while not path.exists() or not path.read_text(encoding="utf-8").strip():
            await anyio.sleep(0.02)
    return path.read_text(encoding="utf-8").strip()


def _is_sleeping(pid: str) -> bool:
    try:
        return "sleep" in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return False
