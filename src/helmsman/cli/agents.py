"""`helmsman agents`: list the available agents and their capabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.base.sanitize import one_line
from helmsman.cli.command import cli_group
from helmsman.cli.consoles import at_work
from helmsman.cli.host import host
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.output import print_list
from helmsman.cli.tables import Column
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helmsman.client import Helmsman

_COLUMNS: Final = (
    Column("AGENT", "cyan"),
    Column("VERSION"),
    Column("LOGIN", left_out=4),
    Column("PATH", left_out=1),
    Column("HELD BY", left_out=3),
    Column("CANNOT", "dim", gives_way="at its end", left_out=2),
)


@cli_group(
    "agents",
    "List the agents and what each can do; their models, logins and limits.",
    "helmsman agents",
    "helmsman agents models",
    modules={
        "account": "account_commands:account_command",
        "config": "agent_config:command",
        "login": "account_commands:login_command",
        "models": "account_commands:models_command",
    },
)
def command(as_json: bool) -> None:
    """List the agents Helmsman can steer, the default one first: which version of each is here, the file or variable with
    its login, where it is, what confines it, and what it cannot do.

    Each is tested in the sandbox that will confine it. Logins are looked for in the usual places only: an agent without one
    may have it elsewhere, such as in a keychain. Not on a terminal, the columns are separated by tabs: name, version, login,
    path, what confines it, what it cannot do. --json also says which agents can do what one cannot. For an agent that is not
    installed, it says how to get it.
    """
    with at_work("Trying each agent in its sandbox", as_json=as_json):
        found = with_helmsman(_look)
    rows = [[one_line(cell) for cell in _cells(agent)] for agent in found]
    print_list(
        {"agents": found},
        rows,
        _COLUMNS,
        lambda _: [[one_line(cell) for cell in _short_cells(agent)] for agent in found],
        nothing="There are no agents.",
        as_json=as_json,
        note="\n".join(_advice(found)) or None,
    )


async def _look(helm: Helmsman) -> list[dict[str, Any]]:
    from helmsman.shapes.agents import all_agents

    found = await all_agents(helm)
    if host().is_elsewhere:
        return [{name: value for name, value in about.items() if name != "isDefault"} for about in found]
    async with anyio.create_task_group() as tasks:
        for about in found:
            if about["installed"]:
                tasks.start_soon(_try_sandbox, helm, about)
    return found


async def _try_sandbox(helm: Helmsman, about: dict[str, Any]) -> None:
    try:
        about["heldBy"] = await helm.agents[about["agent"]].try_sandbox(helm.settings, None)
    except HelmsmanError as error:
        about["notHeld"] = error.message


def _short_cells(about: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a table row; details are in the advice below the table."""
    name, version, login, path, held_by, cannot = _cells(about)
    if not about["installed"]:
        return name, "not installed", "", "", "", ""
    return name, version, "none found" if login == "-" else login, path, held_by, cannot


def _advice(found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield advice for agents that are not installed or not sandboxed."""
    for about in found:
        if not about["installed"]:
            yield about["problem"]
        elif "notHeld" in about:
            yield f"{about['agent']}: {about['notHeld']}"


def _cells(about: dict[str, Any]) -> tuple[str, ...]:
    name = about["agent"] + (" (default)" if about.get("isDefault") else "")
    if not about["installed"]:
        return name, "-", "", "", "", about["problem"]
    version, login = about.get("version", "?"), about.get("login", "-")
    return name, version, login, about.get("path", ""), about.get("heldBy", "nothing"), ", ".join(about["cannot"])
