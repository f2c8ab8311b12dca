"""`helmsman list`: list all sessions on disk."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from helmsman.base.caller_context import expand_home
from helmsman.base.json_values import present
from helmsman.base.sanitize import one_line, visible
from helmsman.base.truncate import counted
from helmsman.cli.command import cli_command, limit_option, option, reports_errors
from helmsman.cli.consoles import echo, is_terminal, result_console
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import host
from helmsman.cli.on_session import short_id, there, with_helmsman
from helmsman.cli.output import Column, ago, fitting_table, print_list, session_word
from helmsman.cli.questions import show_asking_elsewhere
from helmsman.model.options import DEFAULT_AGENT
from helmsman.shapes.listed_sessions import found_sessions, listed_sessions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from helmsman.client import Helmsman


_WIDE: Final = 120  # full ids fit from this width
COLUMNS: Final = (
    Column("ID", "cyan"),
    Column("WHEN", left_out=2),
    Column("STATUS", left_out=5, usual=""),
    Column("AGENT", left_out=4, usual=DEFAULT_AGENT),
    Column("DIRECTORY", left_out=3),
    Column("WHAT", gives_way="at its end"),
    Column("SOURCE", "dim", left_out=1, usual="helmsman"),
)
"""Columns of the table of sessions; `cells` returns a row."""
_STYLES: Final = {"awaiting_approval": "yellow", "active": "green", "error": "red"}
"""Colours of status words."""
_NAMES: Final = {
    "running": ("active", "awaiting_approval"),
    "waiting": ("awaiting_approval",),
    "done": ("done",),
    "failed": ("error",),
    "interrupted": ("interrupted",),
}
"""Names for the status in options, and what they include."""
_PAGES: Final = 50  # pages that are searched for sessions of a status


@cli_command(
    "list",
    "List the sessions that agents have on disk.",
    "helmsman list --directory . --query parser",
    "helmsman list --all --limit 100 --json",
    "helmsman list --line",
)
@option("--agent NAME", "Only sessions of this agent, such as codex.")
@option("--directory DIR", "Only sessions that were started in this directory.")
@option("--query WORDS", "Only sessions with these words in their name, first prompt or directory.")
@option("--status STATUS", "Only sessions that are: " + ", ".join(_NAMES), choices=_NAMES)
@option("--running", "Only sessions in which a turn runs or asks.", to="status", flag_value="running")
@option("--since TIME", "Only sessions that worked since then: 24h, 7d, 2w ago, or a date.")
@limit_option
@option("--all", "Archived sessions too.", to="include_archived")
@option("--line", "One line for a status line: how many sessions run, and how many ask.")
def command(
    agent: str | None,
    directory: str | None,
    query: str | None,
    status: str | None,
    since: str | None,
    limit: int,
    include_archived: bool,
    line: bool,
    as_json: bool,
) -> None:
    """List the sessions agents have on disk, newest first: those of Helmsman, the terminal, an IDE, `codex exec`.

    On a terminal, sessions of your other machines (`helmsman config hosts`) that wait for an answer follow. Not on a
    terminal, the columns are separated by tabs: id, time, directory, source, summary, status, agent.
    """
    from helmsman.capabilities.usage_report import parse_since  # it loads Codex, and `--help` loads this module

    place = None if directory is None else host().place(directory)
    begin = None if since is None else parse_since(since)

    async def find(helm: Helmsman) -> tuple[list[dict[str, Any]], str | None]:
        shown: list[dict[str, Any]] = []
        cursor: str | None = None
        # Without a status one page is enough: the list is already sorted.
        for _ in range(1 if status is None else _PAGES):
            found, cursor = await helm.list(
                directory=place,
                query=query,
                limit=limit,
                cursor=cursor,
                include_archived=include_archived,
                agent=agent,
            )
            if begin is not None and (newer := [info for info in found if info.updated_at >= begin]) != found:
                found, cursor = newer, None  # the newest come first
            listed = await listed_sessions(helm, found)
            shown += [one for one in listed if status is None or one.get("status") in _NAMES[status]]
            if cursor is None or len(shown) >= limit:
                break
        return shown[:limit], cursor

    sessions, cursor = with_helmsman(find)
    if line:
        echo(_status_line([one.get("status") for one in sessions]))
        return
    nothing = 'There are no sessions yet. Start one: helmsman run "…", or try `helmsman demo`.'
    given = {"--agent": agent, "--directory": directory, "--query": query, "--since": since}
    if used := [option for option, value in given.items() if value is not None]:
        nothing = f"No session matches. Leave out {' and '.join(used)} to see more."
    elif status is not None:
        nothing = f"No session is {status}. `helmsman list` shows all."
    print_list(
        present({"sessions": sessions, "nextCursor": cursor}),
        list(map(_row, sessions)),
        COLUMNS,
        lambda width: [cells(session, width) for session in sessions],
        nothing=nothing,
        as_json=as_json,
        note=None if cursor is None else f"These are the newest {limit}; --limit shows more.",
    )
    if host().on_terminal(1) and not as_json:
        show_asking_elsewhere()


def _status_line(statuses: Sequence[str | None]) -> str:
    asking, running = statuses.count("awaiting_approval"), statuses.count("active")
    parts = [*([f"{asking} waiting for you"] if asking else []), *([f"{running} running"] if running else [])]
    return f"helmsman: {', '.join(parts) or 'idle'}"


def _row(session: dict[str, Any]) -> tuple[str | None, ...]:
    return (
        *(session["sessionId"], session["timestamp"], _place(session)),
        *(_made_by(session), session.get("summary"), session.get("status"), session["agent"]),
    )


def cells(session: dict[str, Any], width: int) -> tuple[str | Text, ...]:
    """Return a session as a table row for a terminal of this width."""
    from rich.text import Text

    session_id = one_line(session["sessionId"])
    what = Text(one_line(session.get("summary", ""))[:500])
    if session.get("archived"):
        what = Text("(archived) ", "dim").append_text(what)
    if session.get("enforced") is False:
        what = Text("(unenforced) ", "yellow").append_text(what)
    status = session.get("status", "")
    # Waits and unanswered questions are what the plain status hides.
    word, style = session_word(status), _STYLES.get(status, "")
    if session.get("waitingFor"):
        word, style = "waits", "yellow"
    elif session.get("timedOut") and status == "done":
        word, style = "unanswered", "yellow"  # a question timed out
    return (
        there(session_id) if width >= _WIDE else short_id(session_id),
        ago(datetime.fromisoformat(session["timestamp"])),
        Text(word, style),
        one_line(session["agent"]),
        _short_path(one_line(_place(session) or ""), width // 4),
        what,
        one_line(_made_by(session)),
    )


def _made_by(session: dict[str, Any]) -> str:
    """Return the program that created the session."""
    return session.get("originator") or session.get("source") or ""


def _place(session: dict[str, Any]) -> str | None:
    """Return the directory of a session. The path of a worktree means nothing to a person, so its repository instead."""
    place: str | None = session.get("repository") or session.get("directory")
    return place


def _short_path(path: str, most: int) -> str:
    """Shorten a path at its beginning."""
    home = str(expand_home("~"))
    # With the separator, so that /home/me2 is not abbreviated.
    if path == home or path.startswith(home + "/"):
        path = "~" + path[len(home) :]
    # The end of a path tells more than its beginning.
    return path if len(path) <= most else "…" + path[len(path) - most + 1 :]


_LOOKED_AT: Final = 100
_LAST: Final = 5
_COMMAND_WIDTH: Final = 26


@reports_errors
def overview() -> int:
    """Open the full screen on a terminal; elsewhere print what waits, runs and ran last."""
    if not (sys.stdin.isatty() and is_terminal(result_console())):
        return _print_overview()
    from helmsman.cli.full_screen import choose_session
    from helmsman.cli.session_commands import watch

    while (joined := with_helmsman(choose_session)) is not None:
        watch(joined, interactive=True, as_json=False)
    return ExitCode.OK


def _print_overview() -> int:
    from rich.text import Text

    async def look(helm: Helmsman) -> list[dict[str, Any]]:
        found, _ = await helm.list(limit=_LOOKED_AT)
        return await listed_sessions(helm, found)

    sessions = with_helmsman(look)
    asking = [one for one in sessions if one.get("status") == "awaiting_approval"]
    running = [one for one in sessions if one.get("status") == "active"]
    others = [one for one in sessions if one not in asking and one not in running][:_LAST]
    console = result_console()
    for heading, style, listed in (
        ("Waits for you", "bold yellow", asking),
        ("Running", "bold green", running),
        ("Last", "bold", others),
    ):
        if listed:
            console.print(Text(heading, style))
            console.print(fitting_table(console, COLUMNS, [cells(one, console.width) for one in listed]))
            console.print()
    if not sessions:
        console.print("No agent has a session here yet.\n")
    for command, does in _commands(asking, running, others):
        line = Text.assemble(f"  {command:<{_COMMAND_WIDTH}}", (f"  {does}", "dim"))
        # Descriptions are dropped on a narrow terminal, not wrapped.
        console.print(line if line.cell_len <= console.width else f"  {command}", soft_wrap=True)
    show_asking_elsewhere()
    return ExitCode.OK


def _commands(
    asking: list[dict[str, Any]], running: list[dict[str, Any]], others: list[dict[str, Any]]
) -> list[tuple[str, str]]:
    """Return suggested commands for the current state."""
    offered = [("helmsman respond", "answer what is asked")] if asking else []
    if running:
        offered.append((f"helmsman watch {short_id(running[0]['sessionId'])}", "follow it"))
    if others:
        offered.append((f"helmsman status {short_id(others[0]['sessionId'])}", "see what came of it"))
    else:
        offered.append(("helmsman demo", "see it work, without an account"))
    return [*offered, ('helmsman run "…"', "start something"), ("helmsman --help", "all commands")]


@cli_command(
    "search",
    "Find sessions by what was said and done in them.",
    "helmsman session search flaky parser test",
    "helmsman session search '\"exit code 3\"' --agent claude --directory .",
)
@click.argument("words", nargs=-1, required=True)
@option("--agent NAME", "Only sessions of this agent, such as codex.")
@option("--directory DIR", "Only sessions that worked in this directory or below it.")
@limit_option
@option("--all", "Archived sessions too.", to="include_archived")
def search_command(
    words: tuple[str, ...],
    agent: str | None,
    directory: str | None,
    limit: int,
    include_archived: bool,
    as_json: bool,
) -> None:
    """Find sessions by words in their transcripts: prompts, answers, commands, changed files. Newest first.

    A session must contain all the words. A word also matches as a prefix, and quotes match a phrase. The
    first search reads all sessions and may take a while; later ones read what is new.

    Not on a terminal, the columns are separated by tabs: id, time, directory, agent, summary, excerpt.
    """
    place = None if directory is None else str(host().place(directory))

    async def find(helm: Helmsman) -> tuple[list[dict[str, Any]], int | None]:
        result = await helm.extras.search.find(
            " ".join(words), agent=agent, directory=place, limit=limit, include_archived=include_archived
        )
        return await found_sessions(helm, result), result.unread

    sessions, unread = with_helmsman(find)
    note = f"Not indexed yet: {counted(unread, 'session')}. Search again in a moment." if unread is not None else None
    nothing = "No session has these words. Use fewer of them, or their beginnings."
    print_list(
        present({"sessions": sessions, "unread": unread}),
        list(map(_found_row, sessions)),
        COLUMNS,
        lambda width: [cells(session, width) for session in sessions],
        below=lambda: [_marked(session["excerpt"]) for session in sessions],
        nothing=f"{nothing} {note}" if note else nothing,
        as_json=as_json,
        note=note,
    )


def _found_row(session: dict[str, Any]) -> tuple[str | None, ...]:
    excerpt = "".join(session["excerpt"])
    about = _place(session), session["agent"], session.get("summary")
    return session["sessionId"], session["timestamp"], *about, excerpt


def _marked(excerpt: list[str]) -> Text:
    from rich.text import Text

    shown = Text()
    for place, part in enumerate(excerpt):
        shown.append(visible(part), "bold" if place % 2 else "")
    return shown
