"""Command with HTTP requests that the hub serves. It keeps the address, and asks every hub to listen there."""

from __future__ import annotations

import json
import os
import select
import signal
from contextlib import closing
from typing import TYPE_CHECKING, Any, NoReturn

from helmsman._version import __version__
from helmsman.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from types import FrameType

    from helmsman.httpd.listening import HttpOptions
    from helmsman.settings import Settings


class _Stop(Exception):
    """Raised on a signal."""


def serve_in_hub(
    kind: str,
    settings: Settings,
    flags: Mapping[str, object],
    options: HttpOptions,
    listener: socket.socket,
    announce: Callable[[], None],
) -> int | None:
    """Let the hub serve on this socket until a signal arrives. Return the exit code, or None if no hub can be used.

    `announce` is called when the hub serves.

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
        _keep_listening(str(settings.state_dir), _asked(kind, flags, options), listener, announce)
    except _Stop as stop:
        return int(stop.args[0])
    except Refused as refused:
        if refused.code == "not_served":
            return None
        raise HelmsmanError(str(refused)) from refused
    except NoHub:
        return None
    except HubFailed as error:
        raise HelmsmanError(f"{error} Look at it with `helmsman hub log`.") from error


def _keep_listening(
    state: str, asked: Mapping[str, Any], listener: socket.socket, announce: Callable[[], None]
) -> NoReturn:
    from helmsman.hub.control import END, LISTEN_PATH, events
    from helmsman.hub.launch import LATER, HubConnector, is_newer, start_successor

    way, outdated, is_announced = HubConnector(state), 0, False
    while True:
        with closing(way.connection()) as connection:
            for name, data in events(connection, "POST", LISTEN_PATH, asked, [listener.fileno()]):
                if name == "listening":
                    way.welcomed()
                    hub = json.loads(data)
                    if is_newer(__version__, hub["version"]) and hub["pid"] != outdated:
                        outdated = hub["pid"]
                        start_successor(way.state)
                    if not is_announced:
                        is_announced = True
                        announce()
                elif name == END and data == LATER.decode():
                    select.select([listener], [], [])  # the hub was stopped: the next one starts with the next client


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    raise _Stop(ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED)


def _asked(kind: str, flags: Mapping[str, object], options: HttpOptions) -> dict[str, Any]:
    from helmsman.hub.launch import client_environment

    return {
        "kind": kind,
        "pid": os.getpid(),
        "flags": {name: value for name, value in flags.items() if value is not None},
        "workingDirectory": os.getcwd(),  # noqa: PTH109 - text
        "environment": client_environment(os.environ),
        "host": options.host,
        "port": options.port,
        "allowHosts": sorted(options.other_names),
        "tlsCertificate": None if options.tls_certificate is None else str(options.tls_certificate),
        "tlsKey": None if options.tls_key is None else str(options.tls_key),
        "allowPlainHttp": options.allow_plain_http,
    }
