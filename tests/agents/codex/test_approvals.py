"""Requests of Codex as questions, choices as what Codex expects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.agents.codex import questions
from helmsman.agents.codex.questions import RequestContext, read_question, write_answer
from helmsman.base.jsonrpc import IncomingRequest
from helmsman.errors import AnswerInvalid
from helmsman.model.events import FileChange, PathChange
from helmsman.model.question_text import describe
from helmsman.model.questions import Choice, Question, read_answers

METHODS = (
    questions.COMMAND,
    questions.FILE_CHANGE,
    questions.PERMISSIONS,
    questions.USER_INPUT,
    questions.ELICITATION,
    questions.LEGACY_COMMAND,
    questions.LEGACY_FILE_CHANGE,
)


def request(method: str, request_id: int = 0, **params: Any) -> IncomingRequest:
    return IncomingRequest(request_id, method, {"threadId": "T1", "turnId": "U1", "itemId": "call_1", **params})


NOTHING = RequestContext()


def ask(request: IncomingRequest, around: RequestContext = NOTHING, session: str = "T1") -> Question:
    question = read_question(request, session, around)
    assert question is not None
    return question


def answer(request: IncomingRequest, *answers: str) -> Any:
    return write_answer(request, read_answers(ask(request), answers))


def test_a_command_shows_what_it_is_where_and_why() -> None:
    question = ask(request(questions.COMMAND, command="git pull", cwd="/src", reason="need it"))
    assert question.type == "command_approval"
    assert question.details == {"command": "git pull", "directory": "/src", "reason": "need it", "sandbox": "outside"}
    assert "\nCommand: git pull\n" in describe(question).text()
    assert question.prompts[0].options == ("approve", "approve_session", "deny", "abort")


def test_remarks_of_codex_are_no_part_of_the_question() -> None:
    told: dict[str, Any] = {"commandActions": [{"type": "read", "command": "cat a"}], "environmentId": "lab"}
    question = ask(request(questions.COMMAND, command="cat a", proposedExecpolicyAmendment=["cat"], **told))
    assert question.details == {"command": "cat a", "sandbox": "outside"}
    assert question.environment == "lab"


@pytest.mark.parametrize(
    ("choice", "decision"),
    [("approve", "accept"), ("approve_session", "accept"), ("deny: no", "decline"), ("abort", "cancel")],
)
@pytest.mark.parametrize("method", [questions.COMMAND, questions.FILE_CHANGE])
def test_decisions_are_spelled_as_codex_expects(method: str, choice: str, decision: str) -> None:
    assert answer(request(method), choice) == {"decision": decision}


@pytest.mark.parametrize(
    ("choice", "decision"),
    [("approve", "approved"), ("approve_session", "approved"), ("deny", "denied"), ("abort", "abort")],
)
@pytest.mark.parametrize("method", [questions.LEGACY_COMMAND, questions.LEGACY_FILE_CHANGE])
def test_the_legacy_forms_have_their_own_spelling(method: str, choice: str, decision: str) -> None:
    legacy = IncomingRequest(0, method, {"conversationId": "T1", "callId": "c", "command": ["git", "pull"]})
    assert questions.thread_of(legacy) == "T1"
    assert answer(legacy, choice) == {"decision": decision}


def test_extra_permissions_are_approved_one_command_at_a_time() -> None:
    question = ask(request(questions.COMMAND, command="x", additionalPermissions={"network": {"enabled": True}}))
    assert "approve_session" not in question.prompts[0].options


def test_a_patch_brings_its_real_diff() -> None:
    change = PathChange(path="/src/a.txt", kind="update", diff="@@ -1 +1 @@\n-old\n+new\n", moved_to="/src/b.txt")
    around = RequestContext(patch=FileChange(id="call_1", changes=(change,)))
    question = ask(request(questions.FILE_CHANGE, reason=None), around)
    assert question.type == "patch_approval"
    assert question.details["paths"] == ["/src/a.txt", "/src/b.txt"]
    assert "-old\n+new\n" in question.details["diff"]
    assert question.details["changes"] == [{"path": "/src/a.txt", "kind": "update", "movedTo": "/src/b.txt"}]


def test_permissions_are_granted_as_asked_for_the_turn_or_the_session_or_not_at_all() -> None:
    wanted = {"network": {"enabled": True}, "fileSystem": {"read": None, "write": ["/var/tmp"]}}
    asked = request(questions.PERMISSIONS, permissions=wanted, reason="need net")
    assert [line.text for line in describe(ask(asked)).lines] == ["network access", "write to /var/tmp", "need net"]
    assert answer(asked, "approve") == {"permissions": wanted, "scope": "turn"}
    assert answer(asked, "approve_session") == {"permissions": wanted, "scope": "session"}
    assert answer(asked, "deny") == {"permissions": {}, "scope": "turn"}


def test_a_question_of_the_model_has_one_part_for_each_of_its_questions() -> None:
    asked = request(
        questions.USER_INPUT,
        questions=[
            {"id": "q1", "header": "Pick", "question": "Which?", "options": [{"label": "A", "description": "first"}]},
            {"id": "q2", "question": "Name?", "isSecret": True, "options": None},
        ],
    )
    question = ask(asked)
    assert [prompt.options for prompt in question.prompts] == [("A",), ()]
    assert question.prompts[1].secret
    assert answer(asked, "A", "bob: the builder") == {
        "answers": {"q1": {"answers": ["A"]}, "q2": {"answers": ["bob: the builder"]}}
    }


def test_of_the_answers_that_codex_offers_for_a_tool_those_that_last_are_left_out() -> None:
    labels = ["Allow", "Allow for this session", "Always allow", "Allow and don't ask me again", "Decline", "Cancel"]
    entry = {"question": "Run it?", "options": [{"label": label} for label in labels]}
    tool = request(questions.USER_INPUT, questions=[{"id": "mcp_tool_call_approval_call_1", **entry}])
    assert ask(tool).prompts[0].options == ("Allow", "Decline", "Cancel")
    models_own = request(questions.USER_INPUT, questions=[{"id": "q1", **entry}])
    assert ask(models_own).prompts[0].options == tuple(labels)


FORM = request(
    questions.ELICITATION,
    serverName="lab",
    message="Your order?",
    requestedSchema={
        "type": "object",
        "properties": {
            "name": {"type": "string", "title": "Name", "description": "who"},
            "count": {"type": "integer"},
            "price": {"type": "number"},
            "gift": {"type": "boolean"},
            "size": {"type": "string", "enum": ["s", "l"], "enumNames": ["small", "large"]},
            "colour": {"oneOf": [{"const": "r", "title": "red"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name"],
    },
)


def test_a_form_of_an_mcp_server_becomes_a_decision_and_its_fields() -> None:
    question = ask(FORM)
    assert question.prompts[0].options == ("accept", "decline", "cancel")
    assert [prompt.text for prompt in question.prompts[1:3]] == ["Name: who", "count"]
    assert [prompt.options for prompt in question.prompts[4:7]] == [("true", "false"), ("s", "l"), ("r",)]
    assert answer(FORM, "accept", "bob", "3", "1.5", "true", "l", "r", "a, b") == {
        "action": "accept",
        "content": {
            "name": "bob", "count": 3, "price": 1.5, "gift": True, "size": "l", "colour": "r", "tags": ["a", "b"],
        },
    }  # fmt: skip


def test_a_field_that_need_not_be_filled_in_may_stay_empty() -> None:
    form = request(questions.ELICITATION, requestedSchema={"properties": {"a": {"type": "integer"}}})
    assert answer(form, "accept", "") == {"action": "accept", "content": {}}


def test_a_field_of_the_wrong_type_is_refused() -> None:
    form = request(questions.ELICITATION, requestedSchema={"properties": {"a": {"type": "integer"}}})
    with pytest.raises(AnswerInvalid, match="not a valid integer for 'a'"):
        answer(form, "accept", "three")


def test_declining_a_form_sends_no_content() -> None:
    assert answer(FORM, "decline") == {"action": "decline", "content": None}


def test_the_approval_of_an_mcp_tool_shows_the_tool_and_its_arguments() -> None:
    asked = request(
        questions.ELICITATION,
        serverName="lab",
        message='Allow the lab MCP server to run tool "write"?',
        requestedSchema={"type": "object", "properties": {}},
        _meta={"codex_approval_kind": "mcp_tool_call", "tool_params": {"p": "x"}},
    )
    details = {"server": "lab", "approvalKind": "mcp_tool_call", "toolParams": {"p": "x"}}
    assert ask(asked).details == details
    assert ask(asked, RequestContext(tools=frozenset({("lab", "write")}))).details == {**details, "tool": "write"}
    assert ask(asked, RequestContext(tools=frozenset({("lab", "other")}))).details == details
    assert answer(asked, "accept") == {"action": "accept", "content": {}}


@pytest.mark.parametrize("method", METHODS)
def test_no_answer_lets_nothing_happen(method: str) -> None:
    sent = write_answer(request(method, questions=[{"id": "q"}], permissions={"network": {"enabled": True}}), None)
    assert sent in (
        {"decision": "decline"},
        {"decision": "denied"},
        {"permissions": {}, "scope": "turn"},
        {"answers": {}},
        {"action": "decline", "content": None},
    )


def test_anything_else_is_not_a_question() -> None:
    assert read_question(request("item/tool/call"), "T1", RequestContext()) is None


def test_the_same_request_sent_again_keeps_its_id_and_no_other_request_gets_it() -> None:
    first = ask(request(questions.COMMAND)).id
    assert ask(request(questions.COMMAND)).id == first
    assert ask(request(questions.COMMAND, itemId="call_2")).id != first
    assert ask(request(questions.COMMAND, turnId="U2")).id != first


def test_a_sub_agents_question_names_the_agent() -> None:
    question = ask(request(questions.COMMAND), session="parent")
    assert (question.session_id, question.agent_id) == ("parent", "T1")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
KEYS = st.sampled_from(
    ["threadId", "turnId", "itemId", "command", "cwd", "reason", "questions", "permissions", "requestedSchema", "_meta",
     "message", "serverName", "additionalPermissions", "conversationId", "callId"]
)  # fmt: skip


@given(st.sampled_from(METHODS), st.dictionaries(KEYS, JSON))
def test_any_request_becomes_a_question_that_can_be_refused(method: str, params: dict[str, Any]) -> None:
    odd = IncomingRequest(0, method, params)
    question = read_question(odd, "T1", RequestContext())
    assert question is not None
    write_answer(odd, None)
    if question.prompts and "approve" in question.prompts[0].options:
        write_answer(odd, (Choice("approve"),))
