"""What an earlier owner of an engine on a pipe has left in it: held, thread by thread, until a session is taken over.

Of each thread the newest turn is held, as Codex told it; what came in pieces is there as a whole when the item is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from helmsman.agents.codex.wire.replay import turn_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from helmsman.base.jsonrpc import IncomingRequest


class _Message(NamedTuple):
    turn_id: str | None
    request_id: int | str | None
    call: Callable[[], object]


@dataclass(slots=True)
class _Left:
    messages: list[_Message] = field(default_factory=list[_Message])
    is_running: bool = False


class InheritedThreads:
    """Those of one engine. While `replaying`, all that is said is of threads that were left."""

    def __init__(self, *, replaying: bool) -> None:
        self.replaying = replaying
        self._left: dict[str, _Left] = {}

    def __contains__(self, thread_id: str) -> bool:
        return thread_id in self._left

    def is_running(self, thread_id: str) -> bool:
        return thread_id in self._left and self._left[thread_id].is_running

    def hold(self, method: str, params: Mapping[str, Any], call: Callable[[], object]) -> bool:
        """Whether this belongs to a thread that was left, and waits."""
        left = self._of(params)
        if left is None:
            return False
        turn = turn_id(params)
        if method == "turn/started":  # its first items may have come before
            left.messages = [one for one in left.messages if turn is not None and one.turn_id == turn]
        if method in ("turn/started", "turn/completed"):
            left.is_running = method == "turn/started"
        if not method.lower().endswith("delta"):
            left.messages.append(_Message(turn, None, call))
        return True

    def hold_request(self, request: IncomingRequest, call: Callable[[], object]) -> bool:
        """As `hold`; joining a thread makes Codex ask again what is open."""
        left = self._of(request.params)
        if left is not None and all(one.request_id != request.id for one in left.messages):
            left.messages.append(_Message(turn_id(request.params), request.id, call))
        return left is not None

    def _of(self, params: Mapping[str, Any]) -> _Left | None:
        thread_id = params.get("threadId")
        if not isinstance(thread_id, str):
            return None
        return self._left.setdefault(thread_id, _Left()) if self.replaying else self._left.get(thread_id)

    def release(self, thread_id: str) -> None:
        """Nothing waits any more: what has waited happens now."""
        left = self._left.pop(thread_id, None)
        for message in left.messages if left is not None else ():
            message.call()

    def forget(self, thread_id: str) -> None:
        self._left.pop(thread_id, None)
