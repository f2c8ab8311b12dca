"""Tests of the rules format: valid files, error messages, and that written rules are read again."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.approvals import rule_book
from helmsman.approvals.rule_book import RulesContent, read_rules, rule_as_toml
from helmsman.base.structs import replace
from helmsman.errors import InvalidSetting
from helmsman.model.rules import Rule

FILE = Path("/etc/helmsman.toml")


def read(text: str, project: Path | None = None) -> RulesContent:
    return read_rules(tomllib.loads(text), FILE, project=project)


def test_the_example_of_the_documentation_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert rule_book.__doc__ is not None
    example = rule_book.__doc__.partition("word by word:\n\n")[2].partition("\nA deny or ask rule means")[0]

    content = read(example)

    assert content.trusted_projects == (Path("/home/ann/src/mine"),)
    assert content.allow_workspace_patches is True
    origins = iter(f"rule {number} of /etc/helmsman.toml" for number in range(1, 8))
    assert content.rules == (
        Rule(
            effect="allow",
            command=("git", "push"),
            outside=True,
            directory=Path("/home/ann/src/site"),
            below=False,
            origin=next(origins),
        ),
        Rule(effect="allow", command=("npm", "install"), outside=True, prefix=True, origin=next(origins)),
        Rule(effect="allow", command=("rm", "-rf", "build"), env=("CI",), origin=next(origins)),
        Rule(effect="deny", command=("git", "push", "--force"), reason="History is shared.", origin=next(origins)),
        Rule(effect="allow", mcp=("notes", "search"), outside=True, origin=next(origins)),
        Rule(effect="allow", type="patch_approval", directory=Path("/home/ann/src/site/content"), origin=next(origins)),
        Rule(effect="deny", type="permission_approval", origin=next(origins)),
    )


def test_a_file_without_rules_has_none() -> None:
    assert read("max_sessions = 3") == RulesContent()


@pytest.mark.parametrize(
    "entry",
    [
        'effect = "deny"',
        'effect = "ask"\ndirectory = "/src"',
        'effect = "deny"\ncommand = ["eval"]',
        'effect = "ask"\ncommand = ["bash", "-c"]',
        'effect = "deny"\nmcp = { server = "lab" }',
        'effect = "allow"\nmcp = { server = "lab" }',
        'effect = "allow"\ntext = "/bin/bash -lc \'a && b\'"',
        'effect = "allow"\ncommand = ["bash", "run.sh"]',
        'effect = "allow"\ncommand = ["x", "=y", "~", "$z"]',
        'effect = "allow"\ncommand = ["git", "commit", "-m", "a b; c"]',
        'effect = "allow"\ncommand = ["ls"]\ntype = "command_approval"',
    ],
)
def test_all_sensible_forms_are_accepted(entry: str) -> None:
    assert len(read(f"[[rules]]\n{entry}").rules) == 1


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("", "has no effect. Set it to one of allow, deny, ask."),
        ('effect = "permit"', ".effect in FILE is 'permit', INVALID one of allow, deny, ask."),
        ('effect = ["allow"]', ".effect in FILE is ['allow']"),
        ('effect = "allow"', "allows too much. Give it a command, a text, an mcp, or the type patch_approval"),
        ('effect = "allow"\ndirectory = "/src"', "allows too much"),
        ('effect = "allow"\ntype = "command_approval"', "allows too much"),
        ('effect = "allow"\ntype = "patch_approval"', "allows too much"),
        ('effect = "allow"\ntype = "permission_approval"\ndirectory = "/src"', "allows too much"),
        ('effect = "allow"\ntype = "user_input"', "allows too much"),
        ('effect = "allow"\ncommand = "git status"', ".command in FILE is 'git status', INVALID a list of words"),
        ('effect = "allow"\ncommand = []', ".command in FILE is []"),
        ('effect = "allow"\ncommand = ["git", 1]', ".command in FILE is ['git', 1]"),
        ('effect = "allow"\ncommand = ["git", ""]', ".command in FILE is ['git', '']"),
        ('effect = "allow"\ncommand = ["eval"]', "allows 'eval', which could run anything"),
        ('effect = "allow"\ncommand = ["bash", "-c"]', "which could run anything"),
        ('effect = "allow"\ncommand = ["bash", "-lc", "ls"]', "which could run anything"),
        ('effect = "allow"\ncommand = ["time", "ls"]', "which could run anything"),
        ('effect = "allow"\ncommand = ["A=1", "ls"]', "which could run anything"),
        ('effect = "allow"\ncommand = ["g\\u0456t", "status"]', "which could run anything"),
        ('effect = "allow"\ncommand = ["git\\u202e"]', "which could run anything"),
        ('effect = "allow"\ncommand = ["ls"]\ntext = "ls"', "has both command and text. Make two rules of it."),
        ('effect = "deny"\ncommand = ["ls"]\nmcp = { server = "x" }', "has both command and mcp"),
        ('effect = "deny"\ncommand = ["ls"]\ntype = "user_input"', "has command and the type user_input"),
        ('effect = "deny"\nmcp = { server = "x" }\ntype = "command_approval"', "has mcp and the type command_approval"),
        ('effect = "deny"\ntype = "command"', ".type in FILE is 'command', INVALID one of command_approval, "),
        ('effect = "deny"\ntext = ""', ".text in FILE is '', INVALID a text."),
        ('effect = "deny"\ntext = 3', ".text in FILE is 3"),
        ('effect = "deny"\nreason = true', ".reason in FILE is True"),
        ('effect = "deny"\nmcp = "lab"', ".mcp in FILE is 'lab', INVALID a table"),
        ('effect = "deny"\nmcp = { tool = "x" }', "Set it to a table"),
        ('effect = "deny"\nmcp = { server = "x", tol = "y" }', "Set it to a table"),
        ('effect = "deny"\nmcp = { server = "" }', "Set it to a table"),
        ('effect = "deny"\nmcp = { server = 1 }', "Set it to a table"),
        ('effect = "deny"\nenv = ["A"]', "has env, which only an allow rule can have"),
        ('effect = "deny"\ncommand = ["ls"]\nexact = 1', ".exact in FILE is 1, INVALID true or false"),
        ('effect = "allow"\ntext = "ls"\nenv = ["A"]', "has env without a command"),
        ('effect = "allow"\ncommand = ["ls"]\nenv = ["A-B"]', "has 'A-B' in env"),
        ('effect = "deny"\npattern = "x"', "unknown key rules[2].pattern. Use one of: effect, command, text, mcp"),
        ('effect = "allow"\ncommand = ["ls"]\noutside = "yes"', ".outside in FILE is 'yes', INVALID true or false."),
        ('effect = "deny"\noutside = true', "has outside, which only an allow rule can have"),
        ('effect = "ask"\ncommand = ["ls"]\nprefix = true', "has prefix, which only an allow rule can have"),
        ('effect = "allow"\ncommand = ["ls"]\nprefix = true', "It belongs beside outside = true and a command"),
        ('effect = "allow"\ntext = "ls"\noutside = true\nprefix = true', "It belongs beside outside = true"),
        (
            'effect = "allow"\ncommand = ["ls"]\noutside = true\nenv = ["CI"]',
            "has env beside outside = true, which covers exactly its words. Give the whole command as text",
        ),
        ('effect = "allow"\ncommand = ["ls"]\nexact = true', "has exact = true. Only a deny rule with a command"),
        ('effect = "deny"\ntype = "user_input"\nexact = true', "has exact = true"),
        ('effect = "deny"\nbelow = false', "has below = false without a directory"),
        ('effect = "deny"\ndirectory = "/x"\nbelow = 0', ".below in FILE is 0, INVALID true or false."),
        ('effect = "deny"\ndirectory = "src"', "is 'src'. Write the whole path, from / or ~ on."),
        ('effect = "deny"\ndirectory = "~nobody-of-this-name/x"', "Write the whole path"),
        ('effect = "deny"\ndirectory = "/a\\u0000b"', "Set it to a path"),
        ('effect = "deny"\ndirectory = 3', ".directory in FILE is 3"),
    ],
)
def test_an_invalid_rule_is_an_error_that_names_file_and_rule(entry: str, problem: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        read(f'[[rules]]\neffect = "deny"\n\n[[rules]]\n{entry}')
    assert "ule 2 of /etc/helmsman.toml" in error.value.message or "rules[2]" in error.value.message
    assert "/etc/helmsman.toml" in error.value.message
    expected = problem.replace(" FILE ", " /etc/helmsman.toml ").replace("INVALID", "which is not valid. Set it to")
    assert expected in error.value.message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rules = 3", "rules in /etc/helmsman.toml is not a list. Begin each rule with [[rules]]."),
        ('rules = ["deny"]', "Rule 1 of /etc/helmsman.toml is 'deny'. Write it as a table"),
        ('allow_workspace_patches = "yes"', "allow_workspace_patches in /etc/helmsman.toml is 'yes'. Set it to true"),
        ('trusted_projects = "/src"', "trusted_projects in /etc/helmsman.toml is '/src'. Set it to a list"),
        ("trusted_projects = [1]", "Set it to a list of directories."),
        ('trusted_projects = ["src"]', "is 'src'. Write the whole path"),
    ],
)
def test_odd_tables_are_errors_too(text: str, problem: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        read(text)
    assert problem in error.value.message


# --- a project's own file --------------------------------------------------------------------------------------------


def test_an_allow_rule_of_a_project_holds_in_that_project_at_most(tmp_path: Path) -> None:
    entry = '[[rules]]\neffect = "allow"\ncommand = ["ls"]\n'
    assert [rule.directory for rule in read(entry, tmp_path).rules] == [tmp_path]
    assert [rule.directory for rule in read(entry + 'directory = "a"', tmp_path).rules] == [tmp_path / "a"]


@pytest.mark.parametrize("directory", ["/", "..", "out", "~"])
def test_an_allow_rule_of_a_project_cannot_reach_outside(tmp_path: Path, directory: str) -> None:
    (tmp_path / "out").symlink_to("/")
    with pytest.raises(InvalidSetting, match="allows something outside of its project"):
        read(f'[[rules]]\neffect = "allow"\ncommand = ["ls"]\ndirectory = "{directory}"', tmp_path)


def test_no_project_lets_anything_leave(tmp_path: Path) -> None:
    for entry in ('command = ["ls"]', 'text = "ls"', 'mcp = { server = "lab" }', 'type = "patch_approval"'):
        with pytest.raises(InvalidSetting, match="has outside = true, which no project may allow"):
            read(f'[[rules]]\neffect = "allow"\n{entry}\noutside = true', tmp_path)


def test_a_rule_that_does_not_say_whether_outside_holds_inside(tmp_path: Path) -> None:
    silent = '[[rules]]\neffect = "allow"\ncommand = ["ls"]\n'
    said = silent + "outside = false\n" + silent + "outside = true\n" + '[[rules]]\neffect = "deny"\n'
    content = read(silent + said + silent)
    assert [rule.outside for rule in content.rules] == [False, False, True, False, False]


def test_a_project_cannot_trust_projects(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="sets trusted_projects, which a project's file may not"):
        read('trusted_projects = ["/"]', tmp_path)


def test_a_deny_rule_of_a_project_may_speak_of_any_place(tmp_path: Path) -> None:
    entries = '[[rules]]\neffect = "deny"\n\n[[rules]]\neffect = "deny"\ndirectory = "/etc"'
    assert [rule.directory for rule in read(entries, tmp_path).rules] == [None, Path("/etc")]


# --- writing ---------------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(words=st.lists(TEXTS, min_size=1), reason=TEXTS | st.none())
def test_a_rule_for_a_command_is_read_as_it_was_written(words: list[str], reason: str | None) -> None:
    rule = Rule(effect="deny", command=tuple(words), reason=reason, directory=Path("/a b/ü\"'\\"))
    (again,) = read(rule_as_toml(rule)).rules
    assert replace(again, origin="") == rule


@given(text=TEXTS, server=TEXTS, tool=TEXTS | st.none())
def test_rules_for_texts_and_tools_are_read_as_they_were_written(text: str, server: str, tool: str | None) -> None:
    written = (Rule(effect="allow", text=text), Rule(effect="allow", mcp=(server, tool)))
    again = read("".join(map(rule_as_toml, written))).rules
    assert [(rule.text, rule.mcp) for rule in again] == [(rule.text, rule.mcp) for rule in written]


def test_every_field_is_written() -> None:
    written = (
        Rule(effect="allow", command=("ls",), env=("A", "B"), type="command_approval"),
        Rule(effect="allow", command=("ls",), outside=True, prefix=True, directory=Path("/src"), below=False),
        Rule(effect="deny", command=("ls",), exact=True),
        Rule(effect="allow", type="patch_approval", directory=Path("/src")),
    )
    again = read("".join(map(rule_as_toml, written))).rules
    assert tuple(replace(rule, origin="") for rule in again) == written
