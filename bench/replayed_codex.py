"""Stand-in for `codex app-server` that plays the same long turn for every client, as fast as it is read.

Started like `codex app-server`. A turn with the prompt `stream N` consists of N events, in the mix of a real one: a
message of some fifty tokens, a command that prints a few lines, and so on. It stores nothing, so a thousand threads are
cheap.
"""

from __future__ import annotations

import json
import sys
import uuid
from typing import Any

VERSION = "0.163.0"
_LINES = 5
_TOKENS = 51
_EVENTS_A_BLOCK = 2 + _LINES + 2 + _TOKENS
_HELP = """Usage: codex [OPTIONS] [PROMPT]

Commands:
  exec        Run Codex non-interactively
  app-server  Run the app server
"""


def main() -> None:
    if "--help" in sys.argv or "--version" in sys.argv:
        print(_HELP if "--help" in sys.argv else f"codex-cli {VERSION}")
        return
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            _answer(message["id"], message["method"], message.get("params") or {})


def _answer(number: Any, method: str, params: dict[str, Any]) -> None:
    match method:
        case "initialize":
            _send({"id": number, "result": {"userAgent": f"bench/{VERSION} (x) y (z; 1)", "codexHome": "/"}})
        case "thread/start":
            thread_id = str(uuid.uuid4())
            thread = {**_THREAD, "id": thread_id, "sessionId": thread_id, "cwd": params.get("cwd") or "/"}
            _send({"id": number, "result": {**_OPENED, "cwd": thread["cwd"], "thread": thread}})
        case "turn/start":
            turn_id = str(uuid.uuid4())
            _send({"id": number, "result": {"turn": {**_TURN, "id": turn_id, "status": "inProgress"}}})
            play(params["threadId"], turn_id, params["input"][0]["text"])
        case "config/read":
            layer = {"name": {"type": "sessionFlags"}, "version": "1", "config": {}}
            _send({"id": number, "result": {"config": {}, "origins": {}, "layers": [layer]}})
        case _:
            _send({"id": number, "result": {"data": []}})


def play(thread_id: str, turn_id: str, prompt: str) -> None:
    where = {"threadId": thread_id, "turnId": turn_id}
    _note("turn/started", {"threadId": thread_id, "turn": {**_TURN, "id": turn_id, "status": "inProgress"}})
    asked, _, count = prompt.partition(" ")
    for block in range(int(count) // _EVENTS_A_BLOCK if asked == "stream" else 0):
        command = {**_COMMAND, "id": f"call_{block}"}
        _note("item/started", {**where, "item": {**command, "status": "inProgress"}, "startedAtMs": 1})
        for _ in range(_LINES):
            output = {**where, "itemId": command["id"], "delta": "tests/test_parser.py::test_a_case PASSED\n"}
            _note("item/commandExecution/outputDelta", output)
        ended = {**command, "status": "completed", "exitCode": 0, "aggregatedOutput": "x" * 2000, "durationMs": 5}
        _note("item/completed", {**where, "item": ended, "completedAtMs": 2})
        message = {"type": "agentMessage", "id": f"msg_{block}", "text": "", "phase": None, "memoryCitation": None}
        _note("item/started", {**where, "item": message, "startedAtMs": 3})
        for number in range(_TOKENS):
            _note("item/agentMessage/delta", {**where, "itemId": message["id"], "delta": f"word {number} "})
        text = "".join(f"word {number} " for number in range(_TOKENS))
        _note("item/completed", {**where, "item": {**message, "text": text}, "completedAtMs": 4})
    _note("turn/completed", {"threadId": thread_id, "turn": {**_TURN, "id": turn_id, "status": "completed"}})
    sys.stdout.flush()


def _note(method: str, params: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"method": method, "params": params}) + "\n")


def _send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


_TURN: dict[str, Any] = {
    "items": [],
    "itemsView": "summary",
    "error": None,
    "startedAt": 1,
    "completedAt": 1,
    "durationMs": 1,
}
_THREAD: dict[str, Any] = {
    "preview": "",
    "ephemeral": False,
    "modelProvider": "bench",
    "createdAt": 1,
    "updatedAt": 1,
    "status": {"type": "idle"},
    "path": None,
    "cliVersion": VERSION,
    "source": "vscode",
    "turns": [],
}
_OPENED: dict[str, Any] = {
    "model": "bench",
    "modelProvider": "bench",
    "approvalPolicy": "on-request",
    "approvalsReviewer": "user",
    "sandbox": {"type": "readOnly", "networkAccess": False},
}
_COMMAND: dict[str, Any] = {
    "type": "commandExecution",
    "command": "pytest",
    "cwd": "/src",
    "processId": "1",
    "source": "agent",
    "commandActions": [],
    "aggregatedOutput": None,
    "exitCode": None,
    "durationMs": None,
}

if __name__ == "__main__":
    main()
