"""The same scripts, played to the built-in server of Codex 0.145.0 and to Helmsman, both on that Codex.

What differs and may differ is in `differences.py`; anything else fails.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from helmsman.testing import add, always, call_tool, fail, hang, patch, plan, rate_limit, run, say, search, think
from helmsman.testing.binaries import codex_version, codex_versions
from helmsman.testing.repository import make_repository
from tests.compat import differences
from tests.compat.comparison import relative, same_messages
from tests.compat.servers import Client, Message, Server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from helmsman.testing import CodexHome, ScriptedModel
    from helmsman.testing.home import HomeTemplates

LAST_WITH_SERVER = "0.145.0"
BINARY = codex_versions().get(LAST_WITH_SERVER)
WRITES = {"sandbox": "workspace-write", "approval-policy": "on-request"}
READS = {"sandbox": "read-only", "approval-policy": "on-request"}

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.matrix,
    pytest.mark.skipif(BINARY is None, reason=f"needs Codex {LAST_WITH_SERVER}: python scripts/fetch_codex.py"),
]


@dataclass
class Bench:
    """Both servers, each in a home and a repository of its own, on one model."""

    original: Server
    helmsman: Server
    homes: dict[str, CodexHome] = field(default_factory=dict)

    @property
    def both(self) -> tuple[Server, Server]:
        return self.original, self.helmsman


@pytest.fixture
def bench(tmp_path: Path, model: ScriptedModel, codex_home_templates: HomeTemplates) -> Bench:
    assert BINARY is not None
    homes: dict[str, CodexHome] = {}
    places: dict[str, Path] = {}
    for name in ("original", "helmsman"):
        homes[name] = codex_home_templates.new_home(BINARY, tmp_path / name / "home")
        homes[name].use_model(model.base_url, codex_version(BINARY))
        homes[name].keep_quiet(codex_version(BINARY))
        places[name] = make_repository(tmp_path / name / "repository")
    return Bench(
        Server.original(BINARY, homes["original"], places["original"]),
        Server.helmsman(BINARY, homes["helmsman"], places["helmsman"], APPROVAL_TIMEOUT_MS="1500"),
        homes,
    )


# --- tools, results, errors ------------------------------------------------------------------------------------------


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
                seen[name].append((_result(result), _told(client, call), _asked_of_model(model)))
    for name, (original, ours) in seen.items():
        with _named(name):
            assert ours[0] == original[0]
            same_messages(original[1], ours[1])
            assert ours[2] == original[2]


async def test_the_end_and_the_output_of_a_command_that_takes_its_time_are_told_whole(
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
                forms = _answering(client, {"result": {"decision": decision}})
                arguments = WRITES if what == "command" else READS
                call = await client.begin_call("codex", {"prompt": f"go: {decision}.", **arguments})
                result = (await client.answer(call))["result"]
                made = server.directory / "made.txt"
                asked = _without_ids(forms, server, call)
                seen[decision].append((_result(result), asked, _told(client, call), made.exists()))
                made.unlink(missing_ok=True)
    for decision, (original, ours) in seen.items():
        with _named(decision):
            assert ours[1]
            same_messages(original[2], ours[2])
            for form in ours[1]:
                form["message"], _, more = form["message"].partition("\n")
                assert more.startswith("Codex asks to "), differences.LONGER_QUESTIONS
            assert (ours[0], ours[1], ours[3]) == (original[0], original[1], original[3])


async def test_an_attempt_that_failed_is_told_in_the_same_way(bench: Bench, model: ScriptedModel) -> None:
    model.on("go", fail(503, message="too much"), say("at last"))
    told = []
    for server in bench.both:
        bench.homes[server.name].configure(model_providers={"scripted": {"stream_max_retries": 1}})
        async with server.connected() as client:
            await client.call("codex", {"prompt": "go"})
            told.append(_told(client))
    same_messages(*told)
    assert "stream_error" in [message["type"] for message in told[1]]


async def test_a_call_of_an_mcp_tool_and_the_start_of_its_server_are_told_in_the_same_way(
    bench: Bench, model: ScriptedModel, mcp_server_config: dict[str, Any]
) -> None:
    for home in bench.homes.values():
        home.configure(mcp_servers={**mcp_server_config, "broken": {"command": "/no/such/server"}})
    model.on("go", call_tool("lab", "read", {"key": "a"}), say("read"))
    seen = []
    for server in bench.both:
        async with server.connected() as client:
            await client.call("codex", {"prompt": "go", **WRITES})
            seen.append((_told(client), _about_servers(client)))
    same_messages(seen[0][0], seen[1][0])
    same_messages(seen[0][1], seen[1][1])
    assert [failed["server"] for failed in seen[1][1][-1]["failed"]] == ["broken"]


async def test_the_accounts_rate_limits_are_told_with_the_tokens(bench: Bench, model: ScriptedModel) -> None:
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


async def test_a_thread_goes_on_by_either_of_its_names(bench: Bench, model: ScriptedModel) -> None:
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
            seen.append(([_result(result) for result in results], _told(client), model.requests[-1].user_texts))
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
            told.append(_told(client))
            if (
                server.name == "helmsman"
            ):  # the original may never answer: its cancelled call takes the next turn's events
                result = await client.call("codex-reply", {"prompt": "again", "threadId": thread})
                assert result["structuredContent"]["content"] == "back"
            assert not [message for message in client.received if message.get("id") == call and "method" not in message]
    same_messages(*told)


# --- where Helmsman ends otherwise, and to the better ----------------------------------------------------------------


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
            _answering(client, reply)
            await client.call("codex", {"prompt": "go", **WRITES})
            made.append((server.directory / "made.txt").exists())
    assert made == [False, True]


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_the_protocols_own_no_counts_in_both(bench: Bench, model: ScriptedModel, action: str) -> None:
    model.on("go", run("touch made.txt", escalate="please"), say("done"))
    for server in bench.both:
        async with server.connected() as client:
            _answering(client, {"result": {"action": action}})
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


@pytest.mark.parametrize("name", LEFT_WAITING)
async def test_a_call_is_always_answered(bench: Bench, model: ScriptedModel, name: str) -> None:
    assert name in differences.OTHER_OUTCOMES
    script = LEFT_WAITING[name]
    model.on("go", *script.steps)
    answered = []
    for server in bench.both:
        async with server.connected(elicits=script.elicits) as client:
            _answering(client, script.reply)
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
        _answering(client, {"result": {"action": "accept", "content": {}}})
        call = await client.begin_call("codex", {"prompt": "go", **WRITES})
        await client.until_event("elicitation_request", call)  # and nobody is asked
        assert not [message for message in client.received if message.get("method") == "elicitation/create"]
    async with bench.helmsman.connected() as client:
        forms = _answering(client, {"result": {"action": "accept", "content": {}}})
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


async def test_a_thread_goes_on_after_the_server_was_restarted(bench: Bench, model: ScriptedModel) -> None:
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
async def test_what_cannot_work_is_refused_before_it_starts(
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


# --- what is compared ------------------------------------------------------------------------------------------------


def _result(result: Message) -> Message:
    """A result, with what differs from run to run taken out. `isError: false` is what leaving it out means."""
    structured = {**result["structuredContent"], "threadId": "T"} if "structuredContent" in result else None
    return {"content": result["content"], "structured": structured, "isError": result.get("isError", False)}


def _told(client: Client, call: int | None = None) -> list[Message]:
    left_out = differences.LEFT_OUT_KINDS | differences.IN_ANY_ORDER
    return [event for event in client.events(call) if event["type"] not in left_out]


@contextmanager
def _named(script: str) -> Iterator[None]:
    """Say which script it is that differs."""
    try:
        yield
    except AssertionError as difference:
        difference.add_note(f"It is the script {script!r} that differs.")
        raise


def _about_servers(client: Client) -> list[Message]:
    """What was told of Codex's own MCP servers, one server after the other."""
    told = [event for event in client.events() if event["type"] in differences.IN_ANY_ORDER]
    return sorted(told, key=lambda event: event.get("server", "~"))


def _asked_of_model(model: ScriptedModel) -> tuple[Any, ...]:
    """What the model got of what the caller gave."""
    request = model.requests[-1]
    return request.user_texts, request.body.get("instructions")


def _answering(client: Client, reply: Message | None) -> list[Message]:
    """Give this reply to everything the server asks; what it asked."""
    forms: list[Message] = []

    def answer(request: Message) -> Message | None:
        forms.append(request["params"])
        return reply

    client.reply = answer
    return forms


def _without_ids(forms: list[Message], server: Server, call: int) -> list[Message]:
    shown = []
    for form in forms:
        assert form["codex_mcp_tool_call_id"] == form["codex_event_id"] == str(call), server.name
        shown.append(relative({**form, "threadId": "T", "codex_call_id": "call"}))
    return shown


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
