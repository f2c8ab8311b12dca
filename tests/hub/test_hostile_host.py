"""Another machine that lies: what it says is shown, and chooses nothing that is done here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import pytest

from helmsman.hub.bridge import FRAME, GREETING
from tests.hub.commands import SECONDS, done, on_terminal, whole
from tests.hub.conftest import Place

pytestmark = pytest.mark.anyio

_LIAR = """
import os
os.write(1, {greeting!r})
os.read(0, 65536)
os.write(1, {answer!r})
os.read(0, 1)
"""


def frame(data: bytes) -> bytes:
    """What comes on the first channel."""
    return FRAME.pack(1, len(data)) + data


def refusal(body: bytes) -> bytes:
    return frame(b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def stream(*events: bytes) -> bytes:
    """A stream of events that goes on."""
    sent = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
    return frame(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + sent)


WELCOME = b'event: welcome\ndata: {"version": "1.0", "pid": 1, "epoch": 1, "clock": 1.0}\n\n'


class Liar:
    """A host `liar` whose hub answers every program with the same bytes."""

    def __init__(self, place: Place, directory: Path) -> None:
        self.programs = directory / "programs"
        self.programs.mkdir()
        config = directory / "config" / "helmsman"
        config.mkdir(parents=True)
        (config / "hosts").write_text("liar\tssh://liar\n")
        (config / "hosts").chmod(0o600)
        self.env = {
            "PATH": f"{self.programs}{os.pathsep}{place.env['PATH']}",
            "XDG_CONFIG_HOME": str(directory / "config"),
        }

    def answers(self, answer: bytes) -> None:
        script = _LIAR.format(greeting=f"{GREETING}\t1.0\n".encode(), answer=answer)
        (self.programs / "ssh").write_text(f"#!{sys.executable} -IS\n{script}")
        (self.programs / "ssh").chmod(0o755)


@pytest.fixture
def liar(bare_place: Place, tmp_path: Path) -> Liar:
    directory = tmp_path / "liar"
    directory.mkdir()
    return Liar(bare_place, directory)


async def test_a_terminal_gets_no_control_characters_of_another_machine(bare_place: Place, liar: Liar) -> None:
    liar.answers(refusal(b'{"detail": "\\u001b]52;c;aGk=\\u0007\\u001b[2J fine"}'))
    async with on_terminal(whole("--host", "liar", "list"), bare_place, liar.env) as (terminal, process):
        await terminal.shows("fine")
        with anyio.fail_after(SECONDS):
            assert await process.wait() != 0
    assert "\x1b]" not in terminal.raw
    assert "\x1b[2J" not in terminal.raw


@pytest.mark.parametrize(
    "answer",
    [
        b"this is no frame",
        frame(b"this is not HTTP\r\n\r\n"),
        refusal(b"[]"),
        refusal(b'{"stateDirectory": 7}'),
        stream(b"event: welcome\ndata: []\n\n"),
        stream(b'event: welcome\ndata: {"epoch": 1e999}\n\n'),
        stream(WELCOME, b"event: event\ndata: nonsense\n\n"),
        stream(WELCOME, b'event: copy\ndata: {"session": 7}\n\n', b"event: result\ndata: {}\n\n"),
    ],
    ids=range(8),
)
async def test_an_answer_that_makes_no_sense_is_an_error_of_one_line(
    bare_place: Place, liar: Liar, answer: bytes
) -> None:
    liar.answers(answer)
    result = await done(whole("--host", "liar", "list"), bare_place, liar.env)
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    checked = await done(whole("config", "hosts", "check", "--json"), bare_place, liar.env)
    assert "Traceback" not in checked.stderr
    assert '"ok":false' in checked.stdout.replace(" ", "")
