"""`helmsman watch`: follow a session live, and answer what it asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.cli.command import cli_command
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.on_session import session_argument, with_helmsman
from helmsman.cli.session_ids import full_session_id
from helmsman.errors import StepFailed, StepInterrupted, StepTimedOut, TurnTimedOut

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helmsman.cli.displays import Display
    from helmsman.model.events import Event
    from helmsman.model.questions import Question
    from helmsman.service import Helmsman
    from helmsman.sessions.session import QuestionHandler, Session
    from helmsman.step import StepResult

_LEFT: Final = "You left before the turn had ended. `helmsman status` shows how it goes on."


@cli_command("watch", "Follow a session live.", "helmsman watch 3b2d5c8e", "helmsman watch 3b2d5c8e --json | jq .type")
@session_argument
def command(session: str, as_json: bool) -> int:
    """Follow a session live until its turn ends, whoever began it, and answer its questions on the terminal.

    SESSION is a session's id or a part of it (`helmsman list` shows them). Without a terminal its questions are left to
    others. Ctrl-C stops the turn; a second Ctrl-C leaves at once. The exit code is that of the turn.
    """

    async def find_and_follow(helm: Helmsman, display: Display) -> int:
        return await follow_session(await helm.session(await full_session_id(helm, session)), display)

    return with_display(find_and_follow, as_json=as_json)


def with_display(do: Callable[[Helmsman, Display], Awaitable[int]], *, as_json: bool) -> int:
    """Do something with a Helmsman whose questions are put to the person at the terminal; the exit code.

    Without a terminal they are left to others: unlike `run`, this process is not the only one that can answer.
    """
    from helmsman.cli.displays import new_display
    from helmsman.terminal import has_terminal

    settings = settings_of_command()
    display = new_display(settings, as_json=as_json, answer=None if has_terminal() else _leave_to_others)
    return with_helmsman(lambda helm: do(helm, display), settings=settings, on_question=display.on_question)


async def follow_session(session: Session, display: Display) -> int:
    """Show the running (or last) turn of a session until it ends; the exit code is that of the turn."""
    from helmsman.cli.follow import follow

    async def show(*, on_event: Callable[[Session, Event], None], on_question: QuestionHandler) -> StepResult:
        async for event in session.events(since=session.turn_cursor):
            on_event(session, event)
        return ended(session)

    return (await follow(show, display, session=session, left=_LEFT)).exit_code


async def _leave_to_others(_session: Session, _question: Question, /) -> None:
    return None


def ended(session: Session) -> StepResult:
    """How the turn of a session ended.

    Raises:
        StepFailed: It failed, or nobody knows.
        StepTimedOut: It was stopped because it was silent for too long.
        StepInterrupted: Somebody stopped it.
    """
    from helmsman.step import StepResult

    if session.state.is_running:
        raise StepFailed(
            "The process that ran this turn has ended, and the turn with it. Send the session a message to go on.",
            session_id=session.id,
        )
    if session.status == "interrupted":
        raise StepInterrupted("The turn was interrupted. Send the session a message to go on.", session_id=session.id)
    if session.error is not None:
        kind = StepTimedOut if session.error.code == TurnTimedOut.code else StepFailed
        raise kind(session.error.message, session_id=session.id, cause_code=session.error.code)
    return StepResult(
        text=session.result or "", output=session.output, session_id=session.id, usage=session.usage, attempts=1
    )
