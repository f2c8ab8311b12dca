"""`helmsman completion`: what a shell needs to complete `helmsman`'s commands, options, sessions and tasks."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from helmsman.cli.app import reports_errors

_PLACES = {
    "bash": 'eval "$(helmsman completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(helmsman completion zsh)" in ~/.zshrc',
    "fish": "helmsman completion fish > ~/.config/fish/completions/helmsman.fish",
}


@click.command(
    "completion",
    short_help="Print a shell's completion script.",
    epilog="\b\nExamples:\n" + "\n".join(f"  {place}" for place in _PLACES.values()),
)
@click.argument("shell", type=click.Choice(list(_PLACES)))
@reports_errors
def command(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options, session ids, task ids and aliases."""
    from helmsman.cli.app import app

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(app, {}, "helmsman", "_HELMSMAN_COMPLETE").source())
