"""An allow rule against real shells: whatever it lets through runs that command and nothing else, and writes no file.

Commands that a rule allows are changed at random, character by character; those that are still allowed are given to the
shell they are meant for. `tests/approvals/test_shell_words.py` does the same with the pieces of the shell language.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.approvals.policy import RuleSet, Workspace, decide
from helmsman.model.questions import Prompt, Question
from helmsman.model.rules import Rule
from tests.fuzz.effort import fuzzed
from tests.fuzz.shell_laboratory import ShellLaboratory

pytestmark = pytest.mark.skipif(os.name != "posix", reason="There are no POSIX shells here.")

ALLOWED = ("git", "status")
SHELLS = [shell for shell in ("bash", "dash", "zsh") if shutil.which(shell)]
BASES = [
    "git status",
    "git status -s 'a b'",
    'git status "a b" c',
    "git status && git status -s",
    "git status | git status; git status",
    "git status >/dev/null 2>&1",
    "git status a\\ b $'c'",
    "cd . && git status",
    "git status \\\n -s\ngit status",
    "git status & git status || git status y~1 z^",
]
COMPUTED = [
    *("$(ls)", "`ls`", "${IFS}", "<(ls)", "{ls,}", "~", "*", "!!", "[[", "((", "ls()"),
    *("$'\\n'ls", "eval ", "env ", "A=1 "),
]
JOINED = ["|ls", ";ls", "\nls", "&&rm", "<<x", "<<<x", ">x", "&>x", ">&x", "1>&2"]
QUOTING = ["'", '"', "\\", "\\\n", "#", "é", "\u00a0", "\x00"]
BITS = st.characters(min_codepoint=9, max_codepoint=126) | st.sampled_from([*COMPUTED, *JOINED, *QUOTING])


@st.composite
def changed_commands(draw: st.DrawFn) -> str:
    """An allowed command after a few slips, or attacks."""
    command = draw(st.sampled_from(BASES))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(command)))
        match draw(st.sampled_from(["insert", "insert", "remove", "repeat"])):
            case "insert":
                command = command[:at] + draw(BITS) + command[at:]
            case "remove":
                command = command[:at] + command[at + 1 :]
            case _:
                command = command[:at] + command[draw(st.integers(0, at)) :]
    return command


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> ShellLaboratory:
    return ShellLaboratory(tmp_path_factory.mktemp("laboratory"))


def effect(command: str) -> str:
    question = Question(
        asker="Codex",
        id="q_1",
        type="command_approval",
        session_id="T1",
        turn_id="U1",
        prompts=(Prompt(text="May I?", options=("approve", "deny")),),
        details={"command": command, "directory": "/src"},
    )
    rules = RuleSet(rules=(Rule(effect="allow", command=ALLOWED, outside=True, prefix=True),))
    return decide(question, rules, Workspace(directory=Path("/src"))).effect


@pytest.mark.parametrize("shell", SHELLS)
def test_an_allowed_command_runs_nothing_else_and_writes_nothing(laboratory: ShellLaboratory, shell: str) -> None:
    @fuzzed(350)
    @given(changed_commands())
    def check(command: str) -> None:
        if effect(f"{shell} -c {shlex.quote(command)}") != "allow":
            return
        ran = laboratory.run(shell, command)
        assert [call for call in ran.calls if tuple(call[:2]) != ALLOWED] == []
        assert ran.files == set()

    check()


@pytest.mark.parametrize("base", BASES)
def test_the_commands_that_are_changed_are_allowed_to_begin_with(base: str) -> None:
    assert effect(f"bash -c {shlex.quote(base)}") == "allow"


@fuzzed(300)
@given(changed_commands())
def test_a_deny_rule_is_never_weaker_than_none(command: str) -> None:
    """With a deny rule for a program, nothing that was asked or denied before is allowed."""
    question = Question(
        asker="Codex",
        id="q_1",
        type="command_approval",
        session_id="T1",
        turn_id="U1",
        prompts=(Prompt(text="May I?", options=("approve", "deny")),),
        details={"command": command, "directory": "/src"},
    )
    allow = Rule(effect="allow", command=ALLOWED, outside=True, prefix=True)
    deny = Rule(effect="deny", command=("rm",))
    place = Workspace(directory=Path("/src"))
    without = decide(question, RuleSet(rules=(allow,)), place).effect
    both = decide(question, RuleSet(rules=(allow, deny)), place).effect
    assert both in (without, "ask", "deny")
    assert decide(question, RuleSet(rules=(deny, allow)), place).effect == both
