from __future__ import annotations

from typing import Any

import pytest

from helmsman.testing import ModelRequest

Json = dict[str, Any]


def request(*items: Json, headers: dict[str, str] | None = None, **body: Any) -> ModelRequest:
    return ModelRequest(headers or {}, {"input": list(items), **body})


def user(text: str) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def assistant(text: str) -> Json:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def output(value: Any) -> Json:
    return {"type": "function_call_output", "call_id": "c", "output": value}


@pytest.mark.parametrize(
    "context",
    [
        "<environment_context>\n  <cwd>/src</cwd>\n</environment_context>",
        "# AGENTS.md instructions for /src\n\n<INSTRUCTIONS>be nice</INSTRUCTIONS>",
        "<turn_aborted>\nThe user interrupted\n</turn_aborted>",
        "<subagent_notification>\n{}</subagent_notification>",
        "<skill>\n<name>x</name></skill>",
    ],
)
def test_user_messages_written_by_codex_are_no_prompts(context: str) -> None:
    assert request(user(context), user("Fix it"), user(context)).user_texts == ("Fix it",)


def test_a_prompt_may_contain_markup() -> None:
    texts = ("<b>bold</b>", "see <environment_context>", "<image name=[Image #1]></image>look")

    assert request(*map(user, texts)).user_texts == texts


def test_new_texts_are_those_since_the_model_last_did_something() -> None:
    asked = request(user("one"), assistant("a"), user("two"), output("x"), user("three"), user("four"))

    assert asked.new_user_texts == ("three", "four")
    assert asked.last_user_text == "four"


def test_a_task_from_a_parent_agent_is_a_prompt_and_its_report_is_not() -> None:
    heading = {"type": "input_text", "text": "Message Type: NEW_TASK\nPayload:\n"}
    task = {"type": "agent_message", "content": [heading, {"type": "encrypted_content", "encrypted_content": "Sub"}]}
    report = {"type": "agent_message", "content": [{"type": "input_text", "text": "Message Type: FINAL_ANSWER"}]}

    assert request(user("Go"), task, report).user_texts == ("Go", "Sub")


def test_a_sub_agent_notice_to_a_finished_model_starts_no_turn() -> None:
    notice = user("<subagent_notification>{}</subagent_notification>")

    assert request(user("Go"), assistant("done"), notice).only_notified
    assert not request(user("Go"), output("x"), notice).only_notified
    assert not request(user("Go"), assistant("done"), notice, user("next")).only_notified
    assert not request(user("Go")).only_notified
    assert not request(user("Go"), assistant("done")).only_notified


@pytest.mark.parametrize(
    "raw",
    [
        "Exit code: 0\nWall time: 0 seconds\nOutput:\nhello\n",
        "Command: x\nChunk ID: a\nWall time: 0.0 seconds\nProcess exited with code 0\nOutput:\nhello\n",
        [{"type": "input_text", "text": "Script completed\nOutput:\n"}, {"type": "input_text", "text": "hello\n"}],
        [{"type": "input_text", "text": "Wall time: 0.1 seconds\nOutput:"}, {"type": "input_text", "text": "hello\n"}],
        "hello\n",
    ],
)
def test_the_output_of_a_tool_is_given_without_its_heading(raw: Any) -> None:
    assert request(output("earlier"), output(raw)).tool_output == "hello\n"


def test_tools_are_named_wherever_they_are_offered() -> None:
    shell = {"type": "function", "name": "exec_command"}
    space = {"type": "namespace", "name": "mcp__lab", "tools": [{"type": "function", "name": "read"}]}
    hidden = {"type": "additional_tools", "tools": [{"type": "custom", "name": "exec"}]}

    asked = request(hidden, tools=[shell, space, {"type": "web_search"}])

    assert asked.tool_names == ("exec_command", "mcp__lab.read", "web_search", "exec")


@pytest.mark.parametrize("name", ["thread-id", "thread_id", "session_id"])
def test_the_thread_is_named_in_a_header(name: str) -> None:
    assert request(headers={name: "T1"}, prompt_cache_key="other").thread_id == "T1"


def test_a_sub_agent_is_its_own_thread_in_the_session_of_its_parent() -> None:
    assert request(headers={"session_id": "parent", "thread_id": "child"}).thread_id == "child"


def test_the_turn_is_named_in_the_metadata_where_there_are_any() -> None:
    assert request(headers={"x-codex-turn-metadata": '{"turn_id":"U1"}'}).turn_id == "U1"
    assert request(headers={"x-codex-turn-metadata": "not json"}).turn_id is None
    assert request(headers={"x-codex-turn-metadata": "[]"}).turn_id is None
    assert request().turn_id is None


def test_instructions_come_from_the_field_and_from_the_developer() -> None:
    developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]}

    assert request(developer, instructions="base").instructions == "base\n\nrules"


def test_the_rest_of_what_tests_ask_about() -> None:
    picture = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}
    form = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    asked = request(picture, model="m", reasoning={"effort": "high"}, text=form, prompt_cache_key="T2")

    assert (asked.model, asked.effort, asked.output_schema) == ("m", "high", {"type": "object"})
    assert (asked.images, asked.thread_id) == (("data:x",), "T2")


def test_a_body_without_anything_is_no_error() -> None:
    empty = ModelRequest({}, {"input": "text", "tools": None, "text": None, "reasoning": None})

    assert (empty.user_texts, empty.tool_names, empty.tool_output, empty.last_user_text) == ((), (), "", "")
    assert (empty.output_schema, empty.effort, empty.instructions) == (None, None, "")
