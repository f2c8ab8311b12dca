"""`helmsman list`: the sessions Codex has on disk, whoever made them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.paging import pager_option, print_paged

if TYPE_CHECKING:
    from datetime import timedelta

    from rich.console import Console
    from rich.table import Table

    from helmsman.agents.protocol import SessionInfo
    from helmsman.service import Helmsman

_LIMIT: Final = 20
_WIDE: Final = 120
"""From this width on there is room for whole ids."""


@click.command(
    "list",
    short_help="List the sessions Codex has on disk.",
    epilog="""\b
Examples:
  helmsman list --directory . --query parser
  helmsman list --all --limit 100 --json
""",
)
@click.option("--directory", metavar="DIR", help="Only sessions that were started in this directory.")
@click.option(
    "--query", metavar="WORDS", help="Only sessions with these words in their name, first prompt or directory."
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=_LIMIT, show_default=True, metavar="N", help="At most so many."
)
@click.option("--all", "include_archived", is_flag=True, help="Archived sessions too.")
@pager_option
@json_option
@reports_errors
def command(
    directory: str | None, query: str | None, limit: int, include_archived: bool, no_pager: bool, as_json: bool
) -> None:
    """List the sessions Codex has on disk, newest first: those of Helmsman, the terminal, an IDE, `codex exec`.

    Not on a terminal, the columns are separated by tabs: id, time, directory, source, summary.
    """
    import anyio

    from helmsman.cli.consoles import configure_logs, is_terminal, result_console
    from helmsman.service import Helmsman
    from helmsman.settings import load_settings
    from helmsman.shapes.rendering import json_line, session_info_as_dict

    settings = load_settings()
    configure_logs(settings)
    place = None if directory is None else Path(directory).expanduser().resolve()

    async def find() -> tuple[list[SessionInfo], str | None, dict[str, tuple[str, ...]]]:
        helm = Helmsman(settings)
        try:
            found, cursor = await helm.list(
                directory=place, query=query, limit=limit, include_archived=include_archived
            )
            return found, cursor, await _timed_out(helm, found)
        finally:
            await helm.ledger.close()

    sessions, cursor, timed_out = anyio.run(find)
    if as_json:
        shown = {"sessions": [session_info_as_dict(info) | _flag(timed_out, info) for info in sessions]}
        click.echo(json_line(shown | ({} if cursor is None else {"nextCursor": cursor})))
    elif not sessions:
        filtered = directory is not None or query is not None
        click.echo(
            "No session matches. Leave out --directory or --query to see all."
            if filtered
            else f'There are no sessions in {settings.codex_home} yet. Start one: helmsman run "…", or try `helmsman demo`.',
            err=True,
        )
    else:
        console = result_console()
        if is_terminal(console):
            print_paged(console, _table(console, sessions, timed_out), no_pager=no_pager)
            if cursor is not None:
                click.echo(f"These are the newest {limit}; --limit shows more.", err=True)
        else:
            for info in sessions:
                click.echo(_row(info))


async def _timed_out(helm: Helmsman, sessions: list[SessionInfo]) -> dict[str, tuple[str, ...]]:
    """Which of the sessions had a question in their last turn that nobody answered: it is not plainly done."""
    from helmsman.errors import RegistryUnavailable
    from helmsman.tasks.registry import REGISTRY_NAME

    if not (helm.settings.state_dir / REGISTRY_NAME).exists():
        return {}  # looking at a list makes no files
    try:
        tasks = await helm.ledger.registry(
            lambda registry: {info.session_id: registry.tasks_of_session(info.session_id) for info in sessions}
        )
    except RegistryUnavailable:
        return {}
    return {session_id: of_it[0].timed_out for session_id, of_it in tasks.items() if of_it and of_it[0].timed_out}


def _flag(timed_out: dict[str, tuple[str, ...]], info: SessionInfo) -> dict[str, list[str]]:
    return {"timedOut": list(timed_out[info.session_id])} if info.session_id in timed_out else {}


def _table(console: Console, sessions: list[SessionInfo], timed_out: dict[str, tuple[str, ...]]) -> Table:
    from rich.text import Text

    from helmsman.base.shown_text import one_line
    from helmsman.cli.session_ids import short_id
    from helmsman.cli.tables import Column, fitting_table
    from helmsman.model.options import DEFAULT_AGENT

    wide = console.width >= _WIDE
    now = datetime.now(UTC)
    rows: list[tuple[str | Text, ...]] = []
    for info in sessions:
        what = Text(one_line(info.name or info.first_prompt or "")[:500])
        if info.archived:
            what = Text("(archived) ", "dim").append_text(what)
        if info.session_id in timed_out:
            what = Text("(a question timed out) ", "yellow").append_text(what)
        rows.append(
            (
                one_line(info.session_id) if wide else short_id(one_line(info.session_id)),
                ago(now - info.updated_at),
                one_line(info.agent),
                _short_path(one_line(info.directory or ""), console.width // 4),
                what,
                one_line(_made_by(info)),
            )
        )
    columns = (
        Column("ID", "cyan"),
        Column("WHEN", left_out=2),
        Column("AGENT", left_out=4, usual=DEFAULT_AGENT),
        Column("DIRECTORY", left_out=3),
        Column("WHAT", gives_way="at its end"),
        Column("SOURCE", "dim", left_out=1),
    )
    return fitting_table(console, columns, rows)


def _row(info: SessionInfo) -> str:
    from helmsman.base.shown_text import one_line

    time = info.updated_at.isoformat(timespec="seconds")
    cells = (info.session_id, time, info.directory, _made_by(info), info.name or info.first_prompt)
    return "\t".join(one_line(cell or "") for cell in cells)


def _made_by(info: SessionInfo) -> str:
    """Codex calls the source of every app-server session `vscode`; who it really was, the originator says."""
    return info.originator or info.source or ""


def ago(age: timedelta) -> str:
    """How long ago, as people say it."""
    seconds = max(0, int(age.total_seconds()))
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{seconds // 60} min ago"
    if seconds < 86400:
        return f"{seconds // 3600} h ago"
    days = seconds // 86400
    return "1 day ago" if days == 1 else f"{days} days ago"


def _short_path(path: str, most: int) -> str:
    """The end of a path says more than its beginning."""
    home = str(Path.home())
    if path == home or path.startswith(home + "/"):
        path = "~" + path[len(home) :]
    return path if len(path) <= most else "…" + path[len(path) - most + 1 :]
