"""Tests with random questions and commands: nothing is allowed by chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from helmsman.approvals.shell_words import quoted
from helmsman.model.questions import QuestionType
from helmsman.model.rules import Rule
from tests.approvals.policy_questions import GIT_STATUS, HERE, LS, allow, ask, command, decided, deny, mcp

SCALARS = st.none() | st.integers() | st.text(max_size=20)


ANYTHING = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(max_size=3), SCALARS, max_size=2)


KINDS: list[QuestionType] = [
    "command_approval",
    "patch_approval",
    "permission_approval",
    "user_input",
    "mcp_elicitation",
]


KEYS = [
    "command",
    "directory",
    "paths",
    "files",
    "server",
    "tool",
    "approvalKind",
    "mode",
    "grantRoot",
    "networkContext",
]


@given(kind=st.sampled_from(KINDS), details=st.dictionaries(st.sampled_from(KEYS), ANYTHING))
def test_no_question_whatever_raises_or_is_allowed_by_chance(kind: QuestionType, details: dict[str, Any]) -> None:
    rules = [allow("git", "status"), deny("rm", "-rf", "x"), mcp("allow", "lab", "write"), deny("x", directory=HERE)]
    rules.append(Rule(effect="allow", type="patch_approval", directory=Path("/nowhere")))
    assert decided(ask(kind, **details), *rules, switch=True).effect != "allow"


@given(text=st.text())
def test_no_random_text_is_allowed(text: str) -> None:
    assert decided(command(text), allow("git", "status"), allow("no-such-program")).effect == "ask"


ALLOWED = [
    "git status -s",
    "git status && ls -la | git status",
    "/bin/bash -lc 'git status -s && ls'",
    "cd sub && ls -la",
]


INTRUDERS = [
    "; rm -rf /",
    "$(rm -rf /)",
    "`rm -rf /`",
    "&& rm -rf / &&",
    "| rm -rf / |",
    "& rm -rf / &",
    "<(rm -rf /)",
    " > x ",
]


@settings(max_examples=1000)
@given(base=st.sampled_from(ALLOWED), intruder=st.sampled_from(INTRUDERS), place=st.floats(0, 1))
def test_an_allowed_command_with_anything_inserted_is_not_allowed(base: str, intruder: str, place: float) -> None:
    at = round(place * len(base))
    assert decided(command(base), GIT_STATUS, LS).effect == "allow"
    assert decided(command(base[:at] + intruder + base[at:]), GIT_STATUS, LS).effect == "ask"


@given(base=st.sampled_from(["git status -s", "/bin/bash -lc 'git status -s'"]), data=st.data())
def test_a_newline_in_the_middle_of_an_allowed_command_does_not_stay_allowed(base: str, data: st.DataObject) -> None:
    script = base.find("git")
    at = data.draw(st.integers(script + 1, script + len("git status -s") - 1))
    assert decided(command(base[:at] + "\n" + base[at:]), GIT_STATUS, LS).effect == "ask"


@given(words=st.lists(st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126)), max_size=5))
def test_any_quoted_text_after_an_allowed_prefix_is_an_argument(words: list[str]) -> None:
    text = f"/bin/bash -lc {quoted([quoted(['ls', *words])])}"
    assert decided(command(text), LS).effect == "allow"
