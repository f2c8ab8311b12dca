"""`helmsman status`: what a session is doing right now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.on_session import on_session, session_argument

if TYPE_CHECKING:
    from helmsman.mcp.contract import PendingQuestion, StatusOutput
    from helmsman.service import Helmsman


@click.command(
    "status",
    short_help="Show what a session is doing.",
    epilog="""\b
Examples:
  helmsman status 3b2d5c8e
  helmsman status 3b2d5c8e --lines 200 --json
""",
)
@session_argument
@click.option(
    "--lines", type=click.IntRange(0, 2000), default=20, show_default=True, metavar="N", help="So much recent output."
)
@json_option
@reports_errors
def command(session: str, lines: int, as_json: bool) -> int:
    """Show what a session is doing right now: its status, its recent output, what it asks, its result.

    SESSION is a session's id or a part of it (`helmsman list` shows them). A session that waits for an answer gives exit
    code 5, one that failed 1.
    """
    from helmsman.mcp.status import session_status
    from helmsman.rendering import json_line

    async def look(helm: Helmsman, session_id: str) -> StatusOutput:
        return session_status(await helm.session(session_id), output_lines=lines)

    status = on_session(session, look)
    if as_json:
        click.echo(json_line(status.model_dump(by_alias=True, mode="json", exclude_none=True)))
    else:
        click.echo("\n".join(_in_words(status)))
    return {"awaiting_approval": ExitCode.ASKED, "error": ExitCode.FAILED}.get(status.status, ExitCode.OK)


def _in_words(status: StatusOutput) -> list[str]:
    from helmsman.terminal.text import visible

    lines = [f"{status.session_id}  {status.status}"]
    where = ", ".join(filter(None, (status.working_directory, status.model)))
    lines += [where] if where else []
    lines += [status.progress.text] if status.progress is not None else []
    lines += [status.note] if status.note else []
    if status.recent_output:
        lines += ["", *status.recent_output]
    if status.error is not None:
        lines += ["", f"{status.error.code}: {status.error.message}"]
    if status.pending_question is not None:
        lines += ["", *question_in_words(status.session_id, status.pending_question)]
    if status.usage is not None:
        lines += ["", f"{status.usage.input_tokens:,} tokens in, {status.usage.output_tokens:,} out"]
    return [visible(line) for line in lines]


def question_in_words(session_id: str, question: PendingQuestion) -> list[str]:
    """A question as a person reads it, and the command that answers it."""
    lines = [f"Question {question.id} ({question.type})"]
    for part in question.questions:
        lines.append(f"  {part.question}")
        lines += [f"    {option}" for option in part.options]
    for name in ("command", "directory", "reason", "diff"):
        if question.details.get(name):
            lines += [f"  {name}:", *(f"    {line}" for line in str(question.details[name]).splitlines())]
    return [*lines, f"Answer it: helmsman respond {session_id} {question.id} ANSWER"]
