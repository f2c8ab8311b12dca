"""Approvals in the removed server's form, the replies to them, and the arguments of its tools."""

from __future__ import annotations

from typing import Any

import pytest

from helmsman.mcp.compat_questions import answer, asked, elicitation
from helmsman.mcp.compat_schema import BadArguments, read_codex, read_reply
from helmsman.model.questions import Prompt, Question

THREAD = "01a1ddd1-1bab-73c3-8b00-9a9ff3be1999"


def asking(kind: Any = "command_approval", *options: str, **details: Any) -> Question:
    prompt = Prompt(text="?", options=options or ("approve", "approve_session", "approve_always", "deny", "abort"))
    return Question(
        asker="Codex",
        id="q",
        type=kind,
        session_id="T",
        turn_id="t",
        item_id="c",
        prompts=(prompt,),
        details=details or {"command": "ls"},
    )


@pytest.mark.parametrize(
    ("reply", "chosen"),
    [
        ({"decision": "approved"}, "approve"),
        ({"decision": "approved_for_session"}, "approve_session"),
        ({"decision": {"approved_execpolicy_amendment": {"proposed_execpolicy_amendment": ["ls"]}}}, "approve_always"),
        ({"decision": "denied"}, "deny"),
        ({"decision": "abort"}, "abort"),
        ({"decision": "nonsense"}, "deny"),
        ({"decision": 1}, "deny"),
        ({"decision": {}}, "deny"),
        ({"action": "accept"}, "approve"),
        ({"action": "accept", "content": {}}, "approve"),
        ({"action": "accept", "content": {"decision": "denied"}}, "deny"),
        ({"action": "accept", "decision": "denied"}, "deny"),
        ({"action": "decline"}, "deny"),
        ({"action": "decline", "decision": "approved"}, "deny"),
        ({"action": "cancel", "decision": "approved_for_session"}, "deny"),
        ({"action": "cancel", "decision": "abort"}, "abort"),
        ({"action": "cancel", "content": {"decision": "approved"}}, "deny"),
        ({}, "deny"),
    ],
)
def test_only_a_plain_yes_is_a_yes(reply: dict[str, Any], chosen: str) -> None:
    assert answer(asking(), reply) == chosen


def test_a_lasting_yes_that_is_not_offered_is_a_yes_for_once() -> None:
    once = asking("command_approval", "approve", "deny")
    assert answer(once, {"decision": "approved_for_session"}) == "approve"
    assert answer(once, {"decision": "abort"}) == "deny"


def test_the_reason_for_a_change_and_the_place_it_wants_are_reported() -> None:
    question = asking("patch_approval", reason="because", grantRoot="/src")
    message = asked(question, None, {})
    assert message is not None
    params = elicitation(question, message, call_id="1", event_id="1")
    assert params["message"].split("\n") == [
        "Allow Codex to apply proposed code changes?",
        "Codex asks to change files, outside the sandbox",
        "Files: Codex does not say which",
        "Permission: write to everything under /src, for the rest of the session",
        "Reason given: because",
    ]
    assert (params["codex_reason"], params["codex_grant_root"]) == ("because", "/src")


def test_other_questions_are_asked_by_ordinary_forms() -> None:
    assert asked(asking("user_input"), None, {}) is None


def test_proposed_rules_and_parsed_commands_are_reported() -> None:
    raw = {"proposedExecpolicyAmendment": ["ls"], "commandActions": [{"type": "listFiles", "command": "ls"}]}
    message = asked(asking(), None, raw)
    assert message is not None
    assert message["proposed_execpolicy_amendment"] == ["ls"]
    assert message["parsed_cmd"] == [{"type": "list_files", "cmd": "ls", "path": None}]


def test_all_arguments_are_read() -> None:
    arguments = read_codex(
        {
            "prompt": "go",
            "cwd": "sub",
            "model": "m",
            "approval-policy": "on-failure",
            "sandbox": "read-only",
            "config": {"a": 1},
            "base-instructions": "b",
            "developer-instructions": "d",
            "compact-prompt": "c",
            "profile": "p",
        }
    )
    assert (arguments.prompt, arguments.cwd) == ("go", "sub")
    assert arguments.options == {
        "agent": "codex",
        "model": "m",
        "approval_policy": "on-failure",
        "sandbox": "read-only",
        "config": {"a": 1, "compact_prompt": "c"},
        "base_instructions": "b",
        "developer_instructions": "d",
        "profile": "p",
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"prompt": "go", "config": []}, "invalid type: sequence, expected a map"),
        ({"prompt": "go", "config": "x"}, "invalid type: string, expected a map"),
        ({"prompt": "go", "cwd": True}, "invalid type: boolean, expected a string"),
        ({"prompt": {}}, "invalid type: map, expected a string"),
    ],
)
def test_an_argument_of_a_wrong_kind_is_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(BadArguments, match=words):
        read_codex(arguments)


def test_the_newer_name_of_a_thread_wins() -> None:
    assert read_reply({"prompt": "go", "threadId": THREAD, "conversationId": "old"}).thread_id == THREAD
    assert read_reply({"prompt": "go", "conversationId": THREAD.upper()}).thread_id == THREAD


def test_a_patch_that_is_not_shown_whole_takes_no_yes() -> None:
    def about(lines: int) -> Question:
        diff = "".join(f"+line {number:05}\n" for number in range(lines))
        return asking("patch_approval", diff=f"--- a/x\n+++ b/x\n@@ -0,0 +1,{lines} @@\n{diff}")

    shown, cut = about(2_000), about(20_000)
    announced: dict[str, Any] = {"changes": {}}
    whole = elicitation(shown, announced, call_id="1", event_id="1")["message"]
    assert all(f"line {number:05}" in whole for number in range(2_000))
    assert answer(shown, {"decision": "approved"}) == "approve"
    assert "it can only be refused here" in elicitation(cut, announced, call_id="1", event_id="1")["message"]
    for decision in ("approved", "approved_for_session"):
        assert answer(cut, {"decision": decision}) is None
    assert answer(cut, {"action": "accept"}) is None
    assert answer(cut, {"decision": "denied"}) == "deny"
    assert answer(cut, {"decision": "abort"}) == "abort"
