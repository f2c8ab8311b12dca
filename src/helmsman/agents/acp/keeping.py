"""Which lines of an agent in a supervisor its next owner will need (`helmsman.agents.supervised_transport`).

Of the running turn all that it has said, the answers to its prompts among it, and every question that is open.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from helmsman.agents.supervisor.client import KEPT_BYTES
from helmsman.agents.supervisor.watcher import read_line

if TYPE_CHECKING:
    from helmsman.agents.supervisor.output_log import OutputLine
    from helmsman.base.jsonrpc import RequestId

_UPDATE: Final = re.compile(rb'"sessionUpdate"\s*:\s*"(\w+)"')
_KEPT: Final = frozenset(
    {
        *(b"agent_message_chunk", b"agent_thought_chunk", b"tool_call", b"tool_call_update", b"plan"),
        *(b"current_mode_update", b"config_option_update"),
    }
)


class TurnLines:
    """See `helmsman.agents.supervised_transport.KeptLines`. Whoever runs turns says when one begins and has ended."""

    def __init__(self) -> None:
        self._prompts: set[RequestId] = set()
        self._said: dict[int, int] = {}
        self._bytes = 0
        self._answers: list[int] = []
        self._questions: dict[RequestId, int] = {}
        self.keep: list[int] = []
        self.drop: list[int] = []

    def prompted(self, request_id: RequestId) -> None:
        """A prompt is about to be sent, or was sent by an earlier owner."""
        self._prompts.add(request_id)

    def turn_ended(self) -> None:
        """All of it has been told."""
        self.drop += [*self._said, *self._answers]
        self._prompts.clear()
        self._said.clear()
        self._answers.clear()
        self._bytes = 0

    def read(self, said: OutputLine) -> None:
        """Take note of a line, and of what is to be kept or dropped after it."""
        update = _UPDATE.search(said.line)
        if update is not None:
            if update[1] in _KEPT and self._prompts:
                self._keep_said(said)
            return
        message = read_line(said.line)
        request_id = message.get("id")
        if not isinstance(request_id, int | str):
            return
        if "method" in message:
            self._questions[request_id] = said.offset
            self.keep.append(said.offset)
        elif request_id in self._prompts:
            self._answers.append(said.offset)
            self.keep.append(said.offset)

    def _keep_said(self, said: OutputLine) -> None:
        self._said[said.offset] = len(said.line)
        self._bytes += len(said.line)
        self.keep.append(said.offset)
        while len(self._said) > 1 and self._bytes > KEPT_BYTES:
            oldest = next(iter(self._said))
            self._bytes -= self._said.pop(oldest)
            self.drop.append(oldest)

    def answered(self, request_id: RequestId) -> int | None:
        """The line in which this was asked."""
        return self._questions.pop(request_id, None)
