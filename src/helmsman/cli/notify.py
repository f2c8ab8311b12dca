"""`helmsman config notify`: show and test notification channels, and list sent notifications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from helmsman.base.sanitize import one_line
from helmsman.cli.command import cli_command, cli_group
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import host
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.output import limit_option, print_list
from helmsman.cli.tables import Column
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
    "Notifications for what is waiting or has ended: list, test, log.",
    "helmsman config notify",
    "helmsman config notify test",
    "helmsman config notify log --limit 50",
)
def command(as_json: bool) -> None:
    """Notices when something needs you or ends while you are not looking. Without a command: list the ways and their state.

    Set them up under `[notify]` in your own helmsman.toml.
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
    nobody = f"Nobody is notified of anything. Add [[notify.to]] to {own_file()} (docs/notices.md)."
    print_list(shown, rows, _WAYS, lambda _: rows, nothing=nobody, as_json=as_json)


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
    host().begin_change("repeatable")
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
