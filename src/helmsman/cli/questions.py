"""`helmsman questions`: answer the open questions of all sessions one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.base.shown_text import one_line, visible
from helmsman.cli.command import cli_command
from helmsman.cli.consent import can_ask
from helmsman.cli.consoles import message_console
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import command_here
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.others import print_unreachable
from helmsman.cli.output import counted
from helmsman.cli.respond import AskingSession, asking_everywhere, show_all
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from helmsman.model.answered_by import Answered
    from helmsman.model.questions import Question
    from helmsman.service import Helmsman


@cli_command(
    "questions",
    "Answer what sessions ask, one by one.",
    "helmsman questions",
    "helmsman questions --json | jq .sessions",
)
def command(as_json: bool) -> int:
    """Go through the open questions of all sessions, oldest first, no matter who started them; then those on your other
    machines (`helmsman hosts`).

    Each question looks as in `helmsman run`. Ctrl-D skips one, Ctrl-C leaves. Without a terminal they are listed with the
    commands that answer them, as in `helmsman respond`. The exit code is 5 if any are still open.
    """
    if not can_ask(as_json=as_json):
        return show_all(as_json=as_json)
    left = with_helmsman(_answer_all)
    if left:
        are = "is" if left == 1 else "are"
        click.echo(
            f"{counted(left, 'question')} {are} still open. Come back with {command_here('questions')}.", err=True
        )
    return ExitCode.ASKED if left else ExitCode.OK


async def _answer_all(helm: Helmsman) -> int:
    """Ask the user every open question, including new ones; return how many stayed open."""
    seen: set[tuple[str, str]] = set()
    away: dict[str, str] = {}
    while True:
        asking = await asking_everywhere(helm, away)
        fresh = [
            (one, question) for one in asking for question in one.session.questions if (one.id, question.id) not in seen
        ]
        if not fresh:
            print_unreachable(away)
            left = sum(max(1, len(one.session.questions)) for one in asking)
            if not left and not seen:
                click.echo("There are no open questions.", err=True)
            for one in asking:
                if one.session.elsewhere is not None:
                    click.echo(visible(one.session.elsewhere), err=True)
            return left
        for one, question in fresh:
            seen.add((one.id, question.id))
            if any(still.id == question.id for still in one.session.questions):
                await _answer(one, question)


async def _answer(one: AskingSession, question: Question) -> None:
    """Ask the user a question, until it is answered here or elsewhere."""
    import anyio
    from rich.text import Text

    from helmsman.base.concurrency import background_tasks
    from helmsman.sessions.desk import cancel_when_closed
    from helmsman.terminal import ask_on_terminal

    console = message_console()
    console.print(Text.assemble("\n", (one.short_id, "bold"), f"  {one_line(one.instruction)[:200]}"), soft_wrap=True)
    answered: Answered | None = None
    with anyio.CancelScope() as scope:
        async with background_tasks() as tasks:
            tasks.start_soon(cancel_when_closed, one.session, question, scope)
            answered = await ask_on_terminal(one.session, question)
    if answered is None:
        return
    try:
        await one.session.respond(question.id, *answered.answers, by=answered.by)
    except HelmsmanError as error:  # answered elsewhere, or the session is gone; continue with the next question
        console.print(f"  {visible(error.message)}", style="yellow")
