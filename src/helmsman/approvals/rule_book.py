"""Collect the rules that apply to a directory: the user's, permanent ones from answers, and the project's.

A project's `helmsman.toml` comes with the repository, so it may only restrict: its deny and ask rules always count. Its
allow rules and switches count only if the user's file lists the directory in `trusted_projects`, and then only inside
that directory and inside the sandbox. Codex can write to a project's file, so rules that must hold belong in the user's
file.

Permanent rules from answers are stored in `rules.toml` of the state directory, in the same format.

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

Parsing is strict: any error names the file and the rule.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.approvals.policy import (
    RuleSet,
    Ruling,
    Workspace,
    cd_target,
    changed_paths,
    decide,
    is_more_than_words,
    place_of,
    sandbox_of,
)
from helmsman.approvals.shell_words import SimpleCommand, innermost_script, parse_command, quoted, sensible_prefix
from helmsman.base.caller_context import expand_home
from helmsman.base.config_table import read_table
from helmsman.base.files import file_lock, replace_file
from helmsman.base.redaction import redact
from helmsman.base.structs import replace
from helmsman.base.user_directories import project_places
from helmsman.errors import AnswerInvalid, InvalidInput, InvalidSetting
from helmsman.model.questions import Question, QuestionType
from helmsman.model.rules import Effect, Rule
from helmsman.settings import CONFIG_NAME, ConfigFile, ensure_state_dir, read_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


# --- Read and write `[[rules]]` tables of `helmsman.toml` -------------------------------------------------------------

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
    # It would let a repository trust itself.
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
        self._entry: Mapping[str, Any] = entry
        # Every key is checked even if the rule does not use it: a typo must not widen a rule.
        self._read = read_table(Rule, entry, f"rules[{number}]", path)

    def rule(self) -> Rule:
        rule = replace(self._read, origin=self._name, directory=self._place())
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
            # The words, quoted, must be read as exactly one plain command, or the rule would cover more than it shows.
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
        # Without any of these it would allow every question of its type.
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
        # A project's file comes with the repository, and may have been written by a session.
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
        project, given = self._project, self._read.directory
        directory = None if given is None else _directory(str(given), f"directory in {self._name}", project)
        if project is None or self._read.effect != "allow":
            return directory
        # By real paths: a link in the project could lead anywhere.
        if directory is not None and not Path(os.path.realpath(directory)).is_relative_to(os.path.realpath(project)):
            raise self._refuse("allows something outside of its project", "Put it into your own file")
        return directory or project

    def _refuse(self, problem: str, advice: str) -> InvalidSetting:
        return InvalidSetting(f"{self._name[0].upper()}{self._name[1:]} {problem}. {advice}.")


# --- writing ---------------------------------------------------------------------------------------------------------


def rule_of_person(
    effect: Effect,
    text: str,
    directory: Path | None,
    *,
    prefix: bool = False,
    outside: bool = False,
    reason: str | None = None,
) -> Rule:
    """Return the rule that a person wants for a command, as it is typed in a shell. Without a directory it holds everywhere.

    Raises:
        InvalidInput: This is no command, or too much would be allowed.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        words = ()
    if not words:
        raise InvalidInput("That is no command. Give it in one piece.", parameter="command")
    if prefix and sensible_prefix(words) != words:
        raise InvalidInput(f"Everything that begins with {text!r:.100} is too much. Name the command and what it does.")
    return Rule(
        effect=effect,
        command=words,
        directory=directory,
        resolved=directory is not None,
        prefix=prefix,
        outside=outside,
        reason=reason,
        origin="added by you",
    )


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


# --- Rules with their location and status, for the command line, the doctor and the dashboard -------------------------

# `helmsman.approvals.rule_book` lists them.

_HEADER: Final = re.compile(r"^[ \t]*\[\[[ \t]*rules[ \t]*\]\]", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRule:
    """Rule number `number` of the file `path`, beginning at `line` if known.

    `permanent` rules were created by an answer and can be removed by command; users edit all others in their files.
    `ignored` says why a rule has no effect.
    """

    rule: Rule
    path: Path
    number: int
    line: int | None
    permanent: bool = False
    ignored: str | None = None

    @property
    def id(self) -> str:
        """Content hash: after a change of the file, an id never refers to another rule."""
        # Not the number, which changes when another rule is removed.
        return hashlib.sha256(f"{self.path}\0{self.toml}".encode(errors="surrogatepass")).hexdigest()[:8]

    @property
    def toml(self) -> str:
        """Rule as a TOML table."""
        return rule_as_toml(self.rule)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of the rule."""
        return {
            "id": self.id,
            "effect": self.rule.effect,
            "description": self.rule.describe(),
            "toml": self.toml,
            "outside": self.rule.outside,
            "file": str(self.path),
            "number": self.number,
            "line": self.line,
            "removable": self.permanent,
            "ignored": self.ignored,
            "proposedBy": self.rule.proposed_by,
        }


def lines_of_rules(text: str, count: int) -> list[int | None]:
    """Return the line in which each rule of a file begins; None where that is unclear."""
    lines = [text.count("\n", 0, header.start()) + 1 for header in _HEADER.finditer(text)]
    # A header inside a text or a comment makes the count differ.
    return [*lines] if len(lines) == count else [None] * count


def without_rule(text: str, number: int) -> str | None:
    """Remove one rule from a file's text; None if that would change anything else."""
    starts = [header.start() for header in _HEADER.finditer(text)]
    before = tomllib.loads(text)
    rules = before.get("rules", [])
    if len(starts) != len(rules) or not 1 <= number <= len(rules):
        return None
    ends = [*starts[1:], len(text)]
    shorter = text[: starts[number - 1]] + text[ends[number - 1] :]
    try:
        after = tomllib.loads(shorter)
    except tomllib.TOMLDecodeError:
        return None
    rest = [rule for at, rule in enumerate(rules, start=1) if at != number]
    # Both versions are parsed, so that removing one rule provably changes nothing else.
    return shorter if {**before, "rules": rest} == {"rules": [], **after} else None


# ----------------------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

_FILES_REMEMBERED: Final = 256
_LOCK_SECONDS: Final = 10.0
_UNTRUSTED: Final = "It allows something, and this project is not among your trusted_projects."
_SWITCHED_OFF: Final = "Nothing is allowed by rule while a file of rules cannot be read."


class RuleBook:
    """All rules. Files are read again after a change."""

    def __init__(self, files: Sequence[ConfigFile], state_dir: Path) -> None:
        """Use the trusted files of the settings. Project files are found from the working directory."""
        self._user_files = [file.path for file in files if file.trusted]
        self._state_dir = state_dir
        self._read: dict[Path, tuple[tuple[int, ...], RulesContent]] = {}

    @property
    def permanent_path(self) -> Path:
        """File of the permanent rules from answers."""
        return self._state_dir / "rules.toml"

    def rules_for(self, directory: Path | None) -> RuleSet:
        """Return the rules for a session in `directory`. Never raises.

        An unreadable file may contain deny rules. While there is one, no allow rule applies; deny and ask rules of the
        other files still do.
        """
        contents, problem = self._contents(directory)
        if problem is not None:
            log.warning("people are asked about everything that is not denied: %s", problem)
            # An unreadable file may hold a deny rule that would have come first.
            contents = [_narrowing_part(content) for content in contents]
        return RuleSet(
            # Proposed by a model and not yet confirmed, so without effect.
            rules=tuple(rule for content in contents for rule in content.rules if rule.proposed_by is None),
            allow_workspace_patches=any(content.allow_workspace_patches for content in contents),
            problem=problem.message if problem is not None else None,
        )

    def check(self, directory: Path | None) -> None:
        """Validate the rules files for `directory`.

        Raises:
            InvalidSetting: A file is invalid; the message names the file and the problem.
        """
        _, problem = self._contents(directory)
        if problem is not None:
            raise problem

    def listed(self, directory: Path | None) -> list[ListedRule]:
        """List every rule that concerns `directory`, in file order, including ignored rules.

        Rules of an unreadable file are missing; `check` names that file.
        """
        files, problem = self._files(directory)
        listed: list[ListedRule] = []
        # Line numbers are for people only; without them the rule is still listed.
        for file in files:
            lines = lines_of_rules(_text(file.path), len(file.content.rules))
            for number, rule in enumerate(file.content.rules, start=1):
                ignored = None
                if rule.effect == "allow" and (problem is not None or not file.may_allow):
                    ignored = _UNTRUSTED if not file.may_allow else _SWITCHED_OFF
                if rule.proposed_by is not None:
                    ignored = f"Proposed by the model of {rule.proposed_by}. It decides nothing until you confirm it."
                listed.append(
                    ListedRule(
                        rule=rule,
                        path=file.path,
                        number=number,
                        line=lines[number - 1],
                        permanent=file.path == self.permanent_path,
                        ignored=ignored,
                    )
                )
        return listed

    def explain(self, command: str, directory: Path, *, inside: bool = False) -> Ruling:
        """Return the decision on a command in `directory`, and the rule that makes it.

        Args:
            command: The command as typed, or as Codex shows it.
            directory: Where it would run.
            inside: Whether it is proved to stay in the sandbox.
        """
        rules = self.rules_for(directory)
        # A `text` rule contains the shell that Codex wraps around a command, which a person would not type.
        meant = (rule.text for rule in rules.rules if rule.text is not None and innermost_script(rule.text) == command)
        decisions = [
            decide(_question(text, directory, inside=inside), rules, Workspace(directory=directory))
            for text in dict.fromkeys([command, *meant])
        ]
        # A deny is the most important answer, then what would run without a question.
        return min(decisions, key=lambda decision: ("deny", "allow", "ask").index(decision.effect))

    def add(self, rule: Rule) -> str | None:
        """Store a permanent rule for all processes. Return its id, or None if it exists already.

        Raises:
            InvalidSetting: The file cannot be written.
        """
        path = self.permanent_path
        new: list[ListedRule] = []

        def added(text: str) -> str:
            known = self._content(path, project=None)
            # Its origin names a line in the file, which a new rule does not have yet.
            if any(replace(one, origin=rule.origin) == rule for one in known.rules):
                return text
            text += ("" if text.endswith("\n") or not text else "\n") + rule_as_toml(rule)
            rules = read_rules(tomllib.loads(text), path).rules  # verify that the file can be read again
            new.append(ListedRule(rule=rules[-1], path=path, number=len(rules), line=None))
            return text

        self._rewrite(added)
        return new[0].id if new else None

    def remove(self, rule_id: str) -> ListedRule:
        """Remove a permanent rule.

        Raises:
            InvalidInput: There is no such rule.
            InvalidSetting: The file cannot be changed.
        """
        removed: list[ListedRule] = []

        def shorter(text: str) -> str:
            # Looked up under the lock, as another process may have changed the numbers.
            found = next((one for one in self.listed(None) if one.permanent and one.id == rule_id), None)
            if found is None:
                raise InvalidInput(f"{self.permanent_path} has no rule {rule_id}. List the rules to see which it has.")
            rest = without_rule(text, found.number)
            if rest is None:
                raise InvalidSetting(
                    f"{found.path} is not as Helmsman wrote it. Remove rule {found.number} there by hand."
                )
            removed.append(found)
            return rest

        self._rewrite(shorter)
        return removed[0]

    def confirm(self, rule_id: str) -> ListedRule:
        """Activate a rule proposed by the model of an MCP client.

        Raises:
            InvalidInput: There is no such rule, or it is active already.
            InvalidSetting: The file cannot be changed.
        """
        # Removed first: the rule must never be in the file twice.
        proposed = self.remove(rule_id)
        if proposed.rule.proposed_by is None:
            self.add(proposed.rule)
            raise InvalidInput(f"Rule {rule_id} is not proposed: it decides already.")
        rule = replace(proposed.rule, proposed_by=None)
        self.add(rule)
        return replace(proposed, rule=rule, ignored=None)

    def _rewrite(self, change: Callable[[str], str]) -> None:
        """Change the file of permanent rules under a lock."""
        path = self.permanent_path
        ensure_state_dir(self._state_dir)
        # All processes of the user share the file.
        try:
            with file_lock(self._state_dir / "rules.lock", timeout=_LOCK_SECONDS):
                before = path.read_text(encoding="utf-8") if path.exists() else ""
                after = change(before)
                if after != before:
                    replace_file(path, after)
        except (OSError, ValueError) as error:
            raise InvalidSetting(
                f"The rules could not be saved in {path}: {error}. Make room there, or check who may write."
            ) from error

    def _contents(self, directory: Path | None) -> tuple[list[RulesContent], InvalidSetting | None]:
        """Return the content of all files, restricted for untrusted projects, and the first problem."""
        files, problem = self._files(directory)
        return [file.content if file.may_allow else _narrowing_part(file.content) for file in files], problem

    def _files(self, directory: Path | None) -> tuple[list[_RulesFile], InvalidSetting | None]:
        found: list[_RulesFile] = []
        trusted: set[str] = set()
        problem: InvalidSetting | None = None
        files = [(path, None) for path in (*self._user_files, self.permanent_path)]
        # The user's files come first, since they say which projects are trusted.
        for path, project in (*files, *((path, path.parent) for path in self._project_files(directory))):
            try:
                content = self._content(path, project=project)
            # Continue with the other files: their deny rules still hold.
            except InvalidSetting as error:
                problem = problem or error
                continue
            if project is None:
                trusted |= {os.path.realpath(place) for place in content.trusted_projects}
            # By real paths on both sides.
            may_allow = project is None or os.path.realpath(project) in trusted
            found.append(_RulesFile(path, content, project, may_allow))
        return found, problem

    def _project_files(self, directory: Path | None) -> list[Path]:
        """Return the project files from the directory up to the root of the outermost repository.

        All of them count, so a repository that an agent creates inside another one hides no rule of the outer one.
        """
        if directory is None:
            return []
        places = project_places(os.path.realpath(directory), str(expand_home("~")))
        own = {os.path.realpath(path) for path in self._user_files}
        candidates = [Path(place, CONFIG_NAME) for place in places]
        # The user's own file can lie inside a repository, and is not a project's file then.
        return [path for path in candidates if os.path.lexists(path) and os.path.realpath(path) not in own]

    def _content(self, path: Path, *, project: Path | None) -> RulesContent:
        try:
            status = path.stat()
        except FileNotFoundError:
            return RulesContent()
        except OSError as error:
            raise InvalidSetting(f"{path} cannot be read: {error.strerror}. Check its permissions.") from error
        # With umask 002, the user's file is writable by the user's private group. Our own file never is.
        others = 0o022 if path == self.permanent_path else 0o002 if project is None else 0
        if os.name == "posix" and status.st_mode & others:
            raise InvalidSetting(f"Other users can write to {path}. Look at what it allows, then take that right away.")
        # Cheaper than reading, which every question would otherwise do.
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        remembered = self._read.get(path)
        if remembered is not None and remembered[0] == stamp:
            return remembered[1]
        content = read_rules(read_toml(path), path, project=project)
        if path == self.permanent_path:  # answers create rules for one directory, with all links followed
            rules = tuple(replace(rule, resolved=not rule.below) for rule in content.rules)
            content = replace(content, rules=rules)
        # Directories come and go over weeks; start again rather than track them.
        if len(self._read) >= _FILES_REMEMBERED:
            self._read.clear()
        self._read[path] = (stamp, content)
        return content


@dataclass(frozen=True, slots=True)
class _RulesFile:
    path: Path
    content: RulesContent
    project: Path | None
    may_allow: bool


def _question(command: str, directory: Path, *, inside: bool) -> Question:
    details = {"command": command, "directory": str(directory), "sandbox": "inside" if inside else "outside"}
    return Question(id="", type="command_approval", session_id="", turn_id=None, prompts=(), details=details, asker="")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _narrowing_part(content: RulesContent) -> RulesContent:
    return RulesContent(rules=tuple(rule for rule in content.rules if rule.effect != "allow"))


# --- Create rules from answers: `approve_session` for the session, `approve_always` permanently -----------------------

# A rule allows exactly what the person saw: these words or files, in exactly this directory, inside or outside the
# sandbox. It is created when the question is asked, so a link that changes later has no influence. A shorter prefix
# may be chosen only for a command proved to stay inside (`prefixes_for`).


def prefixes_for(question: Question, workspace: Workspace) -> list[list[str]]:
    """Return the choices for "always allow": a sensible prefix of the command, then the whole command. Often empty."""
    words = _only_command(question)
    # Outside the sandbox only the exact command may be allowed.
    if words is None or sandbox_of(question, workspace) != "inside":
        return []
    return [list(offered) for offered in dict.fromkeys([sensible_prefix(words), words]) if offered is not None]


def rule_for_session(question: Question, workspace: Workspace) -> Rule | None:
    """Return the rule for `approve_session`; None if the question cannot be recognised again."""
    origin = "approved for this session"
    outside = sandbox_of(question, workspace) != "inside"
    if question.type == "command_approval":
        # Without a directory the rule would hold everywhere.
        text, directory = _command_text(question), _directory_of(question, workspace)
        if text is None or directory is None:
            return None
        return Rule(
            effect="allow", text=text, directory=directory, below=False, resolved=True, outside=outside, origin=origin
        )
    paths = changed_paths(question)
    # A root that is granted covers more than the files shown.
    if paths is None or question.details.get("grantRoot"):
        return None
    return Rule(effect="allow", type="patch_approval", paths=paths, outside=outside, origin=origin)


def rule_for_always(question: Question, workspace: Workspace) -> Rule | None:
    """Return the rule for `approve_always`, which only commands can have; None if no rule is possible."""
    rule = rule_for_session(question, workspace)
    if rule is None or rule.text is None or rule.directory is None:
        return None
    home = os.path.realpath(expand_home("~"))
    # A rule there would cover every project.
    if rule.directory in (Path(rule.directory.anchor), Path(home)):
        return None  # permanent rules belong to a project
    if redact(rule.text) != rule.text:
        return None  # the rule would store a secret on disk
    return replace(rule, origin="approved always")


def with_prefix(rule: Rule, question: Question, workspace: Workspace, prefix: Sequence[str]) -> Rule:
    """Narrow the rule of `rule_for_always` to a prefix of the command.

    Raises:
        AnswerInvalid: The prefix was not offered.
    """
    offered = prefixes_for(question, workspace)
    # Only a prefix that was shown may be chosen.
    if list(prefix) not in offered:
        choices = " or ".join(shlex.join(choice) for choice in offered) or "none: answer approve_always alone"
        raise AnswerInvalid(f"{shlex.join(prefix)!r} is not a prefix that was offered. Choose {choices}.")
    return _for_beginning(rule, tuple(prefix))


def rule_shown_for_always(question: Question, prefix: str | None) -> str | None:
    """Return the TOML of the rule that `approve_always` creates with the chosen prefix."""
    text = question.details.get("alwaysRule")
    if not isinstance(text, str) or prefix is None:
        return text
    # From the text that the user has seen, so that the shown rule and the stored one cannot differ.
    (rule,) = read_rules(tomllib.loads(text), Path("rules.toml")).rules
    try:
        return rule_as_toml(_for_beginning(rule, tuple(shlex.split(prefix))))
    except ValueError:  # no words, so the answer is invalid too
        return text


def _for_beginning(rule: Rule, words: tuple[str, ...]) -> Rule:
    return replace(rule, text=None, command=words) if words == sensible_prefix(words) else rule


def _command_text(question: Question) -> str | None:
    """Return the command if its text identifies it and covers all that is asked for."""
    text = question.details.get("command")
    if question.type != "command_approval" or is_more_than_words(question):
        return None
    if not isinstance(text, str) or not text or not all(char.isprintable() or char in "\n\t" for char in text):
        return None  # with invisible characters, the person may have seen another text
    return text


def _only_command(question: Question) -> tuple[str, ...] | None:
    """Return the words of a single command, alone or after a `cd`."""
    text = _command_text(question)
    commands = parse_command(text) if text is not None else None
    # A `cd` before the command does not change which command it is.
    real = [command for command in commands or () if cd_target(command) is None]
    # A redirection or a variable belongs to the command, and a prefix would not show it.
    if len(real) != 1 or real[0].writes or real[0].env:
        return None
    return real[0].words


def _directory_of(question: Question, workspace: Workspace) -> Path | None:
    place = place_of(question, workspace)
    return None if place is None else Path(os.path.realpath(place))
