"""What commands for one session have in common: find the session a person means, and do something with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import click

from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from click.shell_completion import CompletionItem

    from helmsman.service import Helmsman

ResultT = TypeVar("ResultT")

_COMPLETED: Final = 50


def _complete_session(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """The newest sessions whose id begins or ends with what was typed, with what they are about."""
    from click.shell_completion import CompletionItem

    from helmsman.cli.session_ids import short_id
    from helmsman.engines import session_index
    from helmsman.settings import load_settings
    from helmsman.terminal.text import one_line

    try:
        found, _ = session_index(load_settings()).list(limit=_COMPLETED)
    except (HelmsmanError, OSError):
        return []  # a shell that completes has no place for an error
    return [
        CompletionItem(short, help=one_line(info.name or info.first_prompt or "")[:60])
        for info in found
        if (short := short_id(info.session_id)).startswith(typed)
    ]


session_argument = click.argument("session", metavar="SESSION", shell_complete=_complete_session)
"""A session by its id, or a part of it."""


def on_session(reference: str, do: Callable[[Helmsman, str], Awaitable[ResultT]]) -> ResultT:
    """Do something with the session whose id is, begins or ends with `reference`."""
    from helmsman.cli.session_ids import full_session_id

    async def found(helm: Helmsman) -> ResultT:
        return await do(helm, await full_session_id(helm, reference))

    return with_helmsman(found)


def with_helmsman(do: Callable[[Helmsman], Awaitable[ResultT]]) -> ResultT:
    """Do something with a Helmsman that has the person's settings."""
    import anyio

    from helmsman.cli.consoles import configure_logs
    from helmsman.service import Helmsman
    from helmsman.settings import load_settings

    settings = load_settings()
    configure_logs(settings)

    async def run() -> ResultT:
        async with Helmsman(settings) as helm:
            return await do(helm)

    return anyio.run(run)


def tell(sentence: str, shown: Mapping[str, object], *, as_json: bool) -> None:
    """Say what was done: to a person, or to a program."""
    from helmsman.rendering import json_line

    if as_json:
        click.echo(json_line(shown))
    else:
        click.echo(sentence, err=True)
