"""`helmsman serve`: the MCP server, on standard input and output or over HTTP."""

from __future__ import annotations

from pathlib import Path

import click

from helmsman.cli.app import reports_errors


@click.command(
    "serve",
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
@click.option("--engine", type=click.Choice(["auto", "app-server", "exec"]), help="How Codex is run.")
@click.option("--host", default="127.0.0.1", show_default=True, help="HTTP: the interface to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="any free one", help="HTTP: the port to listen on."
)
@click.option("--tls-cert", metavar="FILE", help="HTTP: a TLS certificate; needed on other interfaces than loopback.")
@click.option("--tls-key", metavar="FILE", help="HTTP: the certificate's key.")
@click.option("--allow-plain-http", is_flag=True, help="HTTP: listen on another interface without TLS all the same.")
@reports_errors
def command(
    transport: str,
    tools: str | None,
    engine: str | None,
    host: str,
    port: int,
    tls_cert: str | None,
    tls_key: str | None,
    allow_plain_http: bool,
) -> None:
    """Serve Codex to MCP clients: Claude Code, Claude Desktop, Cursor, VS Code, Codex itself, or your own."""
    import anyio

    from helmsman.cli.consoles import configure_logs
    from helmsman.service import Helmsman
    from helmsman.settings import load_settings

    settings = load_settings({"tools": tools, "engine": engine})
    configure_logs(settings)

    async def serve() -> None:
        async with Helmsman(settings) as helm:
            if transport == "stdio":
                from helmsman.mcp.server import serve_stdio

                await serve_stdio(helm)
            else:
                from helmsman.mcp.http import HttpOptions, serve_http

                options = HttpOptions(
                    host=host,
                    port=port,
                    tls_certificate=Path(tls_cert) if tls_cert is not None else None,
                    tls_key=Path(tls_key) if tls_key is not None else None,
                    allow_plain_http=allow_plain_http,
                )
                await serve_http(helm, options, lambda address: click.echo(f"Listening on {address}", err=True))

    anyio.run(serve)
