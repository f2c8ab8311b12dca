"""Approval rules."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from helmsman.base.structs import Value
from helmsman.model.questions import QuestionType

Effect = Literal["allow", "deny", "ask"]


class Rule(Value, frozen=True, kw_only=True):
    """Approval rule. Fields set to None match anything; all other fields must match.

    `command` holds the first words of a simple command. `text` is a whole command exactly as the question shows it,
    with or without the shell that Codex wraps around it. `mcp` names a server and one of its tools, or None for all
    tools. The question must arise in `directory` or, with `below`, in a subdirectory. `resolved` means that links in
    `directory` were followed when the rule was made, so a link found there now does not match. `reason` is sent to the
    agent; `origin` says where the rule is defined.

    For allow rules only: `outside` also covers commands that may leave the sandbox; `command` then holds all words of
    the command, or the first ones with `prefix`. `paths` lists files that a patch may change, `env` variables that may
    be set before a command. For deny rules only: `exact` matches the words as written, not equivalent spellings.
    """

    effect: Effect
    command: tuple[str, ...] | None = None
    text: str | None = None
    mcp: tuple[str, str | None] | None = None
    paths: tuple[str, ...] | None = None
    directory: Path | None = None
    below: bool = True
    resolved: bool = False
    type: QuestionType | None = None
    env: tuple[str, ...] = ()
    outside: bool = False
    prefix: bool = False
    exact: bool = False
    reason: str | None = None
    origin: str = ""
    proposed_by: str | None = None
    """MCP client with the model that proposed the rule. The rule has no effect until a person confirms it."""

    def describe(self) -> str:
        """Return the rule in one line, for the audit log and for people."""
        if self.command is not None:
            what = " ".join(self.command) + (" …" if self.prefix else "")
        elif self.text is not None:
            what = self.text
        elif self.mcp is not None:
            what = f"MCP {self.mcp[0]} {self.mcp[1] or '(all tools)'}"
        elif self.paths is not None:
            what = f"changes to {', '.join(self.paths)}"
        else:
            what = self.type or "everything"
        where = " outside the sandbox" if self.outside else ""
        if self.directory is not None:
            where += f" in {self.directory}" + ("" if self.below else " itself")
        return f"{self.effect} {what}{where}" + (f" ({self.origin})" if self.origin else "")
