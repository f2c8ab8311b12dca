"""Create rules from answers: `approve_session` for the session, `approve_always` permanently.

A rule allows exactly what the person saw: these words or files, in exactly this directory, inside or outside the
sandbox. It is created when the question is asked, so a link that changes later has no influence. A shorter prefix may
be chosen only for a command proved to stay inside (`prefixes_for`).
"""

from __future__ import annotations

import os
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from helmsman.approvals.policy import Workspace, cd_target, changed_paths, is_more_than_words, place_of, sandbox_of
from helmsman.approvals.rule_book import read_rules, rule_as_toml
from helmsman.approvals.shell_words import parse_command, sensible_prefix
from helmsman.base.caller_context import expand_home
from helmsman.base.redaction import redact
from helmsman.base.structs import replace
from helmsman.errors import AnswerInvalid
from helmsman.model.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.model.questions import Question


def prefixes_for(question: Question, workspace: Workspace) -> list[list[str]]:
    """Return the choices for "always allow": a sensible prefix of the command, then the whole command. Often empty."""
    words = _only_command(question)
    if words is None or sandbox_of(question, workspace) != "inside":
        return []
    return [list(offered) for offered in dict.fromkeys([sensible_prefix(words), words]) if offered is not None]


def rule_for_session(question: Question, workspace: Workspace) -> Rule | None:
    """Return the rule for `approve_session`; None if the question cannot be recognised again."""
    origin = "approved for this session"
    outside = sandbox_of(question, workspace) != "inside"
    if question.type == "command_approval":
        text, directory = _command_text(question), _directory(question, workspace)
        if text is None or directory is None:
            return None
        return Rule(
            effect="allow", text=text, directory=directory, below=False, resolved=True, outside=outside, origin=origin
        )
    paths = changed_paths(question)
    if paths is None or question.details.get("grantRoot"):
        return None
    return Rule(effect="allow", type="patch_approval", paths=paths, outside=outside, origin=origin)


def rule_for_always(question: Question, workspace: Workspace) -> Rule | None:
    """Return the rule for `approve_always`, which only commands can have; None if no rule is possible."""
    rule = rule_for_session(question, workspace)
    if rule is None or rule.text is None or rule.directory is None:
        return None
    home = os.path.realpath(expand_home("~"))
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
    if list(prefix) not in offered:
        choices = " or ".join(shlex.join(choice) for choice in offered) or "none: answer approve_always alone"
        raise AnswerInvalid(f"{shlex.join(prefix)!r} is not a prefix that was offered. Choose {choices}.")
    return _for_beginning(rule, tuple(prefix))


def rule_shown_for_always(question: Question, prefix: str | None) -> str | None:
    """Return the TOML of the rule that `approve_always` creates with the chosen prefix."""
    text = question.details.get("alwaysRule")
    if not isinstance(text, str) or prefix is None:
        return text
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
    real = [command for command in commands or () if cd_target(command) is None]
    if len(real) != 1 or real[0].writes or real[0].env:
        return None
    return real[0].words


def _directory(question: Question, workspace: Workspace) -> Path | None:
    place = place_of(question, workspace)
    return None if place is None else Path(os.path.realpath(place))
