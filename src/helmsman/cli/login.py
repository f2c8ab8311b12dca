"""`helmsman login`: run Codex's login."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.base.shown_text import visible
from helmsman.cli.command import cli_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.output import print_json, print_result

if TYPE_CHECKING:
    from helmsman.agents.account import Login


@cli_command("login", "Log Codex in.", "helmsman login", "helmsman login --device-code")
@click.option("--device-code", "with_code", is_flag=True, help="Show a code to enter in a browser on any machine.")
def command(with_code: bool, as_json: bool) -> int:
    """Log Codex in with ChatGPT: open the page that is shown in a browser on this machine, and come back.

    On a machine without a browser, --device-code shows a code and the page to enter it on. It waits until that is done;
    Ctrl-C gives up.
    """

    def show(login: Login) -> None:
        if as_json:
            print_json({"url": login.url} | ({} if login.code is None else {"code": login.code}))
            return
        click.echo("Open this page to log in:", err=True)
        click.echo(visible(login.url))
        if login.code is not None:
            click.echo("and enter this code there:", err=True)
            click.echo(visible(login.code))

    error = with_helmsman(lambda helm: helm.extras.account.log_in(show, with_code=with_code), detach=False)
    if error is None:
        print_result("Codex is logged in.", {"loggedIn": True}, as_json=as_json)
        return ExitCode.OK
    print_result(f"Codex is not logged in: {error}", {"loggedIn": False, "error": error}, as_json=as_json)
    return ExitCode.FAILED
