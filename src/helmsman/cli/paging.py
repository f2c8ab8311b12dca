"""Long lists on a terminal go through the person's pager; short ones, and those for programs, are just written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

pager_option: Final = click.option(
    "--no-pager", is_flag=True, help="Write a list that is longer than the screen all at once."
)


def print_paged(console: Console, shown: RenderableType, *, no_pager: bool) -> None:
    """Write to a console that is a terminal; through $PAGER, or less, where it does not fit the screen."""
    if no_pager:
        console.print(shown)
        return
    with console.capture() as captured:
        console.print(shown)
    text = captured.get()
    if text.count("\n") < console.height:  # the prompt needs a line too
        click.echo(text, nl=False, color=True)
    else:
        click.echo_via_pager(text.rstrip("\n"))
