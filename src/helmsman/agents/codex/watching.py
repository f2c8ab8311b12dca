"""Find turns and questions in the lines of a Codex app-server.

The supervisor uses `CodexWatcher` (see `helmsman.agents.supervisor.relay`), so this module imports nothing large. The next
owner of an engine uses `AppServerOutput`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.supervisor.relay import Activity
from helmsman.base.json_values import json_object, mapping

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.agents.agent_process import ReplayWindow
    from helmsman.agents.supervisor.relay import OutputLine

_TURNS: Final = (b'"turn/started"', b'"turn/completed"', b'"serverRequest/resolved"')
_REQUEST: Final = re.compile(rb'\{"method":"[^"]+","id":|\{"id":[^,]+,"method":')
_ANSWER: Final = re.compile(rb'\{"id":("[^"]*"|\d+),"(?:result|error)"')


class CodexWatcher:
    """See `helmsman.agents.supervisor.relay.Watcher`."""

    def __init__(self) -> None:
        self._running: dict[str, str] = {}
        self._threads: dict[Any, str] = {}
        """Threads of the open requests."""
        self.open: dict[int | str, int] = {}

    def on_output(self, line: bytes, offset: int) -> None:
        is_request = _REQUEST.match(line) is not None
        # Most lines are output of commands. Only a few kinds are parsed.
        if not is_request and not any(mark in line for mark in _TURNS):
            return
        try:
            message = json.loads(line)
            method, params = message.get("method"), message.get("params") or {}
            thread_id = str(params.get("threadId") or params.get("conversationId"))
            if is_request:
                self._threads[message["id"]] = thread_id
                # Codex repeats open requests when a client joins; the first position counts.
                self.open.setdefault(message["id"], offset)
            elif method == "turn/started":
                self._running[thread_id] = str(params["turn"]["id"])
            elif method == "turn/completed":
                self._running.pop(thread_id, None)
                # A turn that has ended needs no answers.
                for request_id in [one for one in self.open if self._threads[one] == thread_id]:
                    del self.open[request_id]
            elif method == "serverRequest/resolved":
                self.open.pop(params["requestId"], None)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return  # nothing that Codex would say

    def on_input(self, line: bytes) -> None:
        answer = _ANSWER.match(line)
        if answer is not None:
            self.open.pop(json.loads(answer[1]), None)

    def activity(self) -> Activity:
        waiting = {thread for one in self.open if (thread := self._threads[one]) in self._running}
        return Activity(tuple(one for one in self._running if one not in waiting), tuple(sorted(waiting)))

    def interrupt(self) -> Sequence[bytes]:
        asked: list[tuple[str, dict[str, str]]] = []
        for thread_id, turn_id in self._running.items():
            asked.append(("turn/interrupt", {"threadId": thread_id, "turnId": turn_id}))
            # Interrupting does not end commands; they stay as background terminals.
            asked.append(("thread/backgroundTerminals/clean", {"threadId": thread_id}))
        return [
            json.dumps({"id": f"supervisor.{number}", "method": method, "params": params}).encode()
            for number, (method, params) in enumerate(asked)
        ]


_OF_INTEREST: Final = re.compile(rb'"method":"(?:turn/started|turn/completed|item/started)"')
_LOOKED_AT: Final = 300
"""Length of a line's beginning that shows its kind. The rest may be long."""


class AppServerOutput:
    """Notes the turns in the output. A turn has the id of its thread as the key.

    Some versions of Codex send `turn/started` beside the events of the turn, so that its first items may come before.
    """

    def __init__(self, window: ReplayWindow) -> None:
        self._window = window
        self._newest: dict[str, str] = {}
        """Newest turn of each thread, which may have ended."""

    def read(self, said: OutputLine) -> None:
        if _OF_INTEREST.search(said.line, 0, _LOOKED_AT) is None:
            return
        message = json_object(said.line) or {}
        method = message.get("method")
        params = mapping(message.get("params"))
        thread_id = str(params.get("threadId"))
        if method in ("turn/started", "item/started"):
            self._begin(thread_id, turn_id(params), said.offset)
        elif method == "turn/completed":
            self._window.end_turn(thread_id)

    def _begin(self, thread_id: str, turn: str | None, offset: int) -> None:
        if turn is not None and self._newest.get(thread_id) != turn:
            self._newest[thread_id] = turn
            self._window.begin_turn(thread_id, offset)


def turn_id(params: Mapping[str, Any]) -> str | None:
    """Return the id of the turn that a message of Codex is about."""
    found = mapping(params.get("turn")).get("id") if "turn" in params else params.get("turnId")
    return found if isinstance(found, str) else None
