"""Show a diff, ask for approval, and identify the approved diff by its digest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import click

from helmsman.cli.consent import can_ask, confirmed
from helmsman.cli.consoles import message_console
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.output import print_diff
from helmsman.errors import ConfirmationNeeded

if TYPE_CHECKING:
    from collections.abc import Callable

CommandT = TypeVar("CommandT", bound="Callable[..., object]")

_YES: Final = click.option("-y", "--yes", is_flag=True, help="Do not ask: apply what `helmsman diff` shows now.")
_DIGEST: Final = click.option(
    "--digest", metavar="DIGEST", help="Do not ask: apply the diff with this digest, and nothing else."
)


def agreed_options(command: CommandT) -> CommandT:
    """Add the options of a command that applies a diff: `yes` and `digest`."""
    return _YES(_DIGEST(command))


def agreed_digest(patch: bytes, about: str, *, yes: bool, as_json: bool) -> str:
    """Return the digest of a diff that the user approved, interactively or with `--yes`.

    Raises:
        ConfirmationNeeded: There is no terminal to ask on.
        click.exceptions.Exit: The user declined.
    """
    from helmsman.base.patches import diff_digest

    if patch and not yes:
        if not can_ask(as_json=as_json):
            raise ConfirmationNeeded(
                "Nobody can be asked here whether to apply these changes. Look at them with helmsman diff, then give "
                "--digest with the digest it shows, or --yes."
            )
        print_diff(patch, message_console())
        if not confirmed(f"{about} Apply it?"):
            click.echo("Nothing was touched.", err=True)
            raise click.exceptions.Exit(ExitCode.FAILED)
    return diff_digest(patch)
