"""`helmsman serve`: run the MCP server on standard input and output or over HTTP."""

from __future__ import annotations

import gc
import json
import os
import select
import signal
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from helmsman._version import __version__
from helmsman.base.caller_context import from_here
from helmsman.base.structs import pack
from helmsman.cli.command import cli_command, option, with_options
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.settings import TOOLSETS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path
    from socket import socket
    from types import FrameType

    from helmsman.cli.command import Decorator
    from helmsman.httpd.listening import HttpOptions
    from helmsman.service import HelmsmanService
    from helmsman.settings import Settings
    from helmsman.tasks.model import Task


def listening_options(callers: str, *, before: str = "") -> Decorator:
    """Return the options of the command line for `HttpOptions`, except the port.

    `callers` names the clients of the server; `before` is prepended to each help text.
    """

    def text(words: str) -> str:
        return before + words if before else words[0].upper() + words[1:]

    def file(_context: click.Context, _parameter: click.Parameter, given: str | None) -> Path | None:
        # Absolute, because another process with another directory reads it.
        return None if given is None else from_here(given).absolute()

    return with_options(
        option("--listen ADDRESS", text("the interface to listen on."), to="host", default="127.0.0.1"),
        option(
            "--allow-name NAME...",
            text(f"another name of this server that {callers} may use."),
            to="other_names",
            callback=lambda _context, _parameter, given: frozenset(given),
        ),
        option(
            "--tls-cert FILE",
            text("a TLS certificate; needed on interfaces other than loopback."),
            to="tls_certificate",
            callback=file,
        ),
        option("--tls-key FILE", text("the certificate's key."), callback=file),
        option("--allow-plain-http", text("listen on another interface without TLS anyway.")),
    )


_LEAVE_SECONDS: Final = 15  # time for an orderly shutdown after a signal, mostly unused by Codex


@cli_command(
    "serve",
    "Serve Codex, and other agents, to MCP clients.",
    "claude mcp add helmsman -- helmsman serve",
    "helmsman serve --transport http --port 8765",
    has_json=False,
)
@option("--transport", "How clients connect.", choices=["stdio", "http"], default="stdio")
@option("--tools SETS", f"Toolsets to offer, separated by commas: {', '.join(TOOLSETS)}. Default: sessions.")
@option("--expose-primitives", "List the router's primitives (_codex_…) too.", default=None)
@option("--engine", "How Codex is run.", choices=["auto", "app-server", "exec"])
@option("-m --model MODEL", "The model of sessions for which the client names none.", to="default_model")
@option(
    "--profile NAME",
    "The profile of your Codex configuration for sessions for which the client names none.",
    to="default_profile",
)
@option(
    "-c --config KEY=VALUE...",
    "Set a key of Codex's configuration for every session; what a client sets wins. Repeatable.",
    to="default_config",
)
@option("--port", "HTTP: the port to listen on.", type=click.IntRange(0, 65535), default=0, show_default="any free one")
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
        from helmsman.httpd.listening import HttpOptions  # not needed on stdio

        return _serve_http(settings, flags, HttpOptions(port=port, **listening))
    import anyio

    return anyio.run(_serve_stdio, settings)


def _serve_http(settings: Settings, flags: Mapping[str, object], options: HttpOptions) -> int:
    from helmsman.httpd.listening import TOKEN_NAME, http_token, listen

    # Before a token is made or a port is taken.
    options.check()
    # Made now, so that clients can read it as soon as the address is printed.
    http_token(settings.state_dir)
    with listen(options) as listener:
        address, token_file = options.address(listener), settings.state_dir / TOKEN_NAME
        # The hub listens on this socket, so that the port outlives it.
        asked = listen_request("http", flags, options)
        code = serve_in_hub(settings, asked, listener, lambda: _announce(address, token_file))
        # None: no hub can be used, so this process serves.
        if code is not None:
            return code
        import anyio

        from helmsman.httpd.server import serve_http

        async def serve(helm: HelmsmanService) -> None:
            await serve_http(helm, options, _announce, listener=listener)

        return anyio.run(serve_until_signal, settings, serve)


async def _serve_stdio(settings: Settings) -> int:
    import helmsman.service  # noqa: F401 - modules imported before gc.freeze are never scanned again
    from helmsman.mcp.stdio import serve_stdio

    # Modules stay for ever: the collector need not look at them again.
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
        # Codex may hang while it shuts down.
        exit_after(_LEAVE_SECONDS, code)

    async with background_tasks() as tasks:
        await tasks.start(handle_signals, stop)
        async with HelmsmanService(settings) as helm:
            with serving:
                await serve(helm)
                # Before Helmsman closes, while its sessions are still known.
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
            # From the registry: another process may continue it.
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


class _Stop(Exception):
    """Raised on a signal."""


def serve_in_hub(
    settings: Settings, asked: Mapping[str, Any], listener: socket, announce: Callable[[], None]
) -> int | None:
    """Let the hub serve on this socket until a signal arrives. Return the exit code, or None if no hub can be used.

    `asked` is a `listen_request`. `announce` is called when the hub serves.

    Raises:
        HelmsmanError: The hub cannot serve, or does not start.
    """
    from helmsman.errors import HelmsmanError
    from helmsman.hub.control import Refused
    from helmsman.hub.launch import HubFailed, NoHub

    if not settings.detach or os.name != "posix":
        return None
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _stop)
        _keep_listening(str(settings.state_dir), {**asked, "pid": os.getpid()}, listener, announce)
    except _Stop as stop:
        return int(stop.args[0])
    except Refused as refused:
        # The settings of this process want no hub.
        if refused.code == "not_served":
            return None
        raise HelmsmanError(str(refused)) from refused
    except NoHub:
        return None
    except HubFailed as error:
        raise HelmsmanError(f"{error} Look at it with `helmsman hub log`.") from error


def _keep_listening(state: str, asked: Mapping[str, Any], listener: socket, announce: Callable[[], None]) -> NoReturn:
    from helmsman.hub.control import END, LISTEN_PATH, events
    from helmsman.hub.launch import LATER, HubConnector, is_newer, start_successor

    way, outdated, is_announced = HubConnector(state), 0, False
    while True:
        # Another hub takes over the socket if this one ends.
        with closing(way.connection()) as connection:
            for name, data in events(connection, "POST", LISTEN_PATH, asked, [listener.fileno()]):
                if name == "listening":
                    # The connection works, so the next failure counts from the beginning.
                    way.welcomed()
                    hub = json.loads(data)
                    # Once for each hub: one that does not come up must not be started again and again.
                    if is_newer(__version__, hub["version"]) and hub["pid"] != outdated:
                        outdated = hub["pid"]
                        start_successor(way.state)
                    if not is_announced:
                        is_announced = True
                        announce()
                elif name == END and data == LATER.decode():
                    # A new client is the first reason to start a hub again.
                    select.select([listener], [], [])  # the hub was stopped: the next one starts with the next client


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    raise _Stop(ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED)


def listen_request(kind: str, flags: Mapping[str, object], options: HttpOptions) -> dict[str, Any]:
    """Return the request for the hub to listen, with the environment and the directory of this process."""
    from helmsman.hub.launch import client_environment

    return {
        "kind": kind,
        "flags": {name: value for name, value in flags.items() if value is not None},
        "workingDirectory": os.getcwd(),  # noqa: PTH109 - text
        "environment": client_environment(os.environ),
        "http": pack(options),
    }


@cli_command(
    "acp",
    "Offer all agents to editors that speak the Agent Client Protocol.",
    "helmsman acp",
    has_json=False,
)
def acp_command() -> int:
    """Be one agent for an editor or another ACP client: it starts the command, and talks over standard input and output.

    Every session of every agent can be listed, loaded and continued there, and its questions are asked there too.
    Sessions continue in the hub when the editor quits.
    """
    import asyncio

    from helmsman.acp_server.server import serve_acp
    from helmsman.client import Helmsman

    async def serve() -> None:
        async with Helmsman(settings_of_command()) as helm:
            await serve_acp(helm)

    asyncio.run(serve())
    return 0
