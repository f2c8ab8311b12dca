"""`helmsman agents`: which agents there are here, and what they can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helmsman.base.json_values import present
from helmsman.base.shown_text import one_line
from helmsman.cli.command import cli_command
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.output import print_list
from helmsman.cli.tables import Column
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from helmsman.service import Helmsman

_COLUMNS: Final = (
    Column("AGENT", "cyan"),
    Column("VERSION"),
    Column("PATH", left_out=2),
    Column("HELD BY", left_out=3),
    Column("CANNOT", "dim", gives_way="at its end", left_out=1),
)


@cli_command("agents", "List the agents there are here.", "helmsman agents", "helmsman agents --json")
def command(as_json: bool) -> None:
    """List the agents Helmsman can steer: which version of each is here, where it is, and what it cannot do.

    Each is tried in the sandbox that is to hold it. Not on a terminal, the columns are separated by tabs: name, version,
    path, what holds it, what it cannot do. With --json it is said who can, and of an agent that is not here how to get it.
    """
    found = with_helmsman(_look, detach=False)
    rows = [[one_line(cell) for cell in _cells(agent)] for agent in found]
    print_list({"agents": found}, rows, _COLUMNS, lambda _: rows, nothing="There are no agents.", as_json=as_json)


async def _look(helm: Helmsman) -> list[dict[str, Any]]:
    return [await about_agent(helm, agent.name) for agent in helm.agents]


async def about_agent(helm: Helmsman, name: str) -> dict[str, Any]:
    """One agent in words: what is here of it and what that can do, or why there is nothing."""
    about: dict[str, Any] = {"agent": name, "title": helm.agents.title(name)}
    try:
        installed = await helm.installed(name)
        can = (await helm.capabilities(name)).as_dict()
    except HelmsmanError as error:
        return about | {"installed": False, "problem": error.message}
    program = {} if installed is None else {"version": installed.version, "path": installed.path}
    try:
        held = {"heldBy": await helm.agents[name].try_sandbox(helm.settings, None)}
    except HelmsmanError as error:
        held = {"notHeld": error.message}
    return about | {"installed": True, **present(program), **held, "can": can["can"], "cannot": can["cannot"]}


def _cells(about: dict[str, Any]) -> tuple[str, ...]:
    if not about["installed"]:
        return about["agent"], "-", "", "", about["problem"]
    held = about.get("heldBy", "nothing")
    return about["agent"], about.get("version", ""), about.get("path", ""), held, ", ".join(about["cannot"])
