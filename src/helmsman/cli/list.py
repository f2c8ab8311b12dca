"""`helmsman list`: the sessions Codex has on disk, whoever made them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from helmsman.base.shown_text import one_line
from helmsman.base.surroundings import expand_home, from_here
from helmsman.cli.command import cli_command
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.output import limit_option, pager_option, print_list
from helmsman.cli.session_ids import short_id
from helmsman.cli.tables import Column, ago
from helmsman.model.options import DEFAULT_AGENT
from helmsman.tasks.model import session_status_of

if TYPE_CHECKING:
    from rich.text import Text

    from helmsman.agents.protocol import SessionInfo
    from helmsman.service import Helmsman
    from helmsman.tasks.model import Task

_WIDE: Final = 120
"""From this width on there is room for whole ids."""
_COLUMNS: Final = (
    Column("ID", "cyan"),
    Column("WHEN", left_out=2),
    Column("STATUS", left_out=5, usual=""),
    Column("AGENT", left_out=4, usual=DEFAULT_AGENT),
    Column("DIRECTORY", left_out=3),
    Column("WHAT", gives_way="at its end"),
    Column("SOURCE", "dim", left_out=1),
)
_STATUS: Final = {"awaiting_approval": ("asks", "yellow"), "active": ("active", "green"), "error": ("error", "red")}
"""What a status is called in the table, where that is shorter, and its colour."""


@cli_command(
    "list",
    "List the sessions Codex has on disk.",
    "helmsman list --directory . --query parser",
    "helmsman list --all --limit 100 --json",
)
@click.option("--directory", metavar="DIR", help="Only sessions that were started in this directory.")
@click.option(
    "--query", metavar="WORDS", help="Only sessions with these words in their name, first prompt or directory."
)
@limit_option
@click.option("--all", "include_archived", is_flag=True, help="Archived sessions too.")
@pager_option
def command(
    directory: str | None, query: str | None, limit: int, include_archived: bool, no_pager: bool, as_json: bool
) -> None:
    """List the sessions Codex has on disk, newest first: those of Helmsman, the terminal, an IDE, `codex exec`.

    Not on a terminal, the columns are separated by tabs: id, time, directory, source, summary, status. The status is
    known of sessions that Helmsman has run.
    """
    from helmsman.shapes.rendering import session_info_as_dict

    settings = settings_of_command()
    place = None if directory is None else from_here(directory).resolve()

    async def find(helm: Helmsman) -> tuple[list[SessionInfo], str | None, dict[str, Task]]:
        found, cursor = await helm.list(directory=place, query=query, limit=limit, include_archived=include_archived)
        return found, cursor, await _last_turns(helm, found)

    sessions, cursor, turns = with_helmsman(find, settings=settings)
    shown = [session_info_as_dict(info) | _as_dict(turns.get(info.session_id)) for info in sessions]
    nothing = (
        f'There are no sessions in {settings.codex_home} yet. Start one: helmsman run "…", or try `helmsman demo`.'
    )
    if directory is not None or query is not None:
        nothing = "No session matches. Leave out --directory or --query to see all."
    print_list(
        {"sessions": shown} | ({} if cursor is None else {"nextCursor": cursor}),
        [_row(info, turns.get(info.session_id)) for info in sessions],
        _COLUMNS,
        lambda width: [_cells(info, turns.get(info.session_id), width) for info in sessions],
        nothing=nothing,
        as_json=as_json,
        no_pager=no_pager,
        note=None if cursor is None else f"These are the newest {limit}; --limit shows more.",
    )


async def _last_turns(helm: Helmsman, sessions: list[SessionInfo]) -> dict[str, Task]:
    """The last turn of each session that Helmsman has run, as it truly stands."""
    from helmsman.tasks.registry import REGISTRY_NAME

    if not (helm.settings.state_dir / REGISTRY_NAME).exists():
        return {}  # looking at a list makes no files
    tasks = await helm.tasks.of_sessions([info.session_id for info in sessions])
    last = {
        session_id: next((task for task in of_it if task.waiting_for is not None or not task.is_waiting), None)
        for session_id, of_it in tasks.items()
    }
    return {session_id: task for session_id, task in last.items() if task is not None}


def _as_dict(turn: Task | None) -> dict[str, Any]:
    if turn is None:
        return {}
    timed_out = {"timedOut": list(turn.timed_out)} if turn.timed_out else {}
    resumes = {} if turn.resumes_at is None else {"resumesAt": turn.resumes_at.isoformat(timespec="seconds")}
    return {"status": session_status_of(turn)} | timed_out | resumes


def _row(info: SessionInfo, turn: Task | None) -> tuple[str | None, ...]:
    time = info.updated_at.isoformat(timespec="seconds")
    status = None if turn is None else session_status_of(turn)
    return info.session_id, time, info.directory, _made_by(info), info.name or info.first_prompt, status


def _cells(info: SessionInfo, turn: Task | None, width: int) -> tuple[str | Text, ...]:
    from rich.text import Text

    session_id = one_line(info.session_id)
    what = Text(one_line(info.name or info.first_prompt or "")[:500])
    if info.archived:
        what = Text("(archived) ", "dim").append_text(what)
    if turn is not None and turn.timed_out:
        what = Text("(a question timed out) ", "yellow").append_text(what)
    status = (None if turn is None else session_status_of(turn)) or ""
    word, style = ("waits", "yellow") if turn is not None and turn.waiting_for else _STATUS.get(status, (status, ""))
    return (
        session_id if width >= _WIDE else short_id(session_id),
        ago(info.updated_at),
        Text(word, style),
        one_line(info.agent),
        _short_path(one_line(info.directory or ""), width // 4),
        what,
        one_line(_made_by(info)),
    )


def _made_by(info: SessionInfo) -> str:
    """Codex calls the source of every app-server session `vscode`; who it really was, the originator says."""
    return info.originator or info.source or ""


def _short_path(path: str, most: int) -> str:
    """The end of a path says more than its beginning."""
    home = str(expand_home("~"))
    if path == home or path.startswith(home + "/"):
        path = "~" + path[len(home) :]
    return path if len(path) <= most else "…" + path[len(path) - most + 1 :]
