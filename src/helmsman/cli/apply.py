"""`helmsman apply`: apply the changes of a worktree session or a cloud task to a working tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from helmsman.base.shown_text import one_line
from helmsman.cli.agreed_diff import agreed_digest, agreed_options
from helmsman.cli.away import away_session, refuse_brought, with_away
from helmsman.cli.command import cli_command
from helmsman.cli.host import host
from helmsman.cli.on_session import changes_argument, with_helmsman
from helmsman.cli.output import counted, print_json
from helmsman.cli.whose_changes import cloud_patch, cloud_task, local_session
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.service import Helmsman


@cli_command(
    "apply",
    "Bring a session's changes into your tree.",
    "helmsman apply 3b2d5c8e",
    "helmsman apply --yes --allow-dirty 3b2d5c8e",
    "helmsman apply T-cloud-1f3a9c0b2d4e --attempt 2",
)
@changes_argument
@click.option("--allow-dirty", is_flag=True, help="Even if other files have uncommitted changes.")
@click.option(
    "--attempt", type=click.IntRange(min=1), metavar="N", help="Of a cloud task: which attempt.  [default: 1]"
)
@click.option("-C", "--cd", "directory", metavar="DIR", help="Of a cloud task: where to.  [default: here]")
@agreed_options
def command(
    session: str,
    allow_dirty: bool,
    attempt: int | None,
    directory: str | None,
    yes: bool,
    digest: str | None,
    as_json: bool,
) -> None:
    """Bring what a worktree session changed into the repository it was started for, or what a cloud task changed into
    the one around the current directory: all of it, or nothing.

    SESSION is a session's id or a part of it (`helmsman list` shows them), or the id of a task. The changes are shown
    first, and exactly what you approve is applied. They are then uncommitted in your tree. A tree that already has
    uncommitted changes is left alone; so is one that the changes do not apply to. The worktree stays until `helmsman
    discard`.
    """
    refuse_brought(session)
    away = away_session(session)
    host().begin_change("repeatable")
    if away is not None and attempt is None and directory is None:
        if digest is None:
            changed = with_away(away, lambda work, session_id: work.diff(session_id))
            digest = agreed_digest(changed.diff.patch, changed.about, yes=yes, as_json=as_json)
        seen = digest
        done = with_away(away, lambda work, session_id: work.apply(session_id, allow_dirty=allow_dirty, digest=seen))
        from helmsman.shapes.rendering import applied_as_dict

        (print_json if as_json else _print)(applied_as_dict(done))
        return
    if digest is None:
        patch, about = with_helmsman(lambda helm: _look(helm, session, attempt))
        digest = agreed_digest(patch, about, yes=yes, as_json=as_json)
    agreed = digest
    place = None if directory is None else host().place(directory)
    applied = with_helmsman(lambda helm: _apply(helm, session, allow_dirty, attempt, place, agreed))
    if as_json:
        print_json(applied)
    else:
        _print(applied)


async def _look(helm: Helmsman, reference: str, attempt: int | None) -> tuple[bytes, str]:
    """Return the diff to apply and its description."""
    task = await cloud_task(helm, reference)
    if task is not None:
        return await cloud_patch(helm, task, attempt or 1), f"What cloud task {task.id} changed."
    changed = await helm.extras.changes.diff(await local_session(helm, reference))
    if changed.scope != "worktree":
        return b"", changed.about  # nothing to apply; the apply step reports that
    return changed.diff.patch, changed.about


async def _apply(
    helm: Helmsman, reference: str, allow_dirty: bool, attempt: int | None, directory: Path | None, digest: str
) -> dict[str, Any]:
    from helmsman.shapes.rendering import applied_as_dict

    task = await cloud_task(helm, reference)
    if task is not None:
        done = await helm.tasks.cloud.apply(
            task, directory or host().place(None), attempt=attempt or 1, allow_dirty=allow_dirty, digest=digest
        )
        shown: dict[str, Any] = {"taskId": task.id, "repository": str(done.repository)}
        how = "three-way" if done.three_way else "clean"
        return shown | {"how": how, "files": [{"path": file} for file in done.files], "digest": done.digest}
    if attempt is not None or directory is not None:
        raise InvalidInput("--attempt and --cd are for cloud tasks. A worktree's changes go where it was made from.")
    session_id = await local_session(helm, reference)
    applied = await helm.extras.changes.apply(session_id, allow_dirty=allow_dirty, digest=digest)
    return applied_as_dict(applied)


def _print(applied: dict[str, Any]) -> None:
    for command_line in applied.get("ended", ()):
        click.echo(f"Still running there, and ended first: {one_line(command_line)}", err=True)
    merged = ", merged with what had changed there" if applied["how"] == "three-way" else ""
    files = counted(len(applied["files"]), "file")
    click.echo(f"{files} brought into {one_line(applied['repository'])}{merged}.", err=True)
    for file in applied["files"]:
        click.echo(one_line(file["path"]))
