"""A web server in the current event loop, on loopback, that starts and ends quickly and leaves nothing behind."""

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

_GRACE_SECONDS = 1
"""How long uvicorn waits at the end for responses that do not end by themselves; then it cancels them."""

_CLOSE_SECONDS = 5


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = anyio.Event()
        self.stopped = anyio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals belong to the program around us

    async def main_loop(self) -> None:
        await self.stopping.wait()  # uvicorn itself looks ten times a second, which each test would pay for

    async def run_until_stopped(self, listener: socket.socket) -> None:
        try:
            await self.serve([listener])
        finally:
            self.stopped.set()


@asynccontextmanager
async def serve(app: ASGIApp) -> AsyncIterator[str]:
    """Serve `app` while the block runs. Gives the address, like `http://127.0.0.1:40123`."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)  # from here on clients can connect, before uvicorn is ready to answer
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
                # Also when the block was left by an error or a cancellation: open connections are to be closed.
                server.stopping.set()
                with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                    await server.stopped.wait()
