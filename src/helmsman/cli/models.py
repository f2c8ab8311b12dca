"""`helmsman models`: list the models of Codex."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.base.shown_text import one_line
from helmsman.cli.command import cli_command
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.output import print_list
from helmsman.cli.tables import Column

if TYPE_CHECKING:
    from helmsman.agents.account import Model

_COLUMNS: Final = (
    Column("MODEL", "cyan"),
    Column(""),
    Column("EFFORTS"),
    Column("DEFAULT"),
    Column("WHAT", "dim", gives_way="at its end", left_out=1),
)


@cli_command("models", "List the models Codex can use.", "helmsman models", "helmsman models --json")
def command(as_json: bool) -> None:
    """List the models Codex can use, with their efforts.

    Not on a terminal, the columns are separated by tabs: id, whether it is the default (`*`), efforts, default effort,
    description.
    """
    from helmsman.shapes.rendering import fields_as_dict

    models = with_helmsman(lambda helm: helm.extras.account.models(), detach=False)
    rows = [_cells(model) for model in models]
    shown = {"models": [fields_as_dict(model) for model in models]}
    print_list(shown, rows, _COLUMNS, lambda _: rows, nothing="Codex names no models.", as_json=as_json)


def _cells(model: Model) -> list[str]:
    mark = "*" if model.is_default else ""
    cells = (model.id, mark, ",".join(model.efforts), model.default_effort or "", model.description or "")
    return [one_line(cell) for cell in cells]
