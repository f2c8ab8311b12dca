"""Which of the lines of a Codex on a pipe are kept for whoever owns it next."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from helmsman.agents.codex.wire import kept
from helmsman.agents.codex.wire.kept import Keeping
from helmsman.agents.supervisor.output_log import OutputLine

if TYPE_CHECKING:
    import pytest


class Line:
    """Codex talking, line by line."""

    def __init__(self) -> None:
        self.keeping = Keeping()
        self.number = 0

    def says(self, method: str, params: dict[str, Any] | None = None, **more: Any) -> int:
        self.number += 1
        message = {"method": method, **more, "params": {"threadId": "T", **(params or {})}}
        self.keeping.read(OutputLine(self.number, json.dumps(message, separators=(",", ":")).encode()))
        return self.number

    @property
    def left(self) -> set[int]:
        return set(self.keeping.keep) - set(self.keeping.drop)


def test_of_a_running_turn_its_beginning_and_each_item_as_it_is_now_are_kept() -> None:
    line = Line()
    begun = line.says("turn/started", {"turn": {"id": "U"}})
    line.says("item/started", {"item": {"id": "a"}})
    line.says("item/agentMessage/delta", {"itemId": "a", "delta": "x"})
    ended = line.says("item/completed", {"item": {"id": "a"}})
    running = line.says("item/started", {"item": {"id": "b"}})
    line.says("thread/tokenUsage/updated")
    usage = line.says("thread/tokenUsage/updated")
    assert line.left == {begun, ended, running, usage}
    line.says("turn/completed", {"turn": {"id": "U"}})
    assert line.left == set()


def test_an_item_that_ends_after_the_next_has_begun_keeps_its_place_before_it() -> None:
    line = Line()
    begun = line.says("turn/started", {"turn": {"id": "U"}})
    first = line.says("item/started", {"item": {"id": "a"}})
    second = line.says("item/started", {"item": {"id": "b"}})
    line.says("item/completed", {"item": {"id": "a"}})
    as_it_is_now = line.says("item/completed", {"item": {"id": "a", "text": "x"}})
    usage = line.says("thread/tokenUsage/updated")
    assert line.left == {begun, first, second, as_it_is_now, usage}


def test_a_question_is_kept_until_it_is_answered_moot_or_its_turn_ends() -> None:
    line = Line()
    asked = [line.says("item/commandExecution/requestApproval", id=number) for number in range(3)]
    assert line.says("item/commandExecution/requestApproval", id=0) not in line.left  # asked again
    assert line.left == set(asked)
    assert line.keeping.answered(0) == asked[0]
    assert line.keeping.answered(0) is None
    line.says("serverRequest/resolved", {"requestId": 1})
    assert line.left == {asked[0], asked[2]}  # the first goes with its answer
    line.says("turn/completed", {"turn": {"id": "U"}})
    assert line.left == {asked[0]}


def test_of_a_turn_that_is_very_long_the_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT_BYTES", 1000)
    line = Line()
    begun = line.says("turn/started", {"turn": {"id": "U"}})
    items = [line.says("item/completed", {"item": {"id": str(number), "text": "x" * 200}}) for number in range(20)]
    assert begun in line.left
    assert items[-1] in line.left
    assert len(line.left) < 6


def test_what_makes_no_sense_is_not_kept() -> None:
    keeping = Keeping()
    for line in (b'{"method":"turn/started', b'["method":"turn/"]', b'{"method":"turn/started","params":1}', b"7"):
        keeping.read(OutputLine(1, line))
    assert (keeping.keep, keeping.drop) == ([], [])
