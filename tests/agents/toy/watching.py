"""Observer of a toy agent's turn, for its supervisor (`helmsman.agents.supervisor.relay`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from helmsman.agents.supervisor.relay import Activity, read_line

if TYPE_CHECKING:
    from collections.abc import Sequence


class ToyWatcher:
    """Observed session: its running turn, and its question."""

    def __init__(self) -> None:
        self._session = ""
        self._is_waiting = False

    def on_output(self, line: bytes) -> None:
        message = read_line(line)
        self._is_waiting = "ask" in message
        if "ended" in message:
            self._session = ""

    def on_input(self, line: bytes) -> None:
        message = read_line(line)
        self._session = message.get("session", self._session)
        self._is_waiting = self._is_waiting and "answer" not in message

    def activity(self) -> Activity:
        if not self._session:
            return Activity()
        return Activity(waiting=(self._session,)) if self._is_waiting else Activity(working=(self._session,))

    def interrupt(self) -> Sequence[bytes]:
        return [json.dumps({"stop": True}).encode()] if self._session else []
