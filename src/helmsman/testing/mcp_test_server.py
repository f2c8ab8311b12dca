"""Tiny MCP server on stdio for Codex to call: `read` (read-only), `write`, and `ask`, which elicits an answer.

Run as `python mcp_test_server.py`. It keeps its notes in the JSON file that HELMSMAN_TEST_NOTES names, so
that a test can see whether a tool really ran.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

_Json = dict[str, Any]

_TEXT = {"type": "string"}
_TOOLS: list[_Json] = [
    {
        "name": "read",
        "description": "Read a note.",
        "inputSchema": {"type": "object", "properties": {"key": _TEXT}, "required": ["key"]},
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "write",
        "description": "Write a note.",
        "inputSchema": {"type": "object", "properties": {"key": _TEXT, "text": _TEXT}, "required": ["key", "text"]},
        "annotations": {"readOnlyHint": False, "destructiveHint": True},
    },
    {
        "name": "ask",
        "description": "Ask the person for a name.",
        "inputSchema": {"type": "object", "properties": {}},
        "annotations": {"readOnlyHint": True},
    },
]
_NAME_FORM = {"type": "object", "properties": {"name": _TEXT}, "required": ["name"]}


def main() -> None:
    """Answer requests until stdin closes."""
    for line in sys.stdin:
        message: _Json = json.loads(line)
        if "method" in message and "id" in message:
            _send({"id": message["id"], "result": _result(message["method"], message.get("params") or {})})


def _result(method: str, params: _Json) -> _Json:
    match method:
        case "initialize":
            server = {"name": "helmsman-test-server", "version": "1"}
            protocol = params.get("protocolVersion", "2025-06-18")
            return {"protocolVersion": protocol, "capabilities": {"tools": {}}, "serverInfo": server}
        case "tools/list":
            return {"tools": _TOOLS}
        case "tools/call":
            text = _use(params["name"], params.get("arguments") or {})
            return {"content": [{"type": "text", "text": text}]}
        case _:
            return {}


def _use(tool: str, arguments: _Json) -> str:
    match tool:
        case "read":
            return _notes().get(arguments["key"], "no such note")
        case "write":
            notes = _notes() | {arguments["key"]: arguments["text"]}
            _notes_file().write_text(json.dumps(notes), encoding="utf-8")
            return "written"
        case _:
            return _ask()


def _ask() -> str:
    _send(
        {
            "id": "ask-1",
            "method": "elicitation/create",
            "params": {"message": "What is your name?", "requestedSchema": _NAME_FORM},
        }
    )
    for line in sys.stdin:
        message: _Json = json.loads(line)
        if message.get("id") == "ask-1":
            answer = message.get("result") or {"action": "error"}
            name = (answer.get("content") or {}).get("name", "")
            return f"{answer['action']} {name}".strip()
    return "nobody answered"


def _notes() -> dict[str, str]:
    file = _notes_file()
    notes: dict[str, str] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return notes


def _notes_file() -> Path:
    return Path(os.environ["HELMSMAN_TEST_NOTES"])


def _send(message: _Json) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
