"""Options that select where and when a fleet runs work."""

from __future__ import annotations

from typing import Any, Final, get_args

import click

from helmsman.cli.command import with_options
from helmsman.model.options import OnMachineLoss, Placement

placement_options: Final = with_options(
    click.option("--machine", metavar="NAME", help="Fleet: the machine that is to do it."),
    click.option(
        "--label", "labels", metavar="LABEL", multiple=True, help="Fleet: a label its machine must have. Repeatable."
    ),
    click.option("--priority", type=click.IntRange(1, 1000), metavar="N", help="Fleet: 1 comes first.  [default: 100]"),
    click.option("--delay", type=click.FloatRange(min=0), metavar="SECONDS", help="Fleet: start this much later."),
    click.option(
        "--deadline",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="Fleet: stop it after this long.",
    ),
    click.option(
        "--on-machine-loss",
        type=click.Choice(get_args(OnMachineLoss)),
        help="Fleet: what to do with a turn whose machine was lost.",
    ),
    click.option("--in-place", is_flag=True, help="Fleet: work in the directory of this path there, and copy nothing."),
)


def take_placement(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the placement options from `options` and return them as a keyword argument for the library."""
    names = Placement.__struct_fields__
    placement = Placement(**{name: options.pop(name) for name in names})
    return {} if placement == Placement() else {"placement": placement}
