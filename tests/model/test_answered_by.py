"""Who answered, as it is spelled in the audit log and as it is said to people."""

from __future__ import annotations

import pytest

from helmsman.model.answered_by import (
    COMMAND_LINE,
    DEADLINE,
    HANDLER,
    PERSON_AT_TERMINAL,
    PERSON_IN_DASHBOARD,
    AnsweredBy,
    in_words,
)


@pytest.mark.parametrize(
    ("by", "spelled", "via"),
    [
        (PERSON_IN_DASHBOARD, "person", "dashboard"),
        (PERSON_AT_TERMINAL, "person", "terminal"),
        (AnsweredBy("person", "claude-code 2.1", "form"), "person", "form of claude-code 2.1"),
        (AnsweredBy("agent", "claude-code 2.1", "tool"), "agent: claude-code 2.1", "tool"),
        (AnsweredBy("agent", None, "tool"), "agent: unnamed", "tool"),
        (AnsweredBy("rule", "allow git status"), "rule: allow git status", None),
        (COMMAND_LINE, "command line", None),
        (HANDLER, "handler", None),
        (DEADLINE, "deadline", None),
    ],
)
def test_every_answerer_has_one_spelling(by: AnsweredBy, spelled: str, via: str | None) -> None:
    assert (str(by), by.through) == (spelled, via)


@pytest.mark.parametrize("name", ["person", "x\nperson", "deadline", " ", "a" * 5000])
def test_no_client_can_impersonate_another(name: str) -> None:
    spelled = str(AnsweredBy("agent", name, "tool"))
    assert spelled.startswith("agent: ")
    assert "\n" not in spelled
    assert len(spelled) < 250


@pytest.mark.parametrize(
    ("answer", "by", "reason", "said"),
    [
        ("approve", PERSON_IN_DASHBOARD, None, "approved by you in the dashboard"),
        ("deny", PERSON_AT_TERMINAL, "not today", "denied by you at the terminal: not today"),
        ("deny", AnsweredBy("person", "claude-code 2", "form"), None, "denied by you in a form of claude-code 2"),
        ("approve", AnsweredBy("agent", "cursor 1", "tool"), None, "approved by agent: cursor 1"),
        ("deny", AnsweredBy("rule", "deny git push"), "a rule denies it", "denied by rule: deny git push"),
        ("deny", DEADLINE, "no answer in 5 min", "denied: no answer in 5 min"),
        ("approve_session", COMMAND_LINE, None, "approved for the session at the command line"),
        ("blue", HANDLER, None, "answered “blue” by a handler"),
        (None, AnsweredBy("turn ended"), None, "withdrawn: its turn ended"),
    ],
)
def test_the_outcome_of_a_question_is_shown_in_words(
    answer: str | None, by: AnsweredBy, reason: str | None, said: str
) -> None:
    assert in_words(answer, str(by), by.through, reason) == said
