"""Rules hold against disguises: quoting, newlines, look-alikes, variables before a command, and what a shell computes.

The examples are in `tests/approvals/test_policy.py`, and `tests/approvals/test_shell_words.py` lets real shells run what the
reader understood. Here the disguises are put together at random.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helmsman.approvals.policy import RuleSet, Workspace, decide
from helmsman.model.questions import Prompt, Question
from helmsman.model.rules import Rule

HERE = Path("/src/repo")
ALLOWED = Rule(effect="allow", command=("git", "status"))
DENIED = Rule(effect="deny", command=("rm",))

LOOK_ALIKES = {
    "a": "а𝐚ａ",
    "g": "ɡ𝗀ｇ",
    "i": "іｉ𝚒ı",
    "s": "ѕｓ",
    "t": "ｔ𝐭",
    "u": "υｕ",
    " ": "\u00a0\u2003\u3000\u200b",
    "-": "‐−－",
}
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u202e\u202a\u2066\x00\x08\x1b\x7f\x85\u2028"
COMPUTED = [
    "$(rm -rf x)",
    "`rm -rf x`",
    "${X}",
    "$X",
    "<(rm x)",
    ">(rm x)",
    "${X:-$(rm x)}",
    "$((1))",
    "$'\\x72m'",
    "*",
    "~",
]

wrapped = st.sampled_from(["{}", "/bin/bash -lc {}", "bash -c {}", "sh -c {}", "/bin/zsh -lc {}"])


def effect(command: str, wrapper: str, *rules: Rule) -> str:
    shown = command if wrapper == "{}" else wrapper.format(shlex.quote(command))
    question = Question(
        asker="Codex",
        id="q_1",
        type="command_approval",
        session_id="T1",
        turn_id="U1",
        prompts=(Prompt(text="May I?", options=("approve", "deny")),),
        details={"command": shown, "directory": str(HERE), "sandbox": "inside"},
    )
    return decide(question, RuleSet(rules=rules), Workspace(directory=HERE)).effect


@given(wrapper=wrapped)
def test_the_plain_command_is_allowed(wrapper: str) -> None:
    assert effect("git status -s", wrapper, ALLOWED) == "allow"


@given(wrapper=wrapped, data=st.data())
def test_a_look_alike_is_another_command(wrapper: str, data: st.DataObject) -> None:
    plain = "git status"
    at = data.draw(st.sampled_from([index for index, letter in enumerate(plain) if letter in LOOK_ALIKES]))
    other = data.draw(st.sampled_from(LOOK_ALIKES[plain[at]]))
    disguised = plain[:at] + other + plain[at + 1 :]
    assert effect(disguised, wrapper, ALLOWED) == "ask"


@given(wrapper=wrapped, invisible=st.sampled_from(INVISIBLE), at=st.integers(0, 10))
def test_an_invisible_character_in_a_command_makes_it_ask(wrapper: str, invisible: str, at: int) -> None:
    assert effect("git status"[:at] + invisible + "git status"[at:], wrapper, ALLOWED) == "ask"


@given(
    wrapper=wrapped,
    name=st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True),
    value=st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=8),
    other=st.booleans(),
)
def test_a_variable_before_a_command_needs_a_rule_that_names_it(
    wrapper: str, name: str, value: str, other: bool
) -> None:
    for spelled in (f"{name}={value}", f"{name}='{value}'", f"env {name}={value}", f"export {name}={value};"):
        assert effect(f"{spelled} git status", wrapper, ALLOWED) == "ask"
    names = Rule(effect="allow", command=("git", "status"), env=("X" + name if other else name,))
    expected = "ask" if other else "allow"
    assert effect(f"{name}={value or 'x'} git status", wrapper, names) == expected


@given(wrapper=wrapped, computed=st.sampled_from(COMPUTED), quote=st.sampled_from(["{}", '"{}"', "a{}", '"a {} b"']))
def test_a_computed_command_is_never_allowed(wrapper: str, computed: str, quote: str) -> None:
    assume(not ('"' in quote and computed in ("*", "~", "$'\\x72m'", "<(rm x)", ">(rm x)")))  # only text inside quotes
    assume(not (computed == "~" and quote == "a{}"))
    assert effect(f"git status {quote.format(computed)}", wrapper, ALLOWED) == "ask"
    assert effect(f"git {quote.format(computed)} status", wrapper, ALLOWED) == "ask"


@settings(max_examples=300)
@given(
    wrapper=wrapped,
    spelled=st.sampled_from(["rm", "'rm'", '"rm"', "r'm'", "\\rm", "r\\m", "'r'\"m\"", "/bin/rm", "./rm", "''rm"]),
    before=st.sampled_from(["", "git status; ", "git status && ", "git status | ", "git status\n", "cd x && ", "A=1 "]),
    through=st.sampled_from(["", "sudo ", "env ", "xargs ", "nohup ", "command ", "timeout 5 ", "nice -n 5 "]),
)
def test_a_denied_command_is_denied_in_any_disguise(wrapper: str, spelled: str, before: str, through: str) -> None:
    anything = (ALLOWED, Rule(effect="allow", command=("cd",)), Rule(effect="allow", command=("xargs",)))
    assert effect(f"{before}{through}{spelled} -rf x", wrapper, DENIED, *anything) == "deny"


@settings(max_examples=300)
@given(
    wrapper=wrapped,
    pieces=st.lists(
        st.sampled_from(
            ["rm", "-rf", "x", "git", "status", " ", " ", "'", '"', "\\", ";", "&", "|", "\n", "$(", ")", "`"]
        ),
        max_size=14,
    ),
)
def test_no_mixture_of_words_and_quotes_allows_what_is_denied(wrapper: str, pieces: list[str]) -> None:
    command = "".join(pieces)
    if effect(command, wrapper, ALLOWED, DENIED) == "allow":
        try:
            words = shlex.split(command.replace("\n", " "))
        except ValueError:
            raise AssertionError(command) from None
        assert "rm" not in words[:1]
        assert words[:2] == ["git", "status"]
