"""`helmsman apply`: bring what a worktree session, or a cloud task, changed into a working tree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.on_session import changes_argument

if TYPE_CHECKING:
    from helmsman.settings import Settings


@click.command(
    "apply",
    short_help="Bring a session's changes into your tree.",
    epilog="""\b
Examples:
  helmsman apply 3b2d5c8e
  helmsman apply --allow-dirty 3b2d5c8e
  helmsman apply T-cloud-1f3a9c0b2d4e --attempt 2
""",
)
@changes_argument
@click.option("--allow-dirty", is_flag=True, help="Go on if other files have uncommitted changes.")
@click.option(
    "--attempt", type=click.IntRange(min=1), metavar="N", help="Of a cloud task: which attempt.  [default: 1]"
)
@click.option("-C", "--cd", "directory", metavar="DIR", help="Of a cloud task: where to.  [default: here]")
@json_option
@reports_errors
def command(session: str, allow_dirty: bool, attempt: int | None, directory: str | None, as_json: bool) -> None:
    """Bring what a worktree session changed into the repository it was started for, or what a cloud task changed into
    the one around the current directory: all of it, or nothing.

    SESSION is a session's id or a part of it (`helmsman list` shows them), or the id of a task. The changes are then
    uncommitted in your tree. A tree that has uncommitted changes already is left alone; so is one that
    the changes do not fit. The worktree stays until `helmsman discard`.
    """
    import anyio

    from helmsman.cli.consoles import configure_logs
    from helmsman.settings import load_settings

    settings = load_settings()
    configure_logs(settings)
    place = None if directory is None else Path(directory).expanduser().resolve()
    applied = anyio.run(_apply, settings, session, allow_dirty, attempt, place)
    if as_json:
        from helmsman.rendering import json_line

        click.echo(json_line(applied))
    else:
        _print(applied)


async def _apply(
    settings: Settings, reference: str, allow_dirty: bool, attempt: int | None, directory: Path | None
) -> dict[str, Any]:
    from helmsman.cli.whose_changes import cloud_task, file_as_dict, local_session
    from helmsman.errors import InvalidInput
    from helmsman.service import Helmsman

    async with Helmsman(settings) as helm:
        task = await cloud_task(helm, reference)
        if task is not None:
            done = await helm.tasks.cloud.apply(
                task, directory or Path(), attempt=attempt or 1, allow_dirty=allow_dirty
            )
            shown: dict[str, Any] = {"taskId": task.id, "repository": str(done.repository)}
            return shown | {
                "how": "three-way" if done.three_way else "clean",
                "files": [{"path": file} for file in done.files],
            }
        if attempt is not None or directory is not None:
            raise InvalidInput(
                "--attempt and --cd are for cloud tasks. A worktree's changes go where it was made from."
            )
        applied = await helm.extras.changes.apply(await local_session(helm, reference), allow_dirty=allow_dirty)
    return {
        "sessionId": applied.session_id,
        "repository": str(applied.repository),
        "how": applied.how,
        "files": [file_as_dict(file) for file in applied.files],
    }


def _print(applied: dict[str, Any]) -> None:
    from helmsman.shown_text import one_line

    merged = ", merged with what had changed there" if applied["how"] == "three-way" else ""
    count = len(applied["files"])
    click.echo(f"{count} file(s) brought into {one_line(applied['repository'])}{merged}.", err=True)
    for file in applied["files"]:
        click.echo(one_line(file["path"]))
