"""What commands for one session have in common: find the session a person means, and do something with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from helmsman.cli.completing import complete_session, complete_session_or_task
from helmsman.errors import TaskNotOurs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from helmsman.service import Helmsman
    from helmsman.sessions.session import Session

ResultT = TypeVar("ResultT")

session_argument = click.argument("session", metavar="SESSION", shell_complete=complete_session)
"""A session by its id, or a part of it."""

changes_argument = click.argument("session", metavar="SESSION", shell_complete=complete_session_or_task)
"""Whose changes are meant: a session, or a task by its id (`helmsman.cli.whose_changes`)."""


def on_session(reference: str, do: Callable[[Helmsman, str], Awaitable[ResultT]]) -> ResultT:
    """Do something with the session whose id is, begins or ends with `reference`."""
    from helmsman.cli.session_ids import full_session_id

    async def found(helm: Helmsman) -> ResultT:
        return await do(helm, await full_session_id(helm, reference))

    return with_helmsman(found)


def with_helmsman(do: Callable[[Helmsman], Awaitable[ResultT]], *, detach: bool = True) -> ResultT:
    """Do something with a Helmsman that has the person's settings; without `detach` no engine of it outlives it."""
    from dataclasses import replace

    import anyio

    from helmsman.cli.consoles import configure_logs
    from helmsman.service import Helmsman
    from helmsman.settings import load_settings

    settings = load_settings()
    configure_logs(settings)

    async def run() -> ResultT:
        async with Helmsman(settings if detach else replace(settings, detach=False)) as helm:
            return await do(helm)

    return anyio.run(run)


def runs_elsewhere(session: Session) -> bool:
    """Whether a turn is running that only another process can reach: its engine ends with that process."""
    return session.state.is_running and session.engine is None


def require_reachable(session: Session) -> None:
    """Check that what is said to a session comes to the turn that is running in it.

    Raises:
        TaskNotOurs: Only another process can reach that turn.
    """
    if runs_elsewhere(session):
        raise TaskNotOurs(
            f"Session {session.id} is run by another process, in an engine that ends with it. Answer, steer or stop it "
            "there; `helmsman watch` shows how it ends."
        )


def tell(sentence: str, shown: Mapping[str, object], *, as_json: bool) -> None:
    """Say what was done: to a person, or to a program."""
    from helmsman.base.shown_text import visible
    from helmsman.shapes.rendering import json_line

    if as_json:
        click.echo(json_line(shown))
    else:
        click.echo(visible(sentence), err=True)
