"""Calls that kill hubs, and hubs that are killed by something else, with a hub made for the test."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from helmsman._version import __version__
from helmsman.base.structs import replace
from helmsman.errors import OutcomeUnknown
from helmsman.hub.client import HubClient
from helmsman.hub.launch import SOCKET
from helmsman.hub.suspects import ACCUSATIONS, GAVE_UP
from helmsman.sessions.session import Verbs
from helmsman.settings import load_settings

Meet = Callable[["Visit"], None]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="hubs listen on Unix sockets")
SECONDS = 60
MANY = 12


class Visit:
    """One life of the hub. It ends when `Meet` returns."""

    def __init__(self, number: int, connection: socket.socket, listener: socket.socket) -> None:
        self.number = number
        self.listener = listener
        self._connection = connection
        self._lines = connection.makefile("rb")

    def say(self, line: str) -> None:
        self._connection.sendall(line.encode() + b"\n")

    def read(self, count: int) -> bytes:
        return self._lines.read(count)

    def line(self, *, within: float | None = SECONDS) -> bytes | None:
        """The next line of the client; None where none comes in time."""
        self._connection.settimeout(within)
        try:
            return self._lines.readline() or None
        except TimeoutError:
            return None

    def welcome(self) -> None:
        """Let a pipe in."""
        self.line()
        self.say(f"w\t1\t{__version__}\t{self.number}\t{os.getpid()}")

    def call(self, *, within: float | None = SECONDS) -> tuple[int, dict[str, Any]] | None:
        """The next message that a pipe passes on."""
        line = self.line(within=within)
        number, _, text = (line or b"").partition(b" ")
        return (int(number[1:]), json.loads(text)) if line else None


@contextmanager
def hubs(meet: Meet, folder: Path) -> Iterator[Path]:
    """A state directory whose hub is `meet`, one life after the other."""
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
            with connection, suppress(OSError):  # the test has ended, and closed its sockets
                meet(Visit(number, connection, listener))

    threading.Thread(target=live, daemon=True).start()
    try:
        yield state
    finally:
        listener.close()


@contextmanager
def helmsman(meet: Meet, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of ours whose hub is `meet`."""
    with hubs(meet, folder) as state:
        environment = {**os.environ, "HELMSMAN_STATE_DIR": str(state)}
        command = [sys.executable, "-m", "helmsman", *arguments]
        with subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                yield process
            finally:
                process.kill()


def pipe_to(meet: Meet, folder: Path) -> Any:
    """A pipe whose hub is `meet`."""

    def welcome_and_meet(hub: Visit) -> None:
        hub.welcome()
        meet(hub)

    return helmsman(welcome_and_meet, folder, "serve")


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
    assert ACCUSATIONS < len(lives) <= 2 * ACCUSATIONS + 1


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


# --- programs ---------------------------------------------------------------------------------------------------------


class Program:
    """Program that has registered with a hub of the test."""

    def __init__(self, hub: Visit) -> None:
        self._hub = hub
        self._listener = hub.listener
        self._request(hub)
        hub.say("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r")
        self.say("welcome", {"epoch": hub.number, "version": __version__, "pid": os.getpid()})

    def say(self, event: str, content: object) -> None:
        self._hub.say(f"event: {event}\ndata: {json.dumps(content)}\n")

    def call(self, *, first: float | None = SECONDS) -> int | None:
        """Accept its call, and return the number of it."""
        self._listener.settimeout(first)
        try:
            connection, _ = self._listener.accept()
        except TimeoutError:
            return None
        finally:
            self._listener.settimeout(None)
        with connection:
            calling = Visit(self._hub.number, connection, self._listener)
            target = self._request(calling)
            calling.say("HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r")
        return int(target.rpartition("/")[2])

    def _request(self, visit: Visit) -> str:
        """Read a request, and return what it is for."""
        first, *head = [line.decode().strip() for line in iter(visit.line, b"\r\n") if line is not None]
        visit.read(next(int(line.partition(":")[2]) for line in head if line.lower().startswith("content-length:")))
        return first.split()[1]


async def asked(meet: Callable[[Visit, Program], None], folder: Path) -> Any:
    """What a program is answered that asks for `list`."""

    def register_and_meet(hub: Visit) -> None:
        meet(hub, Program(hub))

    with hubs(register_and_meet, folder) as state:
        settings = replace(load_settings(env={}, cwd=folder), state_dir=state)
        client = HubClient(cast("Verbs", None), settings, {}, None)
        with anyio.fail_after(SECONDS):
            assert await client.connect()
            async with client:
                return await client.call("list", (), {})


@pytest.mark.anyio
async def test_a_program_is_answered_however_many_hubs_are_killed_by_something_else(tmp_path: Path) -> None:
    def meet(hub: Visit, program: Program) -> None:
        number = program.call(first=0.05 if hub.number else SECONDS)
        if number is not None and hub.number >= MANY:
            program.say("result", {"number": number, "value": [[], "yes"]})
            hub.line()

    assert await asked(meet, tmp_path) == ([], "yes")


@pytest.mark.anyio
async def test_a_programs_call_that_kills_every_hub_is_given_up(tmp_path: Path) -> None:
    lives: list[int] = []

    def meet(hub: Visit, program: Program) -> None:
        if program.call() is not None:
            lives.append(hub.number)

    with pytest.raises(OutcomeUnknown, match="may have been done"):
        await asked(meet, tmp_path)
    assert ACCUSATIONS < len(lives) <= 2 * ACCUSATIONS + 1
