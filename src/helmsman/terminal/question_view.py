"""A question of Codex as lines on the terminal: all that one needs to see to decide, and nothing hidden in it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from helmsman.terminal.diffs import change_lines, diff_lines
from helmsman.terminal.layout import fold_all
from helmsman.terminal.text import one_line, shell_script, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from helmsman.events import PathChange
    from helmsman.questions import Question

_TITLES: Final = {
    "command_approval": "Codex asks to run a command",
    "patch_approval": "Codex asks to change files",
    "permission_approval": "Codex asks for more permissions",
    "user_input": "Codex asks you",
    "mcp_elicitation": "An MCP server asks you",
}
DIFF_LINES: Final = 120
"""How much of a diff is shown at once; the rest can be asked for."""


def question_lines(
    console: Console, question: Question, *, directory: str | None = None, changes: Sequence[PathChange] = ()
) -> tuple[list[Text], int]:
    """The question as seen from a session's directory, and how many lines of its diff were left out.

    `changes` are those of the file change it is about, where they are known: unlike a diff, they tell a path in the
    directory from one outside.
    """
    details = question.details
    diff = _diff(question, directory, changes)
    left_out = max(0, len(diff) - DIFF_LINES)
    lines: list[Text] = []
    match question.type:
        case "command_approval" if details.get("command"):
            lines += _command(str(details["command"]))
        case "patch_approval" if diff:
            lines += diff[:DIFF_LINES]
            if left_out:
                lines.append(Text(f"… {left_out} more lines", "yellow"))
        case "user_input":  # each of its prompts is shown when it is asked
            lines += [Text(line) for line in visible(str(details.get("plan") or "")).splitlines()]
        case _ if question.prompts:
            lines.append(Text(visible(question.prompts[0].text)))
        case _:
            pass
    lines += _circumstances(question, directory)
    title = Text(f"? {_title(question)}", "bold yellow")
    return [Text(), title, *fold_all(console, lines)], left_out


def whole_diff(
    console: Console, question: Question, *, directory: str | None = None, changes: Sequence[PathChange] = ()
) -> list[Text]:
    """The diff of a patch, however long."""
    return fold_all(console, _diff(question, directory, changes))


def _title(question: Question) -> str:
    title = _TITLES[question.type]
    if question.agent_id is not None:
        title = title.replace("Codex", "A sub-agent of Codex")
    server = question.details.get("server")
    return f"{title} ({one_line(str(server))})" if server else title


def _diff(question: Question, directory: str | None, changes: Sequence[PathChange]) -> list[Text]:
    if changes:
        return [line for change in changes for line in change_lines(change, directory)]
    diff = question.details.get("diff")
    return diff_lines(diff) if isinstance(diff, str) and diff else []


def _command(command: str) -> list[Text]:
    script = visible(shell_script(command)).split("\n")
    return [
        Text.assemble(("$ ", "bold cyan"), (script[0], "bold")),
        *(Text(f"  {line}", "bold") for line in script[1:]),
    ]


def _circumstances(question: Question, directory: str | None) -> Iterable[Text]:
    """Where and why, and whatever else comes with the question."""
    details = question.details
    where = details.get("directory")
    if where:
        elsewhere = directory is not None and where != directory
        yield _labelled("in", str(where), "yellow" if elsewhere else "")
    if question.type in ("command_approval", "patch_approval") and details.get("reason"):
        yield _labelled("because", str(details["reason"]))
    if details.get("grantRoot"):
        yield _labelled("and write access to", str(details["grantRoot"]), "yellow")
    for key, label in (("additionalPermissions", "with"), ("networkContext", "network"), ("toolParams", "with")):
        if details.get(key):
            yield _labelled(label, _compact(details[key]))
    for key, label in (("toolDescription", "the tool"), ("url", "opens")):
        if details.get(key):
            yield _labelled(label, str(details[key]))


def _labelled(label: str, text: str, style: str = "") -> Text:
    return Text.assemble((f"{label} ", "dim"), (one_line(text), style))


def _compact(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)
