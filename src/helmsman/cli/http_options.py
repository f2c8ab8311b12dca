"""Listening options shared by `serve` and `dashboard`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from helmsman.cli.command import with_options

if TYPE_CHECKING:
    from helmsman.cli.command import Decorator
    from helmsman.httpd.listening import HttpOptions


def listening_options(callers: str, *, before: str = "") -> Decorator:
    """Return the options for `http_options`. `callers` names the clients of the server; `before` is prepended to each
    help text.
    """

    def text(words: str) -> str:
        return before + words if before else words[0].upper() + words[1:]

    return with_options(
        click.option("--host", default="127.0.0.1", show_default=True, help=text("the interface to listen on.")),
        click.option(
            "--allow-host", metavar="NAME", multiple=True, help=text(f"another host name that {callers} may use.")
        ),
        click.option(
            "--tls-cert", metavar="FILE", help=text("a TLS certificate; needed on interfaces other than loopback.")
        ),
        click.option("--tls-key", metavar="FILE", help=text("the certificate's key.")),
        click.option("--allow-plain-http", is_flag=True, help=text("listen on another interface without TLS anyway.")),
    )


def http_options(
    port: int,
    *,
    host: str,
    allow_host: tuple[str, ...],
    tls_cert: str | None,
    tls_key: str | None,
    allow_plain_http: bool,
) -> HttpOptions:
    """Return the server's options from the parsed command line."""
    from helmsman.httpd.listening import HttpOptions

    return HttpOptions(
        host=host,
        port=port,
        other_names=frozenset(allow_host),
        tls_certificate=Path(tls_cert) if tls_cert is not None else None,
        tls_key=Path(tls_key) if tls_key is not None else None,
        allow_plain_http=allow_plain_http,
    )
