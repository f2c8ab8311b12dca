"""Where and when a fleet does something, as options of the commands that begin it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

import click

from helmsman.model.options import OnMachineLoss, Placement

if TYPE_CHECKING:
    from collections.abc import Callable

_OPTIONS: Final = (
    click.option("--machine", metavar="NAME", help="Of a fleet: the machine that is to do it."),
    click.option(
        "--label", "labels", metavar="LABEL", multiple=True, help="Of a fleet: what its machine has. Repeatable."
    ),
    click.option(
        "--priority", type=click.IntRange(1, 1000), metavar="N", help="Of a fleet: 1 comes first.  [default: 100]"
    ),
    click.option("--delay", type=click.FloatRange(min=0), metavar="SECONDS", help="Of a fleet: begin so much later."),
    click.option(
        "--deadline", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Of a fleet: stop it then."
    ),
    click.option(
        "--on-machine-loss",
        type=click.Choice(get_args(OnMachineLoss)),
        help="Of a fleet: what becomes of a turn that was cut off with its machine.",
    ),
    click.option(
        "--in-place", is_flag=True, help="Of a fleet: work in the directory of this path there; nothing is brought."
    ),
)


def placement_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_placement(options: dict[str, Any]) -> dict[str, Any]:
    """What was said of it, taken out of the options of a command, as the library wants it."""
    names = Placement.__dataclass_fields__
    placement = Placement(**{name: options.pop(name) for name in names})
    return {} if placement == Placement() else {"placement": placement}
