"""Latest output of the running commands, for the live part of the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from helmsman.base.sanitize import one_line, plain_output, shell_script
from helmsman.model import events
from helmsman.terminal.layout import crop

if TYPE_CHECKING:
    from rich.console import Console

    from helmsman.sessions.session import Session

_TAIL_LINES: Final = 6
_LOOKED_AT: Final = 8000  # only this tail of the output is searched for lines: it is drawn ten times a second
_COMMANDS: Final = 3
_SHARE: Final = 3  # maximum share of the screen: one third


def running_lines(console: Console, session: Session) -> list[Text]:
    """Return each running command with the end of its output."""
    commands = [
        item
        for item in session.items
        if isinstance(item, events.CommandExecution) and item.status == "in_progress" and not item.announced
    ]
    shown = commands[-_COMMANDS:]
    most = max(1, min(_TAIL_LINES, console.height // _SHARE) // max(1, len(shown)))
    lines: list[Text] = []
    for item in shown:
        script = Text(one_line(shell_script(item.command)), "bold")
        lines.append(crop(console, Text.assemble(("$ ", "bold cyan"), script), indent=0))
        tail = plain_output(item.output[-_LOOKED_AT:]).rstrip()
        lines += [crop(console, Text(line, "dim")) for line in tail.split("\n")[-most:] if tail]
    return lines
