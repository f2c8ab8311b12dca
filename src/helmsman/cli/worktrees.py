"""`helmsman session worktrees`: list worktrees of sessions and remove those that are no longer needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from helmsman.base.sanitize import one_line
from helmsman.cli.changes import show_discarded
from helmsman.cli.command import cli_command, cli_group
from helmsman.cli.consent import agree, can_ask, yes_option
from helmsman.cli.consoles import echo
from helmsman.cli.host import host
from helmsman.cli.on_session import titles, with_helmsman
from helmsman.cli.output import counted, pager_option, print_list
from helmsman.cli.session_ids import short_id
from helmsman.cli.tables import Column, ago

if TYPE_CHECKING:
    from helmsman.git.lifecycle import Leftover
    from helmsman.git.worktree import Worktree

_COLUMNS: Final = (
    Column("SESSION", "cyan"),
    Column("STATE"),
    Column("MADE", left_out=2),
    Column("REPOSITORY", gives_way="at its beginning", left_out=1),
    Column("WHAT", gives_way="at its end", usual=""),
)
_NOTHING_LEFT: Final = "No worktree is left over. `helmsman session worktrees` lists them all."


@cli_group(
    "worktrees",
    "List the worktrees of sessions; drop leftovers.",
    "helmsman session worktrees",
    "helmsman session worktrees leftovers",
    "helmsman session worktrees prune",
)
@pager_option
def command(no_pager: bool, as_json: bool) -> None:
    """List the git worktrees that sessions work in, oldest first.

    A process that ends leaves its worktrees, because they may contain work that nobody has looked at. Look with
    `helmsman diff`, then `helmsman apply` or `helmsman session discard`; or prune those without changes.
    """
    _list_worktrees(no_pager=no_pager, as_json=as_json)


@cli_command("list", "List them all.", "helmsman session worktrees list --json", group=command)
@pager_option
def _list(no_pager: bool, as_json: bool) -> None:
    """List them all.

    Not on a terminal, the columns are separated by tabs: session, what it is doing, time, repository, path, what it is
    about.
    """
    _list_worktrees(no_pager=no_pager, as_json=as_json)


def _list_worktrees(*, no_pager: bool, as_json: bool) -> None:
    found = with_helmsman(lambda helm: helm.extras.changes.worktrees())
    _print(
        {"worktrees": [_as_dict(one.worktree) | {"use": one.use} for one in found]},
        [(one.worktree, one.use) for one in found],
        nothing="There are no worktrees. A session gets one where an MCP client or a program starts it with `worktree`.",
        no_pager=no_pager,
        as_json=as_json,
    )


@cli_command("leftovers", "List leftover worktrees.", "helmsman session worktrees leftovers", group=command)
@pager_option
def _leftovers(no_pager: bool, as_json: bool) -> None:
    """List the worktrees whose process is gone, with what was changed in each."""
    from helmsman.shapes.rendering import fields_as_dict

    found = with_helmsman(lambda helm: helm.extras.changes.leftovers())
    shown = [
        _as_dict(one.worktree) | {"files": None if one.files is None else [fields_as_dict(file) for file in one.files]}
        for one in found
    ]
    rows = [(one.worktree, _content(one)) for one in found]
    _print({"leftovers": shown}, rows, nothing=_NOTHING_LEFT, no_pager=no_pager, as_json=as_json)


@cli_command("prune", "Drop leftover worktrees.", "helmsman session worktrees prune", group=command)
@click.option("--force", is_flag=True, help="Also those with changes, which are lost.")
@yes_option
def _prune(force: bool, agreed: bool, as_json: bool) -> None:
    """Drop leftover worktrees without changes.

    With --force work is lost, so you are asked first; without a terminal to ask on, that needs --yes.
    """
    host().begin_change()
    found = with_helmsman(lambda helm: helm.extras.changes.leftovers())
    lost = [one for one in found if one.unsaved]
    if force and lost:
        _agree(lost, agreed=agreed, as_json=as_json)
    kept = [] if force else [one for one in found if one.files != () or one.unsaved]
    dropped = [one for one in found if one not in kept]
    gone = with_helmsman(lambda helm: helm.extras.changes.prune(dropped))
    show_discarded(gone, as_json=as_json)
    if kept and not as_json:
        stay = f"{counted(len(kept), 'worktree')} with changes {'stays' if len(kept) == 1 else 'stay'}"
        echo(f"{stay}: `helmsman session worktrees leftovers` lists them, --force drops them.", err=True)
    elif not gone and not as_json:
        echo(_NOTHING_LEFT, err=True)


def _agree(changed: list[Leftover], *, agreed: bool, as_json: bool) -> None:
    if not agreed and can_ask(as_json=as_json):
        _print({}, [(one.worktree, _content(one)) for one in changed], nothing="", no_pager=True, as_json=False)
    what = f"What was changed in {counted(len(changed), 'worktree')}"
    question = f"{what} cannot be recovered. Drop {'it' if len(changed) == 1 else 'them'}?"
    agree(question, agreed=agreed, as_json=as_json, otherwise=f"{what} would be lost.")


def _print(
    shown: dict[str, Any], rows: list[tuple[Worktree, str]], *, nothing: str, no_pager: bool, as_json: bool
) -> None:
    """Print a list of worktrees, each with its remark."""
    about = titles(tree.session_id for tree, _ in rows)
    for one in (*shown.get("worktrees", ()), *shown.get("leftovers", ())):
        one["title"] = about.get(one["sessionId"] or "")

    def row(tree: Worktree, said: str) -> tuple[str | None, ...]:
        made = tree.created_at.isoformat(timespec="seconds")
        title = about.get(tree.session_id or "")
        return tree.session_id, said, made, str(tree.repository), str(tree.path), title

    def cells(tree: Worktree, said: str) -> tuple[str, ...]:
        title = one_line(about.get(tree.session_id or "", ""))
        return short_id(tree.session_id or "none"), said, ago(tree.created_at), one_line(str(tree.repository)), title

    print_list(
        shown,
        [row(*one) for one in rows],
        _COLUMNS,
        lambda _: [cells(*one) for one in rows],
        nothing=nothing,
        as_json=as_json,
        no_pager=no_pager,
    )


def _content(leftover: Leftover) -> str:
    if leftover.files is None:
        return "not readable"
    if leftover.files:
        return f"{counted(len(leftover.files), 'file')} changed"
    return "work of its own" if leftover.unsaved else "nothing changed"


def _as_dict(tree: Worktree) -> dict[str, Any]:
    return {
        "name": tree.name,
        "sessionId": tree.session_id,
        "path": str(tree.path),
        "branch": tree.branch,
        "base": tree.base,
        "repository": str(tree.repository),
        "createdAt": tree.created_at.isoformat(timespec="seconds"),
    }
