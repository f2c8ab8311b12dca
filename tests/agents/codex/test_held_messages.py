"""Messages of Codex about threads to which the engine is not attached yet."""

from __future__ import annotations

from typing import Any

from helmsman.agents.codex.threads import HeldMessages
from helmsman.base.jsonrpc import IncomingRequest


class Reader:
    """Reads the messages of one thread, and lists those that are delivered."""

    def __init__(self, *, replaying: bool = True) -> None:
        self.delivered: list[str] = []
        self._threads = HeldMessages(replaying=replaying)
        if not replaying:
            self._threads.begin("T")

    def read(self, method: str, **params: Any) -> None:
        self._threads.hold(method, {"threadId": "T", **params}, lambda: self.delivered.append(method))

    def ask(self, request_id: int, **params: Any) -> None:
        request = IncomingRequest(request_id, "item/fileChange/requestApproval", {"threadId": "T", **params})
        self._threads.hold_request(request, lambda: self.delivered.append(f"question {request_id}"))

    def release(self) -> list[str]:
        self._threads.release("T")
        return self.delivered


def test_only_the_newest_turn_is_delivered() -> None:
    reader = Reader()
    reader.read("turn/started", turn={"id": "U"})
    reader.ask(1, turnId="U")
    reader.read("turn/completed", turn={"id": "U"})
    reader.read("turn/started", turn={"id": "V"})
    reader.read("item/started", turnId="V")
    reader.read("item/agentMessage/delta", turnId="V")
    assert reader.release() == ["turn/started", "item/started"]


def test_messages_before_the_start_of_a_turn_are_delivered() -> None:
    reader = Reader()
    reader.read("turn/started", turn={"id": "U"})
    reader.read("item/started", turnId="V")
    reader.ask(1, turnId="V")
    reader.read("turn/started", turn={"id": "V"})
    assert reader.release() == ["item/started", "question 1", "turn/started"]


def test_a_question_that_is_asked_again_is_delivered_once() -> None:
    reader = Reader()
    reader.read("turn/started", turn={"id": "U"})
    reader.ask(1, turnId="U")
    reader.ask(1, turnId="U")
    assert reader.release() == ["turn/started", "question 1"]


def test_all_that_comes_while_a_thread_is_joined_is_delivered() -> None:
    reader = Reader(replaying=False)
    reader.read("item/agentMessage/delta", turnId="U")
    reader.read("turn/completed", turn={"id": "U"})
    reader.read("turn/started", turn={"id": "V"})
    reader.read("item/agentMessage/delta", turnId="V")
    expected = ["item/agentMessage/delta", "turn/completed", "turn/started", "item/agentMessage/delta"]
    assert reader.release() == expected


def test_no_other_thread_is_held() -> None:
    threads = HeldMessages(replaying=False)
    assert not threads.hold("turn/started", {"threadId": "T", "turn": {"id": "U"}}, lambda: None)
    assert not threads.has_replayed("T")
