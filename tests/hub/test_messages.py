"""Lines that are no messages, and ids that are used twice: every line gets the answer that JSON-RPC asks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.mcp.messages import NoMessage, parse_message
from helmsman.testing import ScriptedModel, say
from tests.hub.conftest import Place
from tests.hub.test_survival import Raw

SECONDS = 60


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b"{", -32700, None),
        (b"\xff", -32700, None),
        (b"[" * 100_000, -32700, None),
        (b"5", -32600, None),
        (b"[]", -32600, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600, None),
        (b'{"id":5,"method":"ping"}', -32600, 5),
        (b'{"jsonrpc":"1.0","id":"five","method":"ping"}', -32600, "five"),
        (b'{"jsonrpc":"2.0","id":5,"method":"ping","params":[1]}', -32600, 5),
        (b'{"jsonrpc":"2.0","id":5,"method":7}', -32600, 5),
        (b'{"jsonrpc":"2.0","id":5}', -32600, None),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600, None),
    ],
)
def test_a_line_that_is_no_message_is_answered_with_its_error(line: bytes, code: int, request_id: object) -> None:
    with pytest.raises(NoMessage) as wrong:
        parse_message(line)
    assert wrong.value.answer is not None
    assert (wrong.value.answer.error.code, wrong.value.answer.id) == (code, request_id)


@pytest.mark.parametrize("line", [b"", b"  \r", b'{"jsonrpc":"2.0","id":5,"result":7}', b'{"id":5,"error":{}}'])
def test_blank_lines_and_malformed_answers_get_no_error(line: bytes) -> None:
    with pytest.raises(NoMessage) as wrong:
        parse_message(line)
    assert wrong.value.answer is None


@pytest.mark.skipif(sys.platform == "win32", reason="the SDK reads the lines there")
@pytest.mark.parametrize("hub", [True, False])
def test_a_server_answers_every_line_and_continues(tmp_path: Path, *, hub: bool) -> None:
    environment = {**os.environ, "HELMSMAN_STATE_DIR": str(tmp_path), "HELMSMAN_DETACH": "1" if hub else "0"}
    lines = (b"{", b"", b"[]", b'{"jsonrpc":"2.0","id":7,"method":7}', b'{"jsonrpc":"2.0","id":8,"method":"ping"}')
    try:
        served = subprocess.run(
            [sys.executable, "-m", "helmsman", "serve"],
            input=b"".join(line + b"\n" for line in lines),
            capture_output=True,
            env=environment,
            cwd=tmp_path,
            timeout=SECONDS,
            check=False,
        )
    finally:
        subprocess.run(
            [sys.executable, "-m", "helmsman", "hub", "stop"], env=environment, capture_output=True, check=False
        )
    said: list[dict[str, Any]] = [json.loads(line) for line in served.stdout.splitlines()]
    codes = [(answer["id"], answer["error"]["code"]) for answer in said if answer["id"] != 8]
    assert codes == [(None, -32700), (None, -32600), (7, -32600)]
    assert 8 in [answer["id"] for answer in said]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no hubs")
@pytest.mark.anyio
async def test_a_second_request_with_the_id_of_an_open_one_is_refused_and_the_first_answered(
    place: Place, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("slow", say(gate, "done at last"))
    async with place.started() as server:
        client = Raw(server)
        await client.initialize()
        start = {"name": "codex_start", "arguments": {"prompt": "slow", "workingDirectory": str(folder)}}
        await client.send(id=2, method="tools/call", params=start)
        session = (await client.answer(2))["result"]["structuredContent"]["sessionId"]
        wait = {"name": "codex_wait", "arguments": {"sessionId": session}}
        await client.send(id=3, method="tools/call", params=wait)
        await client.send(id=3, method="ping")
        assert (await client.answer(3))["error"]["code"] == -32600
        client.heard.clear()
        await place.kill_hub()
        gate.release()
        assert (await client.answer(3))["result"]["structuredContent"]["result"] == "done at last"
        await client.send(id=3, method="ping")  # the id is free again
        await client.until(lambda message: message.get("id") == 3 and message.get("result") == {})


@pytest.mark.skipif(sys.platform == "win32", reason="there are no hubs")
@pytest.mark.anyio
async def test_after_a_hub_was_killed_an_id_that_is_used_again_gets_its_own_answer(place: Place) -> None:
    """The next hub hears `initialize` again, whose answer the client knows; the id may belong to another request now."""
    async with place.started() as server:
        client = Raw(server)
        await client.initialize()
        for _ in range(3):
            await place.kill_hub()
            client.heard.clear()
            await client.send(id=1, method="ping")
            assert (await client.answer(1))["result"] == {}
        with anyio.move_on_after(0.2):
            await client.until(lambda message: "capabilities" in message.get("result", {}))
            pytest.fail("the client was told the answer to `initialize` again")
