from __future__ import annotations

import json
from typing import Any

import pytest

from helmsman.testing import (
    ModelRequest,
    add,
    ask_user,
    call,
    call_tool,
    patch,
    plan,
    question,
    request_permissions,
    run,
    spawn_agent,
    wait_agents,
)
from helmsman.testing.tools import CodexTools, NotOffered

Json = dict[str, Any]

CHANGE = patch(add("a.txt", "hi\n"))


def offering(*tools: Json, outputs: tuple[str, ...] = ()) -> CodexTools:
    items = [{"type": "function_call_output", "call_id": "c", "output": output} for output in outputs]
    return CodexTools(ModelRequest({}, {"tools": list(tools), "input": items}))


def function(name: str, *parameters: str) -> Json:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    return {"type": "function", "name": name, "parameters": {"type": "object", "properties": properties}}


def namespace(name: str, *tools: Json) -> Json:
    return {"type": "namespace", "name": name, "tools": list(tools)}


def code_mode(*nested: str) -> Json:
    declared = "".join(f"declare const tools: {{ {name}(args: {{}}): Promise<unknown>; }};\n" for name in nested)
    return {"type": "custom", "name": "exec", "description": f"Run JavaScript.\n{declared}"}


def arguments(item: Json) -> Json:
    parsed: Json = json.loads(item["arguments"])
    return parsed


@pytest.mark.parametrize(
    ("shell", "expected"),
    [
        ("exec_command", {"cmd": "ls", "workdir": "/w", "yield_time_ms": 300}),
        ("shell_command", {"command": "ls", "workdir": "/w"}),
        ("shell", {"command": ["bash", "-lc", "ls"], "workdir": "/w"}),
    ],
)
def test_a_command_goes_to_the_shell_on_offer(shell: str, expected: Json) -> None:
    item = offering(function(shell)).item(run("ls", workdir="/w", yield_ms=300), "call_1")

    assert (item["type"], item["name"], item["call_id"]) == ("function_call", shell, "call_1")
    assert arguments(item) == expected


def test_an_escalation_carries_its_justification_and_its_prefix() -> None:
    item = offering(function("exec_command")).item(run("git pull", escalate="may I", prefix_rule=["git", "pull"]), "c")

    assert arguments(item) == {
        "cmd": "git pull",
        "sandbox_permissions": "require_escalated",
        "justification": "may I",
        "prefix_rule": ["git", "pull"],
    }


def test_a_patch_is_free_text_where_the_tool_takes_that() -> None:
    item = offering({"type": "custom", "name": "apply_patch"}).item(CHANGE, "c")

    assert (item["type"], item["input"]) == ("custom_tool_call", CHANGE.text)


def test_a_patch_is_an_argument_where_the_tool_is_a_function() -> None:
    item = offering(function("apply_patch")).item(CHANGE, "c")

    assert (item["type"], arguments(item)) == ("function_call", {"input": CHANGE.text})


def test_a_patch_goes_through_the_shell_where_there_is_no_tool_for_it() -> None:
    item = offering(function("exec_command")).item(CHANGE, "c")

    assert arguments(item)["cmd"] == f"apply_patch <<'EOF'\n{CHANGE.text}EOF"


@pytest.mark.parametrize(
    ("offer", "name", "space"),
    [
        (function("mcp__lab__read"), "mcp__lab__read", None),
        (namespace("mcp__lab__", function("read")), "read", "mcp__lab__"),
        (namespace("mcp__lab", function("read")), "read", "mcp__lab"),
        ({"type": "tool_search"}, "read", "mcp__lab"),
    ],
    ids=["long name", "old namespace", "namespace", "on demand"],
)
def test_an_mcp_tool_is_called_as_it_is_offered(offer: Json, name: str, space: str | None) -> None:
    item = offering(offer).item(call_tool("lab", "read", {"key": "k"}), "c")

    assert (item["name"], item.get("namespace"), arguments(item)) == (name, space, {"key": "k"})


def test_two_mcp_servers_may_have_tools_of_the_same_name() -> None:
    dialect = offering(namespace("mcp__one", function("read")), namespace("mcp__two", function("read")))

    assert [dialect.item(call_tool(server, "read"), "c")["namespace"] for server in ("one", "two")] == [
        "mcp__one",
        "mcp__two",
    ]


def test_in_code_mode_tools_are_called_from_javascript() -> None:
    dialect = offering(namespace("functions", code_mode("exec_command", "apply_patch")))

    command = dialect.item(run("ls"), "c")
    assert (command["type"], command["name"], command["namespace"]) == ("custom_tool_call", "exec", "functions")
    assert 'await tools.exec_command({"cmd": "ls"})' in command["input"]
    assert f"await tools.apply_patch({json.dumps(CHANGE.text)})" in dialect.item(CHANGE, "c")["input"]
    assert "await tools.mcp__lab__read({})" in dialect.item(call_tool("lab", "read"), "c")["input"]


@pytest.mark.parametrize(
    ("offers", "space", "extra"),
    [
        ([function("spawn_agent")], None, {}),
        ([{"type": "tool_search"}], "multi_agent_v1", {}),
        ([namespace("collaboration", function("spawn_agent"))], "collaboration", {"task_name": "scout"}),
    ],
    ids=["plain", "on demand", "collaboration"],
)
def test_a_sub_agent_is_started_in_the_way_on_offer(offers: list[Json], space: str | None, extra: Json) -> None:
    item = offering(*offers).item(spawn_agent("Look", name="scout"), "c")

    assert (item["name"], item.get("namespace")) == ("spawn_agent", space)
    assert arguments(item) == {"message": "Look", **extra}


@pytest.mark.parametrize(
    ("offers", "name", "expected"),
    [
        ([function("wait", "ids")], "wait", {"ids": ["A1", "A2"], "timeout_ms": 10}),
        ([function("wait_agent", "ids")], "wait_agent", {"ids": ["A1", "A2"], "timeout_ms": 10}),
        ([function("wait_agent", "targets")], "wait_agent", {"targets": ["A1", "A2"], "timeout_ms": 10}),
        ([namespace("collaboration", function("wait_agent"))], "wait_agent", {"timeout_ms": 10}),
    ],
)
def test_waiting_is_for_the_sub_agents_started_so_far(offers: list[Json], name: str, expected: Json) -> None:
    outputs = ('{"agent_id":"A1"}', "something else", '{"agent_id": "A2", "nickname": "x"}')

    item = offering(*offers, outputs=outputs).item(wait_agents(timeout_ms=10), "c")

    assert (item["name"], arguments(item)) == (name, expected)


def test_questions_and_permissions_are_put_as_codex_wants_them() -> None:
    dialect = offering(function("request_user_input"), function("request_permissions"))

    asked = dialect.item(ask_user(question("Which?", "A", id="which", header="Pick")), "c")
    wanted = dialect.item(request_permissions("why", network=True, read=["/r"], write=["/w"]), "c")

    options = [{"label": "A", "description": "A"}]
    assert arguments(asked) == {
        "questions": [{"id": "which", "header": "Pick", "question": "Which?", "options": options}]
    }
    assert arguments(wanted) == {
        "reason": "why",
        "permissions": {"network": {"enabled": True}, "file_system": {"read": ["/r"], "write": ["/w"]}},
    }


def test_a_plan_is_a_list_of_steps() -> None:
    item = offering(function("update_plan")).item(plan(("one", "completed"), "two", explanation="why"), "c")

    steps = [{"step": "one", "status": "completed"}, {"step": "two", "status": "pending"}]
    assert arguments(item) == {"plan": steps, "explanation": "why"}


def test_a_tool_of_the_client_is_called_by_its_name() -> None:
    assert arguments(offering(function("lookup")).item(call("lookup", {"k": 1}), "c")) == {"k": 1}


@pytest.mark.parametrize("part", [plan("one"), run("ls"), call_tool("lab", "read"), call("lookup"), spawn_agent("x")])
def test_a_tool_that_is_not_offered_is_named_with_the_offered_ones(part: Any) -> None:
    with pytest.raises(NotOffered, match="offers only: view_image"):
        offering(function("view_image")).item(part, "c")
