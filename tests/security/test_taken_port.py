"""Somebody else has taken the port, or passes everything on to the real server: he gets nothing that is of any use."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from anyio.abc import SocketStream

from helmsman.base.concurrency import background_tasks
from helmsman.httpd.listening import http_token
from helmsman.testing import CodexHome
from helmsman.web.proof import Challenges, client_proof, place, server_proof
from tests import warm
from tests.clients.server_process import SECONDS, Serving

TOKEN = "the-token-of-this-installation-0123456789"
HERE, THERE = place("127.0.0.1", 8645), place("127.0.0.1", 8646)
needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to end a server by")


class Thief:
    """Whoever listens on a port, with all that he was told there."""

    def __init__(self) -> None:
        self.heard = b""
        self.port = 0

    async def answer(self, client: SocketStream) -> None:
        """As the real server does, so that its clients go on."""
        while not self.heard.endswith(b"}"):
            self.heard += await client.receive()
        content = json.dumps({"challenge": "x", "proof": "0" * 64, "code": "x", "path": "/#login=x"})
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        await client.send((head + content).encode())


class Relay(Thief):
    """Passes everything on to the real server, and back."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._real = port
        self.answers = b""

    async def answer(self, client: SocketStream) -> None:
        async with await anyio.connect_tcp("127.0.0.1", self._real) as server, background_tasks() as tasks:

            async def back() -> None:
                async for chunk in server:
                    self.answers += chunk
                    await client.send(chunk)
                tasks.cancel_scope.cancel()

            tasks.start_soon(back)
            async for chunk in client:
                self.heard += chunk
                await server.send(chunk.replace(f":{self.port}".encode(), f":{self._real}".encode()))


@asynccontextmanager
async def listening(thief: Thief) -> AsyncIterator[str]:
    async def serve(client: SocketStream) -> None:
        async with client:
            try:
                await thief.answer(client)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    thief.port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, background_tasks() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield f"http://127.0.0.1:{thief.port}"


class AskingForCode(Serving):
    def command(self, *arguments: str) -> list[str]:
        return warm.command("dashboard", "--no-open", *arguments)


@pytest.fixture
def asking(codex_home: CodexHome, codex_binary: Path, git_repo: Path) -> AskingForCode:
    return AskingForCode.on(codex_home, codex_binary, git_repo)


async def refusal(asking: AskingForCode, address: str) -> str:
    async with asking.started("--server", address) as command:
        assert await command.ended() == 2
    (error,) = command.errors
    return error


@pytest.mark.anyio
@needs_signals
async def test_the_token_is_not_sent_to_a_program_that_took_the_port(asking: AskingForCode) -> None:
    token = http_token(asking.state_dir)
    async with listening(thief := Thief()) as address:
        assert "Nothing secret was sent" in await refusal(asking, address)
    assert thief.heard.count(b"POST ") == 1
    (sent,) = [json.loads(thief.heard.partition(b"\r\n\r\n")[2])]
    assert list(sent) == ["nonce"]
    assert token.encode() not in thief.heard
    assert b"authorization" not in thief.heard.lower()


@pytest.mark.anyio
@needs_signals
async def test_a_relay_to_the_real_server_gains_nothing(
    asking: AskingForCode, codex_home: CodexHome, codex_binary: Path, git_repo: Path
) -> None:
    async with Serving.on(codex_home, codex_binary, git_repo).over_http() as real:
        port = httpx2.URL(real.url).port
        assert port is not None
        async with listening(thief := Relay(port)) as address:
            assert "Nothing secret was sent" in await refusal(asking, address)
        assert b" 200 " in thief.answers, "the real server has given its proof, for its own port"
        assert thief.heard.count(b"POST ") == 1
        assert real.token.encode() not in thief.heard
        # What he has is no way in: neither the proof of the server nor what the client sent.
        challenge = json.loads(thief.answers.partition(b"\r\n\r\n")[2])
        nonce = json.loads(thief.heard.partition(b"\r\n\r\n")[2])["nonce"]
        async with httpx2.AsyncClient(timeout=SECONDS, headers={"X-Helmsman": "1"}) as http:
            tried = await http.post(real.url.replace("/mcp", "/api/proof/code"), json={"nonce": nonce, **challenge})
        assert (tried.status_code, tried.json()["code"]) == (401, "wrong_proof")


# --- the proof by itself ---------------------------------------------------------------------------------------------


def test_a_proof_is_good_once_for_its_own_place_and_challenge() -> None:
    ours, other = Challenges(TOKEN), Challenges(TOKEN)
    challenge, proof = ours.answer("nonce", HERE)
    assert proof == server_proof(TOKEN, "nonce", challenge, HERE)
    right = client_proof(TOKEN, "nonce", challenge, HERE)
    assert not other.accept("nonce", challenge, right, HERE), "another server did not give this challenge"
    assert not ours.accept("other", challenge, client_proof(TOKEN, "other", challenge, HERE), HERE)
    assert not ours.accept("nonce", challenge, client_proof(TOKEN, "nonce", challenge, THERE), HERE), (
        "made for a thief's port"
    )
    assert not ours.accept("nonce", challenge, proof, HERE), "the server's own proof, sent back"
    assert not ours.accept("nonce", challenge, client_proof("another token", "nonce", challenge, HERE), HERE)
    for nonsense in ("", "~", "1~2", "x~y~z", "\ud800"):
        assert not ours.accept("nonce", nonsense, right, HERE)
    assert ours.accept("nonce", challenge, right, HERE)
    assert not ours.accept("nonce", challenge, right, HERE), "once"


def test_a_challenge_ends_and_many_cost_nothing() -> None:
    now = 1_800_000_000.0
    challenges = Challenges(TOKEN, clock=lambda: now)
    first, _ = challenges.answer("nonce", HERE)
    for _ in range(10_000):
        challenges.answer("nonce", HERE)
    assert challenges.accept("nonce", first, client_proof(TOKEN, "nonce", first, HERE), HERE)
    late, _ = challenges.answer("nonce", HERE)
    now += 31
    assert not challenges.accept("nonce", late, client_proof(TOKEN, "nonce", late, HERE), HERE)
    assert challenges._used == {}


def test_a_place_is_the_same_from_both_ends_and_another_on_every_port_and_address() -> None:
    assert place("::ffff:127.0.0.1", 1) == place("127.0.0.1", 1)
    assert place("fe80::1%eth0", 1) == place("fe80::1", 1)
    assert len({place("127.0.0.1", 1), place("127.0.0.1", 2), place("127.0.0.2", 1), place("::1", 1)}) == 4
