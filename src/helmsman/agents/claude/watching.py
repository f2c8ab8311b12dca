"""Observer of Claude Code's turn and questions, for its supervisor (`helmsman.agents.supervisor.relay`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from helmsman.agents.supervisor.relay import Activity, read_line

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


class ClaudeWatcher:
    """Observed session: its running turn, and its open questions."""

    def __init__(self) -> None:
        self._session = "session"
        self._is_running = False
        self._open = set[str]()

    def on_output(self, line: bytes) -> None:
        head = line[:_LOOKED_AT]
        if _REQUEST in head:
            self._open.add(str(read_line(line).get("request_id")))
        elif _CANCELLED in head:
            self._open.discard(str(read_line(line).get("request_id")))
        elif _INIT in head:
            self._session = str(read_line(line).get("session_id"))
        elif _RESULT in line and read_line(line).get("type") == "result":
            self._is_running = bool(read_line(line).get("queued_turn_count"))
            self._open.clear()

    def on_input(self, line: bytes) -> None:
        message = read_line(line)
        if message.get("type") == "user":
            self._is_running = True
        elif message.get("type") == "control_response" and isinstance(message.get("response"), dict):
            self._open.discard(str(message["response"].get("request_id")))

    def activity(self) -> Activity:
        if not self._is_running:
            return Activity()
        return Activity(waiting=(self._session,)) if self._open else Activity(working=(self._session,))

    def interrupt(self) -> Sequence[bytes]:
        return [json.dumps(_INTERRUPT).encode()] if self._is_running else []
