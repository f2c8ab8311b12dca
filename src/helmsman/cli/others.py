"""The user's other machines, asked beside this one: each for itself, and not for long.

Who does not answer in time holds up nobody, and is named in one line on stderr.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import click

from helmsman.base.shown_text import one_line
from helmsman.cli.host import host
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helmsman.service import Helmsman

ResultT = TypeVar("ResultT")

SECONDS: Final = 5.0
"""So long they are waited for, all of them together."""
GLANCE_SECONDS: Final = 2.0
"""The same where they are not what somebody asked for."""


async def ask_others(
    helm: Helmsman, ask: Callable[[Helmsman], Awaitable[ResultT]], away: dict[str, str], seconds: float = SECONDS
) -> dict[str, ResultT]:
    """What each of the other machines answers, by their names. Those that are `away` are left out, and those that do not
    answer are entered there."""
    import anyio

    if not host().sees_others:
        return {}
    answers: dict[str, ResultT] = {}

    async def look(name: str) -> None:
        with anyio.move_on_after(seconds) as waiting:
            try:
                answers[name] = await ask(await helm.hosts.get(name))
            except HelmsmanError as error:
                away[name] = error.message
            except (TypeError, ValueError, KeyError, AttributeError):
                away[name] = f"{name} gives an answer that makes no sense. Have the same version of Helmsman there."
        if waiting.cancelled_caught:
            away[name] = f"{name} does not answer within {seconds:.0f} seconds."

    async with anyio.create_task_group() as tasks:
        for name in sorted(helm.hosts.known().keys() - away.keys()):
            tasks.start_soon(look, name)
    return dict(sorted(answers.items()))


def print_unreachable(away: dict[str, str]) -> None:
    """Say which machines what is shown is not from."""
    for name, why in sorted(away.items()):
        click.echo(f"{name} is away, so nothing from there is shown: {one_line(why)[:500]}", err=True)
