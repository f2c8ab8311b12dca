"""A Codex on a pipe in a supervisor, as a transport.

The next owner needs, to have the same picture: of each running turn its beginning, its items and the newest of what replaces
itself, and every question that is open.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.supervisor.client import KEPT_BYTES
from helmsman.base.json_values import json_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.agents.supervisor.output_log import OutputLine
    from helmsman.base.jsonrpc import RequestId


_OF_INTEREST: Final = re.compile(
    rb'"method":"(?:turn/|item/started|item/completed|thread/tokenUsage/updated|serverRequest/resolved|error")|"id":'
)
_LOOKED_AT: Final = 300
"""Where a line says what it is. Its beginning does: the rest may be long."""
_REPLACED: Final = frozenset({"thread/tokenUsage/updated", "turn/plan/updated", "turn/diff/updated", "error"})


class Keeping:
    """Which lines the next owner will need."""

    def __init__(self) -> None:
        self._turns: dict[str, OrderedDict[str, tuple[int, int]]] = {}
        """Of each thread with a running turn: number and size of what is kept, by what it is about."""
        self._questions: dict[RequestId, tuple[int, str]] = {}
        self.keep: list[int] = []
        self.drop: list[int] = []

    def read(self, said: OutputLine) -> None:
        """Take note of a line, and of what is to be kept or dropped after it."""
        if _OF_INTEREST.search(said.line, 0, _LOOKED_AT) is None:
            return
        message = json_object(said.line) or {}
        method = message.get("method")
        params = message.get("params") if isinstance(method, str) else None
        if not isinstance(method, str) or not isinstance(params, dict):
            return
        thread_id, request_id = str(params.get("threadId")), message.get("id")
        if isinstance(request_id, int | str):
            if request_id not in self._questions:  # asked again, because somebody has joined the thread
                self._questions[request_id] = (said.offset, thread_id)
                self.keep.append(said.offset)
        elif method == "serverRequest/resolved":
            self._forget_question(params.get("requestId"))
        elif method == "turn/started":
            self._forget_turn(thread_id)
            self._turns[thread_id] = OrderedDict(begin=(said.offset, len(said.line)))
            self.keep.append(said.offset)
        elif method == "turn/completed":
            self._forget_turn(thread_id)
            for asked in [key for key, (_, thread) in self._questions.items() if thread == thread_id]:
                self._forget_question(asked)
        elif thread_id in self._turns:
            self._keep_of_turn(said, self._turns[thread_id], method, params)

    def _keep_of_turn(
        self, said: OutputLine, turn: OrderedDict[str, tuple[int, int]], method: str, params: Mapping[str, Any]
    ) -> None:
        item = params.get("item")
        about = f"item {item.get('id')}" if isinstance(item, dict) else method if method in _REPLACED else None
        if about is None:
            return
        if about in turn and about not in _REPLACED and about != _newest_item(turn):
            about += " since"  # the line of its beginning stays: it says where among the items this one belongs
        if (earlier := turn.pop(about, None)) is not None:
            self.drop.append(earlier[0])
        turn[about] = (said.offset, len(said.line))
        self.keep.append(said.offset)
        while len(turn) > 2 and sum(size for _, size in turn.values()) > KEPT_BYTES:
            oldest = next(about for about in turn if about != "begin")
            self.drop.append(turn.pop(oldest)[0])

    def _forget_turn(self, thread_id: str) -> None:
        self.drop += [number for number, _ in self._turns.pop(thread_id, {}).values()]

    def _forget_question(self, request_id: Any) -> None:
        question = self._questions.pop(request_id, None) if isinstance(request_id, int | str) else None
        if question is not None:
            self.drop.append(question[0])

    def answered(self, request_id: RequestId) -> int | None:
        """The line in which this was asked."""
        question = self._questions.pop(request_id, None)
        return None if question is None else question[0]


def _newest_item(turn: OrderedDict[str, tuple[int, int]]) -> str:
    return next(about for about in reversed(turn) if about not in _REPLACED)
