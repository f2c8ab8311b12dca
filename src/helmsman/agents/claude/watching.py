"""Observer of Claude Code's turn and questions, for its supervisor (`helmsman.agents.supervisor.relay`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from helmsman.agents.supervisor.relay import SessionWatcher, read_line

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOOKED_AT: Final = 400
"""Length of a line's beginning that shows its kind.

A result names its kind late, but is recognized by a unique field.
"""
_REQUEST: Final = b'"type":"control_request"'
_CANCELLED: Final = b'"type":"control_cancel_request"'
_INIT: Final = b'"subtype":"init"'
_RESULT: Final = b'"terminal_reason"'
_INTERRUPT: Final = {"type": "control_request", "request_id": "supervisor", "request": {"subtype": "interrupt"}}


class ClaudeWatcher(SessionWatcher):
    """Observed session: its running turn, and its open questions."""

    def on_output(self, line: bytes, offset: int) -> None:
        # Only the head: searching megabytes of output would slow every line.
        head = line[:_LOOKED_AT]
        if _REQUEST in head:
            self.open[str(read_line(line).get("request_id"))] = offset
        elif _CANCELLED in head:
            self.open.pop(str(read_line(line).get("request_id")), None)
        elif _INIT in head:
            self.session = str(read_line(line).get("session_id"))
        elif _RESULT in line and read_line(line).get("type") == "result":
            self.is_running = bool(read_line(line).get("queued_turn_count"))
            # Questions cannot outlive the turn.
            self.open.clear()

    def on_input(self, line: bytes) -> None:
        message = read_line(line)
        if message.get("type") == "user":
            self.is_running = True
        elif message.get("type") == "control_response" and isinstance(message.get("response"), dict):
            self.open.pop(str(message["response"].get("request_id")), None)

    def interrupt(self) -> Sequence[bytes]:
        return [json.dumps(_INTERRUPT).encode()] if self.is_running else []
