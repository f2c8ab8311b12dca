"""HTTP served by the hub: whoever asks for it makes the listening socket and hands it over, with the key of its cookies.

The socket and the key belong to the process that asked (`helmsman serve --transport http`, `helmsman dashboard`), so both
outlive a hub: browsers and clients that connect while there is none wait for the next, a login stays one, and so does the
session of an MCP client (`lasting_sessions.py`). When that process ends, the hub stops serving.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helmsman._version import __version__
from helmsman.base.concurrency import background_tasks
from helmsman.base.processes import Process, running_process
from helmsman.base.surroundings import Whereabouts
from helmsman.errors import HelmsmanError
from helmsman.httpd.hello import HttpHello
from helmsman.httpd.lasting_sessions import Kept, LastingSessions
from helmsman.httpd.listening import MCP_PATH
from helmsman.httpd.server import serve_http
from helmsman.hub.process import NotServed
from helmsman.service import HelmsmanService
from helmsman.settings import load_settings
from helmsman.web.login import Logins

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from helmsman.httpd.listening import HttpOptions
    from helmsman.hub.connection import Connection
    from helmsman.hub.process import Hub
    from helmsman.steering.shared import Shared
    from helmsman.tasks.calls import CallLog

log = logging.getLogger(__name__)


class HttpDoors:
    """Serves HTTP for the processes that ask the hub to."""

    def __init__(self, shared: Shared, calls: CallLog) -> None:
        self._shared = shared
        self._calls = calls

    async def serve(self, hub: Hub, connection: Connection, fields: list[str], refused: str | None) -> None:
        """Serve for as long as the process that asked is connected."""

        def answer(**content: object) -> None:
            connection.put(json.dumps(content).encode())

        if refused is not None or not connection.descriptors:
            answer(refused=refused or "there is no socket to listen on")
            await connection.written()
            return
        with socket.socket(fileno=connection.descriptors.pop()) as listener:
            hello = HttpHello.decoded(fields[0])
            hub.doors[connection] = HttpDoor(hello, listener)
            logins = Logins(
                secure=hello.options.scheme == "https",
                key=bytes.fromhex(hello.key),
                taken_back=hello.taken_back,
                on_taken_back=lambda cookie: answer(takenBack=cookie),
            )
            try:
                with Whereabouts(hello.environment, Path(hello.directory)).entered():
                    settings = load_settings(hello.flags, hello.environment, Path(hello.directory))
                    hub.admit(settings)  # they may have changed since the process chose this hub by them
                    async with (
                        HelmsmanService(settings, env=hello.environment, shared=self._shared) as helm,
                        background_tasks() as tasks,
                    ):
                        ready = partial(answer, serving=os.getpid(), version=__version__)
                        lasting = self._lasting(hub, hello, helm, answer) if hello.door is not None else None
                        tasks.start_soon(_serve, helm, hello.options, logins, listener, lasting, ready)
                        while await connection.line() is not None:
                            log.debug("a process that asked for HTTP says something, and has nothing to say")
            except NotServed as error:
                answer(refused=error.why)
                await connection.written()
            except HelmsmanError as error:
                answer(error=error.message)
                await connection.written()

    def _lasting(
        self, hub: Hub, hello: HttpHello, helm: HelmsmanService, report: Callable[..., None]
    ) -> Callable[..., LastingSessions]:
        process = running_process(hello.pid) or Process(hello.pid, "")
        return partial(
            LastingSessions,
            path=MCP_PATH,
            helm=helm,
            calls=self._calls,
            door=(str(hello.door), process),
            epoch=hub.epoch,
            kept=Kept(hello.kept, report),
        )


async def _serve(
    helm: HelmsmanService,
    options: HttpOptions,
    logins: Logins,
    listener: socket.socket,
    lasting: Callable[..., LastingSessions] | None,
    ready: Callable[[], None],
) -> None:
    await serve_http(helm, options, lambda _address, _token: ready(), logins, listener, lasting)


class HttpDoor:
    """One process for which HTTP is served."""

    def __init__(self, hello: HttpHello, listener: socket.socket) -> None:
        self._hello = hello
        self._port = listener.getsockname()[1]

    @property
    def description(self) -> Mapping[str, Any]:
        return {
            "kind": self._hello.kind,
            "client": f"port {self._port}",
            "pid": self._hello.pid,
            "directory": self._hello.directory,
        }
