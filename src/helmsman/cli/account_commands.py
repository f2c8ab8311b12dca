"""Commands on agents' accounts: account, models, login."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Final

import click

from helmsman.base.caller_context import environment
from helmsman.base.sanitize import one_line, visible
from helmsman.cli.command import cli_command
from helmsman.cli.consoles import echo, settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import host
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.output import print_json, print_list, print_result
from helmsman.cli.tables import Column
from helmsman.model.options import DEFAULT_AGENT

if TYPE_CHECKING:
    from helmsman.agents.protocol import Login, Model


@cli_command(
    "account", "Show Codex's login and its rate limits.", "helmsman agents account", "helmsman agents account --json"
)
def account_command(as_json: bool) -> None:
    """Show how Codex is logged in, what is left of its rate limits, and whether a large task is likely to fit."""
    report = with_helmsman(lambda helm: helm.extras.account.read(), detach=False)
    if as_json:
        from helmsman.shapes.rendering import fields_as_dict

        print_json(fields_as_dict(report))
        return
    who = ", ".join(part for part in (report.email, f"plan {report.plan}" if report.plan else None) if part)
    echo(one_line(report.login + (f" ({who})" if who else "")))
    for limit in report.limits:
        echo(f"  {one_line(str(limit))}")
    echo(one_line(report.advice))


_COLUMNS: Final = (
    Column("MODEL", "cyan"),
    Column(""),
    Column("EFFORTS"),
    Column("DEFAULT"),
    Column("WHAT", "dim", gives_way="at its end", left_out=1),
)


@cli_command("models", "List the models Codex can use.", "helmsman agents models", "helmsman agents models --json")
def models_command(as_json: bool) -> None:
    """List the models Codex can use, with their efforts.

    Not on a terminal, the columns are separated by tabs: id, whether it is the default (`*`), efforts, default effort,
    description.
    """
    from helmsman.shapes.rendering import fields_as_dict

    models = with_helmsman(lambda helm: helm.extras.account.models(), detach=False)
    rows = [_cells(model) for model in models]
    shown = {"models": [fields_as_dict(model) for model in models]}
    print_list(shown, rows, _COLUMNS, lambda _: rows, nothing="Codex names no models.", as_json=as_json)


def _cells(model: Model) -> list[str]:
    mark = "*" if model.is_default else ""
    cells = (model.id, mark, ",".join(model.efforts), model.default_effort or "", model.description or "")
    return [one_line(cell) for cell in cells]


@cli_command(
    "login",
    "Log Codex in.",
    "helmsman agents login",
    "helmsman agents login --device-code",
    "helmsman agents login --with-api-key < key.txt",
)
@click.option("--device-code", "with_code", is_flag=True, help="Show a code to enter in a browser on any machine.")
@click.option("--with-api-key", "with_key", is_flag=True, help="Log in with the API key on stdin.")
def login_command(with_code: bool, with_key: bool, as_json: bool) -> int:
    """Log Codex in with ChatGPT: open the page that is shown in a browser on this machine, and come back.

    On a machine without a browser, --device-code shows a code and the page to enter it on. It waits until that is done;
    Ctrl-C gives up. With --with-api-key Codex logs in with the key that it reads from stdin, and stores it.
    """
    if with_code and with_key:
        raise click.UsageError("--device-code is for ChatGPT: give it or --with-api-key.")
    if with_key:
        return _print_login(_log_in_with_key(), as_json=as_json)

    def show(login: Login) -> None:
        if as_json:
            print_json({"url": login.url} | ({} if login.code is None else {"code": login.code}))
            return
        echo("Open this page to log in:", err=True)
        echo(visible(login.url))
        if login.code is not None:
            echo("and enter this code there:", err=True)
            echo(visible(login.code))

    error = with_helmsman(lambda helm: helm.extras.account.log_in(show, with_code=with_code), detach=False)
    return _print_login(error, as_json=as_json)


def _log_in_with_key() -> str | None:
    """Have Codex log in with the key on stdin, and return its reason if it refuses. The key never enters this process."""
    if host().is_elsewhere:
        raise click.UsageError("A key stays on its machine: run this there.")
    host().require_own_process()
    from helmsman.base.redaction import redact

    settings = settings_of_command()
    codex = with_helmsman(lambda helm: helm.installed(DEFAULT_AGENT), detach=False)
    assert codex is not None
    env = {**environment(), "CODEX_HOME": str(settings.codex_home)}
    command = [codex.path, "login", "--with-api-key"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else redact(done.stderr or done.stdout).strip() or "Codex gave no reason."


def _print_login(error: str | None, *, as_json: bool) -> int:
    if error is None:
        print_result("Codex is logged in.", {"loggedIn": True}, as_json=as_json)
        return ExitCode.OK
    print_result(f"Codex is not logged in: {error}", {"loggedIn": False, "error": error}, as_json=as_json)
    return ExitCode.FAILED
