"""`helmsman discard`: drop the worktree of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.on_session import changes_argument

if TYPE_CHECKING:
    from helmsman.settings import Settings
    from helmsman.worktrees import Discarded


@click.command(
    "discard",
    short_help="Drop a session's worktree.",
    epilog="""\b
Example:
  helmsman diff --stat 3b2d5c8e && helmsman discard 3b2d5c8e
""",
)
@changes_argument
@json_option
@reports_errors
def command(session: str, as_json: bool) -> None:
    """Drop the worktree of a session, with its branch and all in it that was not applied. It does not come back.

    SESSION is a session's id or a part of it (`helmsman list` shows them), or the id of a task. The session itself stays.
    Refused while it is still at work.
    """
    import anyio

    from helmsman.cli.consoles import configure_logs
    from helmsman.settings import load_settings

    settings = load_settings()
    configure_logs(settings)
    show_discarded(anyio.run(_discard, settings, session), as_json=as_json)


async def _discard(settings: Settings, reference: str) -> tuple[Discarded, ...]:
    from helmsman.cli.whose_changes import local_session
    from helmsman.service import Helmsman

    async with Helmsman(settings) as helm:
        return (await helm.extras.changes.discard(await local_session(helm, reference)),)


def show_discarded(gone: tuple[Discarded, ...], *, as_json: bool) -> None:
    """What went with worktrees that were dropped."""
    from helmsman.cli.whose_changes import file_as_dict, file_line
    from helmsman.rendering import json_line
    from helmsman.shown_text import one_line

    if as_json:
        shown = [
            {
                "worktree": str(one.worktree.path),
                "branch": one.worktree.branch,
                "branchKept": one.branch_kept,
                "sessionId": one.worktree.session_id,
                "repository": str(one.worktree.repository),
                "commits": list(one.commits),
                "files": [file_as_dict(file) for file in one.files],
            }
            for one in gone
        ]
        click.echo(json_line({"discarded": shown}))
        return
    for one in gone:
        click.echo(f"Dropped {one.worktree.path}" + (", its branch stays" if one.branch_kept else ""), err=True)
        for commit in one.commits:
            click.echo(f"  commit    {one_line(commit)}")
        for file in one.files:
            click.echo(f"  {file_line(file)}")
