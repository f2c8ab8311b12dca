"""Measure the time from the answer to a question until Codex continues: bare, and through `codex_respond`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import anyio

from bench.figures import Row, by_turns, compared
from bench.model import ASK_APPROVAL
from bench.place import Place, open_place
from bench.wire import AppServerWire, McpWire

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 30
AT_MOST = 1.1
_SECONDS = 60
_POLICY = {"approvalPolicy": "on-request", "sandbox": "read-only"}


async def measure(rounds: int = ROUNDS) -> list[Row]:
    async with open_place() as place:
        env = {**place.home("helmsman").env, "CODEX_CLI_PATH": str(place.binary), "MAX_SESSIONS": "1000"}
        bare = AppServerWire.open((place.binary, "app-server"), place.home("bare").env, place.repository)
        # Without elicitation the question waits for `codex_respond`; the subscription tells when Codex has gone on.
        ours = _McpWithoutForms.open((sys.executable, "-m", "helmsman", "serve"), env, place.repository)
        async with bare as limit, ours as helmsman:
            times = await by_turns(
                {"bare": lambda: _answer_bare(limit, place), "helmsman": lambda: _answer(helmsman, place)}, rounds
            )
    return [compared("an answer until its turn has ended", times["helmsman"], times["bare"], "bare", AT_MOST)]


class _McpWithoutForms(McpWire):
    async def shake_hands(self) -> None:
        client = {"name": "bench", "version": "1"}
        await self.request("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        await self.send({"method": "notifications/initialized", "params": {}})


async def _answer_bare(client: AppServerWire, place: Place) -> float:
    asked, requests = anyio.Event(), list[dict[str, Any]]()

    def take(request: dict[str, Any]) -> None:
        requests.append(request)
        asked.set()

    client.on_request = take
    thread_id = await client.start(ASK_APPROVAL, place.repository, **_POLICY)
    await _within(asked.wait)
    began = time.perf_counter()
    await client.send({"id": requests[0]["id"], "result": {"decision": "accept"}})
    await client.ended(thread_id)
    return time.perf_counter() - began


async def _answer(client: McpWire, place: Place) -> float:
    started = await client.call(
        "codex_start", {"prompt": ASK_APPROVAL, "workingDirectory": str(place.repository), **_POLICY}
    )
    session_id = started["structuredContent"]["sessionId"]
    status = (await client.call("codex_wait", {"sessionId": session_id}))["structuredContent"]
    question = status["pendingQuestion"]
    began = time.perf_counter()
    await client.call("codex_respond", {"sessionId": session_id, "id": question["id"], "answers": ["approve"]})
    ended = (await client.call("codex_wait", {"sessionId": session_id}))["structuredContent"]
    taken = time.perf_counter() - began
    assert ended["status"] == "done", ended
    return taken


async def _within(wait: Callable[[], Any]) -> None:
    with anyio.fail_after(_SECONDS):
        await wait()
