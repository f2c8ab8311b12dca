"""`helmsman discard`: delete the worktree of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.base.shown_text import named, one_line
from helmsman.cli.away import away_session, with_away
from helmsman.cli.command import cli_command
from helmsman.cli.consent import agree, can_ask, yes_option
from helmsman.cli.host import host
from helmsman.cli.on_session import changes_argument, with_helmsman
from helmsman.cli.output import counted, print_json
from helmsman.cli.session_ids import short_id
from helmsman.cli.whose_changes import file_line, local_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.hub.away import AwayWork
    from helmsman.model.unified_diff import FileStat
    from helmsman.service import Helmsman
    from helmsman.worktrees import Discarded, Unsaved


@cli_command(
    "discard",
    "Drop a session's worktree.",
    "helmsman diff --stat 3b2d5c8e && helmsman discard 3b2d5c8e",
    "helmsman discard 3b2d5c8e --yes",
)
@changes_argument
@yes_option
def command(session: str, agreed: bool, as_json: bool) -> None:
    """Drop the worktree of a session, with its branch and everything in it that was not applied. This cannot be undone.

    SESSION is a session's id or a part of it (`helmsman list` shows them), or the id of a task. The session itself stays.
    Refused while it is still working. On a terminal you are asked first. Without one, --yes is needed if the worktree has
    work that exists nowhere else.
    """
    away = away_session(session)
    host().begin_change("repeatable")

    async def look(helm: Helmsman) -> tuple[str, Unsaved]:
        session_id = await local_session(helm, session)
        return session_id, await helm.extras.changes.unsaved(session_id)

    async def look_there(work: AwayWork, session_id: str) -> tuple[str, Unsaved]:
        return session_id, await work.unsaved(session_id)

    session_id, losing = with_helmsman(look) if away is None else with_away(away, look_there)
    if losing:
        _agree(losing, session_id, agreed=agreed, as_json=as_json)
    else:
        question = f"Drop the worktree of session {short_id(session_id)}? Nothing in it would be lost."
        agree(question, agreed=agreed, as_json=as_json, otherwise=None)
    expected = None if agreed else losing
    if away is not None:
        gone = with_away(away, lambda work, session_id: work.discard(session_id, losing=expected))
    else:
        gone = with_helmsman(lambda helm: helm.extras.changes.discard(session_id, losing=expected))
    show_discarded((gone,), as_json=as_json)


def _agree(losing: Unsaved, session_id: str, *, agreed: bool, as_json: bool) -> None:
    if not agreed and can_ask(as_json=as_json):
        _show_lost(losing.commits, losing.files, err=True)
        for repository in losing.nested:
            click.echo(f"  repository  {one_line(repository)}", err=True)
    parts = [
        counted(len(losing.commits), "commit") if losing.commits else "",
        counted(len(losing.files), "changed file") if losing.files else "",
        counted(len(losing.nested), "git repository", "git repositories") if losing.nested else "",
    ]
    what = "what is in there cannot be read" if losing.unreadable else ", ".join(filter(None, parts))
    agree(
        f"This work exists nowhere else and cannot be recovered: {what}. Drop it?",
        agreed=agreed,
        as_json=as_json,
        otherwise=f"The worktree of session {session_id} has work that is nowhere else and would be lost: {what}.",
    )


def _show_lost(commits: Sequence[str], files: Sequence[FileStat], *, err: bool) -> None:
    for commit in commits:
        click.echo(f"  commit    {one_line(commit)}", err=err)
    for file in files:
        click.echo(f"  {file_line(file)}", err=err)


def show_discarded(gone: tuple[Discarded, ...], *, as_json: bool) -> None:
    """Show deleted worktrees and the work lost with them."""
    if as_json:
        from helmsman.shapes.rendering import fields_as_dict

        shown = [
            {
                "worktree": str(one.worktree.path),
                "branch": one.worktree.branch,
                "branchKept": one.branch_kept,
                "sessionId": one.worktree.session_id,
                "repository": str(one.worktree.repository),
                "commits": list(one.commits),
                "files": [fields_as_dict(file) for file in one.files],
            }
            for one in gone
        ]
        print_json({"discarded": shown})
        return
    for one in gone:
        click.echo(f"Dropped {named(one.worktree.path)}" + (", its branch stays" if one.branch_kept else ""), err=True)
        _show_lost(one.commits, one.files, err=False)
