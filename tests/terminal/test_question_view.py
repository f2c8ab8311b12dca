from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from helmsman.model.question_text import describe
from helmsman.model.questions import Prompt, Question, QuestionType
from helmsman.terminal.question_view import DIFF_LINES, question_lines, whole_diff

CONSOLE = Console(width=80, file=io.StringIO())
TYPES: list[QuestionType] = [
    "command_approval",
    "patch_approval",
    "permission_approval",
    "user_input",
    "mcp_elicitation",
]


def _question(kind: QuestionType, details: Mapping[str, Any], text: str = "?", agent_id: str | None = None) -> Question:
    return Question(
        asker="Codex",
        id="q",
        type=kind,
        session_id="s",
        turn_id="t",
        agent_id=agent_id,
        prompts=(Prompt(text=text, options=("approve", "deny")),),
        details=details,
    )


def _shown(question: Question, directory: str | None = "/repo") -> str:
    lines, _ = question_lines(CONSOLE, question, directory=directory)
    return "\n".join(line.plain for line in lines)


@pytest.mark.parametrize(
    ("kind", "details", "shown"),
    [
        (
            "command_approval",
            {"command": "ls", "directory": "/elsewhere", "additionalPermissions": {"network": {"enabled": True}}},
            "? Codex asks to run a command outside the sandbox\n  Command: ls\n  Directory: /elsewhere\n"
            "  Permission: network access",
        ),
        (
            "command_approval",
            {},
            "? Codex asks to run a command outside the sandbox\n  Command: Codex does not say which",
        ),
        (
            "patch_approval",
            {"grantRoot": "/", "reason": "it must"},
            "? Codex asks to change files, outside the sandbox\n  Files: Codex does not say which\n"
            "  Permission: write to everything under /, for the rest of the session\n  Reason given: it must",
        ),
        (
            "permission_approval",
            {"directory": "/repo"},
            "? Codex asks for more permissions\n  Permission: Codex does not say which\n  Directory: /repo",
        ),
        ("user_input", {}, "? Codex asks you\n  Question: the text"),
        (
            "mcp_elicitation",
            {"server": "lab", "toolDescription": "Writes", "toolParams": {"p": "x"}, "url": "https://x"},
            "? An MCP server asks you, through Codex\n  Server: lab\n  Asks: the text\n  Parameters: {\n"
            '    │   "p": "x"\n    │ }\n  Opens: https://x\n  The tool says of itself: Writes',
        ),
    ],
)
def test_each_kind_of_question_shows_what_one_needs_to_decide(
    kind: QuestionType, details: dict[str, Any], shown: str
) -> None:
    assert _shown(_question(kind, details, text="the text")) == "\n" + shown


def test_a_sub_agent_is_named_as_the_one_who_asks() -> None:
    assert "? A sub-agent of Codex asks to run a command" in _shown(_question("command_approval", {}, agent_id="a"))


def test_a_directory_other_than_the_sessions_stands_out() -> None:
    question = _question("command_approval", {"command": "ls", "directory": "/repo"})

    def is_yellow(directory: str) -> bool:
        lines, _ = question_lines(CONSOLE, question, directory=directory)
        return any(span.style == "yellow" for span in lines[-1].spans)

    assert is_yellow("/other")
    assert not is_yellow("/repo")


def test_a_long_diff_is_cut_and_can_be_had_whole() -> None:
    question = _question("patch_approval", {"diff": "--- a/x\n+++ b/x\n@@ -0,0 +1,500 @@\n" + "+x\n" * 500})
    lines, left_out = question_lines(CONSOLE, question)
    assert "  Changes: x  +500 -0" in [line.plain for line in lines]
    assert left_out == 502 - DIFF_LINES
    assert lines[-1].plain == f"  … {left_out} more lines"
    assert len(whole_diff(CONSOLE, question)) == 502


_JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | inner)
_KEYS = ["command", "directory", "reason", "diff", "grantRoot", "server", "toolParams", "url", "networkContext"]


@given(st.sampled_from(TYPES), st.dictionaries(st.sampled_from(_KEYS), _JSON), st.text())
def test_no_details_whatever_raise_or_reach_the_terminal_unseen(
    kind: QuestionType, details: dict[str, Any], text: str
) -> None:
    shown = _shown(_question(kind, details, text))
    assert all(char.isprintable() or char == "\n" or not char.isascii() for char in shown)


@given(
    st.sampled_from(["Directory: /safe", "? Codex asks", "Permission: none", "  y  approve"]),
    st.integers(20, 120),
    st.integers(0, 130),
)
def test_no_line_that_the_width_breaks_looks_like_ours(forged: str, width: int, padding: int) -> None:
    text = "x" * padding + f"\n{forged} " + "y" * padding + f" {forged}\u2028{forged}"
    details = {
        "command": text,
        "directory": "/repo",
        "reason": text,
        "diff": f"{text}\n@@ -1 +1 @@\n-{forged}\n+{text}\n",
    }
    for kind in TYPES:
        console = Console(width=width, file=io.StringIO())
        lines, _ = question_lines(console, _question(kind, details, text=text), directory="/repo")
        assert all(line.cell_len <= width for line in lines[2:])  # or the terminal breaks it, where it likes
        ours = [line.plain for line in lines if not line.plain.startswith("    │")]
        assert all(line == "" or line.startswith(("? ", "  ")) for line in ours)
        labels = [line.label for line in describe(_question(kind, details, text=text)).lines if line.label]
        assert [line.strip().partition(":")[0] for line in ours[2:]] == labels


def test_values_that_are_no_json_are_shown_somehow() -> None:
    assert "Permission: 1: " in _shown(
        _question("command_approval", {"command": "x", "additionalPermissions": {1: object()}})
    )
