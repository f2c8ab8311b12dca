"""Lines of Claude Code, without one: what they mean as events, as questions, and as sessions on disk."""

from __future__ import annotations

import codecs
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from helmsman.agents.claude.binary import PROJECTS, spelled
from helmsman.agents.claude.normalise import TurnReader, failure_of, not_answered, read_question, write_answer
from helmsman.agents.claude.storage import ClaudeSessions
from helmsman.errors import InvalidInput
from helmsman.model.events import (
    AgentMessage,
    CollabToolCall,
    CommandExecution,
    ContextCompaction,
    DynamicToolCall,
    Event,
    FileChange,
    ItemEnded,
    ItemStarted,
    McpToolCall,
    Notice,
    PlanStep,
    ProposedPlan,
    SessionRenamed,
    TodoList,
    Unknown,
    Untranslated,
    UserMessage,
    WebSearch,
)
from helmsman.model.question_text import describe
from helmsman.model.questions import Choice

SESSION = "0199a213-81c0-7800-8aa1-bbab2a035a53"
HERE = "/src/repo"


def reader() -> TurnReader:
    return TurnReader(SESSION, "turn", HERE)


def calls(name: str, call_id: str = "call", **given: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": call_id, "name": name, "input": given}
    return {"type": "assistant", "message": {"id": f"m-{call_id}", "model": "claude", "content": [block]}}


def gives(content: Any, call_id: str = "call", *, is_error: bool = False, **more: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": is_error}
    return {"type": "user", "message": {"content": [block]}, **more}


def read(*lines: dict[str, Any]) -> list[Event]:
    reading = reader()
    return [event for line in lines for event in reading.read(line)]


def item_after(*lines: dict[str, Any]) -> Any:
    """Return the item as it ended."""
    started, ended = read(*lines)
    assert isinstance(started, ItemStarted)
    assert isinstance(ended, ItemEnded)
    assert started.item.status == "in_progress"
    return ended.item


# --- events ----------------------------------------------------------------------------------------------------------


def test_each_tool_becomes_the_item_that_people_know() -> None:
    todos = [{"content": "dig", "status": "completed"}, {"content": "plant", "status": "odd"}]
    made = item_after(calls("TodoWrite", todos=todos), gives("ok"))
    assert isinstance(made, TodoList)
    assert made.steps == (PlanStep("dig", "completed"), PlanStep("plant", "pending"))
    search = item_after(calls("WebFetch", url="https://example.org"), gives("ok"))
    assert (type(search), search.query) == (WebSearch, "https://example.org")
    helper = item_after(calls("Task", prompt="look around"), gives("found", is_error=True))
    assert (type(helper), helper.prompt, helper.status) == (CollabToolCall, "look around", "failed")
    other = item_after(calls("Frobnicate", depth=3), gives([{"type": "text", "text": "a"}, {"type": "image"}]))
    assert (type(other), other.tool, other.result) == (DynamicToolCall, "Frobnicate", "a")
    plan = item_after(calls("ExitPlanMode", plan="1. dig"), gives("stopped", is_error=True))
    assert (type(plan), plan.text, plan.status) == (ProposedPlan, "1. dig", "completed")


def test_output_of_an_mcp_tool_is_a_result_or_an_error() -> None:
    good = item_after(calls("mcp__notes__search", text="x"), gives("two notes"))
    assert (type(good), good.server, good.tool, good.result, good.error) == (
        McpToolCall,
        "notes",
        "search",
        "two notes",
        None,
    )
    bad = item_after(calls("mcp__notes"), gives("no such tool", is_error=True))
    assert (bad.server, bad.tool, bad.result, bad.error) == ("notes", "", None, "no such tool")


def test_a_command_has_its_exit_code_and_a_refused_one_no_output() -> None:
    failed = item_after(calls("Bash", command="false"), gives("Exit code 3\nwhy", is_error=True))
    assert isinstance(failed, CommandExecution)
    assert (failed.exit_code, failed.output, failed.declined) == (3, "why", False)
    meta = [{"permission_decision": {"decision": "reject"}}]
    refused = item_after(calls("Bash", command="rm x"), gives("no, thanks", is_error=True, tool_result_meta=meta))
    assert (refused.exit_code, refused.output, refused.declined) == (None, "", True)
    stopped = item_after(calls("Bash", command="sleep 9"), gives("", tool_use_result={"interrupted": True}))
    assert stopped.exit_code is None


def test_an_answer_that_keeps_to_a_schema_is_a_message() -> None:
    (ended,) = read(calls("StructuredOutput", answer="ü"))
    assert isinstance(ended, ItemEnded)
    assert isinstance(ended.item, AgentMessage)
    assert ended.item.text == '{"answer": "ü"}'


def test_unknown_and_unused_messages_are_kept_as_such() -> None:
    odd = {"type": "assistant", "message": {"id": "m", "content": [{"type": "hologram"}]}}
    known = [{"type": "keep_alive"}, {"type": "system", "subtype": "status"}]
    unknown = [{"type": "frob"}, {"type": "system", "subtype": "frob"}]
    assert read(odd, {"type": "result"}, gives("of a call that nobody made")) == []
    assert [type(event) for event in read(*known)] == [Untranslated, Untranslated]
    assert [(type(event), getattr(event, "name", "")) for event in read(*unknown)] == [
        (Unknown, "frob"),
        (Unknown, "system/frob"),
    ]


def test_names_summaries_and_attempts_are_reported() -> None:
    lines: list[dict[str, Any]] = [
        {"type": "system", "subtype": "session_title_changed", "title": "Digging"},
        {"type": "system", "subtype": "compact_boundary", "uuid": "c"},
        *(
            {"type": "system", "subtype": "api_retry", "attempt": 1, "max_retries": 9, "retry_delay_ms": 1500, **more}
            for more in ({}, {"error_status": 429, "error": "rate_limit"}, {"error_status": 500, "error": "odd"})
        ),
    ]
    renamed, compacted, *notices = read(*lines)
    assert isinstance(renamed, SessionRenamed)
    assert renamed.name == "Digging"
    assert isinstance(compacted, ItemEnded)
    assert isinstance(compacted.item, ContextCompaction)
    assert [notice.kind for notice in notices if isinstance(notice, Notice)] == ["network", "rate_limit", "retry"]
    assert isinstance(notices[0], Notice)
    assert notices[0].message == "The model gave no answer; attempt 1 of 9 failed, the next is in 1.5 s."


def test_items_open_at_the_end_of_a_turn_have_failed() -> None:
    reading = reader()
    list(reading.read(calls("Bash", command="sleep 9")))
    (ended,) = reading.close()
    assert isinstance(ended, ItemEnded)
    assert ended.item.status == "failed"
    assert list(reading.close()) == []


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({"result": "Claude AI usage limit reached|1"}, ("usage_limit_exceeded", False)),
        ({"result": "Prompt is too long"}, ("context_window_exceeded", False)),
        ({"subtype": "error_max_turns"}, ("max_turns", False)),
        ({"result": "Overloaded", "api_error_status": 529}, ("server_overloaded", True)),
        ({"result": "Bad gateway", "api_error_status": 502}, ("other", True)),
        ({"errors": ["this", "that"]}, ("other", False)),
    ],
)
def test_why_a_turn_failed_is_a_stable_code(result: dict[str, Any], told: tuple[str, bool]) -> None:
    failure = failure_of({"is_error": True, "subtype": "error", **result})
    assert failure is not None
    assert (failure.code, failure.retryable) == told
    assert failure.message


def test_a_turn_that_went_well_has_no_failure() -> None:
    assert failure_of({"is_error": False, "subtype": "success", "result": "usage limit"}) is None


# --- questions -------------------------------------------------------------------------------------------------------


def asked(tool: str, **given: Any) -> Any:
    request = {"subtype": "can_use_tool", "tool_name": tool, "input": given, "tool_use_id": "call"}
    line = {"type": "control_request", "request_id": "r1", "request": request}
    return read_question(line, SESSION, "turn", HERE, "inside")


def test_a_request_that_is_no_question_is_answered_with_an_error_and_grants_nothing() -> None:
    line = {"type": "control_request", "request_id": "r1", "request": {"subtype": "hook_callback"}}
    assert read_question(line, SESSION, None, None, "inside") is None
    response = not_answered("r1", "hook_callback")["response"]
    assert (response["subtype"], response["request_id"]) == ("error", "r1")
    assert "response" not in response


def test_a_tool_that_is_unknown_is_asked_about_with_all_that_it_was_given() -> None:
    question = asked("Frobnicate", depth=3, description="deeply").question
    assert (question.type, question.prompts[0].options) == ("permission_approval", ("approve", "deny"))
    assert question.details == {
        "permissions": {"Frobnicate": {"depth": 3, "description": "deeply"}},
        "directory": HERE,
        "reason": "deeply",
    }


def test_earlier_content_of_a_file_is_shown_as_known_only_where_it_is(tmp_path: Path) -> None:
    file, binary = tmp_path / "a.txt", tmp_path / "b"
    file.write_text("one\ntwo\n", encoding="utf-8")
    binary.write_bytes(b"\xff\xfe\x00")

    def change(path: Path | str) -> dict[str, Any]:
        shown: dict[str, Any] = asked("Write", file_path=str(path), content="one\n").question.details
        assert shown["paths"] == [str(path)]
        return dict(shown["changes"][0])

    assert change(file) == {"path": str(file), "kind": "update", "added": 0, "removed": 1}
    assert change(tmp_path / "new") == {"path": str(tmp_path / "new"), "kind": "add", "added": 1, "removed": 0}
    for unknown in (binary, tmp_path, "relative.txt"):
        assert "added" not in change(unknown)


def test_a_question_in_words_that_is_refused_is_no_answer() -> None:
    about = asked("AskUserQuestion", questions=[{"question": "Which?", "options": [{"label": "a"}]}])
    refused = write_answer(about, None)["response"]["response"]
    assert refused["behavior"] == "deny"
    given = write_answer(about, (Choice("a", "it is short"),))["response"]["response"]
    assert given["updatedInput"]["answers"] == {"Which?": "a: it is short"}


def test_a_yes_covers_what_was_shown_and_an_abort_stops_the_turn() -> None:
    about = asked("Bash", command="rm x")
    yes = write_answer(about, (Choice("approve"),))["response"]["response"]
    assert yes == {"behavior": "allow", "updatedInput": {"command": "rm x"}}
    no = write_answer(about, (Choice("deny", "not today"),))["response"]["response"]
    assert no == {"behavior": "deny", "message": "not today"}
    assert write_answer(about, (Choice("abort"),))["response"]["response"]["interrupt"] is True
    assert write_answer(about, None)["response"]["response"]["behavior"] == "deny"


# --- sessions on disk ------------------------------------------------------------------------------------------------


def at(minute: int) -> str:
    return f"2026-01-02T03:{minute:02}:00.000Z"


def said(words: str, minute: int, uuid: str, **more: Any) -> dict[str, Any]:
    about = {"uuid": uuid, "timestamp": at(minute), "cwd": HERE, "version": "2.1.0", "message": {"content": words}}
    return {"type": "user", **about, **more}


def answers(words: str, minute: int, stop: str | None = "end_turn", **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": words}]
    usage = {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 3}
    message = {"id": f"m{minute}", "model": "claude", "content": content, "stop_reason": stop, "usage": usage}
    return {"type": "assistant", "uuid": f"a{minute}", "timestamp": at(minute), "message": message, **more}


def kept(home: Path, *lines: dict[str, Any] | str, session_id: str = SESSION, place: str = HERE) -> ClaudeSessions:
    folder = home / PROJECTS / spelled(place)
    folder.mkdir(parents=True, exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line, separators=(",", ":")) for line in lines]
    (folder / f"{session_id}.jsonl").write_text("\n".join(texts) + "\n", encoding="utf-8")
    return ClaudeSessions(home)


def test_turns_are_read_with_how_each_ended(tmp_path: Path) -> None:
    error = {"content": [{"type": "text", "text": "Overloaded"}], "model": "<synthetic>"}
    plan = calls("ExitPlanMode", "plan", plan="1. dig")
    plan["message"]["stop_reason"] = "tool_use"
    sessions = kept(
        tmp_path,
        said("first", 1, "t1"),
        answers("half", 2, None, isSidechain=True),
        answers("done", 3),
        said("cut off", 4, "t2"),
        answers("I begin", 5, "tool_use"),
        said("fails", 6, "t3"),
        {"type": "assistant", "timestamp": at(7), "isApiErrorMessage": True, "apiErrorStatus": 529, "message": error},
        said("plan it", 8, "t4"),
        plan,
        said("[Request interrupted by user]", 9, "x"),
        {"type": "user", "message": {"content": [{"type": "text", "text": "[Request interrupted by user]"}]}},
        said("stop", 10, "t5"),
        {"type": "user", "message": {"content": [{"type": "text", "text": "[Request interrupted by user]"}]}},
        said("still at it", 11, "t6"),
        '{"type":"user","half',
    )
    turns = list(sessions.turns(SESSION))[::-1]
    assert [turn.turn_id for turn in turns] == ["t1", "t2", "t3", "t4", "t5", "t6"]
    assert [turn.outcome for turn in turns] == [
        "completed",
        "interrupted",
        "failed",
        "completed",
        "interrupted",
        "open",
    ]
    assert (turns[0].message, turns[0].model) == ("done", "claude")
    assert turns[0].usage is not None
    assert (turns[0].usage.input_tokens, turns[0].usage.output_tokens) == (7, 3)
    assert turns[2].error is not None
    assert turns[2].error.code == "server_overloaded"
    assert turns[5].ended_at is None
    one = sessions.turn(SESSION, "t2")
    assert one is not None
    assert one.message == "I begin"
    later = sessions.turn(SESSION, None, since=datetime(2026, 1, 2, 3, 7, tzinfo=UTC))
    assert later is not None
    assert later.turn_id == "t4"
    assert sessions.turn(SESSION, None, since=datetime(2027, 1, 1, tzinfo=UTC)) is None
    assert sessions.last_line(SESSION, "t1") == "a3"
    history = sessions.past_turns(SESSION)
    assert history is not None
    assert [turn.status for turn in history][-1] == "inProgress"
    assert isinstance(history[0].items[0], UserMessage)


def test_sessions_are_listed_by_what_was_last_said_in_pages_and_found_by_words(tmp_path: Path) -> None:
    ids = [f"{number}{SESSION[1:]}" for number in range(3)]
    for number, session_id in enumerate(ids):
        kept(tmp_path, said(f"dig hole {number}", number, "t"), answers("ok", number + 10), session_id=session_id)
    sessions = kept(tmp_path, '{"type":"summary"}', session_id=f"3{SESSION[1:]}")  # without any message
    kept(tmp_path, said("not a session", 1, "t"), session_id="notes")
    page, cursor = sessions.list(limit=2)
    assert [info.session_id for info in page] == [ids[2], ids[1]]
    rest, end = sessions.list(limit=2, cursor=cursor)
    assert ([info.session_id for info in rest], end) == ([ids[0]], None)
    assert [info.session_id for info in sessions.list(query="HOLE 1")[0]] == [ids[1]]
    assert sessions.list(directories=[str(tmp_path)])[0] == []
    with pytest.raises(InvalidInput, match="is not a cursor"):
        sessions.list(cursor="later")
    for unknown in ("../../etc/passwd", f"9{SESSION[1:]}"):
        assert sessions.find(unknown) is None
        assert sessions.past_turns(unknown) is None
        assert sessions.cost(unknown) == 0
        assert sessions.last_line(unknown, None) is None


def test_a_session_says_where_it_works_what_it_is_called_and_what_it_has_cost(tmp_path: Path) -> None:
    sessions = kept(
        tmp_path,
        {"type": "ai-title", "aiTitle": "Holes"},
        said("dig", 1, "t1", entrypoint="cli"),
        answers("ok", 2),
        {"type": "cost-state", "totalCostUSD": 1.5},
        {"type": "cost-state", "totalCostUSD": 2.5},
        {"type": "custom-title", "customTitle": "Digging"},
    )
    info = sessions.find(SESSION)
    assert info is not None
    assert (info.name, info.directory, info.first_prompt, info.model) == ("Digging", HERE, "dig", "claude")
    assert (info.source, info.engine_version) == ("cli", "2.1.0")
    assert sessions.cost(SESSION) == 2.5
    carried = kept(
        tmp_path / "there", said("dig", 1, "t1"), answers("ok", 2, cwd="/other"), '{"cwd": half', place="/other"
    )
    found = carried.find(SESSION)
    assert found is not None
    assert (found.name, found.directory) == (None, "/other")


def test_a_line_nested_too_deeply_to_be_read_is_passed_over(tmp_path: Path) -> None:
    deep = "[" * 10_000 + "]" * 10_000
    nested = f'{{"cwd":{deep}}}', f'{{"type":"custom-title","customTitle":{deep}}}'
    info = kept(tmp_path, said("dig", 1, "t1"), answers("ok", 2, cwd="/other"), *nested, place="/other").find(SESSION)
    assert info is not None
    assert (info.name, info.directory) == (None, "/other")


def test_a_name_of_which_half_is_written_is_not_taken(tmp_path: Path) -> None:
    lines = said("dig", 1, "t1"), answers("ok", 2), '{"type":"custom-title","customTitle":"Ha'
    info = kept(tmp_path, *lines).find(SESSION)
    assert info is not None
    assert info.name is None


@pytest.mark.parametrize(
    "encoded",
    [
        codecs.BOM_UTF16_LE + "one\ntwo one\none\none\n".encode("utf-16-le"),
        b"one\ntwo one\none\none\n",
        codecs.BOM_UTF8 + b"one\ntwo one\none\none\n",
        b"one\r\ntwo one\r\none\r\none\r\n",
    ],
)
def test_a_change_of_all_occurrences_is_shown_at_each_of_them(tmp_path: Path, encoded: bytes) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(encoded)
    given = {"old_string": "one", "new_string": "ONE", "replace_all": True}
    shown = asked("Edit", file_path=str(file), **given).question.details
    assert shown["changes"] == [{"path": str(file), "kind": "update", "added": 4, "removed": 4}]
    assert shown["diff"].count("ONE") == 4
    assert "unknown" not in shown


@pytest.mark.parametrize(
    ("content", "given"),
    [
        (codecs.BOM_UTF16_BE + "one one".encode("utf-16-be"), {"replace_all": True}),
        ("one one".encode("utf-16-le"), {"replace_all": True}),
        (b"caf\xe9 one one", {"replace_all": True}),
        (bytes(range(256)), {"replace_all": True}),
        (b"one" * (2 * 1024 * 1024), {"replace_all": True}),
        (b"another", {"replace_all": True}),
        (b"one one", {}),
        (b"two", {}),
        (b"one\ntwo\n", {"new_string": ""}),
        (b"one", {"old_string": ""}),
        (b"one\xe2\x80\x99s", {"old_string": "one's"}),
        (
            b"one",
            {
                "old_string": None,
                "edits": [{"old_string": "one", "new_string": "two"}, {"old_string": "one", "new_string": ""}],
            },
        ),
    ],
)
def test_a_change_that_cannot_be_described_is_shown_as_its_request(
    tmp_path: Path, content: bytes, given: dict[str, Any]
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(content)
    request = {"file_path": str(file), "old_string": "one", "new_string": "ONE"} | given
    question = asked("MultiEdit" if "edits" in request else "Edit", **request).question
    assert question.details["input"] == request
    assert question.details["changes"] == [{"path": str(file), "kind": "update"}]
    assert ("diff" in question.details) is not bool(given.get("replace_all"))
    assert "Not known" in {line.label for line in describe(question).lines}


def test_changes_are_shown_as_the_edits_say_and_as_they_came_to_be(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\none\n", encoding="utf-8")
    edits = [{"old_string": "one", "new_string": "ONE", "replace_all": True}, {"old_string": "two", "new_string": "2"}]
    shown = asked("MultiEdit", file_path=str(file), edits=edits).question.details
    assert shown["changes"] == [{"path": str(file), "kind": "update", "added": 3, "removed": 3}]
    hunk = {"oldStart": 1, "oldLines": 1, "newStart": 1, "newLines": 1, "lines": ["-one", "+ONE"]}
    made = item_after(
        calls("Edit", file_path=str(file), old_string="one", new_string="ONE"),
        gives("ok", toolUseResult={"structuredPatch": [hunk]}),
    )
    assert isinstance(made, FileChange)
    assert (made.changes[0].diff, made.changes[0].added) == ("@@ -1,1 +1,1 @@\n-one\n+ONE\n", 1)
    new = item_after(calls("Write", file_path="x", content="a\n"), gives("ok", tool_use_result={"type": "create"}))
    assert (new.changes[0].kind, new.changes[0].added) == ("add", 1)
