"""A supervised agent that speaks JSON-RPC, as a transport.

What has been read is committed, except for the lines that the next owner needs (`KeptLines`). An answer drops the line of
its question in the same step, so that the question is answered once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol

from helmsman.agents.event_router import OutputPosition
from helmsman.base.jsonrpc import RequestId, Resumed
from helmsman.errors import EngineLost, EngineProtocolError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from helmsman.agents.supervisor.client import SupervisedProcess
    from helmsman.agents.supervisor.output_log import OutputLine


class KeptLines(Protocol):
    """Which lines the next owner will need: `keep` and `drop` are the offsets since they were last asked for."""

    keep: list[int]
    drop: list[int]

    def read(self, said: OutputLine) -> None:
        """Take note of a line, and of what is to be kept or dropped after it."""
        ...

    def answered(self, request_id: RequestId) -> int | None:
        """The line in which this was asked."""
        ...


class SupervisedTransport:
    """See `base.jsonrpc.Transport`. The agent is called `title` when it is lost."""

    def __init__(self, child: SupervisedProcess, keeping: KeptLines, title: str) -> None:
        self._child = child
        self._keeping = keeping
        self._title = title
        self._offsets: list[int] = []
        self.position = OutputPosition(child.process)
        try:
            answer = json.loads(child.answer)["result"]
        except (ValueError, LookupError, TypeError) as error:
            raise EngineProtocolError(
                f"{title} refused the handshake. Run `helmsman doctor` to find out why."
            ) from error
        self._resumed = Resumed(epoch=child.epoch, requests=child.inputs, answer=answer)

    @property
    def resumed(self) -> Resumed:
        return self._resumed

    async def messages(self) -> AsyncIterator[list[bytes]]:
        async for lines in self._child.lines():
            for said in lines:
                self._keeping.read(said)
            self._offsets = [said.offset for said in lines]
            yield [said.line for said in lines]
            # Whoever asks for more has dealt with these.
            keep, drop = self._keeping.keep, self._keeping.drop
            self._keeping.keep, self._keeping.drop = [], []
            try:
                await self._child.commit(lines[-1].end, keep=keep, drop=drop)
            except EngineLost:
                continue  # its last words may still come

    def on_message(self, index: int | None) -> None:
        """Move to a message of those that came last; None after all of them."""
        self.position.offset = None if index is None else self._offsets[index]

    async def send(self, message: str, answering: RequestId | None = None) -> None:
        question = None if answering is None else self._keeping.answered(answering)
        await self._child.send(message, answering=question)

    async def loss(self) -> EngineLost:
        ended = self._child.ended
        if ended is not None:
            code = ended.exit_code
            how = f"was ended by signal {-code}" if code < 0 else f"exited ({code})"
            return EngineLost(
                f"{self._title} {how}. Send the next message to start it again; sessions continue from disk.",
                exit_code=code,
                stderr=ended.stderr or None,
            )
        if self._child.newer_epoch is not None:
            return EngineLost(f"Another Helmsman has taken {self._title} over. Connect again to go on.")
        return EngineLost(f"The supervisor of {self._title} is gone. Send the next message to start another.")
