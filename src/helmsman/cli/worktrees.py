"""`helmsman worktrees`: the worktrees of sessions; which of them nobody needs any more, and away with those."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.consent import agree, can_ask, yes_option
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.paging import pager_option, print_paged

if TYPE_CHECKING:
    from helmsman.capabilities.changes import KnownWorktree
    from helmsman.settings import Settings
    from helmsman.worktrees import Discarded, Leftover, Worktree

_OTHER_COLUMNS: Final = 48
"""How wide the table is beside its last column."""


@click.group(
    "worktrees",
    invoke_without_command=True,
    short_help="List the worktrees of sessions; drop what is left over.",
    epilog="""\b
Examples:
  helmsman worktrees
  helmsman worktrees leftovers
  helmsman worktrees prune
""",
)
@pager_option
@json_option
@click.pass_context
def command(ctx: click.Context, no_pager: bool, as_json: bool) -> int | None:
    """List the git worktrees that sessions work in, oldest first.

    A process that ends leaves its worktrees, because there may be work in them that nobody has looked at. Look with
    `helmsman diff`, then `helmsman apply` or `helmsman discard`; or prune those in which nothing was changed.
    """
    ctx.obj = as_json
    return list_worktrees(no_pager=no_pager, as_json=as_json) if ctx.invoked_subcommand is None else None


@reports_errors
def list_worktrees(*, no_pager: bool, as_json: bool) -> None:
    """List them all."""
    import anyio

    from helmsman.shapes.rendering import json_line

    found: tuple[KnownWorktree, ...] = anyio.run(_all, _settings())
    if as_json:
        click.echo(json_line({"worktrees": [{**_as_dict(one.worktree), "use": one.use} for one in found]}))
    elif not found:
        click.echo(
            "There are no worktrees. A session gets one where an MCP client or a program starts it with `worktree`.",
            err=True,
        )
    else:
        _print_table([(one.worktree, one.use) for one in found], no_pager=no_pager)


@command.command(
    "list",
    short_help="List them all.",
    epilog="""\b
Example:
  helmsman worktrees list --json
""",
)
@pager_option
@json_option
@click.pass_obj
def _list(json_of_group: bool, no_pager: bool, as_json: bool) -> int:
    """List them all.

    Not on a terminal, the columns are separated by tabs: session, what it is doing, time, repository, path.
    """
    return list_worktrees(no_pager=no_pager, as_json=as_json or json_of_group)


@command.command(
    "leftovers",
    short_help="List those that nobody needs any more.",
    epilog="""\b
Example:
  helmsman worktrees leftovers
""",
)
@pager_option
@json_option
@click.pass_obj
def _leftovers(json_of_group: bool, no_pager: bool, as_json: bool) -> int:
    """List the worktrees whose process is gone, with what was changed in each."""
    return list_leftovers(no_pager=no_pager, as_json=as_json or json_of_group)


@reports_errors
def list_leftovers(*, no_pager: bool, as_json: bool) -> None:
    """List those whose process is gone."""
    import anyio

    from helmsman.cli.whose_changes import file_as_dict
    from helmsman.shapes.rendering import json_line

    found: tuple[Leftover, ...] = anyio.run(_left_over, _settings())
    if as_json:
        shown = [
            _as_dict(one.worktree)
            | {"files": None if one.files is None else [file_as_dict(file) for file in one.files]}
            for one in found
        ]
        click.echo(json_line({"leftovers": shown}))
    elif not found:
        click.echo("No worktree is left over. `helmsman worktrees` lists them all.", err=True)
    else:
        _print_table([(one.worktree, _content(one)) for one in found], no_pager=no_pager)


@command.command(
    "prune",
    short_help="Drop those that are left over.",
    epilog="""\b
Example:
  helmsman worktrees prune
""",
)
@click.option("--force", is_flag=True, help="Also those in which something was changed: it is lost.")
@yes_option
@json_option
@click.pass_obj
def _prune(json_of_group: bool, force: bool, agreed: bool, as_json: bool) -> int:
    """Drop the worktrees that are left over and in which nothing was changed.

    With --force work is lost, so you are asked first; where there is no terminal to ask on, that needs --yes.
    """
    return prune_worktrees(force=force, agreed=agreed, as_json=as_json or json_of_group)


@reports_errors
def prune_worktrees(*, force: bool, agreed: bool, as_json: bool) -> int:
    """Drop what is left over."""
    import anyio

    from helmsman.cli.discard import show_discarded

    settings = _settings()
    found: tuple[Leftover, ...] = anyio.run(_left_over, settings)
    lost = [one for one in found if one.unsaved]
    if force and lost and not _agree(lost, agreed=agreed, as_json=as_json):
        return ExitCode.FAILED
    kept = [] if force else [one for one in found if one.files != () or one.unsaved]
    gone: tuple[Discarded, ...] = anyio.run(_dropped, settings, [one for one in found if one not in kept])
    show_discarded(gone, as_json=as_json)
    if kept and not as_json:
        click.echo(
            f"{len(kept)} worktree(s) with changes stay: `helmsman worktrees leftovers` lists them, --force drops them.",
            err=True,
        )
    elif not gone and not as_json:
        click.echo("No worktree is left over. `helmsman worktrees` lists them all.", err=True)
    return ExitCode.OK


def _agree(changed: list[Leftover], *, agreed: bool, as_json: bool) -> bool:
    if not agreed and can_ask(as_json=as_json):
        _print_table([(one.worktree, _content(one)) for one in changed], no_pager=True)
    return agree(
        f"What was changed in {len(changed)} worktree(s) does not come back. Drop them?",
        agreed=agreed,
        as_json=as_json,
        otherwise=f"What was changed in {len(changed)} worktree(s) would be lost.",
    )


async def _all(settings: Settings) -> tuple[KnownWorktree, ...]:
    from helmsman.service import Helmsman

    async with Helmsman(settings) as helm:
        return await helm.extras.changes.worktrees()


async def _left_over(settings: Settings) -> tuple[Leftover, ...]:
    from helmsman.service import Helmsman

    async with Helmsman(settings) as helm:
        return await helm.extras.changes.leftovers()


async def _dropped(settings: Settings, found: list[Leftover]) -> tuple[Discarded, ...]:
    from helmsman.service import Helmsman

    async with Helmsman(settings) as helm:
        return await helm.extras.changes.prune(found)


def _settings() -> Settings:
    from helmsman.cli.consoles import configure_logs
    from helmsman.settings import load_settings

    settings = load_settings()
    configure_logs(settings)
    return settings


def _content(leftover: Leftover) -> str:
    if leftover.files is None:
        return "not readable"
    if leftover.files:
        return f"{len(leftover.files)} file(s) changed"
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


def _print_table(rows: list[tuple[Worktree, str]], *, no_pager: bool) -> None:
    """A table on a terminal, columns separated by tabs elsewhere."""
    from helmsman.base.shown_text import one_line
    from helmsman.cli.consoles import is_terminal, result_console
    from helmsman.cli.list_sessions import ago
    from helmsman.cli.session_ids import short_id
    from helmsman.cli.short_paths import end_of

    console = result_console()
    if not is_terminal(console):
        for tree, state in rows:
            time = tree.created_at.isoformat(timespec="seconds")
            cells = (tree.session_id or "", state, time, str(tree.repository), str(tree.path))
            click.echo("\t".join(map(one_line, cells)))
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("SESSION", style="cyan", no_wrap=True)
    for name in ("STATE", "MADE"):
        table.add_column(name, no_wrap=True)
    table.add_column("REPOSITORY", no_wrap=True)
    now = datetime.now(UTC)
    for tree, state in rows:
        session = short_id(tree.session_id) if tree.session_id is not None else "none"
        repository = end_of(one_line(str(tree.repository)), console.width - _OTHER_COLUMNS)
        table.add_row(session, state, ago(now - tree.created_at), repository)
    print_paged(console, table, no_pager=no_pager)
