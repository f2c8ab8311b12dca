"""`helmsman models`: the models Codex can use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.on_session import with_helmsman

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from helmsman.agents.protocol import Model


@click.command(
    "models",
    short_help="List the models Codex can use.",
    epilog="""\b
Examples:
  helmsman models
  helmsman models --json
""",
)
@json_option
@reports_errors
def command(as_json: bool) -> None:
    """List the models Codex can use, with their efforts.

    Not on a terminal, the columns are separated by tabs: id, whether it is the default (`*`), efforts, default effort,
    description.
    """
    from helmsman.cli.consoles import is_terminal, result_console
    from helmsman.shapes.rendering import json_line

    models = with_helmsman(lambda helm: helm.extras.account.models(), detach=False)
    if as_json:
        click.echo(json_line({"models": [_as_dict(model) for model in models]}))
    elif is_terminal(console := result_console()):
        _print_table(console, models)
    else:
        for model in models:
            click.echo("\t".join(_cells(model)))


def _as_dict(model: Model) -> dict[str, object]:
    shown: dict[str, object] = {"id": model.id, "name": model.name, "isDefault": model.is_default}
    shown |= {"efforts": list(model.efforts), "defaultEffort": model.default_effort, "description": model.description}
    return {key: value for key, value in shown.items() if value is not None}


def _cells(model: Model) -> list[str]:
    from helmsman.base.shown_text import one_line

    mark = "*" if model.is_default else ""
    cells = (model.id, mark, ",".join(model.efforts), model.default_effort or "", model.description or "")
    return [one_line(cell) for cell in cells]


def _print_table(console: Console, models: Sequence[Model]) -> None:
    from helmsman.cli.tables import Column, fitting_table

    columns = (
        Column("MODEL", "cyan"),
        Column(""),
        Column("EFFORTS"),
        Column("DEFAULT"),
        Column("WHAT", "dim", gives_way="at its end", left_out=1),
    )
    console.print(fitting_table(console, columns, [_cells(model) for model in models]))
