"""`helmsman serve`: the MCP server, on standard input and output or over HTTP."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from helmsman.cli.app import reports_errors
from helmsman.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from anyio.abc import TaskStatus

    from helmsman.httpd.server import HttpOptions
    from helmsman.service import Helmsman
    from helmsman.settings import Settings
    from helmsman.tasks.model import Task

_LEAVE_SECONDS: Final = 15
"""How long everything may take to end after a signal; Codex itself needs a small part of it."""


@click.command(
    "serve",
    short_help="Serve Codex to MCP clients.",
    epilog="""\b
Examples:
  claude mcp add helmsman -- helmsman serve
  helmsman serve --transport http --port 8765
""",
)
@click.option(
    "--transport", type=click.Choice(["stdio", "http"]), default="stdio", show_default=True, help="How clients connect."
)
@click.option("--tools", metavar="SETS", help="Toolsets to offer, separated by commas. Default: sessions.")
@click.option("--expose-primitives", is_flag=True, default=None, help="List the router's primitives (_codex_…) too.")
@click.option("--engine", type=click.Choice(["auto", "app-server", "exec"]), help="How Codex is run.")
@click.option("--host", default="127.0.0.1", show_default=True, help="HTTP: the interface to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="any free one", help="HTTP: the port to listen on."
)
@click.option("--allow-host", metavar="NAME", multiple=True, help="HTTP: another name that clients may call it by.")
@click.option("--tls-cert", metavar="FILE", help="HTTP: a TLS certificate; needed on other interfaces than loopback.")
@click.option("--tls-key", metavar="FILE", help="HTTP: the certificate's key.")
@click.option("--allow-plain-http", is_flag=True, help="HTTP: listen on another interface without TLS all the same.")
@reports_errors
def command(
    transport: str,
    tools: str | None,
    expose_primitives: bool | None,
    engine: str | None,
    host: str,
    port: int,
    allow_host: tuple[str, ...],
    tls_cert: str | None,
    tls_key: str | None,
    allow_plain_http: bool,
) -> int:
    """Serve Codex to MCP clients: Claude Code, Claude Desktop, Cursor, VS Code, Codex itself, or your own."""
    gc.disable()  # a client waits for all that is imported now, and a tenth of it would be looking for garbage
    import anyio

    from helmsman.cli.consoles import configure_logs
    from helmsman.settings import load_settings

    settings = load_settings({"tools": tools, "expose_primitives": expose_primitives, "engine": engine})
    configure_logs(settings)
    options = None
    if transport == "http":
        from helmsman.httpd.server import HttpOptions

        options = HttpOptions(
            host=host,
            port=port,
            other_names=frozenset(allow_host),
            tls_certificate=Path(tls_cert) if tls_cert is not None else None,
            tls_key=Path(tls_key) if tls_key is not None else None,
            allow_plain_http=allow_plain_http,
        )
    return anyio.run(_serve, settings, options)


async def _serve(settings: Settings, options: HttpOptions | None) -> int:
    import helmsman.service  # noqa: F401 - what is imported by now is never looked at again when garbage is collected

    if options is None:
        from helmsman.mcp.stdio import serve_stdio as serve
    else:
        from helmsman.httpd.server import serve_http

        async def serve(helm: Helmsman) -> None:
            await serve_http(helm, options, _announce)

    gc.freeze()
    gc.enable()
    return await serve_until_signal(settings, serve)


async def serve_until_signal(settings: Settings, serve: Callable[[Helmsman], Awaitable[None]]) -> int:
    """Serve with a Helmsman of its own until that ends or a signal comes; the exit code."""
    from helmsman.base.concurrency import background_tasks
    from helmsman.service import Helmsman

    end = _End()
    left: Sequence[Task] = ()
    async with background_tasks() as tasks:
        await tasks.start(end.heed_signals)
        async with Helmsman(settings) as helm:
            with end.scope:
                await serve(helm)
                left = await helm.ledger.leave()
    if left:
        _say_what_became_of(left, settings.state_dir)
    return end.exit_code


def _say_what_became_of(tasks: Sequence[Task], state_dir: Path) -> None:
    """The client closed its end while these were under way: a line each, of what the registry says now."""
    from helmsman.base.shown_text import one_line
    from helmsman.errors import RegistryUnavailable
    from helmsman.tasks.registry import REGISTRY_NAME, Registry

    with closing(Registry(state_dir / REGISTRY_NAME)) as registry, suppress(RegistryUnavailable):
        for task in tasks:
            now = registry.get(task.id) or task
            if now.is_running:
                where = "in the cloud" if now.origin == "cloud" else "in its detached engine"
                look = f"watch {now.session_id}" if now.session_id is not None else f"tasks show {now.id}"
                fate = f": It goes on {where}. Look at it with helmsman {look}"
            else:
                fate = f": {now.note}" if now.note else ""
            click.echo(one_line(f"{now.id} ({now.alias}), {now.status}{fate}"), err=True)


def _announce(address: str, token_file: Path) -> None:
    click.echo(f"The bearer token for clients is in {token_file}", err=True)
    click.echo(f"Listening on {address}", err=True)


class _End:
    """What a signal means to a server: stop serving, let Codex end in order, and be gone soon in any case."""

    def __init__(self) -> None:
        import anyio

        self.scope = anyio.CancelScope()
        self.exit_code = ExitCode.OK

    async def heed_signals(self, *, task_status: TaskStatus[None]) -> None:
        import anyio

        if sys.platform == "win32":  # no signals there: Ctrl-C cancels everything, as in any Python program
            task_status.started()
            return
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                self.exit_code = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED
                self.scope.cancel()
                last = threading.Timer(_LEAVE_SECONDS, os._exit, (self.exit_code,))
                last.daemon = True
                last.start()
