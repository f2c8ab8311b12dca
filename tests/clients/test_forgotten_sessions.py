"""Why sessions of MCP over HTTP outlive a hub: the official SDKs do not initialize again when a server answers 404.

The server here forgets its sessions, as the specification allows. A client that recovers makes our own sessions superfluous
(`helmsman.httpd.mcp_sessions`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import httpx2
import pytest
from mcp.server import MCPServer
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from helmsman.base.concurrency import background_tasks
from helmsman.testing.local_server import serve
from mcp import Client, MCPError
from tests.clients.node import NodeClients

pytestmark = pytest.mark.anyio

_RESTART = "/restart"


class ForgetfulServer:
    """MCP server over HTTP that begins a new life, without sessions, at a request to `/restart`."""

    def __init__(self) -> None:
        self._lives = 0
        self._app: ASGIApp | None = None
        self._forgets = anyio.Event()

    async def run(self) -> None:
        while True:
            await self._live()

    async def _live(self) -> None:
        server = MCPServer("forgetful")
        self._lives += 1
        text = f"life {self._lives}"

        @server.tool()
        def life() -> str:
            return text

        app = server.streamable_http_app()
        async with app.router.lifespan_context(app):
            self._app = app
            await self._forgets.wait()
            self._forgets = anyio.Event()
            self._app = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == _RESTART:
            self._forgets.set()
            await self._wait_for_another(self._app)
            await Response()(scope, receive, send)
        else:
            assert self._app is not None
            await self._app(scope, receive, send)

    async def _wait_for_another(self, app: ASGIApp | None) -> None:
        with anyio.fail_after(30):
            while self._app is None or self._app is app:
                await anyio.sleep(0.01)


@pytest.fixture
async def forgetful() -> AsyncIterator[str]:
    server = ForgetfulServer()
    async with background_tasks() as tasks:
        tasks.start_soon(server.run)
        await server._wait_for_another(None)
        async with serve(server) as address:
            yield address


async def test_the_python_sdk_does_not_recover_from_404(forgetful: str) -> None:
    async with Client(f"{forgetful}/mcp", mode="legacy") as client, httpx2.AsyncClient() as http:
        assert (await client.call_tool("life", {})).content[0].text == "life 1"  # type: ignore[union-attr]
        await http.get(f"{forgetful}{_RESTART}")
        for _ in range(2):
            with pytest.raises(MCPError, match="Session not found"):
                await client.call_tool("life", {})


async def test_the_typescript_sdks_do_not_recover_from_404(forgetful: str, node_clients: NodeClients) -> None:
    plan = {"url": f"{forgetful}/mcp", "restart": f"{forgetful}{_RESTART}"}
    for before, *after in (await node_clients.tell("forgotten.mjs", **plan)).values():
        assert before.startswith("life")
        assert ["Session not found" in answer for answer in after] == [True, True]
