"""`helmsman watch`: follow a session live and answer its questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.cli.command import cli_command
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.on_session import interactive_option, session_argument, with_helmsman

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helmsman.cli.displays import Display
    from helmsman.cli.follow import Talk
    from helmsman.client import Helmsman
    from helmsman.model.questions import Question
    from helmsman.sessions.session import Session

_LEFT: Final = "You left before the turn had ended. `helmsman status` shows its progress."


@cli_command("watch", "Follow a session live.", "helmsman watch 3b2d5c8e", "helmsman watch 3b2d5c8e --json | jq .type")
@session_argument
@interactive_option
def command(session: str, interactive: bool, as_json: bool) -> int:
    """Follow a session live until its turn ends, no matter who started it, and answer its questions on the terminal.

    SESSION is a part of an id or title, or `-` for the last one; without it, the one running here or the last of this
    directory. What you type goes into the turn (Enter) or is queued after it (Tab); Esc twice stops the turn, `q` and
    Ctrl-C leave and stop nothing. Without a terminal its questions are left to others. The exit code is that of the
    turn.
    """
    return watch(session, interactive=interactive, as_json=as_json)


def watch(session_id: str, *, interactive: bool, as_json: bool) -> int:
    """Follow a session until its turn ends; return the turn's exit code."""

    async def find_and_follow(helm: Helmsman, display: Display) -> int:
        from helmsman.cli.follow import Talk

        found = await helm.session(session_id)
        return await follow_session(found, display, Talk(helm=helm, stay=interactive, leaves=True))

    return with_display(find_and_follow, as_json=as_json)


def with_display(do: Callable[[Helmsman, Display], Awaitable[int]], *, as_json: bool) -> int:
    """Call `do` with a Helmsman that asks its questions on the terminal; return the exit code.

    Without a terminal, questions are left to other clients, which `run` does not have.
    """
    from helmsman.cli.displays import new_display
    from helmsman.terminal import has_terminal

    settings = settings_of_command()
    display = new_display(settings, as_json=as_json, answer=None if has_terminal() else _leave_to_others)
    return with_helmsman(lambda helm: do(helm, display), settings=settings, on_question=display.on_question)


async def follow_session(session: Session, display: Display, talk: Talk) -> int:
    """Show the running or last turn of a session to its end; return the turn's exit code."""
    from helmsman.cli.follow import follow, followed

    return (await follow(followed(session), display, session=session, left=_LEFT, talk=talk)).exit_code


async def _leave_to_others(_session: Session, _question: Question, /) -> None:
    return None
