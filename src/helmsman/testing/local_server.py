"""Web server on loopback in the current event loop, with fast start and stop."""

from __future__ import annotations

import contextlib
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import uvicorn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.types import ASGIApp

_GRACE_SECONDS = 1  # uvicorn cancels open responses after this time

_CLOSE_SECONDS = 5


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = anyio.Event()
        self.stopped = anyio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the surrounding program handles signals

    async def main_loop(self) -> None:
        await self.stopping.wait()  # uvicorn polls ten times a second, which would delay each test

    async def run_until_stopped(self, listener: socket.socket) -> None:
        try:
            await self.serve([listener])
        finally:
            self.stopped.set()


@asynccontextmanager
async def serve(app: ASGIApp) -> AsyncIterator[str]:
    """Serve `app` during the block and yield its address, like `http://127.0.0.1:40123`."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)  # clients can connect from here on, before uvicorn answers
        config = uvicorn.Config(
            app,
            interface="asgi3",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        server = _Server(config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run_until_stopped, listener)
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                # Close open connections, also after an error or a cancellation.
                server.stopping.set()
                # Shielded: a test that failed must still free the port.
                with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                    await server.stopped.wait()
