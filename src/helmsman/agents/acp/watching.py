"""Observer of an agent's protocol messages, for its supervisor."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.supervisor.relay import SessionWatcher, read_line
from helmsman.base.json_values import mapping

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOOKED_AT: Final = 200
"""Length of a line's beginning that shows its kind. A list of commands may have half a megabyte."""
_UPDATE: Final = b'"session/update"'


class AcpWatcher(SessionWatcher):
    """Observed session: its unanswered prompts, and its open requests. See `helmsman.agents.supervisor.relay`."""

    def __init__(self) -> None:
        super().__init__()
        self._prompts = set[Any]()

    def on_output(self, line: bytes, offset: int) -> None:
        # The most frequent messages by far. Parsing each would slow the relay.
        if _UPDATE in line[:_LOOKED_AT]:
            return
        message = read_line(line)
        request_id = message.get("id")
        if not isinstance(request_id, int | str):
            return
        # A request of the agent; its ids and those of prompts are separate spaces.
        if "method" in message:
            self.open[request_id] = offset
        elif request_id in self._prompts:
            self._prompts.discard(request_id)
            self.is_running = bool(self._prompts)
            # Requests of a turn that has ended are void.
            if not self.is_running:
                self.open.clear()

    def on_input(self, line: bytes) -> None:
        message = read_line(line)
        request_id = message.get("id")
        if not isinstance(request_id, int | str):
            return
        if message.get("method") == "session/prompt":
            self.is_running = True
            self._prompts.add(request_id)
            self.session = str(mapping(message.get("params")).get("sessionId"))
        # An answer to a request of the agent.
        elif "method" not in message:
            self.open.pop(request_id, None)

    def interrupt(self) -> Sequence[bytes]:
        """Cancel the turn and its open questions: some agents do not end a cancelled turn while a question is open."""
        if not self.is_running:
            return []
        cancelled = {"outcome": {"outcome": "cancelled"}, "action": "cancel"}  # of a permission, and of a form
        cancel = {"method": "session/cancel", "params": {"sessionId": self.session}}
        said: list[dict[str, Any]] = [*({"id": one, "result": cancelled} for one in self.open), cancel]
        return [json.dumps({"jsonrpc": "2.0", **one}).encode() for one in said]
