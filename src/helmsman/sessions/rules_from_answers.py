"""The rule that an answer makes: `approve_session` one for the session, `approve_always` one that stays.

Both allow no more than the person has seen: the very command, the very files, the very tool. For a command that is
allowed for good a shorter beginning may be chosen from `prefixes_for`; a permanent rule holds in one place only, the
repository in which the question arose.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from helmsman.errors import AnswerInvalid
from helmsman.repositories import repository_root
from helmsman.sessions.command_words import sensible_prefix
from helmsman.sessions.policy import Rule, cd_target, changed_paths, place_of
from helmsman.sessions.shell_words import parse_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.questions import Question
    from helmsman.sessions.policy import Workspace


def prefixes_for(question: Question) -> list[list[str]]:
    """What may be offered for "always allow": a sensible beginning of the command, then all of it. Often nothing."""
    words = _only_command(question)
    if words is None:
        return []
    prefix = sensible_prefix(words)
    return [list(offered) for offered in dict.fromkeys([prefix, words]) if offered is not None]


def rule_for_session(question: Question, workspace: Workspace) -> Rule | None:
    """The rule that `approve_session` makes; None when there is nothing that could be recognised again."""
    origin = "approved for this session"
    directory = _directory(question, workspace)
    match question.type:
        case "command_approval":
            text = _command_text(question)
            if text is None or directory is None:
                return None
            return Rule(effect="allow", text=text, directory=directory, origin=origin)
        case "patch_approval":
            paths = changed_paths(question)
            if paths is None or question.details.get("grantRoot"):
                return None
            return Rule(effect="allow", type="patch_approval", paths=paths, origin=origin)
        case "mcp_elicitation":
            tool = _mcp_tool(question)
            return None if tool is None else Rule(effect="allow", mcp=tool, origin=origin)
        case "permission_approval" | "user_input":
            return None


def rule_for_always(question: Question, workspace: Workspace, prefix: Sequence[str] | None = None) -> Rule:
    """The rule that `approve_always` makes, for the repository of the question.

    Args:
        question: What was asked: a command or an MCP tool.
        workspace: Where the session works, for a question that does not say where it arose.
        prefix: One of `prefixes_for(question)`; without it the rule is for the whole command as it stands.

    Raises:
        AnswerInvalid: No permanent rule can be made of this.
    """
    directory = _directory(question, workspace)
    place = None if directory is None else (repository_root(directory.resolve()) or directory.resolve())
    home = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 - does not raise where there is none
    if place is None or place in (Path(place.anchor), home):
        raise AnswerInvalid(
            "A permanent rule needs a place, and this question arose outside of any project. Approve it for this session."
        )
    origin = "approved always"
    tool = _mcp_tool(question)
    if tool is not None and prefix is None:
        return Rule(effect="allow", mcp=tool, directory=place, origin=origin)
    text = _command_text(question)
    if text is None:
        raise AnswerInvalid("This cannot be allowed for good. Approve it this once, or for this session.")
    words = _only_command(question)
    short = sensible_prefix(words) if words is not None else None
    if prefix is None or (tuple(prefix) == words and words != short):
        return Rule(effect="allow", text=text, directory=place, origin=origin)
    if tuple(prefix) != short:
        offered = (
            " or ".join(shlex.join(choice) for choice in prefixes_for(question)) or "none: allow the whole command"
        )
        raise AnswerInvalid(f"{shlex.join(prefix)!r} is not a prefix that was offered. Choose {offered}.")
    return Rule(effect="allow", command=short, directory=place, origin=origin)


def _command_text(question: Question) -> str | None:
    """The command, when it can be recognised by its text and says all that was asked for."""
    details = question.details
    text = details.get("command")
    if question.type != "command_approval" or details.get("additionalPermissions") or details.get("networkContext"):
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


def _mcp_tool(question: Question) -> tuple[str, str] | None:
    details = question.details
    server, tool = details.get("server"), details.get("tool")
    if question.type != "mcp_elicitation" or details.get("approvalKind") != "mcp_tool_call":
        return None
    return (server, tool) if isinstance(server, str) and isinstance(tool, str) else None


def _directory(question: Question, workspace: Workspace) -> Path | None:
    place = place_of(question, workspace)
    return None if place is None else Path(place)
