"""Tests that the last output of a supervised Claude Code is read, even if its supervisor accepts no more input."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import anyio
import pytest

from helmsman.agents.claude.binary import CLAUDE, ClaudeBinary
from helmsman.agents.claude.dialect import ClaudeDialect
from helmsman.agents.claude.storage import ClaudeSessions
from helmsman.agents.process_engine import Supervision, open_process_engine
from helmsman.agents.supervisor.client import Owner
from helmsman.agents.supervisor.directory import (
    is_attached,
    make_directory,
    private_directory,
    socket_path,
    write_content,
)
from helmsman.agents.supervisor.records import ProcessRecord
from helmsman.agents.supervisor.relay import OutputLog
from helmsman.base.processes import Process
from helmsman.model.events import Event, TurnEnded

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name != "posix", reason="There are no supervisors here.")]

SECONDS = 30
SESSION = "0199a213-81c0-7800-8aa1-bbab2a035a53"
HELLO = {
    "epoch": 5,
    "inputs": 1,
    "answer": json.dumps({"response": {"subtype": "success", "response": {}}}),
    "from": 0,
    "size": 0,
    "open": [],
}
STARTED = {"type": "command_lifecycle", "state": "started", "command_uuid": "turn"}
TO_BE_REFUSED = {"type": "control_request", "request_id": "1", "request": {"subtype": "nobody_knows"}}
LONG = {"type": "nobody_knows", "text": "x" * 1_000_000}
"""Later output is read afterwards."""
RESULT = {"type": "result", "subtype": "success", "result": "all done", "is_error": False}


@contextmanager
def supervisor_that_hears_nothing(
    directory: Path, said: Sequence[dict[str, Any]], last_frame: bytes
) -> Iterator[ProcessRecord]:
    """Reports a running turn and then its last output; writers get an error."""
    make_directory(directory)
    output = OutputLog(directory / "output")
    output.append([json.dumps(line).encode() for line in said])
    output.close()
    hello = {**HELLO, "output": str(output.directory)}
    last = b"+%d\n%s\n" % (output.size, last_frame)
    address = socket_path(directory)
    private_directory(address.parent)
    write_content(directory, {})

    def serve(listener: socket.socket) -> None:
        for answer in (b'[["turn"], []]\n', json.dumps(hello).encode() + b"\n" + last):
            connected, _ = listener.accept()
            with connected, suppress(OSError):  # the rest is not needed
                connected.recv(100)
                connected.shutdown(socket.SHUT_RD)
                connected.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        listener.settimeout(SECONDS)
        serving = Thread(target=serve, args=(listener,), daemon=True)
        serving.start()
        yield ProcessRecord(
            directory=directory,
            socket=address,
            supervisor=Process(0, ""),
            child=Process(0, ""),
            agent=CLAUDE,
            engine_id="claude-1",
            place=str(directory),
            started_at=0,
            idle=900,
            about={"session_id": SESSION},
        )
        serving.join(SECONDS)


@pytest.mark.parametrize(
    ("said", "last", "outcomes"),
    [
        ((STARTED, TO_BE_REFUSED, LONG, RESULT), b'x0 {"stderr": ""}', ["completed"]),
        ((STARTED, TO_BE_REFUSED, LONG), b"r9", []),
    ],
    ids=["the turn has ended", "somebody else has it"],
)
async def test_output_after_an_unanswerable_question_is_read(
    tmp_path: Path, said: Sequence[dict[str, Any]], last: bytes, outcomes: list[str]
) -> None:
    told: list[Event] = []
    dialect = ClaudeDialect(ClaudeSessions(tmp_path), ClaudeBinary(path=tmp_path, version="2.0.0", home=tmp_path))
    with anyio.fail_after(SECONDS), supervisor_that_hears_nothing(tmp_path / "kept" / "k", said, last) as record:
        supervision = Supervision(engine_id=record.engine_id, owner=Owner(5), about={})
        opening = open_process_engine(
            dialect, None, state_dir=tmp_path, idle=900, supervision=supervision, left=[record]
        )
        async with opening as engine:
            engine.attach(SESSION, told.append)
            while is_attached(record.directory):
                await anyio.sleep(0.01)
    assert [event.outcome for event in told if isinstance(event, TurnEnded)] == outcomes
