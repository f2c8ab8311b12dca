"""Addresses on which the hub listens for HTTP, each while the client that requested it is connected.

The client may send a listening socket along (SCM_RIGHTS) and keep it. Then the address is never free between two hubs:
clients that connect in between wait for the next hub, and no other program gets their tokens and cookies.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio
from pydantic import Field

from helmsman._version import __version__
from helmsman.base.caller_context import CallerContext
from helmsman.base.concurrency import background_tasks
from helmsman.base.json_values import json_object
from helmsman.base.processes import Process, running_process
from helmsman.base.structs import unpack
from helmsman.errors import HelmsmanError, InvalidInput
from helmsman.httpd.listening import HttpOptions, listen
from helmsman.httpd.operation_routes import problem, problem_of
from helmsman.httpd.unix_connection import UnixConnection, connection_of
from helmsman.hub.launch import NEXT
from helmsman.hub.process import NotServed
from helmsman.service import HelmsmanService
from helmsman.settings import load_settings
from helmsman.shapes.contract import Input
from helmsman.web.login import stored_logins

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from helmsman.hub.process import Hub
    from helmsman.steering.shared import Shared
    from helmsman.tasks.calls import CallLog

log = logging.getLogger(__name__)

_SayListening: TypeAlias = "Callable[[str], Awaitable[None]]"
"""Tells the client the address at which clients can connect."""


class ListenInput(Input):
    """Address to listen on, with the settings and environment of the requesting process."""

    kind: Literal["http", "dashboard"] = "http"
    pid: int = 0
    flags: dict[str, Any] = Field(default_factory=dict)
    working_directory: Any = "/"  # pydantic takes no text that is not UTF-8
    environment: dict[Any, Any] | None = None
    http: dict[str, Any] = Field(default_factory=dict)

    def options(self) -> HttpOptions:
        """Return where to listen.

        Raises:
            InvalidInput: These are no such options.
        """
        try:
            return unpack(self.http, HttpOptions)
        except ValueError as error:
            raise InvalidInput(f"The hub cannot listen there: {error}", parameter="http") from error


class HttpListeners:
    """Route that listens. The response is a stream of events that begins when clients can connect."""

    def __init__(self, hub: Hub, shared: Shared, calls: CallLog) -> None:
        self._hub = hub
        self._shared = shared
        self._calls = calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def say_listening(address: str) -> None:
            content = {"address": address, "pid": os.getpid(), "version": __version__}
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            event = f"event: listening\ndata: {json.dumps(content)}\n\n"
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})

        refusal = await self._refusal(scope, receive, say_listening)
        if refusal is not None:
            await refusal(scope, receive, send)

    async def _refusal(self, scope: Scope, receive: Receive, say_listening: _SayListening) -> Response | None:
        """Listen until the client leaves. Return the refusal if the hub cannot listen."""
        is_listening = False

        async def say(address: str) -> None:
            nonlocal is_listening
            is_listening = True
            await say_listening(address)

        try:
            asked = ListenInput.read(await _content(receive), whole="body")
            await self._listen(asked, connection_of(scope), receive, say)
        except NotServed as error:
            return problem(409, "not_served", error.why)
        except HelmsmanError as error:
            if not is_listening:
                return problem_of(error)
            log.warning("HTTP is no longer served: %s", error)
        except ImportError as error:  # another version is being installed: the client asks the next hub
            self._hub.end(NEXT, f"a module of it cannot be imported: {error}")
        return None

    async def _listen(
        self,
        asked: ListenInput,
        connection: UnixConnection,
        receive: Receive,
        say_listening: _SayListening,
    ) -> None:
        from helmsman.httpd.server import serve_http  # MCP takes long to import, and the socket's API can do without

        options, directory = asked.options(), Path(asked.working_directory)
        environment = dict(os.environ) if asked.environment is None else asked.environment
        with ExitStack() as opened:
            # Taken from the list, since the connection closes what is left there.
            listener = opened.enter_context(
                socket.socket(fileno=connection.descriptors.pop()) if connection.descriptors else listen(options)
            )
            opened.enter_context(CallerContext(environment, directory).entered())
            settings = load_settings(asked.flags, environment, directory)
            self._hub.admit(settings)  # they may have changed since the process chose this hub by them
            self._hub.clients[connection] = HttpListener(asked, listener)
            opened.callback(self._hub.clients.pop, connection, None)
            holder = running_process(asked.pid) or Process(asked.pid, "")
            logins = stored_logins(self._hub.state_dir, listener, holder, secure=options.scheme == "https")
            is_ready = anyio.Event()
            async with (
                HelmsmanService(settings, env=environment, shared=self._shared) as helm,
                background_tasks() as tasks,
            ):
                serve = partial(serve_http, logins=logins, listener=listener, calls=self._calls, epoch=self._hub.epoch)
                tasks.start_soon(serve, helm, options, lambda _address, _token: is_ready.set())
                await is_ready.wait()
                await say_listening(options.address(listener))
                while (await receive())["type"] != "http.disconnect":
                    pass


async def _content(receive: Receive) -> dict[str, Any]:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    content = json_object(body or b"{}")
    if content is None:
        raise InvalidInput("The body is not a JSON object.", parameter="body")
    return content


class HttpListener:
    """Listener, as `helmsman hub` shows it."""

    def __init__(self, asked: ListenInput, listener: socket.socket) -> None:
        self._asked = asked
        self._port = listener.getsockname()[1]

    @property
    def description(self) -> Mapping[str, Any]:
        return {
            "kind": self._asked.kind,
            "client": f"port {self._port}",
            "pid": self._asked.pid,
            "directory": self._asked.working_directory,
        }
