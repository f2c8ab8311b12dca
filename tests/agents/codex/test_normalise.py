"""Tests of single notifications and lines that are not in the recordings."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from helmsman.agents.codex.normalise import (
    app_server_item,
    failure_from_sentence,
    from_app_server,
    from_exec,
    resets_at,
    sub_agents,
    turn_failure,
)
from helmsman.base.structs import replace
from helmsman.model.events import (
    USAGE_LIMIT,
    AgentMessage,
    CollabToolCall,
    ContextCompaction,
    DynamicToolCall,
    ErrorItem,
    Failure,
    FileChange,
    ImageView,
    ItemDelta,
    ItemEnded,
    ItemUpdated,
    McpToolCall,
    Notice,
    ProposedPlan,
    RateLimit,
    RateLimitsReported,
    Reasoning,
    Review,
    SessionRenamed,
    SettingsApplied,
    TurnEnded,
    Unknown,
    UnknownItem,
    Untranslated,
    UserMessage,
    WebSearch,
)

WHERE = {"threadId": "T1", "turnId": "U1"}


def _failed_turn(error: Any) -> Failure:
    turn = {"id": "U1", "status": "failed", "error": error, "items": []}
    event = from_app_server("turn/completed", {"threadId": "T1", "turn": turn})
    assert isinstance(event, TurnEnded)
    assert event.failure is not None
    return event.failure


# --- failures --------------------------------------------------------------------------------------------------------


def test_an_error_code_may_be_a_word() -> None:
    failure = _failed_turn({"message": "too long", "codexErrorInfo": "contextWindowExceeded"})
    assert failure == Failure(code="context_window_exceeded", message="too long")


def test_an_error_code_may_be_an_object_with_a_status() -> None:
    info = {"responseTooManyFailedAttempts": {"httpStatusCode": 429}}
    failure = _failed_turn({"message": "exceeded retry limit", "codexErrorInfo": info, "additionalDetails": None})
    assert failure == Failure(
        code="response_too_many_failed_attempts", message="exceeded retry limit", retryable=True, http_status=429
    )


@pytest.mark.parametrize(
    ("info", "message", "retryable"),
    [
        ("internalServerError", "high demand", True),
        ("rateLimitExceeded", "slow down", True),
        ("serverOverloaded", "busy", True),
        ({"httpConnectionFailed": {"httpStatusCode": 503}}, "unavailable", True),
        ({"httpConnectionFailed": {"httpStatusCode": 401}}, "who are you", False),
        ("usageLimitExceeded", "no more", False),
        ("other", "stream disconnected before completion: closed", True),
        ("other", '{"error": {"message": "bad request"}}', False),
        (None, "nothing said", False),
        ("somethingNew", "?", False),
    ],
)
def test_a_failure_says_whether_trying_again_may_help(info: Any, message: str, retryable: bool) -> None:
    assert turn_failure({"message": message, "codexErrorInfo": info}).retryable is retryable


def test_a_failed_turn_without_a_reason_still_has_a_message() -> None:
    failure = _failed_turn(None)
    assert failure.code == "other"
    assert failure.message


@pytest.mark.parametrize(
    ("sentence", "code", "http_status", "retryable"),
    [
        ("exceeded retry limit, last status: 429 Too Many Requests", "response_too_many_failed_attempts", 429, True),
        ("You’ve hit your usage limit. Try again at noon.", "usage_limit_exceeded", None, False),
        ("Quota exceeded. Check your plan and billing details.", "usage_limit_exceeded", None, False),
        ("We're currently experiencing high demand, which may …", "internal_server_error", None, True),
        ("unexpected status 503 Service Unavailable: boom", "http_connection_failed", 503, True),
        ("unexpected status 401 Unauthorized: no", "http_connection_failed", 401, False),
        ("Codex ran out of room in the model's context window.", "context_window_exceeded", None, False),
        ("rate limit exceeded: Please try again in 0.1s.", "rate_limit_exceeded", None, True),
        ("stream disconnected before completion: stream closed", "other", None, True),
        ('{"error": {"message": "bad"}}', "other", None, False),
    ],
)
def test_exec_tells_its_failures_in_sentences(
    sentence: str, code: str, http_status: int | None, retryable: bool
) -> None:
    (event,) = from_exec({"type": "turn.failed", "error": {"message": sentence}}, "T1", "U1")
    assert isinstance(event, TurnEnded)
    assert event.failure == Failure(code=code, message=sentence, retryable=retryable, http_status=http_status)


# --- notices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "message", "kind"),
    [
        ({"responseStreamDisconnected": {"httpStatusCode": 503}}, "Reconnecting... 1/5", "retry"),
        ({"responseStreamDisconnected": {"httpStatusCode": 429}}, "Reconnecting... 1/5", "rate_limit"),
        ("rateLimitExceeded", "Reconnecting... 1/5", "rate_limit"),
        ("other", "Reconnecting... waiting for network", "network"),
    ],
)
def test_an_attempt_that_is_repeated_is_a_notice(info: Any, message: str, kind: str) -> None:
    event = from_app_server(
        "error", {**WHERE, "error": {"message": message, "codexErrorInfo": info}, "willRetry": True}
    )
    assert isinstance(event, Notice)
    assert (event.kind, event.message, event.turn_id) == (kind, message, "U1")


def test_the_details_of_an_error_are_reported_once() -> None:
    error = {"message": "Reconnecting... 1/5", "additionalDetails": "unexpected status 503"}
    event = from_app_server("error", {**WHERE, "error": error, "willRetry": True})
    assert isinstance(event, Notice)
    assert event.message == "Reconnecting... 1/5 (unexpected status 503)"
    error = {"message": "Sorry: no", "additionalDetails": "no"}
    event = from_app_server("error", {**WHERE, "error": error, "willRetry": False})
    assert event == Notice(session_id="T1", turn_id="U1", kind="warning", message="Sorry: no")


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Reconnecting... waiting for network (Connection failed: error sending request)", "network"),
        ("Reconnecting... 1/5 (exceeded retry limit, last status: 429 Too Many Requests)", "rate_limit"),
        ("Reconnecting... 1/5 (stream disconnected before completion: stream closed)", "retry"),
        ("Something is odd", "warning"),
    ],
)
def test_an_error_line_of_exec_is_a_notice(message: str, kind: str) -> None:
    (event,) = from_exec({"type": "error", "message": message}, "T1", "U1")
    assert isinstance(event, Notice)
    assert (event.kind, event.message) == (kind, message)


@pytest.mark.parametrize(
    ("method", "params", "message"),
    [
        ("warning", {"threadId": "T1", "message": "Model metadata not found"}, "Model metadata not found"),
        ("configWarning", {"summary": "Disabled", "details": "not trusted"}, "Disabled: not trusted"),
        ("deprecationNotice", {"summary": "Old", "details": None}, "Old"),
        ("model/rerouted", {**WHERE, "fromModel": "a", "toModel": "b", "reason": "risk"}, None),
        ("mcpServer/startupStatus/updated", {"name": "lab", "status": "failed", "error": "no such file"}, None),
    ],
)
def test_notices_for_a_person_are_warnings(method: str, params: dict[str, Any], message: str | None) -> None:
    event = from_app_server(method, params)
    assert isinstance(event, Notice)
    assert event.kind == "warning"
    assert event.session_id == params.get("threadId", "")
    if message is not None:
        assert event.message == message
    for value in ("a", "b", "risk") if method == "model/rerouted" else ():
        assert value in event.message


def test_an_mcp_server_that_did_not_start_is_named_with_its_error() -> None:
    params = {"name": "lab", "status": "failed", "error": "no such file"}
    event = from_app_server("mcpServer/startupStatus/updated", params)
    assert isinstance(event, Notice)
    assert "lab" in event.message
    assert "no such file" in event.message


# --- the session -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        "codex/event/agent_message_delta",
        "rawResponseItem/completed",
        "thread/status/changed",
        "thread/started",
        "serverRequest/resolved",
        "item/fileChange/outputDelta",
    ],
)
def test_messages_without_news_are_no_events(method: str) -> None:
    assert (
        from_app_server(method, {**WHERE, "msg": {"type": "agent_message_delta", "delta": "x"}, "delta": "x"}) is None
    )


def test_a_starting_mcp_server_is_reported_to_its_session() -> None:
    method, ready = "mcpServer/startupStatus/updated", {"name": "lab", "status": "ready"}
    event = from_app_server(method, {"threadId": "T1", **ready})
    assert event == Untranslated(session_id="T1", name=method)
    assert event.raw == {"threadId": "T1", **ready}
    assert from_app_server(method, ready) is None  # its session is unknown


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("item/completed", {**WHERE, "item": {"type": "reasoning", "id": "r1"}}),
        ("item/reasoning/textDelta", {**WHERE, "itemId": "r1", "delta": "hm", "contentIndex": 1}),
        ("thread/tokenUsage/updated", {**WHERE, "tokenUsage": {}}),
        ("error", {**WHERE, "error": {"message": "no"}}),
    ],
)
def test_an_event_brings_codexs_own_message_which_is_no_part_of_its_value(method: str, params: dict[str, Any]) -> None:
    event = from_app_server(method, params)
    assert event is not None
    assert event.raw is params
    assert event == replace(event)
    event.forget_raw()
    assert event.raw is None


def test_an_unknown_notification_is_kept() -> None:
    event = from_app_server("thread/goal/updated", {**WHERE, "goal": {"objective": "win"}})
    assert event == Unknown(
        session_id="T1",
        turn_id="U1",
        name="thread/goal/updated",
        payload={**WHERE, "goal": {"objective": "win"}},
    )


def test_an_unknown_line_of_exec_is_kept() -> None:
    (event,) = from_exec({"type": "thread.paused", "for": "tea"}, "T1", "U1")
    assert event == Unknown(
        session_id="T1", turn_id="U1", name="thread.paused", payload={"type": "thread.paused", "for": "tea"}
    )


def test_applied_settings_come_in_our_spelling() -> None:
    settings = {"model": "m", "approvalPolicy": "never", "sandboxPolicy": {"type": "workspaceWrite"}}
    event = from_app_server("thread/settings/updated", {"threadId": "T1", "threadSettings": settings})
    assert event == SettingsApplied(session_id="T1", model="m", approval_policy="never", sandbox="workspace-write")


def test_a_session_gets_a_name() -> None:
    event = from_app_server("thread/name/updated", {"threadId": "T1", "threadName": "Bug hunt"})
    assert event == SessionRenamed(session_id="T1", name="Bug hunt")


def test_rate_limits_belong_to_no_session() -> None:
    window = {"usedPercent": 40, "windowDurationMins": 300, "resetsAt": 1894706501}
    snapshot = {"limitId": "codex", "limitName": None, "primary": window, "secondary": None, "planType": "pro"}
    event = from_app_server("account/rateLimits/updated", {"rateLimits": snapshot})
    limit = RateLimit(name="primary", used_percent=40.0, window_minutes=300, resets_at=1894706501)
    assert event == RateLimitsReported(session_id="", limits=(limit,), plan="pro")


def test_an_account_without_limits_reports_nothing() -> None:
    assert from_app_server("account/rateLimits/updated", {"rateLimits": {"primary": None, "planType": None}}) is None


def test_a_turn_with_an_unknown_status_has_ended_all_the_same() -> None:
    event = from_app_server("turn/completed", {"threadId": "T1", "turn": {"id": "U1", "status": "novel"}})
    assert event == TurnEnded(session_id="T1", turn_id="U1", outcome="completed")


# --- items -----------------------------------------------------------------------------------------------------------


def test_a_plan_without_steps_has_not_ended() -> None:
    event = from_app_server("turn/plan/updated", {**WHERE, "plan": []})
    assert isinstance(event, ItemUpdated)


def test_a_patch_being_written_is_an_update_of_its_item() -> None:
    changes = [{"path": "a", "kind": {"type": "add"}, "diff": "one\ntwo"}]
    event = from_app_server("item/fileChange/patchUpdated", {**WHERE, "itemId": "c1", "changes": changes})
    assert isinstance(event, ItemUpdated)
    assert isinstance(event.item, FileChange)
    assert (event.item.id, event.item.status) == ("c1", "in_progress")
    assert (event.item.changes[0].added, event.item.changes[0].removed) == (2, 0)


def test_parts_of_a_reasoning_summary_are_set_apart_as_in_the_whole() -> None:
    first = from_app_server("item/reasoning/summaryPartAdded", {**WHERE, "itemId": "r1", "summaryIndex": 0})
    second = from_app_server("item/reasoning/summaryPartAdded", {**WHERE, "itemId": "r1", "summaryIndex": 1})
    assert first is None
    assert second == ItemDelta(session_id="T1", turn_id="U1", item_id="r1", item_type="reasoning", text="\n\n")
    assert app_server_item({"type": "reasoning", "id": "r1", "summary": ["a", "b"]}) == Reasoning(
        id="r1", text="a\n\nb"
    )


def test_raw_reasoning_is_shown_where_there_is_no_summary() -> None:
    assert app_server_item({"type": "reasoning", "id": "r1", "summary": [], "content": ["raw"]}) == Reasoning(
        id="r1", text="raw"
    )


def test_an_empty_delta_is_no_event() -> None:
    assert from_app_server("item/agentMessage/delta", {**WHERE, "itemId": "m1", "delta": ""}) is None


@pytest.mark.parametrize(
    ("raw", "item"),
    [
        (
            {
                "type": "userMessage",
                "id": "1",
                "content": [{"type": "text", "text": "a"}, {"type": "localImage", "path": "x"}, {"type": "image"}],
            },
            UserMessage(id="1", text="a", images=2),
        ),
        (
            {"type": "agentMessage", "id": "1", "text": "a", "phase": "final_answer"},
            AgentMessage(id="1", text="a", phase="final_answer"),
        ),
        ({"type": "plan", "id": "1", "text": "First, …"}, ProposedPlan(id="1", text="First, …")),
        ({"type": "imageView", "id": "1", "path": "/a.png"}, ImageView(id="1", path="/a.png")),
        ({"type": "contextCompaction", "id": "1"}, ContextCompaction(id="1")),
        ({"type": "enteredReviewMode", "id": "1", "review": "changes"}, Review(id="1", text="changes")),
        ({"type": "exitedReviewMode", "id": "1", "review": "fine"}, Review(id="1", text="fine", finished=True)),
        (
            {"type": "webSearch", "id": "1", "query": "", "action": {"type": "openPage", "url": "http://x"}},
            WebSearch(id="1", query="http://x"),
        ),
        (
            {"type": "webSearch", "id": "1", "query": "", "action": {"type": "search", "queries": ["a", "b"]}},
            WebSearch(id="1", query="a, b"),
        ),
        (
            {"type": "dynamicToolCall", "id": "1", "tool": "t", "status": "completed", "success": False,
             "contentItems": [{"type": "inputText", "text": "no"}, {"type": "inputImage"}]},
            DynamicToolCall(id="1", status="failed", tool="t", result="no\n[inputImage]"),
        ),
        (
            {"type": "mcpToolCall", "id": "1", "server": "s", "tool": "t", "status": "failed",
             "arguments": {"a": 1}, "error": {"message": "user rejected MCP tool call"}},
            McpToolCall(
                id="1", status="failed", server="s", tool="t", arguments={"a": 1}, error="user rejected MCP tool call"
            ),
        ),
        (
            {"type": "mcpToolCall", "id": "1", "server": "s", "tool": "t", "status": "completed",
             "result": {"content": [], "structuredContent": {"ü": 1}}},
            McpToolCall(id="1", server="s", tool="t", result='{"ü": 1}'),
        ),
        ({"type": "sleep", "id": "1"}, UnknownItem(id="1", name="sleep", payload={"type": "sleep", "id": "1"})),
    ],
)  # fmt: skip
def test_an_item_is_read(raw: dict[str, Any], item: Any) -> None:
    assert app_server_item(raw) == item


def test_an_item_of_history_keeps_its_own_status() -> None:
    assert app_server_item({"type": "commandExecution", "id": "1", "status": "inProgress"}).status == "in_progress"


def test_an_ended_item_has_ended_whatever_its_status_says() -> None:
    event = from_app_server("item/completed", {**WHERE, "item": {"type": "mcpToolCall", "status": "inProgress"}})
    assert isinstance(event, ItemEnded)
    assert event.item.status == "completed"


def test_sub_agents_are_named_by_the_calls_about_them() -> None:
    call = {"type": "collabAgentToolCall", "receiverThreadIds": ["T2"], "agentsStates": {"T3": {"status": "running"}}}
    assert sub_agents(app_server_item(call)) == ("T2", "T3")


def test_sub_agents_are_named_by_their_activity() -> None:
    activity = {"type": "subAgentActivity", "id": "1", "kind": "started", "agentThreadId": "T2", "agentPath": "/root/a"}
    item = app_server_item(activity)
    assert sub_agents(item) == ("T2",)
    assert isinstance(item, CollabToolCall)
    assert item.agents[0].status == "started"


def test_a_message_names_no_sub_agents() -> None:
    assert sub_agents(AgentMessage(id="1", text="T2")) == ()


# --- exec's spellings ------------------------------------------------------------------------------------------------


def test_older_spellings_of_exec_are_read() -> None:
    line = {"type": "item.completed", "item": {"id": "item_0", "item_type": "assistant_message", "text": "Hi"}}
    (event,) = from_exec(line, "T1", "U1")
    assert event == ItemEnded(session_id="T1", turn_id="U1", item=AgentMessage(id="item_0", text="Hi"))


def test_a_warning_in_exec_is_an_error_item() -> None:
    line = {"type": "item.completed", "item": {"id": "item_0", "type": "error", "message": "odd setting"}}
    (event,) = from_exec(line, "T1", "U1")
    assert event == ItemEnded(session_id="T1", turn_id="U1", item=ErrorItem(id="item_0", message="odd setting"))


def test_a_turn_of_exec_may_end_without_usage() -> None:
    assert from_exec({"type": "turn.completed"}, "T1", "U1") == (
        TurnEnded(session_id="T1", turn_id="U1", outcome="completed"),
    )


def test_the_start_of_a_thread_is_no_event() -> None:
    assert from_exec({"type": "thread.started", "thread_id": "T1"}, "", "U1") == ()


@pytest.mark.parametrize(
    ("now", "said", "at"),
    [
        ("2026-11-16 07:30:12", "try again at 9:53 AM.", "2026-11-16 09:54:00"),
        ("2026-11-16 07:30:12", "Try again at 12:05 PM.", "2026-11-16 12:06:00"),
        ("2026-11-16 23:50:00", "try again at 12:05 AM.", "2026-11-17 00:06:00"),
        ("2026-11-16 07:30:12", "try again at 7:30 AM.", "2026-11-16 07:31:00"),
        ("2026-11-16 07:30:12", "try again at Nov 19th, 2026 7:53 AM.", "2026-11-19 07:54:00"),
        ("2026-11-16 07:30:12", "try again at Mar 1st, 2027 7:53\u202fPM.", "2027-03-01 19:54:00"),
        ("2026-11-16 07:30:12", "try again later.", None),
        ("2026-11-16 07:30:12", "try again at Nov 31st, 2026 7:53 AM.", None),
        ("2026-11-16 07:30:12", "try again at Dec 31st, 9999 11:59 PM.", None),
    ],
)
def test_when_a_limit_is_there_again_is_read_from_what_codex_tells_people(now: str, said: str, at: str | None) -> None:
    expected = None if at is None else datetime.fromisoformat(at).astimezone(UTC)
    message = f"You\u2019ve hit your usage limit. Visit https://chatgpt.com/settings/usage or {said}"
    assert resets_at(message, datetime.fromisoformat(now)) == expected
    assert failure_from_sentence(message).code == USAGE_LIMIT
