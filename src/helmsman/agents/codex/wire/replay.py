"""Finds the turns and questions in the output of an app-server, for the next owner (`helmsman.agents.replay_window`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.json_values import json_object, mapping

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.agents.replay_window import ReplayWindow
    from helmsman.agents.supervisor.output_log import OutputLine

_OF_INTEREST: Final = re.compile(
    rb'"method":"(?:turn/started|turn/completed|item/started|serverRequest/resolved)"|"id":'
)
_LOOKED_AT: Final = 300
"""A line says in its first bytes what it is. The rest may be long."""


class AppServerOutput:
    """See `helmsman.agents.supervised_transport.OutputWatcher`. A turn has the id of its thread as the key.

    Some versions of Codex send `turn/started` beside the events of the turn, so that its first items may come before.
    """

    def __init__(self, window: ReplayWindow) -> None:
        self._window = window
        self._newest: dict[str, str] = {}
        """The newest turn of each thread, which may have ended."""

    def read(self, said: OutputLine) -> None:
        if _OF_INTEREST.search(said.line, 0, _LOOKED_AT) is None:
            return
        message = json_object(said.line) or {}
        method, request_id = message.get("method"), message.get("id")
        params = mapping(message.get("params"))
        thread_id = str(params.get("threadId"))
        if not isinstance(method, str):
            return
        if isinstance(request_id, int | str):
            self._window.ask(request_id, said.offset, thread_id)
        elif method == "serverRequest/resolved":
            resolved = params.get("requestId")
            if isinstance(resolved, int | str):
                self._window.withdraw(resolved)
        elif method in ("turn/started", "item/started"):
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
