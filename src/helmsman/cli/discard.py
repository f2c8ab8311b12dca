"""`helmsman discard`: drop the worktree of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.consent import agree, can_ask, yes_option
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.on_session import changes_argument

if TYPE_CHECKING:
    from helmsman.settings import Settings
    from helmsman.worktrees import Discarded, Unsaved


@click.command(
    "discard",
    short_help="Drop a session's worktree.",
    epilog="""\b
Examples:
  helmsman diff --stat 3b2d5c8e && helmsman discard 3b2d5c8e
  helmsman discard 3b2d5c8e --yes
""",
)
@changes_argument
@yes_option
@json_option
@reports_errors
def command(session: str, agreed: bool, as_json: bool) -> int:
    """Drop the worktree of a session, with its branch and all in it that was not applied. It does not come back.

    SESSION is a session's id or a part of it (`helmsman list` shows them), or the id of a task. The session itself stays.
    Refused while it is still at work. If there is work in the worktree that is nowhere else you are asked first; where there
    is no terminal to ask on, that needs --yes.
    """
    import anyio

    from helmsman.cli.consoles import configure_logs
    from helmsman.settings import load_settings

    settings = load_settings()
    configure_logs(settings)
    session_id, losing = anyio.run(_look, settings, session)
    if losing and not _agree(losing, session_id, agreed=agreed, as_json=as_json):
        return ExitCode.FAILED
    show_discarded(anyio.run(_discard, settings, session_id, None if agreed else losing), as_json=as_json)
    return ExitCode.OK


async def _look(settings: Settings, reference: str) -> tuple[str, Unsaved]:
    from helmsman.cli.whose_changes import local_session
    from helmsman.service import Helmsman

    async with Helmsman(settings) as helm:
        session_id = await local_session(helm, reference)
        return session_id, await helm.extras.changes.unsaved(session_id)


def _agree(losing: Unsaved, session_id: str, *, agreed: bool, as_json: bool) -> bool:
    from helmsman.base.shown_text import one_line
    from helmsman.cli.whose_changes import file_line

    if not agreed and can_ask(as_json=as_json):
        for commit in losing.commits:
            click.echo(f"  commit    {one_line(commit)}", err=True)
        for file in losing.files:
            click.echo(f"  {file_line(file)}", err=True)
        for repository in losing.nested:
            click.echo(f"  repository  {one_line(repository)}", err=True)
    what = "what is in there cannot be read" if losing.unreadable else _counted(losing)
    return agree(
        f"This work is nowhere else and does not come back: {what}. Drop it?",
        agreed=agreed,
        as_json=as_json,
        otherwise=f"The worktree of session {session_id} has work that is nowhere else and would be lost: {what}.",
    )


def _counted(losing: Unsaved) -> str:
    parts = [
        ("commit", "commits", losing.commits),
        ("changed file", "changed files", losing.files),
        ("git repository", "git repositories", losing.nested),
    ]
    return ", ".join(f"{len(lost)} {one if len(lost) == 1 else many}" for one, many, lost in parts if lost)


async def _discard(settings: Settings, session_id: str, losing: Unsaved | None) -> tuple[Discarded, ...]:
    from helmsman.service import Helmsman

    async with Helmsman(settings) as helm:
        return (await helm.extras.changes.discard(session_id, losing=losing),)


def show_discarded(gone: tuple[Discarded, ...], *, as_json: bool) -> None:
    """What went with worktrees that were dropped."""
    from helmsman.base.shown_text import named, one_line
    from helmsman.cli.whose_changes import file_as_dict, file_line
    from helmsman.shapes.rendering import json_line

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
        click.echo(f"Dropped {named(one.worktree.path)}" + (", its branch stays" if one.branch_kept else ""), err=True)
        for commit in one.commits:
            click.echo(f"  commit    {one_line(commit)}")
        for file in one.files:
            click.echo(f"  {file_line(file)}")
