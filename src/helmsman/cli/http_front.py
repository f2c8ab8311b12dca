"""A command whose HTTP requests the hub serves. It holds the state that outlives a hub and passes it to each new hub.

That state is the port, the key of the cookies, and opaque data about MCP clients.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import socket
from typing import TYPE_CHECKING, Any, NoReturn

from helmsman._version import __version__
from helmsman.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from helmsman.httpd.listening import HttpOptions
    from helmsman.settings import Settings


class _Stop(Exception):
    """A signal was received."""


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
    from helmsman.hub.launch import HubFailed, NoHub, Way, is_newer, start_successor

    if not settings.detach or not hasattr(socket, "send_fds"):
        return None
    way, announced = Way(str(settings.state_dir)), False
    key, door, taken_back, kept = secrets.token_hex(32), secrets.token_hex(16), list[str](), dict[str, Any]()
    outdated: int | None = None
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _stop)
        while True:
            with socket.socket(fileno=way.connection().detach()) as connection:
                hello = _hello(kind, flags, options, key=key, taken_back=tuple(taken_back), door=door, kept=kept)
                try:
                    sent = socket.send_fds(connection, [hello], [listener.fileno()])
                    connection.sendall(hello[sent:])
                    for answer in _answers(connection, listener):
                        if "refused" in answer:
                            return None
                        if "error" in answer:
                            raise HelmsmanError(str(answer["error"]))
                        if "takenBack" in answer:
                            taken_back.append(str(answer["takenBack"]))
                        kept.update(answer.get("keep", {}))
                        for name in answer.get("drop", ()):
                            kept.pop(name, None)
                        if "serving" in answer:
                            way.welcomed()
                            if is_newer(__version__, str(answer["version"])) and answer["serving"] != outdated:
                                outdated = answer["serving"]
                                start_successor(way.state)
                            if not announced:
                                announced = True
                                announce()
                except OSError:
                    continue  # the hub ended in the middle of a line
    except _Stop as stop:
        return int(stop.args[0])
    except NoHub:
        return None
    except HubFailed as error:
        raise HelmsmanError(f"{error} Look at it with `helmsman hub log`.") from error


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    raise _Stop(ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED)


def _hello(kind: str, flags: Mapping[str, object], options: HttpOptions, **kept: Any) -> bytes:
    from helmsman.httpd.hello import HttpHello
    from helmsman.hub.launch import door_environment

    return HttpHello(
        kind=kind,
        pid=os.getpid(),
        flags=dict(flags),
        directory=os.getcwd(),  # noqa: PTH109 - text
        environment=door_environment(os.environ),
        options=options,
        **kept,
    ).encoded()


def _answers(connection: socket.socket, listener: socket.socket) -> Any:
    """Yield the hub's answers until it ends. If the hub was stopped, wait for a new connection to the port."""
    from helmsman.hub.launch import LATER, NEXT

    with connection.makefile("rb") as lines:
        for line in lines:
            word = line.removesuffix(b"\n")
            if word == LATER:
                select.select([listener], [], [])
            if word in (NEXT, LATER) or not line.endswith(b"\n"):
                return
            yield json.loads(line)
