"""Events as the messages of the removed server: what is held back, what is said twice, and what is not said."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from helmsman.mcp.compat_events import Translation
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    ContextCompaction,
    EngineGone,
    Event,
    Failure,
    FileChange,
    ImageView,
    Item,
    ItemDelta,
    ItemEnded,
    ItemStarted,
    ItemUpdated,
    McpToolCall,
    Notice,
    PathChange,
    PlanStep,
    ProposedPlan,
    QuestionAsked,
    QuestionClosed,
    Reasoning,
    SettingsApplied,
    TodoList,
    TurnEnded,
    TurnStarted,
    UnknownItem,
    Untranslated,
    UsageReported,
)
from helmsman.model.questions import Prompt, Question

S = "thread"
COMMAND = CommandExecution(id="c1", command="/bin/bash -lc 'touch x'", directory="/src", announced=True)
ASKED = Question(
    asker="Codex",
    id="q1",
    type="command_approval",
    session_id=S,
    turn_id="t1",
    item_id="c1",
    prompts=(Prompt(text="?", options=("approve", "approve_session", "deny", "abort")),),
    details={"command": COMMAND.command, "directory": "/src", "reason": "please"},
)


def told(*events: Event, translation: Translation | None = None) -> list[dict[str, Any]]:
    one = translation or Translation(S, directory="/src", turn_name="7", now=lambda: 1000.0)
    return [message.message for event in events for message in one.translate(event)]


def kinds(*events: Event) -> list[str]:
    return [message["type"] for message in told(*events)]


def started(item: Item, **raw: Any) -> ItemStarted:
    return ItemStarted(session_id=S, turn_id="t1", item=item).with_raw({"item": raw})


def ended(item: Item, **raw: Any) -> ItemEnded:
    return ItemEnded(session_id=S, turn_id="t1", item=item).with_raw({"item": raw})


BEGUN = (SettingsApplied(session_id=S, model="m", approval_policy="never"), TurnStarted(session_id=S, turn_id="t1"))


def test_a_session_is_announced_once_and_belongs_to_no_turn() -> None:
    translation = Translation(S, directory="/src", turn_name="7", now=lambda: 1000.0)
    first = [message for event in (*BEGUN, *BEGUN) for message in translation.translate(event)]
    assert [(message.id, message.message["type"]) for message in first] == [
        ("", "session_configured"),
        ("7", "task_started"),
    ]


def test_a_later_turn_has_its_own_id_and_no_announcement() -> None:
    translation = Translation(S, directory="/src", is_new=False, now=lambda: 1000.0)
    (message,) = [message for event in BEGUN for message in translation.translate(event)]
    assert (message.id, message.message["turn_id"]) == ("t1", "t1")


def test_a_command_that_waits_for_permission_begins_when_it_has_it() -> None:
    asked = QuestionAsked(session_id=S, question=ASKED)
    closed = QuestionClosed(session_id=S, question_id="q1", answer="approve", by="person")
    assert kinds(started(COMMAND), asked) == ["exec_approval_request"]
    assert kinds(started(COMMAND), asked, closed) == ["exec_approval_request", "item_started", "exec_command_begin"]


@pytest.mark.parametrize("answer", ["deny", "abort", None])
def test_a_command_that_is_refused_never_began(answer: str | None) -> None:
    closed = QuestionClosed(session_id=S, question_id="q1", answer=answer, by="person")
    declined = CommandExecution(id="c1", command="x", declined=True, status="failed")
    events = (started(COMMAND), QuestionAsked(session_id=S, question=ASKED), closed, ended(declined))
    assert kinds(*events) == ["exec_approval_request"]


def test_output_or_an_end_shows_that_a_command_began() -> None:
    output = ItemDelta(session_id=S, item_id="c1", item_type="command_execution", text="é\n")
    messages = told(started(COMMAND), output)
    assert [message["type"] for message in messages] == [
        "item_started",
        "exec_command_begin",
        "exec_command_output_delta",
    ]
    assert base64.b64decode(messages[-1]["chunk"]).decode() == "é\n"
    done = CommandExecution(id="c1", command=COMMAND.command, exit_code=0, duration_ms=1500)
    assert kinds(started(COMMAND), ended(done)) == [
        "item_started",
        "exec_command_begin",
        "item_completed",
        "exec_command_end",
    ]


def test_a_commands_words_and_times_are_reported() -> None:
    done = CommandExecution(
        id="c1", command=COMMAND.command, directory="/src", exit_code=3, output="no", duration_ms=1500
    )
    end = told(ended(done))[-1]
    assert end["command"] == ["/bin/bash", "-lc", "touch x"]
    assert end["parsed_cmd"] == [{"type": "unknown", "cmd": "touch x"}]
    assert end["cwd"] == "file:///src"
    assert end["duration"] == {"secs": 1, "nanos": 500_000_000}
    assert (end["exit_code"], end["aggregated_output"], end["completed_at_ms"]) == (3, "no", 1_000_000)


@pytest.mark.parametrize(
    ("command", "path", "written"),
    [
        ("cat a", "/src/a", "a"),
        ("cat /src/a", "/src/a", "/src/a"),
        ("cat ../src/a", "/src/a", "../src/a"),
        ("cat a", "/src/sub/a", "sub/a"),  # after a `cd sub`
        ("cat a", "/elsewhere/a", "/elsewhere/a"),
        ("cat a", "/src2/a", "/src2/a"),
        ("cat 'a", "/src/a", "a"),
    ],
)
def test_a_file_that_is_read_is_named_as_the_command_names_it(command: str, path: str, written: str) -> None:
    action = {"type": "read", "command": command, "name": "a", "path": path}
    end = ended(CommandExecution(id="c", command="/bin/bash -lc x", directory="/src"), commandActions=[action])
    assert told(end)[-1]["parsed_cmd"] == [{"type": "read", "cmd": command, "name": "a", "path": written}]


def test_parsed_commands_have_their_old_names() -> None:
    actions = [
        {"type": "listFiles", "command": "ls", "path": None},
        {"type": "search", "command": "grep x", "query": "x", "path": "/src"},
        {"type": "dance", "command": "tango"},
        "nonsense",
    ]
    end = ended(CommandExecution(id="c", command="/bin/bash -lc x", directory="/src"), commandActions=actions)
    assert told(end)[-1]["parsed_cmd"] == [
        {"type": "list_files", "cmd": "ls", "path": None},
        {"type": "search", "cmd": "grep x", "query": "x", "path": "/src"},
        {"type": "unknown", "cmd": "tango"},
        {"type": "unknown", "cmd": ""},
    ]


def test_a_command_of_which_codex_says_nothing_is_unknown() -> None:
    item = CommandExecution(id="c", command="/bin/bash -lc 'cat a'", directory="/src")
    message = told(ended(item))[-1]
    assert message["parsed_cmd"] == [{"type": "unknown", "cmd": "cat a"}]
    assert not {"process_id", "source"} & set(message)


def test_the_process_of_a_command_is_reported_as_soon_as_codex_tells_it() -> None:
    runs_in = {"processId": "42", "source": "unifiedExecStartup"}
    end_of = ended(CommandExecution(id="c1", command=COMMAND.command), **runs_in)
    late = told(started(COMMAND, source="agent"), end_of)
    assert [message.get("process_id") for message in late if "call_id" in message] == ["42", "42"]
    asked = QuestionAsked(session_id=S, question=ASKED)
    closed = QuestionClosed(session_id=S, question_id="q1", answer="approve", by="person")
    begin, end = (
        message for message in told(started(COMMAND), asked, closed, end_of) if "_command_" in message["type"]
    )
    assert "process_id" not in begin
    assert (end["process_id"], end["source"]) == ("42", "unified_exec_startup")


def test_mcp_servers_have_started_when_each_has_come_to_an_end() -> None:
    translation = Translation(S, directory="/src", turn_name="7", now=lambda: 1000.0)

    def status(**raw: Any) -> Event:
        return Untranslated(session_id=S, name="mcpServer/startupStatus/updated").with_raw(raw)

    events = (
        status(name="a", status="starting"),
        status(name="b", status="starting"),
        Notice(
            session_id=S,
            kind="warning",
            message="b failed",
        ).with_raw({"name": "b", "status": "failed", "error": "why"}),
        status(name="a", status="ready"),
    )
    messages = [message for event in events for message in translation.translate(event)]
    assert {message.id for message in messages} == {""}
    assert [message.message["type"] for message in messages] == ["mcp_startup_update"] * 4 + ["mcp_startup_complete"]
    assert messages[2].message["status"] == {"state": "failed", "error": "why"}
    assert messages[-1].message == {
        "type": "mcp_startup_complete",
        "ready": ["a"],
        "failed": [{"server": "b", "error": "why"}],
        "cancelled": [],
    }


def test_thread_events_have_their_old_names() -> None:
    thread = {
        "path": "/t.jsonl",
        "modelProvider": "p",
        "approvalsReviewer": "user",
        "activePermissionProfile": {"id": ":read-only", "extends": None},
        "novelty": 1,
    }
    (message,) = told(SettingsApplied(session_id=S, model="m", approval_policy="never").with_raw(thread))
    assert message == {
        "type": "session_configured",
        "session_id": S,
        "thread_id": S,
        "model": "m",
        "approval_policy": "never",
        "cwd": "/src",
        "rollout_path": "/t.jsonl",
        "model_provider_id": "p",
        "approvals_reviewer": "user",
        "active_permission_profile": {"id": ":read-only"},
    }


def test_words_that_cannot_be_distinguished_stay_one() -> None:
    assert told(started(CommandExecution(id="c1", command="echo 'x")))[-1]["command"] == ["echo 'x"]


def test_a_failed_turn_is_one_error() -> None:
    failure = Failure(code="other", message="no such model")
    events = (
        Notice(session_id=S, kind="warning", message="no such model"),
        TurnEnded(session_id=S, turn_id="t1", outcome="failed", failure=failure),
    )
    assert told(*events) == [{"type": "error", "message": "no such model", "codex_error_info": "other"}]


def test_a_warning_is_reported_with_the_next_event_and_a_retry_at_once() -> None:
    warning = Notice(session_id=S, kind="warning", message="careful")
    assert kinds(warning) == []
    assert kinds(warning, *BEGUN) == ["warning", "session_configured", "task_started"]
    assert kinds(Notice(session_id=S, kind="retry", message="again")) == ["stream_error"]


def test_the_end_of_a_turn_carries_its_last_message() -> None:
    message = AgentMessage(id="m", text="bye", phase="final_answer")
    end = TurnEnded(session_id=S, turn_id="t1", outcome="completed")
    assert told(*BEGUN, ended(message), end)[-1] == {
        "type": "task_complete",
        "turn_id": "7",
        "last_agent_message": "bye",
        "started_at": 1000,
        "completed_at": 1000,
        "duration_ms": 0,
        "time_to_first_token_ms": 0,
    }
    silent = told(*BEGUN, end)[-1]
    assert silent["last_agent_message"] is None
    assert "time_to_first_token_ms" not in silent


def test_an_interrupted_turn_was_aborted_and_a_lost_engine_is_an_error() -> None:
    assert kinds(TurnEnded(session_id=S, turn_id="t1", outcome="interrupted")) == ["turn_aborted"]
    assert kinds(EngineGone(session_id=S, failure=Failure(code="engine_lost", message="gone"))) == ["error"]


def thought(**raw: Any) -> ItemDelta:
    return ItemDelta(session_id=S, item_id="r", item_type="reasoning", text=raw.get("delta", "\n\n")).with_raw(raw)


def test_each_part_of_reasoning_begins_with_a_break() -> None:
    pieces = [
        thought(delta="a", summaryIndex=0),
        thought(delta="b", summaryIndex=0),
        thought(summaryIndex=1),
        thought(delta="c", summaryIndex=1),
    ]
    messages = told(*pieces)
    assert [(message["type"], message["summary_index"]) for message in messages] == [
        ("agent_reasoning_section_break", 0),
        ("reasoning_content_delta", 0),
        ("reasoning_content_delta", 0),
        ("agent_reasoning_section_break", 1),
        ("reasoning_content_delta", 1),
    ]


def test_reasoning_that_comes_word_for_word_is_distinguished_from_its_summary() -> None:
    (piece,) = told(thought(delta="hm", contentIndex=2))
    assert (piece["type"], piece["content_index"]) == ("reasoning_raw_content_delta", 2)
    item, *older = told(ended(Reasoning(id="r", text="a\n\nb"), summary=["a", "b"], content=["hm"]))
    assert (item["item"]["summary_text"], item["item"]["raw_content"]) == (["a", "b"], ["hm"])
    assert [message["text"] for message in older] == ["a", "b"]
    assert kinds(ended(Reasoning(id="r", text="hm"), summary=[], content=["hm"])) == ["item_completed"]


def test_the_answer_of_an_mcp_tool_is_reported_whole() -> None:
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    result = {"content": [image], "structuredContent": {"a": None}, "_meta": None}
    call = McpToolCall(id="x", server="s", tool="t", result="[image]")
    item, older = told(ended(call, result=result, durationMs=1500))
    expected = {"content": [image], "structuredContent": {"a": None}}
    assert item["item"]["result"] == expected
    assert (older["result"], older["duration"]) == ({"Ok": expected}, {"secs": 1, "nanos": 500_000_000})


def test_the_cause_of_a_failure_is_reported_with_its_details() -> None:
    cause = {"responseStreamDisconnected": {"httpStatusCode": 503}}
    spelled = {"response_stream_disconnected": {"http_status_code": 503}}
    failure = Failure(code="response_stream_disconnected", message="gone")
    turn = {"error": {"message": "gone", "codexErrorInfo": cause}}
    (error,) = told(TurnEnded(session_id=S, outcome="failed", failure=failure).with_raw({"turn": turn}))
    assert error["codex_error_info"] == spelled
    again = {"message": "Reconnecting... 1/5", "codexErrorInfo": cause, "additionalDetails": "why"}
    assert told(Notice(session_id=S, kind="retry", message="again (why)").with_raw({"error": again})) == [
        {
            "type": "stream_error",
            "message": "Reconnecting... 1/5",
            "codex_error_info": spelled,
            "additional_details": "why",
        }
    ]


def test_changes_are_reported_by_their_kind() -> None:
    changes = (
        PathChange(path="/a", kind="add", diff="new\n"),
        PathChange(path="/b", kind="delete", diff="old\n"),
        PathChange(path="/c", kind="update", diff="@@", moved_to="/d"),
    )
    begin = told(started(FileChange(id="f", changes=changes)))[-1]
    assert begin["changes"] == {
        "/a": {"type": "add", "content": "new\n"},
        "/b": {"type": "delete", "content": "old\n"},
        "/c": {"type": "update", "unified_diff": "@@", "move_path": "/d"},
    }
    declined = FileChange(id="f", changes=changes, status="failed", declined=True)
    end = told(ended(declined))[-1]
    assert (end["success"], end["status"]) == (False, "declined")


def test_an_approval_of_changes_shows_them() -> None:
    change = FileChange(id="f", changes=(PathChange(path="/a", kind="add", diff="new\n"),))
    question = Question(
        asker="Codex",
        id="q",
        type="patch_approval",
        session_id=S,
        turn_id="t1",
        item_id="f",
        prompts=ASKED.prompts,
        details={},
    )
    message = told(started(change), QuestionAsked(session_id=S, question=question))[-1]
    assert message["type"] == "apply_patch_approval_request"
    assert message["changes"] == {"/a": {"type": "add", "content": "new\n"}}


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (McpToolCall(id="x", server="s", tool="t", result="r"), "mcp_tool_call_end"),
        (McpToolCall(id="x", server="s", tool="t", error="no", status="failed"), "mcp_tool_call_end"),
        (ImageView(id="x", path="/p"), "view_image_tool_call"),
        (ContextCompaction(id="x"), "context_compacted"),
        (Reasoning(id="x", text="hm"), "agent_reasoning"),
    ],
)
def test_an_item_is_reported_as_such_and_in_the_older_form(item: Item, expected: str) -> None:
    assert kinds(ended(item)) == ["item_completed", expected]


def test_a_plan_is_an_update_whether_or_not_it_is_done() -> None:
    plan = TodoList(id="plan", steps=(PlanStep("one", "completed"), PlanStep("two")), explanation="why")
    update = ItemUpdated(session_id=S, item=plan)
    assert (
        told(update)
        == told(ended(plan))
        == [
            {
                "type": "plan_update",
                "explanation": "why",
                "plan": [{"step": "one", "status": "completed"}, {"step": "two", "status": "pending"}],
            }
        ]
    )


def test_a_plan_of_plan_mode_is_an_item() -> None:
    assert kinds(ended(ProposedPlan(id="p", text="first"))) == ["item_completed"]
    assert kinds(ItemDelta(session_id=S, item_id="p", item_type="plan", text="f")) == ["plan_delta"]


def test_unknown_items_and_those_of_sub_agents_are_not_reported() -> None:
    other = ItemDelta(session_id=S, item_id="x", item_type="mcp_tool_call", text="50 %")
    assert kinds(started(UnknownItem(id="x", name="new")), ended(UnknownItem(id="x", name="new")), other) == []
    assert kinds(ItemEnded(session_id=S, agent_id="a", item=AgentMessage(id="m", text="hi"))) == []


def test_usage_without_numbers_says_so() -> None:
    (message,) = told(UsageReported(session_id=S))
    assert message["info"] == {"total_token_usage": None, "last_token_usage": None, "model_context_window": None}


def test_counts_of_tokens_are_reported_as_codex_gives_them() -> None:
    counts = {"totalTokens": 110, "inputTokens": 100, "cacheWriteInputTokens": 5}
    usage = {"total": counts, "last": counts, "modelContextWindow": 1000}
    (message,) = told(UsageReported(session_id=S).with_raw({"tokenUsage": usage}))
    spelled = {"total_tokens": 110, "input_tokens": 100, "cache_write_input_tokens": 5}
    assert message["info"] == {
        "total_token_usage": spelled,
        "last_token_usage": spelled,
        "model_context_window": 1000,
    }
