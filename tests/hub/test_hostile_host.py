"""Another machine that lies: what it says is shown, and chooses nothing that is done here."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import anyio
import pytest

from helmsman.hub.bridge import GREETING
from tests.hub.commands import SECONDS, done, on_terminal, thin, whole

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hub.conftest import Place

pytestmark = pytest.mark.anyio

_LIAR = """
import os
os.write(1, {greeting!r})
os.read(0, 65536)
os.write(1, {answer!r})
asked = os.read(0, 65536) if {listens!r} else b""
if asked:
    open({heard!r}, "wb").write(asked)
    os.write(1, b"x0\\n")
os.read(0, 1)
"""


class Liar:
    """A host `liar` whose hub answers every command with the same bytes."""

    def __init__(self, place: Place, directory: Path) -> None:
        self.programs = directory / "programs"
        self.programs.mkdir()
        self.heard = directory / "heard"
        self.ran = directory / "ran"
        config = directory / "config" / "helmsman"
        config.mkdir(parents=True)
        (config / "hosts").write_text("liar\tssh://liar\n")
        (config / "hosts").chmod(0o600)
        self.env = {
            "PATH": f"{self.programs}{os.pathsep}{place.env['PATH']}",
            "XDG_CONFIG_HOME": str(directory / "config"),
        }

    def answers(self, *frames: bytes, listens: bool = False) -> None:
        answer = b"w\t1.0\t1\t1\n" + b"".join(frames)
        script = _LIAR.format(
            greeting=f"{GREETING}\t1.0\n".encode(), answer=answer, listens=listens, heard=str(self.heard)
        )
        (self.programs / "ssh").write_text(f"#!{sys.executable} -IS\n{script}")
        (self.programs / "ssh").chmod(0o755)


def frame(kind: str, said: bytes) -> bytes:
    return f"{kind}{len(said)}\n".encode() + said + b"\n"


@pytest.fixture
def liar(bare_place: Place, tmp_path: Path) -> Liar:
    directory = tmp_path / "liar"
    directory.mkdir()
    return Liar(bare_place, directory)


@pytest.mark.parametrize("command", [("--host", "liar", "list"), ("config", "hosts", "check")])
async def test_no_program_that_another_machine_names_is_started(
    bare_place: Place, liar: Liar, command: tuple[str, ...]
) -> None:
    liar.answers(frame("g", f"touch {liar.ran}\ntext\n".encode()), b"x0\n")
    started = thin(*command) if command[0] == "--host" else whole(*command)
    async with on_terminal(started, bare_place, {**liar.env, "GIT_PAGER": "sed s/^/paged:/"}) as (terminal, process):
        with anyio.fail_after(SECONDS):
            await process.wait()
        if command[0] == "--host":
            await terminal.shows("paged:text")
    assert not liar.ran.exists()


@pytest.mark.parametrize("kind", ["o", "e", "p", "g"])
async def test_a_terminal_gets_text_and_colours_of_another_machine(bare_place: Place, liar: Liar, kind: str) -> None:
    said = b"\x1b[31mred\x1b[0m\x1b]52;c;aGk=\x07\x1b[2J fine\n"
    liar.answers(frame(kind, said[:12]), frame(kind, said[12:]), b"x0\n")
    paging = {**liar.env, "PAGER": "tee", "GIT_PAGER": "tee"}
    async with on_terminal(thin("--host", "liar", "list"), bare_place, paging) as (terminal, process):
        await terminal.shows("fine")
        with anyio.fail_after(SECONDS):
            assert await process.wait() == 0
    assert "\x1b[31mred" in terminal.raw
    assert "\x1b]" not in terminal.raw
    assert "\x1b[2J" not in terminal.raw


async def test_a_file_gets_the_exact_bytes_of_another_machine(bare_place: Place, liar: Liar) -> None:
    said = b"\x1b[31m-\r\n+\x07\n"
    liar.answers(frame("o", said), b"x3\n")
    result = await done(thin("--host", "liar", "diff", "01234567"), bare_place, liar.env)
    assert (result.code, result.stdout.encode()) == (3, said)


async def test_another_machine_gets_stdin_only_where_the_user_says_so(bare_place: Place, liar: Liar) -> None:
    liar.answers(b"i\n", listens=True)
    refused = await done(thin("--host", "liar", "list"), bare_place, liar.env, stdin=b"a secret")
    assert refused.code == 1
    assert "asks for input, which this command does not take" in refused.stderr
    assert not liar.heard.exists()
    liar.answers(b"i\n", listens=True)
    sent = await done(thin("--host", "liar", "say", "01234567", "-"), bare_place, liar.env, stdin=b"a message\n")
    assert sent.code == 0
    assert bytes.fromhex(liar.heard.read_text()) == b"a message\n"


@pytest.mark.parametrize("answer", [b"o99999999999\n", b"o-1\n", b"onone\n", b"x\n", b"y" * 200_000])
async def test_an_answer_that_makes_no_sense_is_an_error_of_one_line(
    bare_place: Place, liar: Liar, answer: bytes
) -> None:
    liar.answers(frame("o", b"begun\n"), answer)
    result = await done(thin("--host", "liar", "list"), bare_place, liar.env)
    assert result.code == 1
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("answer", [b"[]", b'{"agents": 7}', b'{"agents": [7, {"agent": []}]}', b"null"])
async def test_a_check_of_a_host_that_lies_is_an_answer_and_no_crash(
    bare_place: Place, liar: Liar, answer: bytes
) -> None:
    liar.answers(frame("o", answer), b"x0\n")
    result = await done(whole("config", "hosts", "check", "--json"), bare_place, liar.env)
    assert "Traceback" not in result.stderr
    assert result.stdout.startswith("{")
