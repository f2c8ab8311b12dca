"""Helpers for commands on one session."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from helmsman.base.sanitize import one_line
from helmsman.base.structs import replace
from helmsman.cli.completing import complete_session
from helmsman.cli.consent import can_ask
from helmsman.cli.consoles import echo, settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import host
from helmsman.cli.output import session_word
from helmsman.cli.session_ids import (
    candidates_here,
    full_session_id,
    meant_here,
    refuse_none,
    refuse_several,
    short_id,
)
from helmsman.errors import SessionBusy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator, Sequence

    from click.shell_completion import CompletionItem

    from helmsman.cli.session_ids import SessionHere
    from helmsman.client import Helmsman
    from helmsman.sessions.session import QuestionHandler
    from helmsman.settings import Settings

ResultT = TypeVar("ResultT")
Body = Callable[..., Any]

_TITLE: Final = 70

_LIKE_AN_ID: Final = re.compile(r"[0-9a-f-]{6,36}|-")


def optional_session(complete: Callable[..., list[CompletionItem]]) -> Callable[[Body], Body]:
    """Add the argument SESSION, which may be missing."""
    return click.argument("session", metavar="[SESSION]", required=False, shell_complete=complete)


def session_argument(body: Body) -> Body:
    """Add the argument SESSION to a command, which gets the id of the session that the user means (`the_session`)."""

    @functools.wraps(body)
    def command(session: str | None, **options: Any) -> Any:
        return body(session=the_session(session, as_json=options["as_json"]), **options)

    return optional_session(complete_session)(command)


def session_and(name: str, *, required: bool = True) -> Callable[[Body], Body]:
    """Add the arguments SESSION and another, a text. A single argument is the text, with the session that is meant."""

    def declare(body: Body) -> Body:
        @functools.wraps(body)
        def command(session: str | None, **options: Any) -> Any:
            if options[name] is None and session is not None and _is_text(session, required=required):
                session, options[name] = None, session
            if options[name] is None and required:
                raise click.UsageError(f"Missing argument '{name.upper()}'.")
            return body(session=the_session(session, as_json=options["as_json"]), **options)

        text = click.argument(name, metavar=name.upper() if required else f"[{name.upper()}]", required=False)
        return optional_session(complete_session)(text(command))

    return declare


def _is_text(given: str, *, required: bool) -> bool:
    """Return whether a single argument is the text and not the session."""
    return given == "-" or _LIKE_AN_ID.fullmatch(given) is None if required else any(map(str.isspace, given))


def the_session(reference: str | None, *, as_json: bool) -> str:
    """Return the id of the session that the user means.

    With a reference, it is the session that any part of an id or a title names, or with `-` the last one. Without one, it is
    the only session running in this directory, or else the last of this directory. If that leaves several, the user picks
    one on the terminal.

    Raises:
        InvalidInput: Several match, and the user cannot be asked.
        SessionNotFound: None matches.
        click.exceptions.Exit: The user picked none.
    """
    if reference is not None:
        return with_helmsman(lambda helm: full_session_id(helm, reference))
    candidates = with_helmsman(candidates_here)
    meant = meant_here(candidates)
    if not meant:
        refuse_none()
    if len(meant) > 1:
        if not can_ask(as_json=as_json):
            refuse_several(meant)
        return _picked(candidates)
    if not as_json:
        echo(f"Session {short_id(meant[0].session_id)}  {one_line(meant[0].title)[:_TITLE]}".rstrip(), err=True)
    return meant[0].session_id


def _picked(candidates: Sequence[SessionHere]) -> str:
    """Let the user pick a session, those that run first."""
    from helmsman.terminal.picker import PickerLine, pick

    ordered = sorted(candidates, key=lambda one: not one.is_running)
    choices = [
        PickerLine(one.session_id, f"{short_id(one.session_id)}  {session_word(one.status):<15}", one.title)
        for one in ordered
    ]
    picked = host().run(functools.partial(pick, choices, "Which session?"))
    if picked is None:
        raise click.exceptions.Exit(ExitCode.INTERRUPTED)
    return picked


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
