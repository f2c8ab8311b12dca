from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

from helmsman.agents.codex.binary import find_codex
from helmsman.agents.codex.features import Feature
from helmsman.testing import FakeAppServer
from helmsman.testing.fake_app_server import (
    TURN,
    answer,
    ask,
    batch,
    end_turn,
    exit_now,
    ignore_sigterm,
    long_line,
    notify,
    raw,
    refuse,
    stderr,
    stop_reading,
    wait_here,
)

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def started(fake: FakeAppServer) -> AsyncIterator[Process]:
    with anyio.fail_after(20):
        async with await anyio.open_process([fake.path, "app-server"]) as process:
            try:
                yield process
                assert process.stdin is not None
                await process.stdin.aclose()
                await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()


async def send(process: Process, *messages: object) -> None:
    assert process.stdin is not None
    for message in messages:
        await process.stdin.send(json.dumps(message).encode() + b"\n")


async def lines(process: Process, count: int) -> list[str]:
    """The next lines of its output, without their ends."""
    assert process.stdout is not None
    text = b""
    while text.count(b"\n") < count:
        text += await process.stdout.receive()
    return text.decode().split("\n")[:count]


async def rest(process: Process) -> str:
    """All its output until it closes, and waits for its end."""
    assert process.stdout is not None
    text = b"".join([chunk async for chunk in process.stdout])
    await process.wait()
    return text.decode()


def request(method: str, id: int = 1, **params: object) -> dict[str, object]:  # noqa: A002
    return {"id": id, "method": method, "params": params}


async def test_helmsman_takes_it_for_a_codex(tmp_path: Path) -> None:
    fake = FakeAppServer(tmp_path, version="0.123.4")

    found = await find_codex(explicit=fake.path)

    assert (str(found.version), found.can(Feature.APP_SERVER), found.can(Feature.GUARDED_SOCKET)) == (
        "0.123.4",
        True,
        False,
    )


async def test_without_a_scenario_it_behaves_like_a_codex(tmp_path: Path) -> None:
    fake = FakeAppServer(tmp_path)

    async with started(fake) as process:
        await send(process, request("initialize"))
        assert "/0.162.0 (" in json.loads((await lines(process, 1))[0])["result"]["userAgent"]
        await send(process, request("thread/start", 2, cwd="/src", sandbox="workspace-write", approvalPolicy="never"))
        opened = json.loads((await lines(process, 1))[0])["result"]
        assert (opened["cwd"], opened["approvalPolicy"], opened["sandbox"]) == (
            "/src",
            "never",
            {"type": "workspaceWrite"},
        )
        await send(process, request("turn/start", 3, threadId=opened["thread"]["id"], input=[]))
        answered, *told = [json.loads(line) for line in await lines(process, 5)]
        assert answered["result"]["turn"]["status"] == "inProgress"
        assert [message["method"] for message in told] == [
            "turn/started",
            "item/started",
            "item/completed",
            "turn/completed",
        ]
        assert told[-1]["params"]["turn"]["id"] == answered["result"]["turn"]["id"]
        assert told[-1]["params"]["threadId"] == opened["thread"]["id"]
        await send(process, request("turn/steer", 4), request("thread/list", 5), request("some/method", 6))
        assert [json.loads(line)["id"] for line in await lines(process, 3)] == [4, 5, 6]
    assert process.returncode == 0
    assert [message["method"] for message in fake.received()][:3] == ["initialize", "thread/start", "turn/start"]
    assert fake.received("thread/list")[0]["id"] == 5


async def test_it_fails_at_its_first_starts_and_then_behaves(tmp_path: Path) -> None:
    fake = FakeAppServer(tmp_path, at_start=[stderr("boom\n"), exit_now(7)], launches=2)

    for _ in range(2):
        async with started(fake) as process:
            assert await rest(process) == ""
            assert process.returncode == 7
            assert process.stderr is not None
            assert await process.stderr.receive() == b"boom\n"
    async with started(fake) as process:
        await send(process, request("initialize"))
        assert "result" in json.loads((await lines(process, 1))[0])


async def test_it_never_answers_and_still_listens(tmp_path: Path) -> None:
    fake = FakeAppServer(tmp_path, on={"initialize": []})

    async with started(fake) as process:
        await send(process, request("initialize"), request("other", 2))
        assert json.loads((await lines(process, 1))[0]) == {"id": 2, "result": {}}


async def test_it_refuses_and_answers_twice_and_notifies_first(tmp_path: Path) -> None:
    fake = FakeAppServer(
        tmp_path,
        on={
            "a": [refuse("no such thing", code=-32601)],
            "b": [answer({"x": 1}), answer({"x": 2})],
            "c": [notify("early/news"), answer()],
        },
    )

    async with started(fake) as process:
        await send(process, request("a"), request("b", 2), request("c", 3))
        assert [json.loads(line) for line in await lines(process, 5)] == [
            {"id": 1, "error": {"code": -32601, "message": "no such thing"}},
            {"id": 2, "result": {"x": 1}},
            {"id": 2, "result": {"x": 2}},
            {"method": "early/news", "params": None},
            {"id": 3, "result": {}},
        ]


async def test_it_sends_garbage_batches_and_long_lines(tmp_path: Path) -> None:
    actions = [raw("garbage\n\n"), batch(notify("a"), ask("b", id=9)), long_line(100_000), raw('{"id":'), exit_now(0)]
    fake = FakeAppServer(tmp_path, on={"go": actions})

    async with started(fake) as process:
        await send(process, request("go"))
        garbage, blank, array, long, half = (await rest(process)).split("\n")
        assert (garbage, blank, half) == ("garbage", "", '{"id":')
        assert [message["method"] for message in json.loads(array)] == ["a", "b"]
        assert len(long) + 1 == 100_000
        assert json.loads(long)["method"] == "fake/long"


async def test_it_exits_in_the_middle_of_a_turn(tmp_path: Path) -> None:
    fake = FakeAppServer(tmp_path, on={"turn/start": [answer(), notify("turn/started", TURN), exit_now(3)]})

    async with started(fake) as process:
        await send(process, request("thread/start"), request("turn/start", 2))
        *_, begun = (await rest(process)).splitlines()
        assert json.loads(begun)["params"]["turn"]["id"].startswith("turn-")
        assert process.returncode == 3


async def test_it_asks_and_records_the_answer(tmp_path: Path) -> None:
    fake = FakeAppServer(
        tmp_path, on={"go": [ask("what/ever", {"thread": "$thread"}, id="q"), wait_here("on"), end_turn()]}
    )

    async with started(fake) as process:
        await send(process, request("thread/start", cwd="/src"))
        thread_id = json.loads((await lines(process, 1))[0])["result"]["thread"]["id"]
        await send(process, request("go", 2))
        asked = json.loads((await lines(process, 1))[0])
        assert asked == {"method": "what/ever", "id": "q", "params": {"thread": thread_id}}
        fake.go_on("on")
        assert json.loads((await lines(process, 1))[0])["method"] == "turn/completed"
        await send(process, {"id": "q", "error": {"code": -32601, "message": "unknown"}})
        answered = await fake.wait_for(lambda message: message.get("id") == "q")
    assert answered["error"]["code"] == -32601


async def test_it_floods_its_standard_error(tmp_path: Path) -> None:
    fake = FakeAppServer(tmp_path, at_start=[stderr("x" * 99 + "\n", times=10_000), exit_now(0)])

    async with started(fake) as process:
        assert process.stderr is not None
        assert sum([len(chunk) async for chunk in process.stderr]) == 1_000_000


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
async def test_it_stops_reading_and_can_only_be_killed(tmp_path: Path) -> None:
    fake = FakeAppServer(tmp_path, at_start=[ignore_sigterm(), raw("ready\n"), stop_reading()])

    async with started(fake) as process:
        await lines(process, 1)
        assert process.stdin is not None
        await process.stdin.aclose()
        process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(0.2):
            await process.wait()
        assert process.returncode is None
        process.kill()
        assert await process.wait() == -signal.SIGKILL


def test_it_knows_no_other_command(tmp_path: Path) -> None:
    done = subprocess.run([FakeAppServer(tmp_path).path, "exec"], capture_output=True, timeout=20, check=False)

    assert done.returncode == 1
    assert b"does not know" in done.stderr
