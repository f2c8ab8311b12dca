"""`helmsman` without arguments: the full screen, or a printed overview where there is no terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from helmsman.cli.command import reports_errors
from helmsman.cli.consoles import is_terminal, result_console
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.list import COLUMNS, cells
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.questions import show_asking_elsewhere
from helmsman.cli.session_ids import short_id
from helmsman.cli.tables import fitting_table

if TYPE_CHECKING:
    from helmsman.client import Helmsman

_LOOKED_AT: Final = 100
_LAST: Final = 5
_COMMAND_WIDTH: Final = 26


@reports_errors
def overview() -> int:
    """Open the full screen on a terminal; elsewhere print what waits, runs and ran last."""
    if not (sys.stdin.isatty() and is_terminal(result_console())):
        return _print()
    from helmsman.cli.full_screen import choose_session
    from helmsman.cli.watch import watch

    while (joined := with_helmsman(choose_session)) is not None:
        watch(joined, interactive=True, as_json=False)
    return ExitCode.OK


def _print() -> int:
    from rich.text import Text

    from helmsman.shapes.listed_sessions import listed_sessions

    async def look(helm: Helmsman) -> list[dict[str, Any]]:
        found, _ = await helm.list(limit=_LOOKED_AT)
        return await listed_sessions(helm, found)

    sessions = with_helmsman(look)
    asking = [one for one in sessions if one.get("status") == "awaiting_approval"]
    running = [one for one in sessions if one.get("status") == "active"]
    others = [one for one in sessions if one not in asking and one not in running][:_LAST]
    console = result_console()
    for heading, style, listed in (
        ("Waits for you", "bold yellow", asking),
        ("Running", "bold green", running),
        ("Last", "bold", others),
    ):
        if listed:
            console.print(Text(heading, style))
            console.print(fitting_table(console, COLUMNS, [cells(one, console.width) for one in listed]))
            console.print()
    if not sessions:
        console.print("No agent has a session here yet.\n")
    for command, does in _commands(asking, running, others):
        line = Text.assemble(f"  {command:<{_COMMAND_WIDTH}}", (f"  {does}", "dim"))
        console.print(line if line.cell_len <= console.width else f"  {command}", soft_wrap=True)
    show_asking_elsewhere()
    return ExitCode.OK


def _commands(
    asking: list[dict[str, Any]], running: list[dict[str, Any]], others: list[dict[str, Any]]
) -> list[tuple[str, str]]:
    """Return suggested commands for the current state."""
    offered = [("helmsman respond", "answer what is asked")] if asking else []
    if running:
        offered.append((f"helmsman watch {short_id(running[0]['sessionId'])}", "follow it"))
    if others:
        offered.append((f"helmsman status {short_id(others[0]['sessionId'])}", "see what came of it"))
    else:
        offered.append(("helmsman demo", "see it work, without an account"))
    return [*offered, ('helmsman run "…"', "start something"), ("helmsman --help", "all commands")]
