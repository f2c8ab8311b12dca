"""`helmsman config completion`: print the completion script for a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from helmsman.cli.command import cli_command
from helmsman.cli.thin import COMPLETION

_PLACES = {
    "bash": 'eval "$(helmsman config completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(helmsman config completion zsh)" in ~/.zshrc',
    "fish": "helmsman config completion fish > ~/.config/fish/completions/helmsman.fish",
}


@cli_command("completion", "Print a shell's completion script.", *_PLACES.values(), has_json=False)
@click.argument("shell", type=click.Choice(list(_PLACES)))
def command(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options, session ids, task ids and aliases."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(click.get_current_context().find_root().command, {}, "helmsman", COMPLETION).source())
