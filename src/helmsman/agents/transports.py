"""An agent that speaks JSON-RPC as a child on pipes, which ends with the block that has opened it."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.agents.child_process import Child, open_child
from helmsman.agents.event_router import OutputPosition
from helmsman.base.json_values import json_object, mapping
from helmsman.base.line_framer import LineFramer
from helmsman.errors import EngineLost

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup

    from helmsman.base.jsonrpc import RequestId

_EXIT_GRACE: Final = 0.5
"""How long we wait for the exit code after the end of the output, and for the rest of the output after the exit."""


class StdioTransport:
    """Newline-delimited JSON on the pipes of a child process, which is called `title` when it is lost."""

    resumed = None

    def __init__(self, child: Child, title: str) -> None:
        self._child = child
        self._title = title
        self._framer = LineFramer()
        self._early: list[bytes] = []
        self.position = OutputPosition()

    @property
    def child(self) -> Child:
        return self._child

    async def greet(self, greeting: str, request_id: str) -> Mapping[str, Any]:
        """Send the first request of a conversation, and return its answer. Other lines wait for the next reader.

        Raises:
            EngineLost: The output has ended before.
        """
        await self.send(greeting)
        async with aclosing(self._read()) as batches:
            async for lines in batches:
                for index, line in enumerate(lines):
                    message = json_object(line) or {}
                    if request_id in (message.get("id"), mapping(message.get("response")).get("request_id")):
                        self._early += lines[index + 1 :]
                        return message
                    self._early.append(line)
        raise await self.loss()

    async def messages(self) -> AsyncIterator[list[bytes]]:
        if self._early:
            early, self._early = self._early, []
            yield early
        async for lines in self._read():
            yield lines

    def on_message(self, index: int | None) -> None:
        """A child has no log of its output, so that no event can name its line."""

    async def _read(self) -> AsyncGenerator[list[bytes]]:
        try:
            async for chunk in self._child.stdout:
                yield self._framer.feed(chunk)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return

    async def send(self, message: str, answering: RequestId | None = None) -> None:
        try:
            await self._child.stdin.send(message.encode() + b"\n")
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError) as error:
            raise EngineLost(f"{self._title} does not read its input any more. Send the message again.") from error

    async def loss(self) -> EngineLost:
        with anyio.move_on_after(_EXIT_GRACE):
            await self._child.wait()
            await self._child.stderr_ended()
        code = self._child.exit_code
        how = (
            "closed its output" if code is None else f"was ended by signal {-code}" if code < 0 else f"exited ({code})"
        )
        return EngineLost(
            f"{self._title} {how}. Send the next message to start it again; sessions continue from disk.",
            exit_code=code,
            stderr=self._child.stderr_tail or None,
        )

    async def close_output_after_exit(self) -> None:
        """Make sure that `messages` ends with the process, even if a grandchild holds the pipe open."""
        await self._child.wait()
        await anyio.sleep(_EXIT_GRACE)
        await self._child.stdout.aclose()


@asynccontextmanager
async def open_stdio(
    tasks: TaskGroup,
    argv: Sequence[str | Path],
    *,
    title: str,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[StdioTransport]:
    """A child process for the length of the block.

    Raises:
        EngineStartFailed: The program cannot be run.
    """
    async with open_child(tasks, argv, env=env) as child:
        transport = StdioTransport(child, title)
        tasks.start_soon(transport.close_output_after_exit)
        yield transport
