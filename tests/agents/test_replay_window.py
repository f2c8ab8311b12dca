"""Tests of which output of a supervised agent the next owner reads again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helmsman.agents import agent_process as replay_window
from helmsman.agents.agent_process import ReplayWindow
from helmsman.agents.codex.watching import AppServerOutput, CodexWatcher
from helmsman.agents.supervisor.relay import OutputLine


class Codex:
    """App-server that writes line by line."""

    def __init__(self) -> None:
        self.window = ReplayWindow(0)
        self.watcher = CodexWatcher()
        self._output = AppServerOutput(self.window)
        self._end = 0

    def says(self, method: str, params: dict[str, Any] | None = None, **more: Any) -> int:
        message = {"method": method, **more, "params": {"threadId": "T", **(params or {})}}
        if "id" in more:
            message = {"method": method, "id": more["id"], **message}
        return self.writes(json.dumps(message, separators=(",", ":")))

    def writes(self, line: str) -> int:
        said = OutputLine(self._end, line.encode())
        self.watcher.on_output(said.line, said.offset)
        self._output.read(said)
        self.window.read(said.end)
        self._end = said.end
        return said.offset

    @property
    def end(self) -> int:
        return self._end


def test_a_running_turn_is_read_again_from_its_beginning() -> None:
    codex = Codex()
    codex.says("thread/started")
    assert codex.window.start == codex.end
    begun = codex.says("turn/started", {"turn": {"id": "U"}})
    codex.says("item/started", {"item": {"id": "a"}})
    codex.says("item/agentMessage/delta", {"itemId": "a", "delta": "x"})
    assert codex.window.start == begun
    codex.says("turn/completed", {"turn": {"id": "U"}})
    assert codex.window.start == codex.end


def test_a_turn_begins_with_its_first_item_if_that_comes_before_the_turn_is_announced() -> None:
    codex = Codex()
    begun = codex.says("item/started", {"item": {"id": "a"}, "turnId": "U"})
    codex.says("turn/started", {"turn": {"id": "U"}})
    assert codex.window.start == begun
    codex.says("turn/completed", {"turn": {"id": "U"}})
    codex.says("item/started", {"item": {"id": "b"}, "turnId": "U"})  # of a command that it left running
    assert codex.window.start == codex.end


def test_the_oldest_of_several_turns_counts() -> None:
    codex = Codex()
    first = codex.says("turn/started", {"threadId": "A", "turn": {"id": "U"}})
    second = codex.says("turn/started", {"threadId": "B", "turn": {"id": "V"}})
    assert codex.window.start == first
    codex.says("turn/completed", {"threadId": "A"})
    assert codex.window.start == second


def test_a_question_is_read_again_until_it_is_answered_withdrawn_or_its_turn_ends() -> None:
    codex = Codex()
    asked = [codex.says("item/commandExecution/requestApproval", id=number) for number in range(3)]
    codex.says("item/commandExecution/requestApproval", id=0)  # because a terminal has joined
    assert codex.watcher.open == {0: asked[0], 1: asked[1], 2: asked[2]}
    codex.watcher.on_input(b'{"id":0,"result":{}}')
    codex.watcher.on_input(b'{"id":0,"result":{}}')
    assert codex.watcher.open == {1: asked[1], 2: asked[2]}
    codex.says("serverRequest/resolved", {"requestId": 1})
    assert codex.watcher.open == {2: asked[2]}
    codex.says("turn/completed", {"turn": {"id": "U"}})
    assert codex.watcher.open == {}


def test_of_a_turn_that_is_very_long_only_its_questions_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_window, "REPLAYED_BYTES", 1000)
    codex = Codex()
    codex.says("turn/started", {"turn": {"id": "U"}})
    asked = codex.says("item/commandExecution/requestApproval", id=1)
    for number in range(20):
        codex.says("item/completed", {"item": {"id": str(number), "text": "x" * 200}})
    assert (codex.window.start, codex.watcher.open) == (codex.end, {1: asked})


@pytest.mark.parametrize(
    "line", ["", "[]", '{"id":', '{"id":[1],"method":"m"}', '{"id":1}', '{"method":"turn/started"}']
)
def test_a_line_that_makes_no_sense_holds_nothing_up(line: str) -> None:
    codex = Codex()
    codex.writes(line)
    codex.says("turn/completed", {"threadId": "None"})
    assert codex.window.start == codex.end
