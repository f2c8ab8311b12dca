"""`helmsman watch`: follow a session live, and answer what it asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.on_session import session_argument
from helmsman.errors import StepFailed, StepInterrupted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helmsman.events import Event
    from helmsman.service import Helmsman
    from helmsman.sessions.session import QuestionHandler, Session
    from helmsman.step import StepResult


@click.command(
    "watch",
    short_help="Follow a session live.",
    epilog="""\b
Examples:
  helmsman watch 3b2d5c8e
  helmsman watch 3b2d5c8e --json | jq .type
""",
)
@session_argument
@json_option
@reports_errors
def command(session: str, as_json: bool) -> int:
    """Follow a session live until its turn ends, whoever began it, and answer its questions on the terminal.

    SESSION is a session's id or a part of it (`helmsman list` shows them). Without a terminal its questions are left to
    others. Ctrl-C stops the turn; a second Ctrl-C leaves at once. The exit code is that of the turn.
    """

    async def find(helm: Helmsman) -> Session:
        from helmsman.cli.session_ids import full_session_id

        return await helm.session(await full_session_id(helm, session))

    return watch(find, as_json=as_json)


def watch(find: Callable[[Helmsman], Awaitable[Session]], *, as_json: bool) -> int:
    """Follow the session that `find` gives in front of a person, or for a program; the exit code."""
    import anyio

    from helmsman.cli.consoles import configure_logs
    from helmsman.settings import load_settings

    settings = load_settings()
    configure_logs(settings)

    async def run() -> int:
        from helmsman.cli.consoles import logs_wanted
        from helmsman.cli.displays import HumanDisplay, JsonDisplay
        from helmsman.cli.follow import follow
        from helmsman.service import Helmsman
        from helmsman.terminal import has_terminal

        display = JsonDisplay() if as_json else HumanDisplay(live=not logs_wanted(settings))
        answers = display.on_question if has_terminal() else None
        async with Helmsman(settings, on_question=answers) as helm:
            watched = await find(helm)

            async def see(*, on_event: Callable[[Session, Event], None], on_question: QuestionHandler) -> StepResult:
                async for event in watched.events():
                    on_event(watched, event)
                return ended(watched)

            return int((await follow(see, display)).exit_code)

    return anyio.run(run)


def ended(session: Session) -> StepResult:
    """How the turn of a session ended.

    Raises:
        StepFailed: It failed.
        StepInterrupted: Somebody stopped it.
    """
    from helmsman.step import StepResult

    if session.status == "interrupted":
        raise StepInterrupted("The turn was interrupted. Send the session a message to go on.", session_id=session.id)
    if session.error is not None:
        raise StepFailed(session.error.message, session_id=session.id, cause_code=session.error.code)
    return StepResult(
        text=session.result or "", output=session.output, session_id=session.id, usage=session.usage, attempts=1
    )
