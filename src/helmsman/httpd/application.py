"""HTTP application: the API under `/v1`, MCP at `/mcp`, the dashboard at `/`.

It is the same on the hub's Unix socket, on TCP behind the token, and in a process without a hub.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from mcp.server.transport_security import TransportSecuritySettings
from starlette.routing import Route

from helmsman.httpd.api import Application, api_app
from helmsman.httpd.guard import Guard
from helmsman.httpd.listening import MCP_PATH
from helmsman.httpd.mcp_sessions import McpSessions, RecentEvents
from helmsman.httpd.public import public_routes
from helmsman.mcp.server import build_server
from helmsman.tasks.calls import CallLog
from helmsman.web.api import api_routes
from helmsman.web.grants import GrantBook
from helmsman.web.login import Logins
from helmsman.web.oauth import OAuth
from helmsman.web.proof import Challenges
from helmsman.web.static_files import static_file

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from starlette.types import Receive, Scope, Send

    from helmsman.httpd.listening import HttpOptions
    from helmsman.service import HelmsmanService

_MAX_BODY_BYTES: Final = 32 * 1024 * 1024


class Front:
    """MCP and the dashboard on one Helmsman. The lifespan of MCP is entered by `opened`, or by a server."""

    def __init__(
        self,
        helm: HelmsmanService,
        token: str,
        *,
        epoch: int | None = None,
        logins: Logins | None = None,
        oauth: OAuth | None = None,
    ) -> None:
        events = RecentEvents(epoch or time.time_ns())
        self._app = build_server(helm).streamable_http_app(
            streamable_http_path=MCP_PATH,
            event_store=events,
            max_request_body_size=_MAX_BODY_BYTES,
            # Host and Origin are checked before, for every path.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            custom_starlette_routes=[
                *public_routes(helm),
                *(() if oauth is None else oauth.routes()),
                *api_routes(helm, logins or Logins(secure=False), Challenges(token)),
                Route("/{path:path}", static_file, methods=["GET"]),
            ],
        )
        self._app.add_middleware(McpSessions, path=MCP_PATH, key=token.encode(), events=events)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def opened(self) -> AbstractAsyncContextManager[object]:
        return self._app.router.lifespan_context(self._app)


def build_app(
    helm: HelmsmanService,
    *,
    token: str,
    options: HttpOptions,
    logins: Logins | None = None,
    calls: CallLog | None = None,
    epoch: int | None = None,
) -> Guard:
    """Return the application for TCP. `calls` and `epoch` are those of a hub."""
    logins = logins or Logins(secure=options.scheme == "https")

    @asynccontextmanager
    async def service() -> AsyncIterator[HelmsmanService]:
        yield helm

    oauth = OAuth(GrantBook(helm.settings.state_dir), mcp_path=MCP_PATH) if helm.settings.oauth else None
    api = api_app(service, helm.task_writer, calls or CallLog(helm.task_writer))
    front = Front(helm, token, epoch=epoch, logins=logins, oauth=oauth)
    return Guard(Application(api, front), token=token, answers_to=options.answers_to, logins=logins, oauth=oauth)
