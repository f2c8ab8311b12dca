"""Helpers for commands on one session."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import click

from helmsman.base.structs import replace
from helmsman.cli.command import Named
from helmsman.cli.completing import complete_session, complete_session_or_task
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.host import host
from helmsman.cli.session_ids import full_session_id, short_id
from helmsman.errors import SessionBusy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from helmsman.client import Helmsman
    from helmsman.sessions.session import QuestionHandler
    from helmsman.settings import Settings

ResultT = TypeVar("ResultT")
SESSION: Final = Named("helmsman list")

# session by id or part of it
session_argument = click.argument("session", metavar="SESSION", type=SESSION, shell_complete=complete_session)

# session, or task by id (`helmsman.cli.changes`)
changes_argument = click.argument("session", metavar="SESSION", type=SESSION, shell_complete=complete_session_or_task)

# for commands that show a turn on a terminal
interactive_option = click.option(
    "-i", "--interactive", is_flag=True, help="Stay after the turn, for the next message; Ctrl-D leaves."
)


def on_session(reference: str, do: Callable[[Helmsman, str], Awaitable[ResultT]]) -> tuple[str, ResultT]:
    """Find the session by id, prefix or suffix, call `do` with it, and return its id and the result."""

    async def find_and_do(helm: Helmsman) -> tuple[str, ResultT]:
        session_id = await full_session_id(helm, reference)
        return session_id, await do(helm, session_id)

    return with_helmsman(find_and_do)


@contextmanager
def names_ways_out(session_id: str | None) -> Iterator[None]:
    """Turn "session is busy" errors into errors that name commands for sending the message anyway."""
    try:
        yield
    except SessionBusy as error:
        name = short_id(session_id or "")
        raise SessionBusy(
            f'A turn is running in session {name}. `helmsman say {name} "…" --steer` puts your message into it, --queue '
            f"sends it when that has ended. `helmsman watch {name}` follows it, `helmsman interrupt {name}` stops it.",
            **error.details,
        ) from error


def titles(session_ids: Iterable[str | None]) -> dict[str, str]:
    """Return known titles of sessions: their names, or their first prompts."""
    indexes = host().indexes(settings_of_command()).values()
    found = {one: next(filter(None, (index.find(one) for index in indexes)), None) for one in session_ids if one}
    return {one: info.about or "" for one, info in found.items() if info is not None}


def with_helmsman(
    do: Callable[[Helmsman], Awaitable[ResultT]],
    *,
    settings: Settings | None = None,
    detach: bool = True,
    on_question: QuestionHandler | None = None,
) -> ResultT:
    """Call `do` with an open Helmsman.

    Args:
        settings: Default: the user's settings.
        detach: Whether its engine may outlive it.
        on_question: Answers questions of the agent.
    """
    chosen = settings_of_command() if settings is None else settings
    if not detach:
        chosen = replace(chosen, detach=False)

    async def run() -> ResultT:
        async with host().helmsman(chosen, on_question) as helm:
            return await do(helm)

    return host().run(run)
