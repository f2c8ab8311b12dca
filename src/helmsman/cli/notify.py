"""`helmsman config notify`: show and test notification channels, and list sent notifications."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

import click

from helmsman.base.files import replace_file
from helmsman.base.sanitize import one_line
from helmsman.cli.command import cli_command, cli_group
from helmsman.cli.consent import agree, yes_option
from helmsman.cli.consoles import echo
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import host
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.output import Column, limit_option, print_list
from helmsman.notices.config import with_recipient
from helmsman.settings import own_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from helmsman.notices.store import Delivery

_WAYS: Final = (
    Column("NAME", "cyan"),
    Column("WAY"),
    Column("STATUS"),
    Column("LAST", left_out=2),
    Column("EVENTS", left_out=1),
    Column("NOTE", gives_way="at its end", left_out=3),
)
_LOG: Final = (
    Column("WHEN"),
    Column("TO", "cyan"),
    Column("STATUS"),
    Column("KIND", left_out=1),
    Column("WHAT", gives_way="at its end", left_out=3),
    Column("NOTE", gives_way="at its end", left_out=2),
)


@cli_group(
    "notify",
    "Notifications for what is waiting or has ended: list, add, test, log.",
    "helmsman config notify",
    "helmsman config notify add desktop",
    "helmsman config notify test",
    "helmsman config notify log --limit 50",
)
def command(as_json: bool) -> None:
    """Notices when something needs you or ends while you are not looking. Without a command: list the ways and their state.

    `helmsman config notify add` sets one up. Without any, notifications go to your desktop, if there is one.
    """
    from helmsman.shapes.notices import way_as_dict

    ways = with_helmsman(lambda helm: helm.extras.notices.ways())
    rows = [
        (
            one.name,
            one.way,
            one.status,
            "" if one.last_at is None else _local(one.last_at),
            ", ".join(one.events),
            one_line(one.note or ""),
        )
        for one in ways
    ]
    shown = {"ways": [way_as_dict(one) for one in ways]}
    nobody = "No notifications are set up. Add some: helmsman config notify add desktop, ntfy, webhook or command"
    print_list(shown, rows, _WAYS, lambda _: rows, nothing=nobody, as_json=as_json)


_READERS: Final = {
    "desktop": "Everyone who sees your screen can read them; nothing leaves this machine.",
    "ntfy": "Everyone who knows the topic's name can read them, and the server; they name the project and what happened, "
    "not what was asked. Nobody can answer by them.",
    "webhook": "The server at this address reads them; they name the project and what happened, not what was asked. Nobody "
    "can answer by them.",
    "command": "The program gets them as JSON; they name the project and what happened, not what was asked.",
}
"""Who can read the notifications of a channel, and who can answer, as it is set up by `add`."""


@cli_command(
    "add",
    "Set up a way to be notified.",
    "helmsman config notify add desktop",
    "helmsman config notify add ntfy",
    "helmsman config notify add webhook https://example.org/helmsman",
    "helmsman config notify add command /home/me/bin/tell",
    group=command,
)
@click.argument("way", type=click.Choice(list(_READERS)))
@click.argument("target", nargs=-1)
@click.option("--name", metavar="NAME", help="Its name in lists.  [default: the way]")
@click.option("--server", metavar="URL", help="For ntfy: the server.  [default: https://ntfy.sh]")
@yes_option
def _add(way: str, target: tuple[str, ...], name: str | None, server: str | None, agreed: bool, as_json: bool) -> int:
    """Add a way to your own helmsman.toml, and send a test by it. What is written is shown first.

    WAY is desktop, ntfy (TARGET: a topic; without one a name is made that nobody guesses), webhook (TARGET: an https
    address) or command (TARGET: a program and its arguments, which gets JSON on stdin).
    """
    entry = _entry(way, target, name, server)
    path = own_file()
    content = with_recipient(path, entry)
    reader = _READERS[way]
    if not as_json:
        echo("\n".join(f"{key} = {value}" for key, value in entry.items()), err=True)
        echo(f"{reader}\n", err=True)
    agree(f"Add this to {path}?", agreed=agreed, as_json=as_json, otherwise=f"{path} would be changed. {reader}")
    host().begin_change()
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content, mode=0o600)
    if way == "ntfy" and not as_json:
        where = (server or "https://ntfy.sh").rstrip("/")
        echo(f"Subscribe to it on your phone: {where}/{entry['topic']}", err=True)
    called = str(entry.get("name", way))
    sent = with_helmsman(lambda helm: helm.extras.notices.test(called))
    _print(sent, as_json=as_json)
    return ExitCode.OK if all(one.status == "sent" for one in sent) else ExitCode.FAILED


def _entry(way: str, target: tuple[str, ...], name: str | None, server: str | None) -> dict[str, Any]:
    """Return the table for the file.

    Raises:
        click.exceptions.UsageError: The way needs another target.
    """
    entry: dict[str, Any] = {"way": way} | ({} if name is None else {"name": name})
    most = {"desktop": 0, "ntfy": 1, "webhook": 1}.get(way, len(target))
    if len(target) > most or (way in ("webhook", "command") and not target):
        raise click.UsageError(
            f"{way} takes {'no target' if most == 0 else 'a target'}: helmsman config notify add --help"
        )
    if server is not None and way != "ntfy":
        raise click.UsageError("--server is for ntfy.")
    if way == "ntfy":
        entry["topic"] = target[0] if target else f"helmsman-{secrets.token_urlsafe(12).replace('_', '-')}"
        entry |= {} if server is None else {"server": server}
    elif way == "webhook":
        entry["url"] = target[0]
    elif way == "command":
        entry["command"] = list(target)
    return entry


@cli_command(
    "test",
    "Send a notice to try it.",
    "helmsman config notify test",
    "helmsman config notify test desktop",
    group=command,
)
@click.argument("way", required=False)
def _test(way: str | None, as_json: bool) -> int:
    """Send a test notice and report whether it arrived. WAY is a name that `helmsman config notify` lists; without one, all.

    It ignores filters and quiet hours. An open dashboard has three seconds to show it.
    """
    host().begin_change()
    sent = with_helmsman(lambda helm: helm.extras.notices.test(way))
    _print(sent, as_json=as_json)
    return ExitCode.OK if all(one.status == "sent" for one in sent) else ExitCode.FAILED


@cli_command("log", "Show the notices sent.", "helmsman config notify log --json", group=command)
@limit_option
def _log(limit: int, as_json: bool) -> None:
    """Show the notices sent and whether they arrived, newest first."""
    _print(with_helmsman(lambda helm: helm.extras.notices.log(limit)), as_json=as_json)


def _print(deliveries: Sequence[Delivery], *, as_json: bool) -> None:
    from helmsman.shapes.notices import delivery_as_dict

    rows = [
        (
            _local(one.created_at),
            one.recipient,
            f"{one.status}, doubtful" if one.is_doubtful and one.status != "doubtful" else one.status,
            one.notification.kind,
            one_line(one.notification.headline),
            one_line(one.note or ""),
        )
        for one in deliveries
    ]
    shown = {"notices": [delivery_as_dict(one) for one in deliveries]}
    print_list(shown, rows, _LOG, lambda _: rows, nothing="No notices yet.", as_json=as_json)


def _local(time: datetime) -> str:
    return f"{time.astimezone():%Y-%m-%d %H:%M:%S}"
