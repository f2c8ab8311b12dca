"""A supervised agent that speaks JSON-RPC, as a transport.

Output is committed up to the start of the oldest running turn (`ReplayWindow`). An answer drops the line of its question in
the same step, so that the question is answered once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from helmsman.agents.event_router import OutputPosition
from helmsman.base.jsonrpc import RequestId, Resumed
from helmsman.errors import EngineLost, EngineProtocolError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from helmsman.agents.replay_window import ReplayWindow
    from helmsman.agents.supervisor.client import SupervisedProcess
    from helmsman.agents.supervisor.output_log import OutputLine


class OutputWatcher(Protocol):
    """Notes in a `ReplayWindow` which turns and questions the lines of an agent begin and end."""

    def read(self, said: OutputLine) -> None: ...


class SupervisedTransport:
    """See `base.jsonrpc.Transport`. The agent is called `title` when it is lost."""

    def __init__(
        self,
        child: SupervisedProcess,
        window: ReplayWindow,
        watcher: OutputWatcher,
        title: str,
        answer: Mapping[str, Any] | None = None,
    ) -> None:
        """`answer` is what was read of the answer to the greeting; by default, the result of a JSON-RPC request."""
        self._child = child
        self._window = window
        self._watcher = watcher
        self._title = title
        self._offsets: list[int] = []
        self.position = OutputPosition(child.process)
        if answer is None:
            try:
                answer = json.loads(child.answer)["result"]
            except (ValueError, LookupError, TypeError) as error:
                raise EngineProtocolError(
                    f"{title} refused the handshake. Run `helmsman doctor` to find out why."
                ) from error
        self._resumed = Resumed(epoch=child.epoch, requests=child.inputs, answer=answer or {})

    @property
    def resumed(self) -> Resumed:
        return self._resumed

    async def messages(self) -> AsyncIterator[list[bytes]]:
        async for lines in self._child.lines():
            for said in lines:
                self._watcher.read(said)
                self._window.read(said.end)
            self._offsets = [said.offset for said in lines]
            yield [said.line for said in lines]
            # The reader has handled these lines when it asks for more.
            try:
                await self._child.commit(self._window.start, drop=self._window.take_dropped())
            except EngineLost:
                continue  # its last output may still come

    def on_message(self, index: int | None) -> None:
        """Move to a message of those that came last; None after all of them."""
        self.position.offset = None if index is None else self._offsets[index]

    async def send(self, message: str, answering: RequestId | None = None) -> None:
        await self._child.send(message, drop=() if answering is None else self._window.answer(answering))

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
