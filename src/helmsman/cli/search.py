"""`helmsman session search`: search the transcripts of all sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from helmsman.base.json_values import present
from helmsman.base.sanitize import visible
from helmsman.cli.command import cli_command
from helmsman.cli.host import host
from helmsman.cli.list import COLUMNS, cells
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.output import limit_option, pager_option, print_list
from helmsman.cli.tables import Column

if TYPE_CHECKING:
    from rich.text import Text

    from helmsman.client import Helmsman

_WHERE: Final = Column("WHERE", gives_way="at its end")


@cli_command(
    "search",
    "Find sessions by what was said and done in them.",
    "helmsman session search flaky parser test",
    "helmsman session search '\"exit code 3\"' --agent claude --directory .",
)
@click.argument("words", nargs=-1, required=True)
@click.option("--agent", metavar="NAME", help="Only sessions of this agent, such as codex.")
@click.option("--directory", metavar="DIR", help="Only sessions that worked in this directory or below it.")
@limit_option
@click.option("--all", "include_archived", is_flag=True, help="Archived sessions too.")
@pager_option
def command(
    words: tuple[str, ...],
    agent: str | None,
    directory: str | None,
    limit: int,
    include_archived: bool,
    no_pager: bool,
    as_json: bool,
) -> None:
    """Find sessions by words in their transcripts: prompts, answers, commands, changed files. Newest first.

    A session must contain all the words. A word also matches as a prefix, and quotes match a phrase. The
    first search reads all sessions and may take a while; later ones read what is new.

    Not on a terminal, the columns are separated by tabs: id, time, directory, agent, summary, excerpt.
    """
    from helmsman.shapes.listed_sessions import found_sessions

    place = None if directory is None else str(host().place(directory))

    async def find(helm: Helmsman) -> tuple[list[dict[str, Any]], int | None]:
        result = await helm.extras.search.find(
            " ".join(words), agent=agent, directory=place, limit=limit, include_archived=include_archived
        )
        return await found_sessions(helm, result), result.unread

    sessions, unread = with_helmsman(find)
    note = f"{unread} sessions are not indexed yet. Search again in a moment." if unread is not None else None
    nothing = "No session has these words. Use fewer of them, or their beginnings."
    print_list(
        present({"sessions": sessions, "unread": unread}),
        list(map(_row, sessions)),
        (*COLUMNS, _WHERE),
        lambda width: [(*cells(session, width), _marked(session["excerpt"])) for session in sessions],
        nothing=f"{nothing} {note}" if note else nothing,
        as_json=as_json,
        no_pager=no_pager,
        note=note,
    )


def _row(session: dict[str, Any]) -> tuple[str | None, ...]:
    excerpt = "".join(session["excerpt"])
    about = session.get("directory"), session["agent"], session.get("summary")
    return session["sessionId"], session["timestamp"], *about, excerpt


def _marked(excerpt: list[str]) -> Text:
    from rich.text import Text

    shown = Text()
    for place, part in enumerate(excerpt):
        shown.append(visible(part), "bold" if place % 2 else "")
    return shown
