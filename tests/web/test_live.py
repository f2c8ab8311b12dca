"""The live stream: what changes is told in small messages, can be resumed, and floods nobody."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from helmsman.model.events import ItemDelta, TurnRequested
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings
from helmsman.steering.shared import Shared
from helmsman.testing import CodexHome, ScriptedModel, run, say
from helmsman.web.live import Live
from helmsman.web.login import Logins
from tests.web.browser import SECONDS

pytestmark = pytest.mark.anyio


class Stream:
    """A stream of events as a browser reads it."""

    def __init__(self, response: httpx2.Response) -> None:
        self._lines = response.aiter_lines()
        self.last_id = ""

    async def next(self) -> tuple[str, dict[str, Any]]:
        """The next event and its data; a sign of life is the event `comment`."""
        name, data = "", ""
        with anyio.fail_after(SECONDS):
            async for line in self._lines:
                field, _, value = line.partition(":")
                match field:
                    case "event":
                        name = value.strip()
                    case "id":
                        self.last_id = value.strip()
                    case "data":
                        data = value
                    case "" if value:
                        name = "comment"
                    case _ if name:
                        return name, json.loads(data or "{}")
        raise AssertionError("the stream has ended")

    async def until(self, session_id: str | None, kind: str) -> dict[str, Any]:
        """The first change of this kind in this session."""
        while True:
            _, data = await self.next()
            for change in data.get("changes", ()):
                if change.get("sessionId") == session_id and kind in change["kinds"]:
                    return dict(change)


@asynccontextmanager
async def listening(server: str, token: str, last_id: str | None = None) -> AsyncIterator[Stream]:
    headers = {"Authorization": f"Bearer {token}"} | ({"Last-Event-ID": last_id} if last_id else {})
    async with (
        httpx2.AsyncClient(timeout=SECONDS) as http,
        http.stream("GET", f"{server}/api/live", headers=headers) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        yield Stream(response)


async def test_events_of_a_session_are_reported(
    server: str, token: str, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with listening(server, token) as stream:
        assert (await stream.next())[1]["resumed"] is False
        session = await helm.start("touch", cwd=folder, sandbox="workspace-write", approval_policy="on-request")
        await stream.until(session.id, "status")
        asked = await stream.until(session.id, "question")
        assert asked["status"] == "awaiting_approval"
        assert 0 < asked["cursor"] <= session.feed.cursor
        (question,) = session.questions
        await helm.respond(session.id, question.id, ["approve"])
        while (change := await stream.until(session.id, "status"))["status"] != "done":
            pass
        assert change["cursor"] == session.feed.cursor


async def test_a_reader_that_was_away_learns_what_it_missed_and_no_more(
    server: str, token: str, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("", say("ok"))
    async with listening(server, token) as stream:
        await stream.next()
        before = await helm.start("one", cwd=folder)
        await before.wait(until="end", timeout=SECONDS)
        while (await stream.until(before.id, "status"))["status"] != "done":
            pass
        place = stream.last_id
    missed = await helm.start("two", cwd=folder)
    await missed.wait(until="end", timeout=SECONDS)
    async with listening(server, token, place) as stream:
        assert (await stream.next())[1]["resumed"] is True
        change = await stream.until(missed.id, "status")
        assert (change["status"], "items" in change["kinds"]) == ("done", True)
    async with listening(server, token, "0badc0de-7") as stream:
        assert (await stream.next())[1]["resumed"] is False


async def test_the_place_may_be_in_the_address_too(server: str, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(timeout=SECONDS, headers=headers) as http:
        async with http.stream("GET", f"{server}/api/live") as response:
            stream = Stream(response)
            await stream.next()
        async with http.stream("GET", f"{server}/api/live", params={"lastEventId": stream.last_id}) as response:
            assert (await Stream(response).next())[1]["resumed"] is True


async def test_a_stream_ends_with_the_cookie_of_its_reader(
    helm: HelmsmanService, server: str, model: ScriptedModel, folder: Path, logins: Logins
) -> None:
    model.on("", say("ok"))
    page = {"X-Helmsman": "1", "Origin": server}
    async with httpx2.AsyncClient(base_url=server, timeout=SECONDS, headers=page) as http:
        await http.post("/api/login", json={"code": logins.new_code().value})
        async with http.stream("GET", "/api/live") as response:
            stream = Stream(response)
            await stream.next()
            assert (await http.post("/api/logout", json={})).status_code == 200
            await helm.start("begin", cwd=folder)
            with pytest.raises(AssertionError, match="ended"):
                await stream.next()
        assert (await http.get("/api/live")).status_code == 401


async def test_silence_is_broken_by_signs_of_life(helm: HelmsmanService) -> None:
    messages = Live(helm, heartbeat=0.01)._messages(None)
    assert b"event: hello" in await anext(messages)
    with anyio.fail_after(SECONDS):
        assert (await anext(messages)).startswith(b":")
    await messages.aclose()


def changes_in(message: bytes) -> list[dict[str, Any]]:
    _, _, data = message.decode().partition("data: ")
    changes: list[dict[str, Any]] = json.loads(data)["changes"] if data else []  # a sign of life has none
    return changes


@pytest.fixture
async def many(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> list[Session]:
    """500 sessions, of which one is real; the others are made as those of Codex are."""
    model.on("", say("ok"))
    real = await helm.start("begin", cwd=folder)
    await real.wait(until="end", timeout=SECONDS)
    others = [helm._loader.fresh(f"session-{n}", real.options, directory=str(folder)) for n in range(499)]
    for session in others:
        helm._loader.add(session)
    return [real, *others]


async def test_500_streaming_sessions_are_one_message_each_time(helm: HelmsmanService, many: list[Session]) -> None:
    live = Live(helm)
    messages = live._messages(None)
    await anext(messages)
    for session in many:
        session.apply(TurnRequested(session_id=session.id, text="go on"))
    for _ in range(100):
        for session in many:
            session.apply(ItemDelta(session_id=session.id, item_id="m", item_type="agent_message", text="word "))
    with anyio.fail_after(SECONDS):
        message = await anext(messages)
    changes = changes_in(message)
    assert {change["sessionId"] for change in changes} == {session.id for session in many}
    assert all(change["kinds"] == ["status", "text"] for change in changes)
    assert len(message) < 100_000
    many[7].apply(ItemDelta(session_id=many[7].id, item_id="m", item_type="agent_message", text="more"))
    with anyio.fail_after(SECONDS):
        (change,) = changes_in(await anext(messages))
    assert (change["sessionId"], change["kinds"]) == (many[7].id, ["text"])
    await messages.aclose()


async def test_too_many_readers_are_refused(server: str, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helmsman.web.live._MAX_READERS", 1)
    async with listening(server, token) as stream:
        await stream.next()
        async with httpx2.AsyncClient(timeout=SECONDS, headers={"Authorization": f"Bearer {token}"}) as http:
            refused = await http.get(f"{server}/api/live")
            assert (refused.status_code, refused.json()["code"]) == (503, "too_many_streams")


async def test_a_session_of_another_client_is_reported_and_can_be_answered(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with (
        Shared(settings.state_dir) as shared,
        HelmsmanService(settings, env=codex_home.env, shared=shared) as other,
        HelmsmanService(settings, env=codex_home.env, shared=shared) as helm,
    ):
        messages = Live(helm)._messages(None)
        await anext(messages)
        session = await other.start("touch", cwd=folder, sandbox="workspace-write", approval_policy="on-request")
        asked = None
        with anyio.fail_after(SECONDS):
            while asked is None:
                changes = [one for one in changes_in(await anext(messages)) if one.get("sessionId") == session.id]
                asked = next((one for one in changes if "question" in one["kinds"]), None)
        assert asked["status"] == "awaiting_approval"
        (question,) = helm.sessions[session.id].questions
        await helm.respond(session.id, question.id, ["approve"])
        with anyio.fail_after(SECONDS):
            await session.wait(until="end")
        await messages.aclose()
    assert (folder / "made.txt").exists()
