"""The rule that an answer makes: `approve_session` one for the session, `approve_always` one that stays.

Both allow what the person has seen and nothing more: these words or files, in exactly this directory, inside or outside of
the sandbox as it was shown. They are made when the question is asked, so that what is shown then is what is kept, wherever
a link leads later. Only for a command that is proved to stay inside a shorter beginning may be chosen, from `prefixes_for`.
"""

from __future__ import annotations

import os
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from helmsman.approvals.policy import Rule, cd_target, changed_paths, is_more_than_words, place_of, sandbox_of
from helmsman.approvals.rules_file import read_rules, rule_as_toml
from helmsman.approvals.shell_words import parse_command, sensible_prefix
from helmsman.base.redaction import redact
from helmsman.base.structs import replace
from helmsman.base.surroundings import expand_home
from helmsman.errors import AnswerInvalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.approvals.policy import Workspace
    from helmsman.model.questions import Question


def prefixes_for(question: Question, workspace: Workspace) -> list[list[str]]:
    """What may be chosen for "always allow": a sensible beginning of the command, then all of it. Often nothing."""
    words = _only_command(question)
    if words is None or sandbox_of(question, workspace) != "inside":
        return []
    return [list(offered) for offered in dict.fromkeys([sensible_prefix(words), words]) if offered is not None]


def rule_for_session(question: Question, workspace: Workspace) -> Rule | None:
    """The rule that `approve_session` makes; None when there is nothing that could be recognised again."""
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
    """The rule that `approve_always` makes of a command; None where none can be made."""
    rule = rule_for_session(question, workspace)
    if rule is None or rule.text is None or rule.directory is None:
        return None
    home = os.path.realpath(expand_home("~"))
    if rule.directory in (Path(rule.directory.anchor), Path(home)):
        return None  # what is allowed for good belongs to a project
    if redact(rule.text) != rule.text:
        return None  # it would keep a secret on disk
    return replace(rule, origin="approved always")


def with_prefix(rule: Rule, question: Question, workspace: Workspace, prefix: Sequence[str]) -> Rule:
    """The rule of `rule_for_always`, for a beginning of the command that was chosen instead of the whole.

    Raises:
        AnswerInvalid: This beginning was not offered.
    """
    offered = prefixes_for(question, workspace)
    if list(prefix) not in offered:
        choices = " or ".join(shlex.join(choice) for choice in offered) or "none: answer approve_always alone"
        raise AnswerInvalid(f"{shlex.join(prefix)!r} is not a prefix that was offered. Choose {choices}.")
    return _for_beginning(rule, tuple(prefix))


def rule_shown_for_always(question: Question, prefix: str | None) -> str | None:
    """The rule that `approve_always` makes, with the beginning that was chosen, as it is shown to who gives that answer."""
    text = question.details.get("alwaysRule")
    if not isinstance(text, str) or prefix is None:
        return text
    (rule,) = read_rules(tomllib.loads(text), Path("rules.toml")).rules
    try:
        return rule_as_toml(_for_beginning(rule, tuple(shlex.split(prefix))))
    except ValueError:  # no words, and so no answer either
        return text


def _for_beginning(rule: Rule, words: tuple[str, ...]) -> Rule:
    return replace(rule, text=None, command=words) if words == sensible_prefix(words) else rule


def _command_text(question: Question) -> str | None:
    """The command, when it can be recognised by its text and says all that was asked for."""
    text = question.details.get("command")
    if question.type != "command_approval" or is_more_than_words(question):
        return None
    if not isinstance(text, str) or not text or not all(char.isprintable() or char in "\n\t" for char in text):
        return None  # what has invisible characters in it may not be what the person saw
    return text


def _only_command(question: Question) -> tuple[str, ...] | None:
    """The words of the one command that matters: alone, or after a `cd`."""
    text = _command_text(question)
    commands = parse_command(text) if text is not None else None
    real = [command for command in commands or () if cd_target(command) is None]
    if len(real) != 1 or real[0].writes or real[0].env:
        return None
    return real[0].words


def _directory(question: Question, workspace: Workspace) -> Path | None:
    place = place_of(question, workspace)
    return None if place is None else Path(os.path.realpath(place))
