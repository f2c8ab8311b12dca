"""`helmsman status`: show the current state of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.base.sanitize import one_line, visible
from helmsman.cli.command import cli_command
from helmsman.cli.consoles import echo, is_terminal, result_console
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.on_session import on_session, session_argument
from helmsman.cli.output import WAITING_FOR_YOU, print_details, print_json
from helmsman.model.options import DEFAULT_AGENT

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from helmsman.client import Helmsman
    from helmsman.sessions.session import Session
    from helmsman.shapes.contract import StatusOutput


@cli_command(
    "status", "Show what a session is doing.", "helmsman status 3b2d5c8e", "helmsman status 3b2d5c8e --lines 200 --json"
)
@session_argument
@click.option(
    "--lines",
    type=click.IntRange(0, 2000),
    default=20,
    show_default=True,
    metavar="N",
    help="How many lines of recent output to show.",
)
def command(session: str, lines: int, as_json: bool) -> int:
    """Show what a session is doing right now: its status, its recent output, what it asks, its result.

    SESSION is a part of an id or title, or `-` for the last one; without it, the one running here or the last of this
    directory. A session that waits for an answer gives exit code 5, one that failed 1.
    """
    from helmsman.shapes.session_status import session_status

    async def look(helm: Helmsman, session_id: str) -> tuple[Session, StatusOutput]:
        looked_at = await helm.session(session_id)
        return looked_at, session_status(looked_at, output_lines=lines)

    _, (looked_at, status) = on_session(session, look)
    if as_json:
        print_json(status.as_dict())
    else:
        _print(looked_at, status, lines)
    return {"awaiting_approval": ExitCode.ASKED, "error": ExitCode.FAILED}.get(status.status, ExitCode.OK)


def _print(session: Session, status: StatusOutput, lines: int) -> None:
    from helmsman.cli.open_question import open_question_lines
    from helmsman.shapes.session_status import how_long

    word = WAITING_FOR_YOU if status.status == "awaiting_approval" else status.status
    progress = status.progress
    if progress is not None and word == WAITING_FOR_YOU and not progress.done:
        progress = None  # "nothing finished yet" does not help with the question
    standing = word if progress is None else f"{word}: {progress.text}"
    if status.timed_out and status.pending_question is None:
        standing += ", but not everything was answered"
    usage = status.usage
    details = {
        "session": status.session_id,
        "status": standing,
        "note": status.note,
        "waits": how_long(status),
        "error": None if status.error is None else f"{status.error.code}: {status.error.message}",
        "agent": None if status.agent == DEFAULT_AGENT else status.agent,
        "name": session.state.name,
        "directory": status.working_directory,
        "sandbox": _held(session, status),
        "worktree": None if status.worktree is None else status.worktree.branch,
        "model": status.model,
        "tokens": None if usage is None else f"{usage.input_tokens:,} in, {usage.output_tokens:,} out",
    }
    print_details({label: one_line(text or "") for label, text in details.items()})
    console = result_console()
    if not is_terminal(console):
        if status.recent_output:
            echo("\n" + visible("\n".join(status.recent_output)))
    elif recent := recent_lines(console, session, lines):
        console.print("", *recent, sep="\n", soft_wrap=True)
    for question in session.questions:
        for text in open_question_lines(console, session, question):
            console.print(text, soft_wrap=True)


def _held(session: Session, status: StatusOutput) -> str | None:
    """Return the sandbox of the agent. Codex has its own, so for Codex only its absence is shown."""
    if status.enforced is None or (status.enforced and status.agent == DEFAULT_AGENT):
        return None
    return f"{session.state.sandbox}, enforced" if status.enforced else "unenforced: nothing limits approved actions"


def recent_lines(console: Console, session: Session, count: int) -> list[Text]:
    """Return the last lines of the session's output, with rendered Markdown."""
    from rich.text import Text

    from helmsman.model.events import AgentMessage, ProposedPlan, Review
    from helmsman.shapes.session_status import item_lines
    from helmsman.terminal.markdown import markdown_lines

    shown: list[Text] = []
    for item in reversed(session.items):
        if len(shown) >= count:
            break
        match item:
            case AgentMessage() | ProposedPlan() | Review():
                lines = markdown_lines(console, item.text)
            case _:
                lines = [Text(visible(line)) for line in item_lines(item)]
        shown[:0] = lines
    return shown[-count:] if count else []
