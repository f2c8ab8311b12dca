"""The hub's HTTP API on its Unix socket, as curl and other programs use it."""

from __future__ import annotations

import json
import shutil
import socket
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from helmsman.hub.control import HUB_PATH, RESTART_PATH, request
from helmsman.hub.launch import SOCKET
from tests.hub.test_start import ping

if TYPE_CHECKING:
    from tests.hub.conftest import Place

pytestmark = pytest.mark.anyio

SECONDS = 30


@pytest.mark.skipif(shutil.which("curl") is None, reason="There is no curl.")
async def test_curl_shows_the_hub(bare_place: Place) -> None:
    async with bare_place.started() as server:
        await ping(server)
        address = ["--unix-socket", str(bare_place.state_dir / SOCKET), f"http://hub{HUB_PATH}"]
        done = await anyio.run_process(["curl", "--silent", "--fail", "--max-time", str(SECONDS), *address])
        assert json.loads(done.stdout)["pid"] == bare_place.hub


async def test_an_error_is_a_problem_with_a_code_and_the_next_step(bare_place: Place) -> None:
    async with bare_place.started() as server:
        await ping(server)
        answer = request(str(bare_place.state_dir), "GET", "/v1/nothing")
        assert answer is not None
        assert (answer.status, answer.content["code"]) == (404, "not_found")
        assert HUB_PATH in answer.content["detail"]
        too_large = request(str(bare_place.state_dir), "POST", RESTART_PATH, "x" * 100_000)
        assert too_large is not None
        assert (too_large.status, too_large.content["code"]) == (413, "too_large")


async def test_a_hub_stays_for_a_client_that_is_not_newer(bare_place: Place) -> None:
    async with bare_place.started() as server:
        await ping(server)
        hub = bare_place.hub
        answer = request(str(bare_place.state_dir), "POST", RESTART_PATH, {"version": "0.0.1"})
        assert answer is not None
        assert (answer.status, answer.content["code"]) == (409, "not_newer")
        assert bare_place.hub == hub


async def test_a_request_that_comes_letter_by_letter_is_answered(bare_place: Place) -> None:
    async with bare_place.started() as server:
        await ping(server)

        def spell() -> bytes:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(SECONDS)
                connection.connect(str(bare_place.state_dir / SOCKET))
                for letter in f"GET {HUB_PATH} HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n\r\n":
                    connection.sendall(letter.encode())
                return connection.recv(100)

        assert (await anyio.to_thread.run_sync(spell)).startswith(b"HTTP/1.1 200")
