"""Program that speaks the app-server protocol and misbehaves as told, for what a real Codex cannot be made to do.

    server = FakeAppServer(tmp_path, on={"turn/start": [answer(), notify("turn/started", TURN), exit_now(3)]})
    ...  # start server.path as one starts codex: `<path> app-server`

It is an executable file, started and owned like a real Codex. A list of actions says how it handles each method;
for methods not named it answers as a Codex would, and a turn says "Hello". In params the texts `$thread`, `$turn` and
`$cwd` represent the ids and the directory of the newest thread and turn.

Faults are made of actions: never answering is an empty list, answering twice is `[answer(), answer()]`, a notification
before its response is `[notify(…), answer()]`, half a line is `[raw('{"id":'), exit_now()]`.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.testing import fake_app_server_program as program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_Action = dict[str, Any]
_Json = dict[str, Any]

TURN: Final[_Json] = {
    "threadId": "$thread",
    "turn": {"id": "$turn", "items": [], "status": "inProgress", "error": None},
}
"""Params of `turn/started`."""

_POLL_SECONDS = 0.01


class FakeAppServer:
    """Executable in `folder` that takes the place of the Codex binary."""

    def __init__(
        self,
        folder: Path,
        *,
        on: Mapping[str, Sequence[_Action]] | None = None,
        at_start: Sequence[_Action] = (),
        launches: int | None = None,
        version: str = "0.162.0",
    ) -> None:
        """Write the executable.

        Args:
            folder: Directory for the executable, its scenario and its records.
            on: Actions for a called method, instead of Codex's behaviour.
            at_start: Actions before it reads any input.
            launches: Number of processes that follow the scenario; later ones behave normally. None: all.
            version: The version it reports. A Codex of 0.163.0 or newer would have to listen on a socket in the hub.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "codex"
        self._received = folder / "received.jsonl"
        self._folder = folder
        scenario = {
            "on": {method: list(actions) for method, actions in (on or {}).items()},
            "at_start": list(at_start),
            "launches": launches,
            "version": version,
        }
        (folder / "scenario.json").write_text(json.dumps(scenario), encoding="utf-8")
        # Load it by path instead of importing it, so that it starts without the library.
        launcher = (
            f"#!{sys.executable}\nimport runpy\n"
            f"runpy.run_path({program.__file__!r}, run_name={program.__name__!r})['main']({str(folder)!r})\n"
        )
        self.path.write_text(launcher, encoding="utf-8")
        self.path.chmod(0o755)

    def received(self, method: str | None = None) -> list[_Json]:
        """Return the messages received so far, or only the calls of one method."""
        lines = self._received.read_text(encoding="utf-8").splitlines() if self._received.exists() else []
        messages: list[_Json] = [json.loads(line) for line in lines]
        return [message for message in messages if method is None or message.get("method") == method]

    async def wait_for(self, wanted: Callable[[_Json], bool]) -> _Json:
        """Wait for a matching message from a client. The caller bounds the wait."""
        while True:
            # Polled: the messages are written by another process.
            for message in self.received():
                if wanted(message):
                    return message
            await anyio.sleep(_POLL_SECONDS)

    def go_on(self, name: str) -> None:
        """Release everything that waits at `wait_here(name)`."""
        (self._folder / f"{name}.go").touch()


# --- actions ---------------------------------------------------------------------------------------------------------


def answer(result: Any = None) -> _Action:
    """Answer the request with this result, or with Codex's default."""
    return {"do": "answer", "result": result}


def refuse(message: str, *, code: int = -32600) -> _Action:
    """Answer the request with an error."""
    return {"do": "refuse", "error": {"code": code, "message": message}}


def notify(method: str, params: Any = None) -> _Action:
    """Send a notification, known or unknown."""
    return {"do": "send", "message": {"method": method, "params": params}}


def ask(method: str, params: Any = None, *, id: int | str = 0) -> _Action:  # noqa: A002
    """Send a request to the client. Its answer is among the received messages."""
    return {"do": "send", "message": {"method": method, "id": id, "params": params}}


def batch(*actions: _Action) -> _Action:
    """Send what several `notify` and `ask` would send as one JSON array."""
    return {"do": "send", "message": [action["message"] for action in actions]}


def raw(text: str) -> _Action:
    """Write exactly this: garbage, a blank line, half a line."""
    return {"do": "raw", "text": text}


def long_line(size: int, *, method: str = "fake/long") -> _Action:
    """Send a notification of this many bytes on one line."""
    return {"do": "long_line", "size": size, "method": method}


def stderr(text: str, *, times: int = 1) -> _Action:
    """Write to standard error, optionally many times."""
    return {"do": "stderr", "text": text, "times": times}


def exit_now(code: int = 1) -> _Action:
    """End the process."""
    return {"do": "exit", "code": code}


def stop_reading() -> _Action:
    """Stop reading standard input, but keep running, even after it is closed."""
    return {"do": "stop_reading"}


def ignore_sigterm() -> _Action:
    """Ignore SIGTERM from now on. Only SIGKILL ends the process."""
    return {"do": "ignore_sigterm"}


def wait_here(name: str) -> _Action:
    """Wait until the test calls `go_on(name)`."""
    return {"do": "wait", "name": name}


def end_turn(status: str = "completed", *, error: _Json | None = None) -> _Action:
    """Send the notification that ends a turn."""
    turn: _Json = {"id": "$turn", "items": [], "status": status, "error": error}
    return notify("turn/completed", {"threadId": "$thread", "turn": turn})
