"""Approval rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from helmsman.base.config_table import one_of, some_path, some_text, switch, words
from helmsman.base.structs import Value
from helmsman.model.questions import QuestionType

Effect = Literal["allow", "deny", "ask"]


def mcp_tool(value: Any) -> tuple[str, str | None]:
    """Read the name of an MCP server, with one of its tools or for all of them."""
    is_known = isinstance(value, dict) and "server" in value and value.keys() <= {"server", "tool"}
    if not is_known or not all(isinstance(name, str) and name for name in value.values()):
        raise ValueError('a table such as { server = "notes", tool = "search" }')
    return value["server"], value.get("tool")


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

    Fields with a reader are the keys of a `[[rules]]` table.
    """

    effect: Annotated[Effect, one_of(*get_args(Effect))]
    command: Annotated[tuple[str, ...] | None, words('["git", "status"]')] = None
    text: Annotated[str | None, some_text] = None
    mcp: Annotated[tuple[str, str | None] | None, mcp_tool] = None
    paths: tuple[str, ...] | None = None
    directory: Annotated[Path | None, some_path] = None
    below: Annotated[bool, switch] = True
    resolved: bool = False
    type: Annotated[QuestionType | None, one_of(*get_args(QuestionType))] = None
    env: Annotated[tuple[str, ...], words('["CI"]')] = ()
    outside: Annotated[bool, switch] = False
    prefix: Annotated[bool, switch] = False
    exact: Annotated[bool, switch] = False
    reason: Annotated[str | None, some_text] = None
    origin: str = ""
    proposed_by: Annotated[str | None, some_text] = None
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
