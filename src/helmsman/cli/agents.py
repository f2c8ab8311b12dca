"""`helmsman agents`: which agents there are here, and what they can do."""

from __future__ import annotations

from typing import Any, Final

from helmsman.base.shown_text import one_line
from helmsman.cli.command import cli_command
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.output import print_list
from helmsman.cli.tables import Column

_COLUMNS: Final = (
    Column("AGENT", "cyan"),
    Column("VERSION"),
    Column("LOGIN", left_out=3),
    Column("PATH", left_out=2),
    Column("CANNOT", "dim", gives_way="at its end", left_out=1),
)


@cli_command("agents", "List the agents there are here.", "helmsman agents", "helmsman agents --json")
def command(as_json: bool) -> None:
    """List the agents Helmsman can steer, the default one first: which version of each is here, the file or variable with
    its login, where it is, and what it cannot do.

    Only usual places of a login are looked at: an agent without one may have it elsewhere, as in a keychain. Not on a
    terminal, the columns are separated by tabs: name, version, login, path, what it cannot do. With --json it is said who
    can. Of an agent that is not here it is said how to get it.
    """
    from helmsman.shapes.agents import all_agents

    found = with_helmsman(all_agents)
    rows = [[one_line(cell) for cell in _cells(agent)] for agent in found]
    print_list({"agents": found}, rows, _COLUMNS, lambda _: rows, nothing="There are no agents.", as_json=as_json)


def _cells(about: dict[str, Any]) -> tuple[str, ...]:
    name = about["agent"] + (" (default)" if about.get("isDefault") else "")
    if not about["installed"]:
        return name, "-", "", "", about["problem"]
    return name, about.get("version", "?"), about.get("login", "-"), about.get("path", ""), ", ".join(about["cannot"])
