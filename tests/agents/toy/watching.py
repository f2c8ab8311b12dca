"""Observer of a toy agent's turn, for its supervisor (`helmsman.agents.supervisor.relay`)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from helmsman.agents.supervisor.relay import SessionWatcher, read_line


class ToyWatcher(SessionWatcher):
    """Observed session: its running turn, and its question."""

    def on_output(self, line: bytes, offset: int) -> None:
        message = read_line(line)
        if "ask" in message:
            self.open[message["ask"]] = offset
        if "ended" in message:
            self.is_running = False
            self.open.clear()

    def on_input(self, line: bytes) -> None:
        message = read_line(line)
        if "turn" in message:
            self.session, self.is_running = message["session"], True
        if "answer" in message:
            self.open.clear()

    def interrupt(self) -> Sequence[bytes]:
        return [json.dumps({"stop": True}).encode()] if self.is_running else []
