"""A reverse proxy that adds the token, for programs that cannot send one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx2
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from helmsman.testing.local_server import serve
from tests.clients.server_process import HttpServer

_OF_THE_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"})


@asynccontextmanager
async def with_token(server: HttpServer) -> AsyncIterator[str]:
    """The address at which the server needs no token while the block runs. Host and Origin are passed on as they come."""
    address = urlsplit(server.url)

    async with httpx2.AsyncClient(timeout=None) as http:

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            headers = [(name, value) for name, value in request.headers.items() if name not in _OF_THE_CONNECTION]
            passed_on = http.build_request(
                request.method,
                f"{address.scheme}://{address.netloc}{request.url.path}",
                headers=[*headers, *server.headers.items()],
                content=await request.body(),
            )
            answer = await http.send(passed_on, stream=True)
            try:
                response = StreamingResponse(answer.aiter_raw(), answer.status_code)
                response.raw_headers = [
                    (name, value)
                    for name, value in answer.headers.raw
                    if name.decode().lower() not in _OF_THE_CONNECTION
                ]
                await response(scope, receive, send)
            finally:
                await answer.aclose()

        async with serve(app) as base:
            yield base + address.path
