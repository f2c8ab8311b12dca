"""What an earlier owner of an engine on a pipe has left in it: held, thread by thread, until a session is taken over.

Of each thread the newest turn is held, as Codex told it; what came in pieces is there as a whole when the item is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from helmsman.base.jsonrpc import IncomingRequest


@dataclass(slots=True)
class _Left:
    calls: list[Callable[[], object]] = field(default_factory=list["Callable[[], object]"])
    requests: set[int | str] = field(default_factory=set[int | str])
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
        if method == "turn/started":
            left.calls.clear()
            left.requests.clear()
        if method in ("turn/started", "turn/completed"):
            left.is_running = method == "turn/started"
        if not method.lower().endswith("delta"):
            left.calls.append(call)
        return True

    def hold_request(self, request: IncomingRequest, call: Callable[[], object]) -> bool:
        """As `hold`; joining a thread makes Codex ask again what is open."""
        left = self._of(request.params)
        if left is not None and request.id not in left.requests:
            left.requests.add(request.id)
            left.calls.append(call)
        return left is not None

    def _of(self, params: Mapping[str, Any]) -> _Left | None:
        thread_id = params.get("threadId")
        if not isinstance(thread_id, str):
            return None
        return self._left.setdefault(thread_id, _Left()) if self.replaying else self._left.get(thread_id)

    def release(self, thread_id: str) -> None:
        """Nothing waits any more: what has waited happens now."""
        left = self._left.pop(thread_id, None)
        for call in left.calls if left is not None else ():
            call()

    def forget(self, thread_id: str) -> None:
        self._left.pop(thread_id, None)
