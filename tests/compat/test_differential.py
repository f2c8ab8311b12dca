"""The same scripts, played to the built-in server of Codex 0.145.0 and to Helmsman, both on that Codex.

What differs and may differ is in `differences.py`; anything else fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from helmsman.testing import ScriptedModel, add, call_tool, fail, hang, patch, plan, rate_limit, run, say, search, think
from tests.compat import differences
from tests.compat.comparison import same_messages
from tests.compat.conftest import BINARY, LAST_WITH_SERVER, READS, WRITES, Bench
from tests.compat.seen import about_servers, answering, asked_of_model, naming, shown_result, told_by, without_ids
from tests.compat.servers import Message

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.matrix,
    pytest.mark.skipif(BINARY is None, reason=f"needs Codex {LAST_WITH_SERVER}: python scripts/fetch_codex.py"),
]


async def test_the_tools_are_the_same_field_by_field(bench: Bench) -> None:
    listings = []
    for server in bench.both:
        async with server.connected() as client:
            listings.append((await client.request("tools/list", {}))["result"]["tools"])
    assert listings[0] == listings[1]


async def test_the_server_has_the_original_name_and_says_who_it_is(bench: Bench) -> None:
    names = []
    for server in bench.both:
        async with server.connected() as client:
            names.append(client.hello["result"]["serverInfo"])
    assert names[0]["name"] == names[1]["name"] == "codex-mcp-server"
    assert "Helmsman" in names[1]["title"]


Script = tuple[str, "Sequence[Any]", dict[str, Any]]


CITING = """Hello<oai-mem-citation>
<citation_entries>
MEMORY.md:1-2|note=[why]
</citation_entries>
<rollout_ids>
01a1ddd1-1bab-73c3-8b00-9a9ff3be1999
</rollout_ids>
</oai-mem-citation>"""


SCRIPTS: dict[str, Script] = {
    "message": ("codex", [say("Hel", "lo")], {}),
    "reasoning": ("codex", [[think("hm"), say("Hello")]], {}),
    "phases": (
        "codex",
        [[say("first", phase="commentary"), run("true")], say("second", phase="final_answer")],
        WRITES,
    ),
    "command": ("codex", [run("echo hi; exit 3"), say("ran")], WRITES),
    "listing": ("codex", [run("ls"), say("ran")], WRITES),
    "reading": (
        "codex",
        [
            run("cat README.md && ls"),
            run("head -n 2 ../repository/README.md"),
            run("cd .git && cat HEAD"),
            run("cat /etc/hostname | sed -n 1p"),
            run("grep -n repository README.md"),
            run("cat README.md; echo $NOTHING"),
            say("read"),
        ],
        WRITES,
    ),
    "memory": ("codex", [say(CITING)], {}),
    "raw reasoning": ("codex", [[think("hm", raw="word for word"), say("Hello")]], {}),
    "only raw reasoning": ("codex", [[think(raw="word for word"), say("Hello")]], {}),
    "change in the workspace": ("codex", [patch(add("a.txt", "x\n")), say("done")], WRITES),
    "plan": ("codex", [plan(("one", "completed"), ("two", "in_progress")), say("planned")], {}),
    "search": ("codex", [[search("cats"), say("found")]], {}),
    "no final message": ("codex", [search("cats")], {}),
    "model failure": ("codex", [fail(400, message="bad thing")], {}),
    "instructions": (
        "codex",
        [say("ok")],
        {"base-instructions": "Be brief.", "developer-instructions": "In English.", "compact-prompt": "Short."},
    ),
    "relative directory": ("codex", [say("ok")], {"cwd": "."}),
    "effort": ("codex", [say("ok")], {"config": {"model_reasoning_effort": "low"}}),
}


async def test_a_turn_gives_the_same_result_and_the_same_messages(bench: Bench, model: ScriptedModel) -> None:
    for name, (_, steps, _) in SCRIPTS.items():
        model.on(f"go: {name}.", *steps)
    seen: dict[str, list[tuple[Message, list[Message], tuple[Any, ...]]]] = {name: [] for name in SCRIPTS}
    for server in bench.both:
        async with server.connected() as client:
            for name, (tool, _, arguments) in SCRIPTS.items():
                call = await client.begin_call(tool, {"prompt": f"go: {name}.", **arguments})
                result = (await client.answer(call))["result"]
                seen[name].append((shown_result(result), told_by(client, call), asked_of_model(model)))
    for name, (original, ours) in seen.items():
        with naming(name):
            assert ours[0] == original[0]
            same_messages(original[1], ours[1])
            assert ours[2] == original[2]


async def test_the_end_and_the_output_of_a_command_that_takes_its_time_are_reported_whole(
    bench: Bench, model: ScriptedModel
) -> None:
    model.on("go", run("sleep 0.5; echo hi; exit 3"), run("sleep 0.5"), say("ran"))
    ends = []
    for server in bench.both:
        async with server.connected() as client:
            await client.call("codex", {"prompt": "go", **WRITES})
            first = next(event for event in client.events() if event["type"] == "exec_command_end")
            ends.append(
                {name: first[name] for name in ("exit_code", "stdout", "aggregated_output", "formatted_output")}
            )
    assert ends[1] == ends[0]
    assert (ends[1]["exit_code"], ends[1]["aggregated_output"]) == (3, "hi\n")


@pytest.mark.parametrize("what", ["command", "change"])
async def test_an_approval_is_asked_for_and_answered_in_the_same_way(
    bench: Bench, model: ScriptedModel, what: str
) -> None:
    step = run("touch made.txt", escalate="please") if what == "command" else patch(add("made.txt", "x\n"))
    decisions = ("approved", "approved_for_session", "denied", "nonsense")
    seen: dict[str, list[tuple[Message, list[Message], list[Message], bool]]] = {name: [] for name in decisions}
    for decision in decisions:
        model.on(f"go: {decision}.", step, say("done"))
    for server in bench.both:
        async with server.connected() as client:
            for decision in decisions:
                forms = answering(client, {"result": {"decision": decision}})
                arguments = WRITES if what == "command" else READS
                call = await client.begin_call("codex", {"prompt": f"go: {decision}.", **arguments})
                result = (await client.answer(call))["result"]
                made = server.directory / "made.txt"
                asked = without_ids(forms, server, call)
                seen[decision].append((shown_result(result), asked, told_by(client, call), made.exists()))
                made.unlink(missing_ok=True)
    for decision, (original, ours) in seen.items():
        with naming(decision):
            assert ours[1]
            same_messages(original[2], ours[2])
            for form in ours[1]:
                form["message"], _, more = form["message"].partition("\n")
                assert more.startswith("Codex asks to "), differences.LONGER_QUESTIONS
            assert (ours[0], ours[1], ours[3]) == (original[0], original[1], original[3])


async def test_an_attempt_that_failed_is_reported_in_the_same_way(bench: Bench, model: ScriptedModel) -> None:
    model.on("go", fail(503, message="too much"), say("at last"))
    told = []
    for server in bench.both:
        bench.homes[server.name].configure(model_providers={"scripted": {"stream_max_retries": 1}})
        async with server.connected() as client:
            await client.call("codex", {"prompt": "go"})
            told.append(told_by(client))
    same_messages(*told)
    assert "stream_error" in [message["type"] for message in told[1]]


async def test_a_call_of_an_mcp_tool_and_the_start_of_its_server_are_reported_in_the_same_way(
    bench: Bench, model: ScriptedModel, mcp_server_config: dict[str, Any]
) -> None:
    for home in bench.homes.values():
        home.configure(mcp_servers={**mcp_server_config, "broken": {"command": "/no/such/server"}})
    model.on("go", call_tool("lab", "read", {"key": "a"}), say("read"))
    seen = []
    for server in bench.both:
        async with server.connected() as client:
            await client.call("codex", {"prompt": "go", **WRITES})
            seen.append((told_by(client), about_servers(client)))
    same_messages(seen[0][0], seen[1][0])
    same_messages(seen[0][1], seen[1][1])
    assert [failed["server"] for failed in seen[1][1][-1]["failed"]] == ["broken"]


async def test_the_accounts_rate_limits_are_reported_with_the_tokens(bench: Bench, model: ScriptedModel) -> None:
    limits = (
        rate_limit(40, window_minutes=300, resets_at=1894706501),
        rate_limit(12, window_minutes=10080, resets_at=1894806501, name="secondary"),
    )
    model.on("go", [*limits, run("true")], [*limits, say("done")])
    seen = []
    for server in bench.both:
        async with server.connected() as client:
            await client.call("codex", {"prompt": "go", **WRITES})
            seen.append([event["rate_limits"] for event in client.events() if event["type"] == "token_count"])
    assert seen[1][-1] == seen[0][-1]
    assert seen[1][-1]["primary"]["used_percent"] == 40.0


WRONG: dict[str, tuple[str, dict[str, Any] | None]] = {
    "no arguments": ("codex", None),
    "no arguments for a reply": ("codex-reply", None),
    "missing prompt": ("codex", {}),
    "missing prompt of a reply": ("codex-reply", {"threadId": "01a1ddd1-1bab-73c3-8b00-9a9ff3be1999"}),
    "unknown argument": ("codex", {"prompt": "go", "foo": 1}),
    "bad sandbox": ("codex", {"prompt": "go", "sandbox": "open"}),
    "bad policy": ("codex", {"prompt": "go", "approval-policy": "sometimes"}),
    "bad type": ("codex", {"prompt": 5}),
    "bad config": ("codex", {"prompt": "go", "config": {"model_reasoning_effort": 5}}),
    "missing thread": ("codex-reply", {"prompt": "go"}),
    "unknown thread": ("codex-reply", {"prompt": "go", "threadId": "01a1ddd1-1bab-73c3-8b00-9a9ff3be1999"}),
    "not a thread id": ("codex-reply", {"prompt": "go", "threadId": "nope"}),
    "not a thread id, by the old name": ("codex-reply", {"prompt": "go", "conversationId": "nope", "foo": 1}),
}


async def test_wrong_arguments_are_refused_in_the_same_words(bench: Bench) -> None:
    seen: dict[str, list[Message]] = {name: [] for name in WRONG}
    for server in bench.both:
        async with server.connected() as client:
            for name, (tool, arguments) in WRONG.items():
                call = {"name": tool} if arguments is None else {"name": tool, "arguments": arguments}
                seen[name].append((await client.request("tools/call", call))["result"])
    for name, (original, ours) in seen.items():
        assert ours["isError"] is original["isError"] is True, name
        assert ("structuredContent" in ours) == ("structuredContent" in original), name
        was, text = original["content"][0]["text"], ours["content"][0]["text"]
        if name in differences.LONGER_TEXTS:
            assert text != was, f"{name} does not differ any more"
            begins = was if text.startswith(was) else was.partition(": ")[0] + ": "
            assert text.startswith(begins), name
        elif name in differences.OTHER_TEXTS:
            assert text != was, f"{name} does not differ any more"
            assert "model_reasoning_effort" in text
        else:
            assert text == was, name


async def test_a_thread_continues_by_either_of_its_names(bench: Bench, model: ScriptedModel) -> None:
    model.on("one", say("first"))
    model.on("two", say("second"))
    model.on("three", say("third"))
    seen = []
    for server in bench.both:
        async with server.connected() as client:
            thread = (await client.call("codex", {"prompt": "one"}))["structuredContent"]["threadId"]
            results = [
                await client.call("codex-reply", {"prompt": "two", "threadId": thread}),
                await client.call("codex-reply", {"prompt": "three", "conversationId": thread}),
            ]
            assert {result["structuredContent"]["threadId"] for result in results} == {thread}
            seen.append(([shown_result(result) for result in results], told_by(client), model.requests[-1].user_texts))
    assert seen[1][0] == seen[0][0]
    same_messages(seen[0][1], seen[1][1])
    assert seen[1][2] == seen[0][2]


async def test_several_calls_at_once_each_get_their_own(bench: Bench, model: ScriptedModel) -> None:
    for server in bench.both:
        gate = model.gate()
        model.on("slow", say("one ", gate, "two"))
        model.on("quick", say("three"))
        async with server.connected() as client:
            slow = await client.begin_call("codex", {"prompt": "slow"})
            with anyio.fail_after(30):
                await gate.reached()
            quick = await client.call("codex", {"prompt": "quick"})
            gate.release()
            result = (await client.answer(slow))["result"]
            assert [quick["structuredContent"]["content"], result["structuredContent"]["content"]] == [
                "three",
                "one two",
            ]
            assert [kind["last_agent_message"] for kind in client.events(slow) if kind["type"] == "task_complete"] == [
                "one two"
            ]


async def test_a_cancelled_call_interrupts_the_turn_and_is_not_answered(bench: Bench, model: ScriptedModel) -> None:
    model.on("hang", hang())
    model.on("again", say("back"))
    told = []
    for server in bench.both:
        async with server.connected() as client:
            call = await client.begin_call("codex", {"prompt": "hang"})
            thread = (await client.until_event("user_message", call))["params"]["_meta"]["threadId"]
            await client.cancel(call)
            await client.until_event("turn_aborted", call)
            # Whether the account's limits are told before the interrupt is a race, with either.
            told.append([message for message in told_by(client) if message["type"] != "token_count"])
            if (
                server.name == "helmsman"
            ):  # the original may never answer: its cancelled call takes the next turn's events
                result = await client.call("codex-reply", {"prompt": "again", "threadId": thread})
                assert result["structuredContent"]["content"] == "back"
            assert not [message for message in client.received if message.get("id") == call and "method" not in message]
    same_messages(*told)
