"""Query the user's other machines in parallel, with a timeout.

Machines that do not answer in time are listed on stderr.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from helmsman.base.sanitize import one_line
from helmsman.cli.consoles import echo
from helmsman.cli.host import host
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helmsman.client import Helmsman
    from helmsman.hub.service_client import ServiceClient

ResultT = TypeVar("ResultT")

SECONDS: Final = 5.0  # timeout for all machines together
GLANCE_SECONDS: Final = 2.0  # the same, if they are not the main subject of the command


async def ask_others(
    helm: Helmsman, ask: Callable[[ServiceClient], Awaitable[ResultT]], away: dict[str, str], seconds: float = SECONDS
) -> dict[str, ResultT]:
    """Return the answers of the other machines by name. Machines in `away` are skipped; those that do not answer are
    added to it.
    """
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
    """Name the machines that are missing from the output."""
    for name, why in sorted(away.items()):
        echo(f"{name} is away, so nothing from there is shown: {one_line(why)[:500]}", err=True)
