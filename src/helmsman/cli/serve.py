"""`helmsman serve`: run the MCP server on standard input and output or over HTTP."""

from __future__ import annotations

import gc
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final

import click

from helmsman.cli.command import cli_command
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.http_options import http_options, listening_options
from helmsman.settings import TOOLSETS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from helmsman.httpd.listening import HttpOptions
    from helmsman.service import HelmsmanService
    from helmsman.settings import Settings
    from helmsman.tasks.model import Task

_LEAVE_SECONDS: Final = 15  # time for an orderly shutdown after a signal, mostly unused by Codex


@cli_command(
    "serve",
    "Serve Codex, and other agents, to MCP clients.",
    "claude mcp add helmsman -- helmsman serve",
    "helmsman serve --transport http --port 8765",
    has_json=False,
)
@click.option(
    "--transport", type=click.Choice(["stdio", "http"]), default="stdio", show_default=True, help="How clients connect."
)
@click.option(
    "--tools",
    metavar="SETS",
    help=f"Toolsets to offer, separated by commas: {', '.join(TOOLSETS)}. Default: sessions.",
)
@click.option("--expose-primitives", is_flag=True, default=None, help="List the router's primitives (_codex_…) too.")
@click.option("--engine", type=click.Choice(["auto", "app-server", "exec"]), help="How Codex is run.")
@click.option(
    *("-m", "--model", "default_model"), metavar="MODEL", help="The model of sessions for which the client names none."
)
@click.option(
    "--profile",
    "default_profile",
    metavar="NAME",
    help="The profile of your Codex configuration for sessions for which the client names none.",
)
@click.option(
    *("-c", "--config", "default_config"),
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a key of Codex's configuration for every session; what a client sets wins. Repeatable.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="any free one", help="HTTP: the port to listen on."
)
@listening_options("clients", before="HTTP: ")
def command(
    transport: str,
    tools: str | None,
    expose_primitives: bool | None,
    engine: str | None,
    default_model: str | None,
    default_profile: str | None,
    default_config: tuple[str, ...],
    port: int,
    **listening: Any,
) -> int:
    """Serve Codex, and with --tools agents any other agent, to MCP clients: Claude Code, Claude Desktop, Cursor, VS Code,
    Codex itself, or your own.
    """
    gc.disable()  # a client waits for these imports; garbage collection would take a tenth of the time
    flags = {
        "tools": tools,
        "expose_primitives": expose_primitives,
        "engine": engine,
        "default_model": default_model,
        "default_profile": default_profile,
        "default_config": list(default_config) or None,
    }
    settings = settings_of_command(flags)
    if transport == "http":
        return _serve_http(settings, flags, http_options(port, **listening))
    import anyio

    return anyio.run(_serve_stdio, settings)


def _serve_http(settings: Settings, flags: Mapping[str, object], options: HttpOptions) -> int:
    from helmsman.cli.http_front import serve_in_hub
    from helmsman.httpd.listening import TOKEN_NAME, http_token, listen

    options.check()
    http_token(settings.state_dir)
    with listen(options) as listener:
        address, token_file = options.address(listener), settings.state_dir / TOKEN_NAME
        code = serve_in_hub("http", settings, flags, options, listener, lambda: _announce(address, token_file))
        if code is not None:
            return code
        import anyio

        from helmsman.httpd.server import serve_http

        async def serve(helm: HelmsmanService) -> None:
            await serve_http(helm, options, _announce, listener=listener)

        return anyio.run(serve_until_signal, settings, serve)


async def _serve_stdio(settings: Settings) -> int:
    import helmsman.service  # noqa: F401 - what is imported by now is never looked at again when garbage is collected
    from helmsman.mcp.stdio import serve_stdio

    gc.freeze()
    gc.enable()
    return await serve_until_signal(settings, serve_stdio)


async def serve_until_signal(settings: Settings, serve: Callable[[HelmsmanService], Awaitable[None]]) -> int:
    """Serve with a private Helmsman until it ends or a signal arrives; return the exit code."""
    import anyio

    from helmsman.base.concurrency import background_tasks
    from helmsman.cli.signals import exit_after, handle_signals
    from helmsman.service import HelmsmanService

    serving = anyio.CancelScope()
    exit_code = ExitCode.OK
    left: Sequence[Task] = ()

    def stop(code: ExitCode) -> None:
        """Stop serving, let Codex shut down in order, and force the exit after a timeout."""
        nonlocal exit_code
        exit_code = code
        serving.cancel()
        exit_after(_LEAVE_SECONDS, code)

    async with background_tasks() as tasks:
        await tasks.start(handle_signals, stop)
        async with HelmsmanService(settings) as helm:
            with serving:
                await serve(helm)
                left = await helm.task_writer.leave()
    if left:
        _say_what_became_of(left, settings)
    return exit_code


def _say_what_became_of(tasks: Sequence[Task], settings: Settings) -> None:
    """Print the current state of each task that was running when the client disconnected."""
    from helmsman.base.sanitize import one_line
    from helmsman.errors import RegistryUnavailable
    from helmsman.tasks.registry import REGISTRY_NAME, Registry

    path = settings.state_dir / REGISTRY_NAME
    with closing(Registry(path, address=settings.store)) as registry, suppress(RegistryUnavailable):
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
