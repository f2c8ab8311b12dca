"""Another machine that lies: what it says is shown, and chooses nothing that is done here."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import pytest
from starlette.applications import Starlette

from helmsman import load_settings
from helmsman.errors import HostUnreachable
from helmsman.hub.bridge import FRAME, GREETING
from helmsman.hub.client import HubClient
from helmsman.hub.hosts import OtherHost
from helmsman.service import HelmsmanService
from helmsman.web.api import api_routes
from helmsman.web.hosts import HostRoutes
from helmsman.web.live import Live
from helmsman.web.login import Logins
from helmsman.web.proof import Challenges
from tests.hub.commands import SECONDS, done, on_terminal, whole
from tests.hub.conftest import Place

pytestmark = pytest.mark.anyio

_LIAR = """
import os
os.write(1, {greeting!r})
for answer in {answers!r}:
    os.read(0, 65536)
    os.write(1, answer)
os.read(0, 1)
"""


def frame(data: bytes, channel: int = 1) -> bytes:
    return FRAME.pack(channel, len(data)) + data


def refusal(body: bytes) -> bytes:
    return frame(b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def stream(*events: bytes, channel: int = 1) -> bytes:
    """A stream of events that goes on."""
    sent = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
    return frame(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + sent, channel)


WELCOME = b'event: welcome\ndata: {"version": "1.0", "pid": 1, "epoch": 1, "clock": 1.0}\n\n'


class Liar:
    """A host `liar` whose hub answers the requests of every program with the same bytes."""

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

    def answers(self, *answers: bytes) -> None:
        script = _LIAR.format(greeting=f"{GREETING}\t1.0\n".encode(), answers=answers)
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
        refusal(b'{"stateDirectory": "/another"}'),
        refusal(b'{"stateDirectory": "\\ud800"}'),
        stream(b"event: welcome\ndata: []\n\n"),
        stream(b'event: welcome\ndata: {"epoch": 1e999}\n\n'),
        stream(WELCOME, b"event: event\ndata: nonsense\n\n"),
        stream(WELCOME, b'event: copy\ndata: {"session": 7}\n\n', b"event: result\ndata: {}\n\n"),
        stream(WELCOME, b'event: result\ndata: {"number": "x"}\n\n', b"event: event\ndata: nonsense\n\n"),
        stream(WELCOME) + b"this is no frame",
    ],
    ids=range(12),
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


@pytest.fixture
def near_liar(bare_place: Place, liar: Liar, monkeypatch: pytest.MonkeyPatch) -> Liar:
    """The liar is known to this process."""
    for name, value in {**bare_place.env, **liar.env, "HELMSMAN_DETACH": "0"}.items():
        monkeypatch.setenv(name, value)
    return liar


async def test_changes_that_make_no_sense_end_nothing_but_their_stream(near_liar: Liar) -> None:
    deep = b"event: changes\ndata: " + b"[" * 50_000 + b"\n\n"
    near_liar.answers(stream(WELCOME), stream(deep, channel=2))
    with anyio.fail_after(SECONDS):
        async with HelmsmanService() as helm:
            live = Live(helm)
            routes = HostRoutes(helm, live)
            async with aclosing(live._messages(None)) as messages:
                async for _ in messages:
                    if "invalid answer" in str(routes._states()):
                        break


@asynccontextmanager
async def page_on(liar: Liar, status: bytes, body: bytes) -> AsyncIterator[httpx2.AsyncClient]:
    """A page of a dashboard whose first request for the liar gets this answer."""
    answer = b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
    liar.answers(stream(WELCOME), frame(answer, channel=2))
    with anyio.fail_after(SECONDS):
        async with HelmsmanService() as helm:
            app = Starlette(routes=api_routes(helm, Logins(secure=False), Challenges("")))
            transport = httpx2.ASGITransport(app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as page:
                yield page


async def test_a_page_that_shows_questions_of_another_machine_is_answered_whatever_that_says(near_liar: Liar) -> None:
    async with page_on(near_liar, b"200 OK", b'{"questions": 5}') as page:
        answer = await page.post("/api/shown", json={"page": "one", "sessions": ["liar:1"]})
    assert (answer.status_code, answer.json()) == (200, {"questions": []})


@pytest.mark.parametrize(
    ("status", "body"), [(b"401 Unauthorized", b"{}"), (b"200 OK", b'{"code": "wrong_token"}')], ids=["status", "code"]
)
async def test_another_machine_cannot_log_a_page_out(near_liar: Liar, status: bytes, body: bytes) -> None:
    async with page_on(near_liar, status, body) as page:
        answer = await page.get("/api/questions?host=liar")
    assert (answer.status_code, answer.json()["code"]) == (502, "host_unreachable")


class _Answering:
    """Conversation in which the other machine gives the same answer to every call."""

    closed = None

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    async def call(self, number: int, request: object, seconds: float) -> dict[str, Any]:
        return self._answer


@pytest.mark.parametrize("sessions", [7, ["unknown"], [{}]])
async def test_sessions_that_make_no_sense_are_an_invalid_answer(sessions: object, near_liar: Liar) -> None:
    client = HubClient(cast("Any", None), load_settings(), os.environ, None, OtherHost("liar", "ssh://liar"))
    peer = cast("Any", _Answering({"value": "t_1", "sessions": sessions}))
    with pytest.raises(HostUnreachable, match="invalid answer"):
        await client._ask(peer, 1, "tasks.local.run", ("work",), {})
