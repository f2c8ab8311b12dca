"""`helmsman start`: a session that outlives the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from helmsman.cli.command import cli_command
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.run import prompt_text, start_detached, step_arguments, step_options
from helmsman.model.options import Placement


@cli_command(
    "start",
    "Start a session, and leave it running.",
    'helmsman start "Fix the failing test" --full-auto',
    'helmsman start --worktree "Try the other parser" --json',
)
@step_options
@click.option("--worktree", is_flag=True, help="Work in a git worktree of its own; `helmsman apply` brings it back.")
@click.option("--machine", metavar="NAME", help="Of a fleet: the machine that is to do it.")
@click.option("--label", "labels", metavar="LABEL", multiple=True, help="Of a fleet: what its machine has. Repeatable.")
@click.option(
    "--priority", type=click.IntRange(1, 1000), metavar="N", help="Of a fleet: 1 comes first.  [default: 100]"
)
@click.option("--delay", type=click.FloatRange(min=0), metavar="SECONDS", help="Of a fleet: begin so much later.")
@click.option(
    "--deadline", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Of a fleet: stop it then."
)
@click.option(
    "--in-place", is_flag=True, help="Of a fleet: work in the directory of this path there; nothing is brought."
)
def command(
    prompt: str,
    directory: str | None,
    worktree: bool,
    machine: str | None,
    labels: tuple[str, ...],
    priority: int | None,
    delay: float | None,
    deadline: float | None,
    in_place: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Start a session and return at once; it keeps running, and its questions wait for an answer.

    PROMPT is what to do; `-` reads it from stdin. The same as `helmsman run --detach`. Come back with `helmsman watch`,
    or look with `helmsman status` and in the dashboard.
    """
    arguments = step_arguments(**options) | ({"worktree": True} if worktree else {})
    when: Any = {"priority": priority, "delay": delay, "deadline": deadline}
    placement = Placement(machine=machine, labels=labels, in_place=in_place, **when)
    if placement != Placement():
        arguments["placement"] = placement
    text = prompt_text(prompt)
    settings = settings_of_command(directory=None if directory is None else Path(directory))
    return with_helmsman(
        lambda helm: start_detached(helm, text, directory, arguments, as_json=as_json), settings=settings
    )
