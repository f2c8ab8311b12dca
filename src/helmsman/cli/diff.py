"""`helmsman diff`: show the changes of a session."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from helmsman.base.patches import diff_digest
from helmsman.base.shown_text import visible
from helmsman.cli.away import away_session, with_away
from helmsman.cli.command import cli_command
from helmsman.cli.consoles import is_terminal, result_console
from helmsman.cli.on_session import changes_argument, with_helmsman
from helmsman.cli.output import page_diff, pager_option, print_diff, print_json
from helmsman.cli.whose_changes import cloud_patch, cloud_task, local_session

if TYPE_CHECKING:
    from helmsman.capabilities.changes import SessionDiff
    from helmsman.service import Helmsman


@cli_command(
    "diff",
    "Show what a session changed.",
    "helmsman diff 3b2d5c8e",
    "helmsman diff --stat 3b2d5c8e",
    "helmsman diff T-cloud-1f3a9c0b2d4e > change.patch",
)
@changes_argument
@click.option("--stat", "only_stat", is_flag=True, help="Only the files, and how many lines changed in each.")
@pager_option
def command(session: str, only_stat: bool, no_pager: bool, as_json: bool) -> None:
    """Show what a session changed, as one unified diff.

    SESSION is a session's id or a part of it (`helmsman list` shows them), or the id of a task. What a worktree session
    changed is known exactly. For any other session it is what its last turn edited or, if that is not known, everything
    uncommitted in its directory, whoever changed it; a line on stderr says which. On a terminal it goes through your git
    pager; anywhere else it is exact to the byte, for `git apply`.
    """

    async def show(helm: Helmsman) -> None:
        task = await cloud_task(helm, session)
        if task is not None:
            patch = await cloud_patch(helm, task)
            if as_json:
                diff = patch.decode("utf-8", "surrogateescape")
                print_json({"taskId": task.id, "scope": "cloud", "diff": diff, "digest": diff_digest(patch)})
            else:
                _write(patch, f"What cloud task {task.id} changed.", no_pager=no_pager)
            return
        print_changes(await helm.extras.changes.diff(await local_session(helm, session)))

    def print_changes(changed: SessionDiff) -> None:
        if as_json:
            from helmsman.shapes.rendering import diff_as_dict

            print_json(diff_as_dict(changed))
        elif only_stat:
            click.echo(f"{changed.about} Digest: {changed.diff.digest}", err=True)
            click.echo(visible(changed.diff.stat), nl=False)
        else:
            _write(changed.diff.patch, changed.about, no_pager=no_pager)

    if (away := away_session(session)) is not None:
        print_changes(with_away(away, lambda work, session_id: work.diff(session_id)))
    else:
        with_helmsman(show)


def _write(patch: bytes, about: str, *, no_pager: bool) -> None:
    """Show the diff on a terminal through the pager; otherwise write it unchanged."""
    click.echo(f"{about} Digest: {diff_digest(patch)}" if patch else f"{about} There is nothing.", err=True)
    console = result_console()
    if is_terminal(console):
        if no_pager:
            print_diff(patch, console)
        else:
            page_diff(patch, console)
    else:
        sys.stdout.buffer.write(patch)
