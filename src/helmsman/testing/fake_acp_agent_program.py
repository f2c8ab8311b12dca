"""Program behind `FakeAcpAgent`: reads a scenario from a folder and plays it on standard input and output.

Standard library only and run from its file, so that it starts as quickly as Python does.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

_Json = dict[str, Any]


class _Cancelled(Exception):
    """Raised when the turn was cancelled."""


class _Turn:
    """Prompt in progress."""

    def __init__(self) -> None:
        # responses to questions; None if the turn was cancelled
        self.answers: queue.Queue[_Json | None] = queue.Queue()
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
        self.answers.put(None)


class _Program:
    """Scripted agent process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sessions = folder / "sessions"
        self._sessions.mkdir(exist_ok=True)
        # Turns run in threads, and each message must stay one line.
        self._writing = threading.Lock()
        self._numbers = itertools.count()
        self._turns: dict[str, _Turn] = {}
        self._asked: dict[int, _Turn] = {}
        self._set: _Json = {}

    @property
    def _scenario(self) -> _Json:
        scenario: _Json = json.loads((self._folder / "scenario.json").read_text(encoding="utf-8"))
        return scenario

    def run(self) -> None:
        """Serve until standard input closes."""
        for line in sys.stdin.buffer:
            message: _Json = json.loads(line)
            # Written before it is handled, so that the record is complete if the process dies.
            with (self._folder / "received.jsonl").open("a", encoding="utf-8") as record:
                record.write(json.dumps(message) + "\n")
            if message.get("jsonrpc") != "2.0":
                self._say({"id": None, "error": {"code": -32600, "message": "every message must carry jsonrpc"}})
            elif "method" in message:
                self._called(message)
            elif message.get("id") in self._asked:
                self._asked.pop(message["id"]).answers.put(message.get("result") or {})
        for turn in self._turns.values():
            # Turns that wait must not keep the process.
            turn.cancel()

    def _called(self, message: _Json) -> None:
        method, params = message["method"], message.get("params") or {}
        session_id = str(params.get("sessionId", ""))
        if method == "session/cancel":
            if session_id in self._turns and not self._scenario["deaf"]:
                self._turns[session_id].cancel()
            return
        if method == "session/prompt":
            turn = self._turns[session_id] = _Turn()
            # A turn may wait for an answer, which the main thread reads.
            threading.Thread(target=self._prompt, args=(message["id"], session_id, params, turn), daemon=True).start()
            return
        # Polled, because a test releases it by making a file.
        while not Path(self._scenario["late"].get(method, self._folder)).exists():
            time.sleep(0.01)
        answer = self._answer(method, session_id, params)
        for update in self._scenario["before"].get(method, ()):
            self._update(session_id, update)
        if answer is None:
            data = {"method": method}
            self._refuse(message["id"], {"code": -32601, "message": f'"Method not found": {method}', "data": data})
        elif "error" in answer:
            self._refuse(message["id"], answer["error"])
        else:
            session_id = session_id or str(answer.get("sessionId", ""))
            behind = (_told(session_id, update) for update in self._scenario["behind"].get(method, ()))
            answer |= self._scenario["answers"].get(method, {})
            # In one write, so that the client reads both together.
            self._say({"id": message["id"], "result": answer}, *behind)

    def _answer(self, method: str, session_id: str, params: _Json) -> _Json | None:
        scenario = self._scenario
        modes = {"currentModeId": scenario["modes"][-1], "availableModes": [{"id": one} for one in scenario["modes"]]}
        if method == "initialize":
            about = {"name": "fake", "title": "Fake", "version": "1.0.0"}
            known = {"protocolVersion": 1, "agentInfo": about, "agentCapabilities": {"loadSession": True}}
            return {**known, **scenario["initialize"]}
        if method == "session/new":
            session_id = str(uuid.uuid4())
            (self._sessions / session_id).write_text("", encoding="utf-8")
            self._update(session_id, {"sessionUpdate": "available_commands_update", "availableCommands": []})
            return {"sessionId": session_id, "modes": modes, "configOptions": self._options()}
        if method == "session/load":
            kept = self._sessions / session_id
            if not kept.exists():
                return {"error": {"code": -32602, "message": f"Session not found: {session_id}"}}
            for line in kept.read_text(encoding="utf-8").splitlines():
                self._update(session_id, json.loads(line))
            return {"modes": modes, "configOptions": self._options()}
        if method == "session/set_mode":
            if params.get("modeId") not in scenario["modes"]:
                return {"error": {"code": -32602, "message": "Mode is not available"}}
            self._set["mode"] = params["modeId"]
            return {}
        if method == "session/set_config_option" and scenario["options"]:
            self._set[params["configId"]] = params["value"]
            return {"configOptions": self._options()}
        return None

    def _options(self) -> list[_Json]:
        return [{"id": name, "currentValue": self._set.get(name, "on")} for name in self._scenario["options"]]

    def _prompt(self, request_id: int, session_id: str, params: _Json, turn: _Turn) -> None:
        text = "".join(part.get("text", "") for part in params["prompt"])
        self._keep(session_id, {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": text}})
        found = [steps for words, steps in self._scenario["on"] if words in text]
        try:
            end = self._play(session_id, found[-1] if found else [], turn)
        except _Cancelled:
            end = {"stopReason": "cancelled"}
        self._turns.pop(session_id, None)
        if "error" in end:
            self._refuse(request_id, end["error"])
        else:
            self._say({"id": request_id, "result": end})

    def _play(self, session_id: str, steps: list[_Json], turn: _Turn) -> _Json:
        for step in steps:
            if turn.cancelled:
                raise _Cancelled
            if "end" in step:
                return dict(step["end"])
            if "error" in step:
                return {"error": step["error"]}
            if "die" in step:
                # Without cleanup, as in a crash.
                os._exit(step["die"])
            for update in step.get("updates", ()):
                self._update(session_id, update)
                self._keep(session_id, update)
            if "run" in step:
                subprocess.Popen(step["run"], shell=True)
            if "wait" in step:
                turn.answers.get()
                raise _Cancelled
            if "form" in step:
                number = next(self._numbers)
                self._asked[number] = turn
                params = {"sessionId": session_id, **step["form"]}
                self._say({"id": number, "method": "elicitation/create", "params": params})
                turn.answers.get()
            if "ask" in step:
                end = self._play(session_id, self._ask(session_id, step, turn), turn)
                if end["stopReason"] != "end_turn":
                    return end
        return {"stopReason": "end_turn"}

    def _ask(self, session_id: str, step: _Json, turn: _Turn) -> list[_Json]:
        number = next(self._numbers)
        # Registered before the question is sent: the answer may come immediately.
        self._asked[number] = turn
        for asked in (step["ask"], *([step["again"]] if "again" in step else [])):
            params = {"sessionId": session_id, **asked}
            self._say({"id": number, "method": "session/request_permission", "params": params})
        for update in step["meanwhile"]:
            self._update(session_id, {"sessionUpdate": "tool_call_update", **update})
        answer = turn.answers.get()
        chosen = (answer or {}).get("outcome", {}).get("optionId")
        if answer is None or turn.cancelled:
            raise _Cancelled
        kinds = {option["optionId"]: option["kind"] for option in step["ask"]["options"]}
        is_allowed = str(kinds.get(chosen)).startswith("allow")
        status = {"status": "completed" if is_allowed else "failed"}
        call_id = step["ask"]["toolCall"]["toolCallId"]
        steps: list[_Json] = step["allowed"] if is_allowed else step["refused"]
        return [{"updates": [{"sessionUpdate": "tool_call_update", "toolCallId": call_id, **status}]}, *steps]

    def _update(self, session_id: str, update: _Json) -> None:
        self._say(_told(session_id, update))

    def _keep(self, session_id: str, update: _Json) -> None:
        with (self._sessions / session_id).open("a", encoding="utf-8") as file:
            file.write(json.dumps(update) + "\n")

    def _refuse(self, request_id: int, error: _Json) -> None:
        self._say({"id": request_id, "error": error})

    def _say(self, *messages: _Json) -> None:
        with self._writing:
            sys.stdout.write("".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages))
            sys.stdout.flush()


def _told(session_id: str, update: _Json) -> _Json:
    return {"method": "session/update", "params": {"sessionId": session_id, "update": update}}


if __name__ == "__main__":
    _Program(Path(sys.argv[1])).run()
