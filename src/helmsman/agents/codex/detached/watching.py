"""What the supervisor of a Codex app-server knows of its turns and questions (`helmsman.agents.supervisor.watcher`)."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.supervisor.watcher import Activity

if TYPE_CHECKING:
    from collections.abc import Sequence


_TURNS: Final = (b'"turn/started"', b'"turn/completed"', b'"serverRequest/resolved"')
_REQUEST: Final = re.compile(rb'\{"method":"[^"]+","id":|\{"id":[^,]+,"method":')
_ANSWER: Final = re.compile(rb'\{"id":("[^"]*"|\d+),"(?:result|error)"')


class CodexWatcher:
    """See `helmsman.agents.supervisor.watcher.Watcher`."""

    def __init__(self) -> None:
        self._running: dict[str, str] = {}
        self._open: dict[Any, str] = {}

    def on_output(self, line: bytes) -> None:
        is_request = _REQUEST.match(line) is not None
        if not is_request and not any(mark in line for mark in _TURNS):
            return
        try:
            message = json.loads(line)
            method, params = message.get("method"), message.get("params") or {}
            thread_id = str(params.get("threadId") or params.get("conversationId"))
            if is_request:
                self._open[message["id"]] = thread_id
            elif method == "turn/started":
                self._running[thread_id] = str(params["turn"]["id"])
            elif method == "turn/completed":
                self._running.pop(thread_id, None)
                self._open = {key: thread for key, thread in self._open.items() if thread != thread_id}
            elif method == "serverRequest/resolved":
                self._open.pop(params.get("requestId"), None)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return  # nothing that Codex would say

    def on_input(self, line: bytes) -> None:
        answer = _ANSWER.match(line)
        if answer is not None:
            self._open.pop(json.loads(answer[1]), None)

    def activity(self) -> Activity:
        waiting = {thread_id for thread_id in self._open.values() if thread_id in self._running}
        return Activity(tuple(one for one in self._running if one not in waiting), tuple(sorted(waiting)))

    def interrupt(self) -> Sequence[bytes]:
        asked: list[tuple[str, dict[str, str]]] = []
        for thread_id, turn_id in self._running.items():
            asked.append(("turn/interrupt", {"threadId": thread_id, "turnId": turn_id}))
            asked.append(("thread/backgroundTerminals/clean", {"threadId": thread_id}))
        return [
            json.dumps({"id": f"supervisor.{number}", "method": method, "params": params}).encode()
            for number, (method, params) in enumerate(asked)
        ]
