"""Tests that deny rules cover every spelling of an option, and that unknown options are asked about."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from helmsman.approvals.option_effects import GIT_COMMANDS, grammar_of
from helmsman.approvals.policy import RuleSet, Workspace, decide
from helmsman.approvals.shell_words import git_runs_others, names, sensible_prefix
from helmsman.model.questions import Prompt, Question
from helmsman.model.rules import Rule

HERE = Path("/nowhere/repo")

# For each rule: what it means, what could be meant by it for all that can be known, and what it does not mean.
MEANT: dict[str, dict[str, list[str]]] = tomllib.loads(
    Path(__file__).with_name("meant.toml").read_text(encoding="utf-8")
)


def effect(text: str, *rules: Rule, sandbox: str = "inside") -> str:
    question = Question(
        asker="Codex",
        id="q_1",
        type="command_approval",
        session_id="T1",
        turn_id="U1",
        prompts=(Prompt(text="May I?", options=("approve", "deny")),),
        details={"command": text, "directory": str(HERE), "sandbox": sandbox},
    )
    return decide(question, RuleSet(rules=rules), Workspace(directory=HERE)).effect


def spellings(column: str) -> Iterator[tuple[str, str, str]]:
    for rule, columns in MEANT.items():
        for text in columns[column]:
            for shown in (text, f"/bin/bash -lc {shlex.quote(text)}"):
                yield rule, text, shown


def allowed_as_a_whole(shown: str) -> Rule:
    """An allow rule for the whole text, so that nothing but the other rule can be the reason for a question."""
    return Rule(effect="allow", text=shown)


@pytest.mark.parametrize(("rule", "text", "shown"), list(spellings("means")))
def test_a_deny_rule_denies_what_does_the_same(rule: str, text: str, shown: str) -> None:
    assert effect(shown, allowed_as_a_whole(shown), Rule(effect="deny", command=tuple(rule.split()))) == "deny", text


@pytest.mark.parametrize(("rule", "text", "shown"), list(spellings("may_mean")))
def test_a_deny_rule_asks_about_commands_that_may_mean_the_same(rule: str, text: str, shown: str) -> None:
    assert effect(shown, allowed_as_a_whole(shown), Rule(effect="deny", command=tuple(rule.split()))) == "ask", text


@pytest.mark.parametrize(("rule", "text", "shown"), list(spellings("does_not_mean")))
def test_a_deny_rule_leaves_other_commands_alone(rule: str, text: str, shown: str) -> None:
    assert effect(shown, allowed_as_a_whole(shown), Rule(effect="deny", command=tuple(rule.split()))) == "allow", text


def test_an_ask_rule_means_the_same_and_a_deny_beats_what_only_may_be_meant() -> None:
    asking, denying = (
        Rule(effect="ask", command=("git", "push", "--force")),
        Rule(effect="deny", command=("git", "push")),
    )
    for text in ("git push -f", "git push --frobnicate"):
        assert effect(text, allowed_as_a_whole(text), asking) == "ask"
        assert effect(text, allowed_as_a_whole(text), asking, denying) == "deny"
    assert effect("git push", allowed_as_a_whole("git push"), asking) == "allow"


def test_an_exact_deny_rule_means_its_words_as_they_are_written() -> None:
    rule = Rule(effect="deny", command=("git", "push", "--force"), exact=True)
    for text in (
        "git push --force",
        "git push --force origin",
        "sudo git push --force",
        "bash -c 'ls; git push --force'",
    ):
        assert effect(text, allowed_as_a_whole(text), rule) == "deny"
    for text in (
        "git push -f",
        "git push origin --force",
        "git -C x push --force",
        "/usr/bin/git push --force",
        "git push $X",
    ):
        assert effect(text, allowed_as_a_whole(text), rule) == "allow"


def test_words_far_behind_a_program_are_found() -> None:
    many = " ".join(f"b{number}" for number in range(500))
    rule = Rule(effect="deny", command=("git", "push", "--force"))
    assert effect(f"git push origin {many} -f", Rule(effect="allow", command=("git", "push")), rule) == "deny"
    shown = f"sudo git push origin {many} -f"
    assert effect(shown, allowed_as_a_whole(shown), rule) in ("ask", "deny")


def test_too_many_commands_to_compare_are_asked_about() -> None:
    shown = "sudo sh -c $X " + "git status " * 300
    assert effect(shown, allowed_as_a_whole(shown), Rule(effect="deny", command=("git", "push", "--force"))) == "ask"


@pytest.mark.needs_git
@pytest.mark.parametrize(
    "command",
    [
        "push",
        "reset",
        "clean",
        "checkout",
        "switch",
        "restore",
        "branch",
        "tag",
        "commit",
        "rebase",
        "merge",
        "rm",
        "config",
    ],
)
def test_the_table_has_every_option_of_the_git_that_is_here(command: str, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    listed = subprocess.run(
        ["git", command, "--git-completion-helper-all"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    grammar = grammar_of(f"git {command}")
    assert grammar is not None
    options = {word.rstrip("=") for word in listed.stdout.split() if word != "--" and not word.startswith("--no-")}
    options.discard("--preserve-merges")  # gone in newer ones
    assert {word for word in options if word not in grammar.options} == set()
    takes_value = {word.rstrip("=") for word in listed.stdout.split() if word.endswith("=")}
    assert {word for word in options if (grammar.options[word].value == "=") != (word in takes_value)} <= VALUE_OR_NOT


VALUE_OR_NOT = {"--contains", "--with", "--without", "--points-at", "--file"}
"""Options whose value git's list does not show, since it may be left out at the end."""


@pytest.mark.needs_git
def test_the_table_has_every_command_of_the_git_that_is_here() -> None:
    listed = subprocess.run(["git", "--list-cmds=builtins"], capture_output=True, text=True, check=True)
    assert {word for word in listed.stdout.split() if "--" not in word} - GIT_COMMANDS - NOT_FOR_PEOPLE == set()


NOT_FOR_PEOPLE = {"fsck-objects", "merge-recursive-ours", "merge-recursive-theirs", "remote-ext", "remote-fd"}


PROGRAM = re.compile(
    r"(-[\w-]+)(?:, (--[\w-]+))?[ =\[]+<(?:cmd|command|exec|pager|git-upload-pack|template-directory)>"
)


@pytest.mark.needs_git
def test_every_option_of_the_git_that_is_here_which_names_a_program_is_known(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    found = set[str]()
    for command in sorted(names("git own work")):
        usage = subprocess.run(
            ["git", command, "-h"], cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        for match in PROGRAM.finditer(usage.stdout + usage.stderr):
            for option in filter(None, match.groups()):
                found.add(f"{command} {option}")
                assert git_runs_others(command, [option, "x"]), f"git {command} {option}"
    assert {"grep -O", "archive --exec", "init --template", "ls-remote --upload-pack"} <= found


@pytest.mark.parametrize(
    ("prefix", "text", "expected"),
    [
        ("git", "git status", "allow"),
        ("git", "git grep -O./x y", "ask"),
        ("git", "git for-each-repo --config=a.b push -f", "ask"),
        ("git bisect run", "git bisect run make", "allow"),
        ("git grep", "git grep x", "allow"),
        ("git grep", "git grep --open-files-in-pager=./x y", "ask"),
        ("git fetch", "git fetch --upload-pack=./x y", "ask"),
        ("rg", "rg x", "allow"),
        ("rg", "rg --pre ./x y", "ask"),
    ],
)
def test_first_words_allow_no_program_outside_the_sandbox_that_further_words_name(
    prefix: str, text: str, expected: str
) -> None:
    rule = Rule(effect="allow", command=tuple(prefix.split()), outside=True, prefix=True)
    assert effect(text, rule, sandbox="outside") == expected


@pytest.mark.parametrize("text", ["git subtree push x", "git for-each-repo x", "git grep -O x", "git send-email x"])
def test_no_prefix_is_offered_that_runs_what_further_words_name(text: str) -> None:
    assert sensible_prefix(tuple(text.split())) is None


@pytest.mark.parametrize("program", ["rm", "chmod", "chown", "sed", "make"])
def test_the_table_has_every_option_that_the_program_itself_lists(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"There is no {program} here.")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=False, env={"LC_ALL": "C"})
    if "GNU" not in version.stdout:
        pytest.skip(f"This is not GNU's {program}.")
    grammar = grammar_of(program)
    assert grammar is not None
    options = {
        option.strip().split("=")[0].split("[")[0].split(" ")[0]
        for line in done.stdout.splitlines()
        if line.strip().startswith("-")
        for option in line.strip().split("  ")[0].split(",")
        if option.strip().startswith("-")
    }
    assert len(options) > 5
    assert {option for option in options if option not in grammar.options} <= {"--help", "--version"}
