"""Collect the rules that apply to a directory: the user's, permanent ones from answers, and the project's.

A project's `helmsman.toml` comes with the repository, so it may only restrict: its deny and ask rules always count. Its
allow rules and switches count only if the user's file lists the directory in `trusted_projects`, and then only inside
that directory and inside the sandbox. Codex can write to a project's file, so rules that must hold belong in the user's
file.

Permanent rules from answers are stored in `rules.toml` of the state directory, in the same format
(`approvals.rules_file`).
"""

from __future__ import annotations

import logging
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.approvals.listed_rules import ListedRule, lines_of_rules, without_rule
from helmsman.approvals.policy import RuleSet, Ruling, Workspace, decide
from helmsman.approvals.rules_file import RulesContent, read_rules, rule_as_toml
from helmsman.approvals.shell_words import innermost_script
from helmsman.base.caller_context import expand_home
from helmsman.base.files import file_lock, replace_file
from helmsman.base.repositories import project_places
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput, InvalidSetting
from helmsman.model.questions import Question
from helmsman.settings import CONFIG_NAME, ConfigFile, ensure_state_dir, read_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from helmsman.model.rules import Rule


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
            contents = [_narrowing_part(content) for content in contents]
        return RuleSet(
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
        for path, project in (*files, *((path, path.parent) for path in self._project_files(directory))):
            try:
                content = self._content(path, project=project)
            except InvalidSetting as error:
                problem = problem or error
                continue
            if project is None:
                trusted |= {os.path.realpath(place) for place in content.trusted_projects}
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
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        remembered = self._read.get(path)
        if remembered is not None and remembered[0] == stamp:
            return remembered[1]
        content = read_rules(read_toml(path), path, project=project)
        if path == self.permanent_path:  # answers create rules for one directory, with all links followed
            rules = tuple(replace(rule, resolved=not rule.below) for rule in content.rules)
            content = replace(content, rules=rules)
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
