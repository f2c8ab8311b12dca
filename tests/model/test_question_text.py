"""What a question says names all that a yes grants, in words that no model can forge."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helmsman.base.sanitize import exact
from helmsman.base.structs import replace
from helmsman.model.question_text import GUTTER, Line, describe, in_a_line, part_texts, question_as_dict
from helmsman.model.questions import Prompt, Question, QuestionType

OPTIONS = ("approve", "deny")
TYPES: list[QuestionType] = [
    "command_approval",
    "patch_approval",
    "permission_approval",
    "user_input",
    "mcp_elicitation",
]


def _question(type_: QuestionType, /, text: str = "?", agent_id: str | None = None, **details: Any) -> Question:
    prompt = Prompt(text=text, options=OPTIONS)
    return Question(
        asker="Codex",
        id="q_1",
        type=type_,
        session_id="s",
        turn_id="t",
        agent_id=agent_id,
        prompts=(prompt,),
        details=details,
    )


def _lines(question: Question) -> list[tuple[str, str]]:
    return [(line.label, line.text) for line in describe(question).lines]


# --- in a line -------------------------------------------------------------------------------------------------------


def test_a_question_in_a_line_says_that_there_is_more_to_it() -> None:
    patch = _question("patch_approval", paths=["/a", "/b", "/c"], sandbox="inside")
    assert in_a_line(patch) == "Codex asks to change files, in the sandbox: /a and 2 more"
    assert in_a_line(_question("patch_approval", paths=["/a"])).endswith(": /a")
    asked = _question(
        "permission_approval", permissions={"network": {"enabled": True}, "fileSystem": {"write": ["/w"]}}
    )
    assert in_a_line(asked).endswith(" and 1 more")
    assert in_a_line(_question("command_approval", command="ls\nrm x")).endswith(": ls…")
    assert in_a_line(_question("command_approval", command="ls")).endswith(": ls")


# --- everything that is granted --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sandbox", "where"),
    [
        ("outside", "outside the sandbox"),
        ("inside-then-outside", "in the sandbox, and again outside if it refuses"),
        ("inside", "in the sandbox"),
        (None, "outside the sandbox"),
        ("something new", "outside the sandbox"),
    ],
)
def test_a_command_says_where_it_runs(sandbox: str | None, where: str) -> None:
    assert describe(_question("command_approval", command="ls", sandbox=sandbox)).title == (
        f"Codex asks to run a command {where}"
    )
    assert describe(_question("patch_approval", sandbox=sandbox)).title == f"Codex asks to change files, {where}"


def test_a_command_names_all_that_it_brings() -> None:
    question = _question(
        "command_approval",
        agent_id="sub",
        command="/bin/bash -lc 'curl x | sh'",
        directory="/x/outside",
        reason="I need it",
        additionalPermissions={"network": {"enabled": True}, "fileSystem": {"write": ["/"]}},
        networkContext={"host": "evil.example", "protocol": "https"},
        alwaysRule='[[rules]]\ncommand = ["curl", "x"]',
        something={"new": 1},
    )
    assert describe(question).text().split("\n") == [
        "A sub-agent of Codex asks to run a command outside the sandbox",
        "Command: curl x | sh",
        "Directory: /x/outside",
        "Permission: network access",
        "Permission: write anywhere",
        "Network: https to evil.example",
        "Reason given: I need it",
        'Also: something: {"new": 1}',
        "Always would add the rule: [[rules]]",
        '    │ command = ["curl", "x"]',
    ]


@pytest.mark.parametrize(
    "command",
    [
        "/tmp/evil/bash -lc ls",
        "./bash -lc ls",
        "bash -lc ls rm",
        "bash -ic ls",
        'bash -lc "echo $(id)"',
        "bash -lc 'a'; rm x",
        "fish -c ls",
    ],
)
def test_a_command_that_is_not_certain_to_be_its_script_is_shown_raw(command: str) -> None:
    assert _lines(_question("command_approval", command=command))[0] == ("Command", command)


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("""bash -lc 'it'\\''s'""", "it's"),
        ("""/bin/zsh -c "it's \\$HOME" """.strip(), "it's $HOME"),
        ("/usr/bin/bash -lc ls", "ls"),
        ("sh -c ''", ""),
    ],
)
def test_a_shell_with_a_script_is_its_script(command: str, script: str) -> None:
    assert _lines(_question("command_approval", command=command))[0] == ("Command", script)


def test_the_agent_that_asks_is_named() -> None:
    for kind in ("command_approval", "patch_approval", "permission_approval", "mcp_elicitation", "user_input"):
        words = describe(replace(_question(kind), asker="Gemini")).text()
        assert "Gemini" in words.split("\n")[0]
        assert "Codex" not in words
    through = describe(replace(_question("mcp_elicitation", agent_id="sub"), asker="Gemini")).title
    assert through == "An MCP server asks you, through a sub-agent of Gemini"


def test_typing_into_a_running_command_is_not_running_one() -> None:
    question = _question("command_approval", command="yes\n", kind="writeStdin")
    assert describe(question).text().split("\n") == [
        "Codex asks to type into a command that runs outside the sandbox",
        "Command: yes\\n",
    ]
    assert _lines(_question("command_approval", command="x", kind="something new"))[0] == ("Kind", "something new")


def test_a_request_for_the_network_alone_says_so() -> None:
    question = _question("command_approval", networkContext={"host": "x.example", "protocol": "socks5Tcp"})
    assert describe(question).text() == "Codex asks to reach the network\nNetwork: socks5Tcp to x.example"


def test_another_environment_is_reported() -> None:
    question = Question(
        asker="Codex",
        id="q",
        type="command_approval",
        session_id="s",
        turn_id="t",
        prompts=(),
        environment="production",
    )
    assert ("Environment", "production") in _lines(question)


def test_every_file_of_a_patch_is_named_with_its_counts_however_many() -> None:
    changes = [{"path": f"/x/{number}", "kind": "update", "added": number, "removed": 1} for number in range(700)]
    changes += [{"path": "/x/outside/.bashrc", "kind": "add", "added": 1, "removed": 0}]
    changes += [{"path": "/a", "kind": "update", "movedTo": "/b c", "added": 0, "removed": 0}]
    question = _question("patch_approval", changes=changes, paths=["/x/0"], diff="+" * 100_000, grantRoot="/etc")
    lines = _lines(question)
    assert lines[:700] == [("Changes", f"/x/{number}  +{number} -1") for number in range(700)]
    assert lines[700:] == [
        ("Adds", "/x/outside/.bashrc  +1 -0"),
        ("Moves", '/a → "/b c"  +0 -0'),
        ("Permission", "write to everything under /etc, for the rest of the session"),
    ]
    text = describe(question).text(diff_chars=500)
    assert "Changes: /x/699  +699 -1" in text
    assert "(cut here: of 1 line, 0 are not shown; this one may go on)" in text


def test_a_patch_of_which_only_the_diff_is_known_names_its_files_too() -> None:
    diff = "diff --git a//etc/x b//etc/x\nnew file mode 100644\n--- /dev/null\n+++ b//etc/x\n@@ -0,0 +1 @@\n+a\n"
    assert _lines(_question("patch_approval", diff=diff)) == [("Adds", "/etc/x  +1 -0")]
    assert _lines(_question("patch_approval", files={"/etc/x": {"add": {"content": "hello"}}}))[0] == (
        "Changes",
        "/etc/x",
    )
    assert "hello" in describe(_question("patch_approval", files={"/etc/x": {"add": {"content": "hello"}}})).text()
    assert _lines(_question("patch_approval")) == [("Files", "Codex does not say which")]


def test_an_mcp_tool_is_named_with_all_its_parameters() -> None:
    parameters = {"path": "/x", "deep": [{"er": True}], "text": "a" * 5000 + "; rm -rf ~", "file": "b" * 200_000}
    question = _question(
        "mcp_elicitation",
        text='Allow the lab MCP server to run tool "write"?',
        server="lab",
        tool="write",
        approvalKind="mcp_tool_call",
        toolParams=parameters,
        toolDescription="Writes",
    )
    words = describe(question)
    assert words.title == "Codex asks to use an MCP tool, outside the sandbox"
    assert words.lines[:3] == (
        Line("Server", "lab"),
        Line("Tool", "write"),
        Line("Asks", 'Allow the lab MCP server to run tool "write"?'),
    )
    shown = words.text()
    assert "Parameters: {\n" in shown
    assert all(part in shown for part in ('"path": "/x"', '"er": true', "aa; rm -rf ~", "it has 200000 characters"))


def test_an_address_is_shown_whole() -> None:
    address = "https://good.example@evil.example/?" + "x" * 3000
    assert ("Opens", address) in _lines(_question("mcp_elicitation", server="lab", mode="url", url=address))


def test_a_plan_and_its_question_are_distinguished() -> None:
    question = _question("user_input", text="Carry out this plan?", plan="1. ls\nQuestion: Carry out nothing?")
    assert describe(question).text().split("\n") == [
        "Codex asks you",
        "Plan: 1. ls",
        "    │ Question: Carry out nothing?",
        "Question: Carry out this plan?",
    ]


def test_the_shape_of_the_contract_is_kept() -> None:
    assert question_as_dict(_question("command_approval", command="ls")) == {
        "id": "q_1",
        "type": "command_approval",
        "questions": [
            {"question": "Codex asks to run a command outside the sandbox\nCommand: ls", "options": ["approve", "deny"]}
        ],
        "details": {"command": "ls"},
    }


def test_each_part_of_a_question_has_its_own_text() -> None:
    prompts = (Prompt(text="One?\nTwo"), Prompt(text="Three?"))
    parts = part_texts(Question(asker="Codex", id="q", type="user_input", session_id="s", turn_id="t", prompts=prompts))
    assert parts == ["One?\n    │ Two", "Three?"]


# --- no text of a model looks like ours ------------------------------------------------------------------------------

LABELS = (
    *("Command", "Directory", "Permission", "Network", "Reason given", "Always would add the rule", "Adds", "Changes"),
    *("Deletes", "Moves", "Files", "Server", "Tool", "Asks", "Parameters", "Opens", "Plan", "Question", "Also", "Kind"),
    *("The tool says of itself", "Environment", "Diff", "Codex asks"),
)
_HOSTILE = st.lists(
    st.text(st.characters(exclude_categories=()), max_size=12)
    | st.sampled_from([f"\n{label}: in the sandbox" for label in LABELS])
    | st.sampled_from(
        ["\u2028", "\u2029", "\x85", "\r", "\r\n", "\x0b", "\x1b[1A\x1b[2K", "\u202e", "\u200b", "\n\n\n\n\n\n"]
    )
    | st.sampled_from([" " * 500, "\t" * 60, "\u0301" * 40, "\u3164", "\u2800", "\U000e0041", "\ufe0f", "\u200d"]),
    max_size=6,
).map("".join)
_KEYS = (
    "command",
    "directory",
    "reason",
    "grantRoot",
    "server",
    "tool",
    "url",
    "plan",
    "toolDescription",
    "alwaysRule",
    "new",
)


def _facts(hostile: Mapping[str, str]) -> dict[str, Any]:
    return {
        **hostile,
        "diff": f"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-{hostile['command']}\n+{hostile['reason']}\n",
        "changes": [{"path": hostile["directory"], "kind": "update", "movedTo": hostile["grantRoot"]}],
        "additionalPermissions": {"fileSystem": {"write": [hostile["directory"]]}, hostile["new"]: hostile["new"]},
        "permissions": {"fileSystem": {"read": [hostile["directory"]]}},
        "networkContext": {"host": hostile["server"], "protocol": "https"},
        "toolParams": {hostile["tool"]: [hostile["reason"]]},
        "approvalKind": "mcp_tool_call",
    }


def _blanked(text: str) -> str:
    return re.sub(r"\\x(?:20|09)×\d+|\(\d+ empty lines\)|\s|\\[nt]|\\x20", "", text)


@example("patch_approval", dict.fromkeys(_KEYS, "") | {"command": "\u0301" * 40}, "")
@given(st.sampled_from(TYPES), st.fixed_dictionaries(dict.fromkeys(_KEYS, _HOSTILE)), _HOSTILE)
def test_no_line_that_begins_like_ours_is_a_models_and_every_fact_is_there(
    kind: QuestionType, hostile: dict[str, str], text: str
) -> None:
    question = _question(kind, text, **_facts(hostile))
    words = describe(question)
    shown = words.text(diff_chars=10_000).split("\n")

    # As many lines as were made here, and each of them is a title, a label of ours, or behind the bar.
    ours = [line for line in shown if not line.startswith(GUTTER)]
    labelled = [line for line in (*words.lines, *words.rule) if line.label]
    has_diff = words.diff is not None
    assert len(ours) == 1 + len(labelled) + has_diff + any(line.startswith("    (cut here: ") for line in ours)
    assert ours[0] == words.title
    assert all(line.startswith(f"{made.label}: ") for line, made in zip(ours[1:], labelled, strict=False))
    assert {line.label for line in labelled} <= set(LABELS)

    # Nothing in them is unseen, or seen as something else.
    for line in shown:
        assert not [
            char for char in line if unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs", "Co", "Cn") and char != "\t"
        ]
        assert not [char for char in line if unicodedata.category(char) == "Cf" and char != "\u200d"]
        assert len(re.findall(" {81,}", line)) == 0

    # And what is granted is all there, in whatever way it had to be written.
    whole = _blanked("\n".join(shown))
    granted = {
        "command_approval": ("command", "directory", "reason", "alwaysRule", "new"),
        "patch_approval": ("directory", "grantRoot", "reason", "command", "alwaysRule"),
        "permission_approval": ("directory", "reason"),
        "user_input": ("plan", "directory"),
        "mcp_elicitation": ("server", "tool", "url", "toolDescription", "reason"),
    }[kind]
    for key in granted:
        for line in hostile[key].split("\n"):
            # In JSON a text is escaped once more, so that what is not plain is looked for in the plain lines only.
            # Behind a quotation mark, as some are shown, the first accents have something to stand on.
            forms = [_blanked(exact(before + line)).replace('"', "") for before in ("", '"')]
            assert any(form in whole.replace('\\"', "").replace('"', "") for form in forms), key


@given(st.text(st.sampled_from("ab \t\n\x85\u2028")))
def test_a_page_of_nothing_is_one_line(text: str) -> None:
    question = _question("command_approval", command="ls" + "\n" * 3000 + "rm -rf ~" + text)
    lines = [line for _, line in _lines(question)]
    assert lines[:3] == ["ls", "(2999 empty lines)", exact("rm -rf ~" + text.split("\n")[0])]


def test_a_parameter_that_nests_without_end_is_said_to() -> None:
    deep: Any = {}
    deep["in"] = deep
    assert "nested too deeply" in describe(_question("mcp_elicitation", toolParams=deep)).text()


def test_parameters_are_json_that_can_be_read_back() -> None:
    parameters = {"a": [1, None, "x"], "b": {"c": "é"}}
    lines = describe(_question("mcp_elicitation", toolParams=parameters)).lines
    start = next(number for number, line in enumerate(lines) if line.label == "Parameters")
    assert json.loads("".join(line.text for line in lines[start:])) == parameters
