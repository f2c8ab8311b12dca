"""`helmsman dashboard`: the dashboard in the browser, with the code that lets one in."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from helmsman.cli.app import json_option, reports_errors

if TYPE_CHECKING:
    from helmsman.httpd.server import HttpOptions
    from helmsman.settings import Settings

_PORT: Final = 8645
"""Always the same where it is free, so that a bookmark and an installed page stay good."""


@click.command(
    "dashboard",
    short_help="Show sessions, tasks and questions in the browser.",
    epilog="""\b
Examples:
  helmsman dashboard
  helmsman dashboard --port 9000 --no-open
  helmsman dashboard --server http://127.0.0.1:8765
""",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), show_default=f"{_PORT}, or any free one", help="The port to listen on."
)
@click.option("--no-open", is_flag=True, help="Only print address and code, open no browser.")
@click.option("--server", metavar="URL", help="A code for a server that runs already (serve --transport http).")
@click.option("--host", default="127.0.0.1", show_default=True, help="The interface to listen on.")
@click.option("--allow-host", metavar="NAME", multiple=True, help="Another name that browsers may call it by.")
@click.option("--tls-cert", metavar="FILE", help="A TLS certificate; needed on other interfaces than loopback.")
@click.option("--tls-key", metavar="FILE", help="The certificate's key.")
@click.option("--allow-plain-http", is_flag=True, help="Listen on another interface without TLS all the same.")
@json_option
@reports_errors
def command(
    port: int | None,
    no_open: bool,
    server: str | None,
    host: str,
    allow_host: tuple[str, ...],
    tls_cert: str | None,
    tls_key: str | None,
    allow_plain_http: bool,
    as_json: bool,
) -> int:
    """Show sessions, tasks and questions in the browser, live; approve, deny, steer and start from there.

    The code it prints is good once, for ten minutes; a browser that it opens needs none. MCP clients can use the same
    server, at /mcp. Ctrl-C ends it; what Codex is doing in an engine of its own goes on.
    """
    import anyio

    from helmsman.cli.consoles import configure_logs
    from helmsman.settings import load_settings

    settings = load_settings()
    configure_logs(settings)
    if server is not None:
        return _for_running_server(server, settings, open_it=not no_open, as_json=as_json)
    from helmsman.httpd.server import HttpOptions

    options = HttpOptions(
        host=host,
        port=port if port is not None else _free_port(host),
        other_names=frozenset(allow_host),
        tls_certificate=Path(tls_cert) if tls_cert is not None else None,
        tls_key=Path(tls_key) if tls_key is not None else None,
        allow_plain_http=allow_plain_http,
    )
    return anyio.run(_serve, settings, options, not no_open, as_json)


async def _serve(settings: Settings, options: HttpOptions, open_it: bool, as_json: bool) -> int:
    from helmsman.cli.browser import open_in_background
    from helmsman.cli.serve import serve_until_signal
    from helmsman.httpd.server import MCP_PATH, serve_http
    from helmsman.web.login import Logins

    options.check()
    logins = Logins(secure=options.scheme == "https")

    def announce(address: str, _token_file: Path) -> None:
        page, code = address.removesuffix(MCP_PATH) + "/", logins.new_code()
        click.echo("The dashboard runs until Ctrl-C.", err=True)
        _show(page, code.value, as_json=as_json)
        if open_it:
            open_in_background(page, code.value, settings.state_dir, is_waiting=lambda: logins.is_waiting(code))

    return await serve_until_signal(settings, lambda helm: serve_http(helm, options, announce, logins))


def _for_running_server(server: str, settings: Settings, *, open_it: bool, as_json: bool) -> int:
    from helmsman.cli.browser import open_in_background
    from helmsman.cli.code_of_server import code_of_server
    from helmsman.httpd.server import MCP_PATH, http_token

    base = server.rstrip("/").removesuffix(MCP_PATH)
    code = code_of_server(base, http_token(settings.state_dir))
    _show(f"{base}/", code, as_json=as_json)
    opened = open_in_background(f"{base}/", code, settings.state_dir) if open_it else None
    if opened is not None:
        click.echo("Opening the browser …", err=True)
        opened.join()
    return 0


def _show(page: str, code: str, *, as_json: bool) -> None:
    """The code by itself: as part of an address it would end up in the command line of a browser, which others can read."""
    from helmsman.shapes.rendering import json_line

    click.echo(
        json_line({"address": page, "code": code}) if as_json else f"{page}\nCode: {code} (once, for ten minutes)"
    )
    sys.stdout.flush()


def _free_port(host: str) -> int:
    """The usual port, or 0 for any when somebody has it."""
    import socket

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            if os.name == "posix":  # as the server will: a port that was just let go of counts as free
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, _PORT))
        except OSError:
            return 0
    return _PORT
