"""`helmsman dashboard`: the dashboard in the browser, with the link that lets one in."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from helmsman.cli.app import json_option, reports_errors

if TYPE_CHECKING:
    from helmsman.mcp.http import HttpOptions
    from helmsman.settings import Settings

_PORT: Final = 8645
"""Always the same where it is free, so that a bookmark and an installed page stay good."""
_ASK_SECONDS: Final = 10


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
@click.option("--no-open", is_flag=True, help="Only print the link, open no browser.")
@click.option("--server", metavar="URL", help="A login link for a server that runs already (serve --transport http).")
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

    The link it prints is good once, for ten minutes. MCP clients can use the same server, at /mcp. Ctrl-C ends it; what
    Codex is doing in an engine of its own goes on.
    """
    import anyio

    from helmsman.cli.consoles import configure_logs
    from helmsman.settings import load_settings

    settings = load_settings()
    configure_logs(settings)
    if server is not None:
        _show(_link_of_server(server.rstrip("/"), settings), open_it=not no_open, as_json=as_json)
        return 0
    from helmsman.mcp.http import HttpOptions

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
    from helmsman.cli.serve import serve_until_signal
    from helmsman.mcp.http import MCP_PATH, http_token, serve_http
    from helmsman.web.login import Logins

    options.check()
    logins = Logins(http_token(settings.state_dir), secure=options.scheme == "https")

    def announce(address: str, _token_file: Path) -> None:
        click.echo("The dashboard runs until Ctrl-C. This link is good once, for ten minutes:", err=True)
        _show(address.removesuffix(MCP_PATH) + logins.new_code().path, open_it=open_it, as_json=as_json)

    return await serve_until_signal(settings, lambda helm: serve_http(helm, options, announce, logins))


def _show(link: str, *, open_it: bool, as_json: bool) -> None:
    from helmsman.rendering import json_line

    click.echo(json_line({"link": link}) if as_json else link)
    sys.stdout.flush()
    if open_it and _is_desktop():
        import threading
        import webbrowser

        # A browser that does not come back at once must not hold up the server it is to ask.
        threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()


def _is_desktop() -> bool:
    """Whether a person sits at this very machine with a screen on which a browser could open."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()) or os.environ.get("SSH_CONNECTION"):
        return False
    has_screen = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return has_screen or sys.platform in ("darwin", "win32")


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


def _link_of_server(address: str, settings: Settings) -> str:
    """A login link of a server that runs already, which this user's token may ask for."""
    import json
    from urllib.error import URLError
    from urllib.parse import urlsplit
    from urllib.request import Request, urlopen

    from helmsman.errors import InvalidInput
    from helmsman.mcp.http import MCP_PATH, http_token

    base = address.removesuffix(MCP_PATH)
    if urlsplit(base).scheme not in ("http", "https"):
        raise InvalidInput(f"{address!r} is not the address of a server. Give one such as http://127.0.0.1:8765.")
    headers = {"Authorization": f"Bearer {http_token(settings.state_dir)}", "Content-Type": "application/json"}
    request = Request(f"{base}/api/codes", b"{}", headers)  # noqa: S310 - the scheme was checked
    try:
        with urlopen(request, timeout=_ASK_SECONDS) as answer:  # noqa: S310
            path = json.load(answer)["path"]
    except (URLError, OSError, ValueError, LookupError, TypeError) as error:
        raise InvalidInput(
            f"{base} gives no login link: {error}. Check that `helmsman serve --transport http` runs there, with the same "
            "HELMSMAN_STATE_DIR."
        ) from error
    return f"{base}{path}"
