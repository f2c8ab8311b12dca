"""Agent that speaks the Agent Client Protocol and follows the script of a test: faults, odd orders, silence.

    agent = FakeAcpAgent(folder)
    agent.on("delete it", asks("execute", "rm x", allowed=[says("gone")], refused=[says("kept")]))
    ...  # run agent.command

The words of a prompt choose the steps; the one added last wins. Sessions are kept in the folder, so that another process
loads them. `received` lists the messages to it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_Step = dict[str, Any]

# widest option first, as some agents list them
_OPTIONS = (
    {"optionId": "always", "name": "Always", "kind": "allow_always"},
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
)


def says(*pieces: str, thought: bool = False) -> _Step:
    """Send a message, or a thought, in pieces."""
    kind = "agent_thought_chunk" if thought else "agent_message_chunk"
    return {"updates": [{"sessionUpdate": kind, "content": {"type": "text", "text": piece}} for piece in pieces]}


def updates(*given: _Step) -> _Step:
    """Send raw updates."""
    return {"updates": list(given)}


def asks(
    kind: str,
    title: str,
    *,
    allowed: Sequence[_Step] = (),
    refused: Sequence[_Step] = (),
    options: Sequence[_Step] = _OPTIONS,
    again: str | None = None,
    meanwhile: Sequence[_Step] = (),
    **fields: Any,
) -> _Step:
    """Ask for permission to call a tool, with steps for each answer; `again` asks a second time with this title.

    `meanwhile` holds updates to send before the answer arrives.
    """
    call = {"toolCallId": f"call-{title}", "kind": kind, "title": title, "status": "pending", **fields}
    step: _Step = {"ask": {"toolCall": call, "options": list(options)}}
    if again is not None:
        step["again"] = {"toolCall": {**call, "toolCallId": f"call-{again}", "title": again}, "options": list(options)}
    return {**step, "allowed": list(allowed), "refused": list(refused), "meanwhile": list(meanwhile)}


def asks_in_form(message: str, *required: str, **properties: Any) -> _Step:
    """Ask for the fields of a form, and continue with any answer."""
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"form": {"mode": "form", "message": message, "requestedSchema": schema}}


def runs(command: str) -> _Step:
    """Start a command without waiting for it."""
    return {"run": command}


def waits() -> _Step:
    """Wait until the turn is cancelled."""
    return {"wait": True}


def ends(stop_reason: str = "end_turn", **fields: Any) -> _Step:
    """End the turn with further fields in the response; `end_turn` is the default."""
    return {"end": {"stopReason": stop_reason, **fields}}


def refuses(code: int, message: str, **data: Any) -> _Step:
    """Answer the prompt with an error."""
    return {"error": {"code": code, "message": message, "data": data}}


def dies(exit_code: int = 3) -> _Step:
    """Exit the process."""
    return {"die": exit_code}


class FakeAcpAgent:
    """Scripted agent and the record of its received messages."""

    def __init__(self, folder: Path, *, modes: Sequence[str] = ("ask", "wild"), deaf: bool = False) -> None:
        """Create the agent. With `deaf` it ignores cancellation."""
        self._folder = folder
        self._scenario: dict[str, Any] = {"on": [], "modes": list(modes), "deaf": deaf, "initialize": {}}
        self._scenario |= {"before": {}, "behind": {}, "answers": {}, "late": {}, "options": []}
        folder.mkdir(parents=True, exist_ok=True)
        self._write()

    @property
    def command(self) -> list[str]:
        """Command line that starts the agent."""
        # Isolated: it must not import from the test's directory.
        return [sys.executable, "-I", str(Path(__file__).with_name("fake_acp_agent_program.py")), str(self._folder)]

    def on(self, words: str, *steps: _Step) -> None:
        """Add steps for prompts that contain these words."""
        self._scenario["on"].append([words, list(steps)])
        self._write()

    def greets(self, **answer: Any) -> None:
        """Add fields to the response to `initialize`."""
        self._scenario["initialize"] |= answer
        self._write()

    def has_options(self, *names: str) -> None:
        """Add session settings besides the mode. They are on by default."""
        self._scenario["options"] = list(names)
        self._write()

    def tells_before(self, method: str, *given: _Step) -> None:
        """Send updates before the response to each call of a method, such as `session/set_mode`."""
        self._scenario["before"][method] = list(given)
        self._write()

    def tells_behind(self, method: str, *given: _Step) -> None:
        """Send updates directly after the response to each call of a method, so that both are read together."""
        self._scenario["behind"][method] = list(given)
        self._write()

    def answers(self, method: str, **answer: Any) -> None:
        """Add fields to the response to each call of a method."""
        self._scenario["answers"][method] = answer
        self._write()

    def answers_late(self, method: str, when: Path) -> None:
        """Delay the response to each call of a method until this file exists."""
        self._scenario["late"][method] = str(when)
        self._write()

    @property
    def received(self) -> list[dict[str, Any]]:
        """All messages that its processes received, in order."""
        try:
            lines = (self._folder / "received.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def asked_for(self, method: str) -> list[dict[str, Any]]:
        """Return the parameters of each call of a method."""
        return [message.get("params", {}) for message in self.received if message.get("method") == method]

    def _write(self) -> None:
        # Read again at each message, so that a test may change its mind while the agent runs.
        (self._folder / "scenario.json").write_text(json.dumps(self._scenario), encoding="utf-8")
