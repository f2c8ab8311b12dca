"""A pipe tells a call that kills hubs from hubs that are killed by something else, with a hub made for the test."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from helmsman._version import __version__
from helmsman.hub.launch import GAVE_UP, SOCKET, TRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Meet = Callable[["Visit"], None]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="hubs listen on Unix sockets")
SECONDS = 60
MANY = 12


class Visit:
    """One life of the hub, from the hello of the pipe on. It ends when `Meet` returns."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number = number
        self._connection = connection
        self._lines = connection.makefile("rb")
        self._lines.readline()
        self.say(f"w\t1\t{__version__}\t{number}\t{os.getpid()}")

    def say(self, line: str) -> None:
        self._connection.sendall(line.encode() + b"\n")

    def call(self, *, within: float | None = SECONDS) -> tuple[int, dict[str, Any]] | None:
        """The next line of the client; None where none comes in time."""
        self._connection.settimeout(within)
        try:
            line = self._lines.readline()
        except TimeoutError:
            return None
        number, _, text = line.partition(b" ")
        return (int(number[1:]), json.loads(text)) if line else None


@contextmanager
def pipe_to(meet: Meet, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A pipe whose hub is `meet`, one life after the other."""
    state = folder / "state"
    state.mkdir(mode=0o700)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(state / SOCKET))
    listener.listen()

    def live() -> None:
        for number in range(1000):
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                meet(Visit(number, connection))

    threading.Thread(target=live, daemon=True).start()
    environment = {**os.environ, "HELMSMAN_STATE_DIR": str(state)}
    command = [sys.executable, "-m", "helmsman", "serve"]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, cwd=folder, text=True, **streams) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()
            listener.close()


def said(process: subprocess.Popen[str], *messages: dict[str, Any]) -> dict[str, Any]:
    """Send messages; the answer that comes first."""
    assert process.stdin is not None
    assert process.stdout is not None
    for message in messages:
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def read(request_id: Any = 1) -> dict[str, Any]:
    return {"id": request_id, "method": "tools/call", "params": {"name": "codex_list"}}


def test_a_call_is_tried_again_for_as_long_as_hubs_are_killed_by_something_else(tmp_path: Path) -> None:
    def meet(hub: Visit) -> None:
        held = hub.call(within=0.05)  # nothing comes while the call is held back: such a hub dies without it
        if held is None:
            return
        seq, call = held
        hub.say(f"t{seq} {json.dumps(call['id'])}")
        if hub.number >= MANY:
            hub.say(f"r{seq} " + json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": {}}))
            hub.call()

    with pipe_to(meet, tmp_path) as process:
        assert said(process, read()) == {"jsonrpc": "2.0", "id": 1, "result": {}}


def test_a_call_that_kills_every_hub_is_given_up_and_others_are_answered_meanwhile(tmp_path: Path) -> None:
    lives: list[int] = []

    def meet(hub: Visit) -> None:
        while (heard := hub.call()) is not None:
            seq, call = heard
            hub.say(f"t{seq} {json.dumps(call['id'])}")
            if call["id"] == "deadly":
                lives.append(hub.number)
                return
            hub.say(f"r{seq} " + json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": {}}))

    with pipe_to(meet, tmp_path) as process:
        answers = [said(process, read("deadly"), read("good")), said(process)]
    assert {answer["id"]: answer.get("error") for answer in answers} == {
        "good": None,
        "deadly": {"code": -32603, "message": GAVE_UP},
    }
    assert TRIES < len(lives) <= 2 * TRIES + 1


def test_a_cancel_finds_the_call_that_is_held_back(tmp_path: Path) -> None:
    heard: list[str] = []

    def meet(hub: Visit) -> None:
        while (line := hub.call()) is not None:
            seq, call = line
            if call["method"] == "notifications/cancelled":
                heard.append("cancel")
                hub.say(f"a{seq}")
                hub.say("n " + json.dumps({"jsonrpc": "2.0", "method": "done"}))
                continue
            heard.append("call")
            hub.say(f"t{seq} 1")
            if heard.count("call") == 3:
                hub.say("n " + json.dumps({"jsonrpc": "2.0", "method": "third"}))
            if heard.count("call") <= 3:
                return

    with pipe_to(meet, tmp_path) as process:
        assert said(process, read())["method"] == "third"
        assert said(process, {"method": "notifications/cancelled", "params": {"requestId": 1}})["method"] == "done"
    assert heard == ["call", "call", "call", "call", "cancel"]
