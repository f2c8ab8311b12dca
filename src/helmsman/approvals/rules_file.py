"""Read and write `[[rules]]` tables of `helmsman.toml`.

With the approval policy `on-request` and the sandbox `workspace-write`, Codex asks about little except commands that
leave the sandbox; `npm test` runs without a question. The few rules that are needed match word by word:

    trusted_projects = ["~/src/mine"]     # in your own file only
    allow_workspace_patches = true        # changes inside the writable roots of a workspace-write session

    [[rules]]
    effect = "allow"                      # allow, deny or ask; deny beats ask beats allow
    command = ["git", "push"]             # these words and no others: `git push --force` is asked about
    outside = true                        # may leave the sandbox; in your own file only
    directory = "~/src/site"              # only there, and below
    below = false                         # only there

    [[rules]]
    effect = "allow"
    command = ["npm", "install"]
    outside = true
    prefix = true                         # any arguments: trusts all options of npm, and all scripts it runs

    [[rules]]
    effect = "allow"
    command = ["rm", "-rf", "build"]      # without `outside`: the first words of a command that is proved to stay inside
    env = ["CI"]                          # variables that may be set before it

    [[rules]]
    effect = "deny"
    command = ["git", "push", "--force"]
    reason = "History is shared."         # sent to Codex

    [[rules]]
    effect = "allow"
    mcp = { server = "notes", tool = "search" }      # without `tool`: all of its tools
    outside = true                        # as every MCP tool is

    [[rules]]
    effect = "allow"
    type = "patch_approval"               # ordinary files, as far as the session may write there; else `outside`
    directory = "~/src/site/content"

    [[rules]]
    effect = "deny"
    type = "permission_approval"

A deny or ask rule means the effects of its options: the rule above also denies `git push -f`, `--mirror` and
`+HEAD:main`, and uncertain cases are asked. A deny rule with `exact = true` matches only its words.

`text` instead of `command` names one whole command, exactly as the question shows it. An allow rule needs a `command`,
a `text`, an `mcp`, or the type `patch_approval` with a directory; a deny or ask rule may be more general.

Parsing is strict: any error names the file and the rule. `helmsman.approvals.rule_book` finds the files and decides
which rules count.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from helmsman.approvals.shell_words import SimpleCommand, parse_command, quoted
from helmsman.base.caller_context import expand_home
from helmsman.errors import InvalidSetting
from helmsman.model.questions import QuestionType
from helmsman.model.rules import Effect, Rule

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEYS: Final = frozenset(
    [
        *("effect", "command", "text", "mcp", "directory", "below", "type"),
        *("env", "outside", "prefix", "exact", "reason", "proposed_by"),
    ]
)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class RulesContent:
    """Approval settings of one file."""

    rules: tuple[Rule, ...] = ()
    allow_workspace_patches: bool = False
    trusted_projects: tuple[Path, ...] = ()


def read_rules(content: Mapping[str, Any], path: Path, *, project: Path | None = None) -> RulesContent:
    """Parse the TOML content of `path`.

    `project` is the directory of a project's file, or None for the user's file.

    Raises:
        InvalidSetting: The content is invalid.
    """
    entries = content.get("rules", [])
    if not isinstance(entries, list):
        raise InvalidSetting(f"rules in {path} is not a list. Begin each rule with [[rules]].")
    switch = content.get("allow_workspace_patches", False)
    if not isinstance(switch, bool):
        raise InvalidSetting(f"allow_workspace_patches in {path} is {switch!r}. Set it to true or false.")
    trusted = content.get("trusted_projects", [])
    if project is not None and trusted:
        raise InvalidSetting(f"{path} sets trusted_projects, which a project's file may not. Remove it there.")
    if not isinstance(trusted, list) or not all(isinstance(entry, str) for entry in trusted):
        raise InvalidSetting(f"trusted_projects in {path} is {trusted!r}. Set it to a list of directories.")
    name = f"trusted_projects in {path}"
    rules = tuple(_Entry(entry, path, number, project).rule() for number, entry in enumerate(entries, start=1))
    return RulesContent(
        rules=rules,
        allow_workspace_patches=switch,
        trusted_projects=tuple(_directory(entry, name, base=None) for entry in trusted),
    )


def _directory(value: str, name: str, base: Path | None) -> Path:
    """Expand and check a directory; relative paths start at the project."""
    if not value or not value.isprintable():
        raise InvalidSetting(f"{name} is {value!r}. Set it to a directory.")
    path = expand_home(value)
    if base is not None:
        path = base / path
    if not path.is_absolute():
        raise InvalidSetting(f"{name} is {value!r}. Write the whole path, from / or ~ on.")
    return path


class _Entry:
    """Parser for one `[[rules]]` table."""

    def __init__(self, entry: Any, path: Path, number: int, project: Path | None) -> None:
        self._name = f"rule {number} of {path}"
        self._project = project
        if not isinstance(entry, dict):
            raise self._refuse(f"is {entry!r}", "Write it as a table that begins with [[rules]]")
        self._entry: dict[str, Any] = entry

    def rule(self) -> Rule:
        unknown = sorted(self._entry.keys() - _KEYS)
        if unknown:
            raise self._refuse(f"has an unknown key {unknown[0]!r}", f"Use only {', '.join(sorted(_KEYS))}")
        rule = Rule(
            effect=cast("Effect", self._one_of("effect", get_args(Effect), required=True)),
            command=self._words("command"),
            text=self._string("text"),
            mcp=self._mcp(),
            directory=self._place(),
            below=self._switch("below", default=True),
            type=cast("QuestionType | None", self._one_of("type", get_args(QuestionType))),
            env=self._words("env") or (),
            outside=self._switch("outside"),
            prefix=self._switch("prefix"),
            exact=self._switch("exact"),
            reason=self._string("reason"),
            origin=self._name,
            proposed_by=self._string("proposed_by"),
        )
        self._check_subject(rule)
        if not rule.below and rule.directory is None:
            raise self._refuse("has below = false without a directory", "Say which directory it holds in")
        if rule.exact and (rule.effect != "deny" or rule.command is None):
            raise self._refuse("has exact = true", "Only a deny rule with a command can have it; remove it")
        if rule.effect == "allow":
            self._check_allow(rule)
            self._check_outside(rule)
        elif only_allow := [key for key in ("env", "outside", "prefix") if key in self._entry]:
            raise self._refuse(f"has {only_allow[0]}, which only an allow rule can have", "Remove it")
        return rule

    def _check_subject(self, rule: Rule) -> None:
        subjects: list[tuple[str, QuestionType | None]] = []
        subjects += [("command", "command_approval")] if rule.command is not None else []
        subjects += [("text", "command_approval")] if rule.text is not None else []
        subjects += [("mcp", "mcp_elicitation")] if rule.mcp is not None else []
        if len(subjects) > 1:
            raise self._refuse(f"has both {subjects[0][0]} and {subjects[1][0]}", "Make two rules of it")
        if subjects and rule.type not in (None, subjects[0][1]):
            raise self._refuse(f"has {subjects[0][0]} and the type {rule.type}, which never go together", "Remove one")

    def _check_allow(self, rule: Rule) -> None:
        if rule.command is not None:
            if parse_command(quoted(rule.command)) != (SimpleCommand(rule.command),):
                raise self._refuse(
                    f"allows {shlex.join(rule.command)!r}, which could run anything",
                    "Allow the commands that are to run in it instead",
                )
            if bad := [name for name in rule.env if not _VARIABLE.fullmatch(name)]:
                raise self._refuse(f"has {bad[0]!r} in env", "List names of environment variables there")
            return
        if rule.env:
            raise self._refuse("has env without a command", "Remove it, or say which command it belongs to")
        if (
            rule.text is None
            and rule.mcp is None
            and not (rule.type == "patch_approval" and rule.directory is not None)
        ):
            raise self._refuse(
                "allows too much",
                "Give it a command, a text, an mcp, or the type patch_approval with a directory",
            )

    def _check_outside(self, rule: Rule) -> None:
        if rule.outside and self._project is not None:
            raise self._refuse(
                "has outside = true, which no project may allow", "Put it into your own file, with its directory"
            )
        if rule.prefix and not (rule.outside and rule.command is not None):
            raise self._refuse(
                "has prefix = true",
                "It belongs beside outside = true and a command; a command that stays inside needs only the first words",
            )
        if rule.env and rule.outside and not rule.prefix:
            raise self._refuse(
                "has env beside outside = true, which covers exactly its words",
                "Give the whole command as text, or say prefix = true",
            )

    def _place(self) -> Path | None:
        """Return the rule's directory. A project's allow rules apply at most inside that project."""
        project = self._project
        value = self._string("directory")
        directory = None if value is None else _directory(value, f"directory in {self._name}", project)
        if project is None or self._entry.get("effect") != "allow":
            return directory
        if directory is not None and not Path(os.path.realpath(directory)).is_relative_to(os.path.realpath(project)):
            raise self._refuse("allows something outside of its project", "Put it into your own file")
        return directory or project

    def _string(self, key: str) -> str | None:
        value = self._entry.get(key)
        if value is not None and (not isinstance(value, str) or not value):
            raise self._refuse(f"has {key} = {value!r}", f"Set {key} to a text")
        return value

    def _switch(self, key: str, *, default: bool = False) -> bool:
        value = self._entry.get(key, default)
        if not isinstance(value, bool):
            raise self._refuse(f"has {key} = {value!r}", f"Set {key} to true or false")
        return value

    def _one_of(self, key: str, choices: tuple[str, ...], *, required: bool = False) -> str | None:
        value = self._entry.get(key)
        if (value is None and required) or (value is not None and value not in choices):
            raise self._refuse(
                f"has {key} = {value!r}" if value is not None else f"has no {key}", _choose(key, choices)
            )
        return cast("str | None", value)

    def _words(self, key: str) -> tuple[str, ...] | None:
        value = self._entry.get(key)
        if value is None:
            return None
        usable = isinstance(value, list) and value and all(isinstance(word, str) and word for word in value)
        if not usable:
            raise self._refuse(f"has {key} = {value!r}", f'Set {key} to a list of words, such as ["git", "status"]')
        return tuple(value)

    def _mcp(self) -> tuple[str, str | None] | None:
        value = self._entry.get("mcp")
        if value is None:
            return None
        known = isinstance(value, dict) and "server" in value and value.keys() <= {"server", "tool"}
        if not known or not all(isinstance(name, str) and name for name in value.values()):
            raise self._refuse(
                f"has mcp = {value!r}", 'Set mcp to a table such as { server = "notes", tool = "search" }'
            )
        return value["server"], value.get("tool")

    def _refuse(self, problem: str, advice: str) -> InvalidSetting:
        return InvalidSetting(f"{self._name[0].upper()}{self._name[1:]} {problem}. {advice}.")


def _choose(key: str, choices: tuple[str, ...]) -> str:
    return f"Set {key} to one of {', '.join(choices)}"


# --- writing ---------------------------------------------------------------------------------------------------------


def rule_as_toml(rule: Rule) -> str:
    """Format the rule as a `[[rules]]` table; its strings may contain any characters."""
    server, tool = rule.mcp or (None, None)
    tool_named = "" if tool is None else f", tool = {_toml(tool)}"
    lines = {
        "effect": _toml(rule.effect),
        "command": None if rule.command is None else f"[{', '.join(map(_toml, rule.command))}]",
        "text": None if rule.text is None else _toml(rule.text),
        "mcp": None if server is None else f"{{ server = {_toml(server)}{tool_named} }}",
        "directory": None if rule.directory is None else _toml(str(rule.directory)),
        "below": None if rule.below else "false",
        "type": None if rule.type is None else _toml(rule.type),
        "env": f"[{', '.join(map(_toml, rule.env))}]" if rule.env else None,
        "outside": str(rule.outside).lower() if rule.effect == "allow" else None,
        "prefix": "true" if rule.prefix else None,
        "exact": "true" if rule.exact else None,
        "reason": None if rule.reason is None else _toml(rule.reason),
        "proposed_by": None if rule.proposed_by is None else _toml(rule.proposed_by),
    }
    return "".join(["[[rules]]\n", *(f"{key} = {value}\n" for key, value in lines.items() if value is not None), "\n"])


def _toml(text: str) -> str:
    # JSON strings are valid in TOML, except that TOML also requires DEL to be escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
