"""`helmsman dashboard`: open the dashboard in the browser, with a login code."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from helmsman.cli.command import cli_command
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.http_options import http_options, listening_options
from helmsman.cli.output import print_json
from helmsman.cli.serve import serve_until_signal

if TYPE_CHECKING:
    from pathlib import Path
    from socket import socket

    from helmsman.httpd.listening import HttpOptions
    from helmsman.settings import Settings

_PORT: Final = 8645  # fixed if free, so that bookmarks and installed pages keep working


@cli_command(
    "dashboard",
    "Show sessions, tasks and questions in the browser.",
    "helmsman dashboard",
    "helmsman dashboard --port 9000 --no-open",
    "helmsman dashboard --server http://127.0.0.1:8765",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), show_default=f"{_PORT}, or any free one", help="The port to listen on."
)
@click.option("--no-open", is_flag=True, help="Print the address and code, and open no browser.")
@click.option(
    "--server", metavar="URL", help="Get a code for a server that is already running (serve --transport http)."
)
@listening_options("browsers")
def command(port: int | None, no_open: bool, server: str | None, as_json: bool, **listening: Any) -> int:
    """Show sessions, tasks and questions in the browser, live; approve, deny, steer and start from there.

    The code it prints works once, for ten minutes; a browser that it opens needs none. MCP clients can use the same
    server, at /mcp. Ctrl-C ends it; agents in their own engines keep working.
    """
    from helmsman.cli.http_front import serve_in_hub
    from helmsman.httpd.listening import MCP_PATH, listen

    settings = settings_of_command()
    if server is not None:
        _for_running_server(server, settings, open_it=not no_open, as_json=as_json, wait=True)
        return ExitCode.OK
    if port is None and _opens_running(listening["host"], settings, open_it=not no_open, as_json=as_json):
        return ExitCode.OK
    options = http_options(_free_port(listening["host"]) if port is None else port, **listening)
    options.check()
    with listen(options) as listener:
        page = options.address(listener).removesuffix(MCP_PATH)

        def show() -> None:
            click.echo("The dashboard runs until Ctrl-C.", err=True)
            _for_running_server(page, settings, open_it=not no_open, as_json=as_json, wait=False)

        code = serve_in_hub("dashboard", settings, {}, options, listener, show)
        if code is not None:
            return code
        import anyio

        return anyio.run(_serve, settings, options, listener, not no_open, as_json)


def _opens_running(address: str, settings: Settings, *, open_it: bool, as_json: bool) -> bool:
    """Open the dashboard that runs at the usual address; return whether one of this user does."""
    from helmsman.errors import HelmsmanError

    if _free_port(address):
        return False
    shown = f"[{address}]" if ":" in address else address
    try:
        _for_running_server(f"http://{shown}:{_PORT}", settings, open_it=open_it, as_json=as_json, wait=True)
    except HelmsmanError:  # another program has the port
        return False
    click.echo("The dashboard runs already; this opened it.", err=True)
    return True


async def _serve(settings: Settings, options: HttpOptions, listener: socket, open_it: bool, as_json: bool) -> int:
    from helmsman.cli.browser import open_in_background
    from helmsman.httpd.listening import MCP_PATH
    from helmsman.httpd.server import serve_http
    from helmsman.web.login import Logins

    logins = Logins(secure=options.scheme == "https")

    def announce(address: str, _token_file: Path) -> None:
        page, code = address.removesuffix(MCP_PATH) + "/", logins.new_code()
        click.echo("The dashboard runs until Ctrl-C.", err=True)
        _show(page, code.value, as_json=as_json)
        if open_it:
            open_in_background(page, code.value, settings.state_dir, is_waiting=lambda: logins.is_waiting(code))

    return await serve_until_signal(settings, lambda helm: serve_http(helm, options, announce, logins, listener))


def _for_running_server(server: str, settings: Settings, *, open_it: bool, as_json: bool, wait: bool) -> None:
    from helmsman.cli.browser import open_in_background
    from helmsman.cli.code_of_server import code_of_server
    from helmsman.httpd.listening import MCP_PATH, http_token

    base = server.rstrip("/").removesuffix(MCP_PATH)
    code = code_of_server(base, http_token(settings.state_dir))
    _show(f"{base}/", code, as_json=as_json)
    opened = open_in_background(f"{base}/", code, settings.state_dir) if open_it else None
    if opened is not None and wait:
        click.echo("Opening the browser …", err=True)
        opened.join()


def _show(page: str, code: str, *, as_json: bool) -> None:
    """Print the address and the code separately: a code in the address would appear in the browser's command line."""
    if as_json:
        print_json({"address": page, "code": code})
    else:
        click.echo(f"{page}\nCode: {code} (once, for ten minutes)")
    sys.stdout.flush()


def _free_port(host: str) -> int:
    """Return the usual port, or 0 if it is taken."""
    import socket

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            if os.name == "posix":  # the server does the same: a recently released port counts as free
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, _PORT))
        except OSError:
            return 0
    return _PORT
