"""Program behind `FakeAppServer`: reads a scenario from a file and plays it on standard input and output.

Standard library only and run from its file, so that it starts as quickly as Python does.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

_Json = dict[str, Any]

_SANDBOXES = {"read-only": "readOnly", "workspace-write": "workspaceWrite", "danger-full-access": "dangerFullAccess"}
_POLL_SECONDS = 0.01


class Program:
    """Process with its scenario, and the state of its newest thread and turn."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._scenario: _Json = json.loads((folder / "scenario.json").read_text(encoding="utf-8"))
        self._numbers = itertools.count(1)
        self._names = {"$thread": "", "$turn": "", "$cwd": str(Path.cwd())}

    @property
    def version(self) -> str:
        return str(self._scenario["version"])

    def run(self) -> None:
        """Serve until standard input closes."""
        # Later processes behave normally, so that a restart can be seen to help.
        told: _Json = self._scenario["on"] if self._is_one_of_the_first() else {}
        for action in self._scenario["at_start"] if told is self._scenario["on"] else ():
            self._do(action, {})
        with (self._folder / "received.jsonl").open("a", encoding="utf-8") as record:
            for line in sys.stdin.buffer:
                message: _Json = json.loads(line)
                record.write(json.dumps(message) + "\n")
                # Flushed, because a test reads it while the process runs, or after it was killed.
                record.flush()
                if "method" in message and "id" in message:
                    self._remember(message["method"], message.get("params") or {})
                    for action in told.get(message["method"], _as_codex_would(message["method"])):
                        self._do(action, message)

    def _is_one_of_the_first(self) -> bool:
        """Return whether the scenario applies to this process."""
        # Counted in a file, because each launch is another process.
        with (self._folder / "launches").open("a+", encoding="ascii") as launches:
            launches.write("x")
            launches.flush()
            launches.seek(0)
            number = len(launches.read())
        return self._scenario["launches"] is None or number <= self._scenario["launches"]

    def _remember(self, method: str, params: _Json) -> None:
        if method in {"thread/start", "thread/fork"}:
            # The shape of Codex's ids, and unique among processes.
            self._names["$thread"] = f"00000000-0000-7000-8000-{os.getpid():08d}{next(self._numbers):04d}"
        elif method == "turn/start":
            self._names["$turn"] = f"turn-{next(self._numbers)}"
        self._names["$thread"] = params.get("threadId", self._names["$thread"])
        self._names["$cwd"] = params.get("cwd") or self._names["$cwd"]

    def _do(self, action: _Json, request: _Json) -> None:
        match action["do"]:
            case "answer":
                result = action["result"] if action["result"] is not None else self._result(request)
                self._send({"id": request["id"], "result": result})
            case "refuse":
                self._send({"id": request["id"], "error": action["error"]})
            case "send":
                self._send(action["message"])
            case "raw":
                _write(action["text"])
            case "long_line":
                empty = json.dumps({"method": action["method"], "params": {"padding": ""}})
                _write(empty.replace('""', '"' + "x" * (action["size"] - len(empty) - 1) + '"') + "\n")
            case "stderr":
                for _ in range(action["times"]):
                    sys.stderr.write(action["text"])
                sys.stderr.flush()
            case "exit":
                sys.exit(action["code"])
            case "stop_reading":
                while True:
                    time.sleep(3600)
            case "ignore_sigterm":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            case "wait":
                while not (self._folder / f"{action['name']}.go").exists():
                    time.sleep(_POLL_SECONDS)
            case unknown:
                raise AssertionError(f"there is no action {unknown!r}")

    def _send(self, message: Any) -> None:
        _write(json.dumps(self._filled_in(message)) + "\n")

    def _filled_in(self, value: Any) -> Any:
        """Return the value with `$thread` and the other placeholders replaced."""
        if isinstance(value, dict):
            return {key: self._filled_in(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._filled_in(inner) for inner in value]
        return self._names.get(value, value) if isinstance(value, str) else value

    def _result(self, request: _Json) -> _Json:
        """Return the default response, limited to the fields that clients read."""
        params = request.get("params") or {}
        match request["method"]:
            case "initialize":
                agent = f"fake/{self.version} (Test 1; x86_64) test (fake; 1)"
                return {"userAgent": agent, "codexHome": "$cwd", "platformFamily": "unix", "platformOs": "linux"}
            case "thread/start" | "thread/resume" | "thread/fork":
                return {
                    "thread": {"id": "$thread", "preview": "", "cwd": "$cwd", "status": {"type": "idle"}, "turns": []},
                    "model": params.get("model") or "fake-model",
                    "modelProvider": "fake",
                    "cwd": "$cwd",
                    "approvalPolicy": params.get("approvalPolicy") or "on-request",
                    "sandbox": {"type": _SANDBOXES.get(params.get("sandbox") or "read-only", "readOnly")},
                }
            case "turn/start":
                return {"turn": {"id": "$turn", "items": [], "status": "inProgress", "error": None}}
            case "turn/steer":
                return {"turnId": "$turn"}
            case "thread/list" | "thread/loaded/list" | "model/list":
                return {"data": [], "nextCursor": None}
            case _:
                return {}


def _as_codex_would(method: str) -> list[_Json]:
    """Return the actions for a method that is not in the scenario."""
    actions: list[_Json] = [{"do": "answer", "result": None}]
    if method == "turn/start":
        message = {"type": "agentMessage", "id": "msg_1", "text": "Hello", "phase": None}
        where = {"threadId": "$thread", "turnId": "$turn"}
        actions.append(_notification("turn/started", {"threadId": "$thread", "turn": _turn("inProgress")}))
        actions.append(_notification("item/started", {**where, "item": message | {"text": ""}}))
        actions.append(_notification("item/completed", {**where, "item": message}))
    if method in {"turn/start", "turn/interrupt"}:
        status = "completed" if method == "turn/start" else "interrupted"
        actions.append(_notification("turn/completed", {"threadId": "$thread", "turn": _turn(status)}))
    return actions


def _turn(status: str) -> _Json:
    return {"id": "$turn", "items": [], "status": status, "error": None}


def _notification(method: str, params: _Json) -> _Json:
    return {"do": "send", "message": {"method": method, "params": params}}


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def main(folder: str) -> None:
    """Behave like `codex --version` and `codex app-server`, as the scenario in `folder` says."""
    program, arguments = Program(Path(folder)), sys.argv[1:]
    if "--version" in arguments:
        _write(f"codex-cli {program.version}\n")
    elif "app-server" in arguments:
        program.run()
    else:
        sys.exit(f"error: the fake app-server does not know {arguments}")
