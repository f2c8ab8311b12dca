"""Observer of an agent's protocol messages, for its supervisor."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.supervisor.relay import Activity, read_line
from helmsman.base.json_values import mapping

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOOKED_AT: Final = 200
"""Length of a line's beginning that shows its kind. A list of commands may have half a megabyte."""
_UPDATE: Final = b'"session/update"'


class AcpWatcher:
    """Observed session: its open prompt, and its open questions. See `helmsman.agents.supervisor.relay`."""

    def __init__(self) -> None:
        self._session = "session"
        self._prompts = set[Any]()
        self._open = set[Any]()

    def on_output(self, line: bytes) -> None:
        if _UPDATE in line[:_LOOKED_AT]:
            return
        message = read_line(line)
        request_id = message.get("id")
        if not isinstance(request_id, int | str):
            return
        if message.get("method") == "session/request_permission":
            self._open.add(request_id)
        elif "method" not in message and request_id in self._prompts:
            self._prompts.discard(request_id)
            if not self._prompts:
                self._open.clear()

    def on_input(self, line: bytes) -> None:
        message = read_line(line)
        request_id = message.get("id")
        if not isinstance(request_id, int | str):
            return
        if message.get("method") == "session/prompt":
            self._prompts.add(request_id)
            self._session = str(mapping(message.get("params")).get("sessionId"))
        elif "method" not in message:
            self._open.discard(request_id)

    def activity(self) -> Activity:
        if not self._prompts:
            return Activity()
        return Activity(waiting=(self._session,)) if self._open else Activity(working=(self._session,))

    def interrupt(self) -> Sequence[bytes]:
        """Cancel the turn and its open questions: some agents do not end a cancelled turn while a question is open."""
        if not self._prompts:
            return []
        cancelled = {"outcome": {"outcome": "cancelled"}}
        cancel = {"method": "session/cancel", "params": {"sessionId": self._session}}
        said: list[dict[str, Any]] = [*({"id": one, "result": cancelled} for one in self._open), cancel]
        return [json.dumps({"jsonrpc": "2.0", **one}).encode() for one in said]
