"""`helmsman start`: start a session that outlives the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from helmsman.cli.command import cli_command
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.placement import placement_options, take_placement
from helmsman.cli.run import prompt_text, start_detached, step_arguments, step_options


@cli_command(
    "start",
    "Start a session, and leave it running.",
    'helmsman start "Fix the failing test" --full-auto',
    'helmsman start --worktree "Try the other parser" --json',
)
@step_options
@click.option("--worktree", is_flag=True, help="Work in a git worktree of its own; `helmsman apply` brings it back.")
@placement_options
def command(
    prompt: str,
    directory: str | None,
    worktree: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Start a session and return at once; it keeps running, and its questions wait for an answer.

    PROMPT is what to do; `-` reads it from stdin. The same as `helmsman run --detach`. Follow it with `helmsman watch`,
    or check `helmsman status` or the dashboard.
    """
    placement = take_placement(options)
    arguments = step_arguments(**options) | ({"worktree": True} if worktree else {}) | placement
    text = prompt_text(prompt)
    settings = settings_of_command(directory=None if directory is None else Path(directory))
    return with_helmsman(
        lambda helm: start_detached(helm, text, directory, arguments, as_json=as_json), settings=settings
    )
