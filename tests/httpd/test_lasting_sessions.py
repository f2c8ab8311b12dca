"""Sessions of Streamable HTTP and the requests in them, when one hub follows another. Hubs are applications here."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from helmsman.base.processes import Process
from helmsman.httpd.lasting_sessions import Kept, LastingSessions
from helmsman.httpd.listening import MCP_PATH, HttpOptions
from helmsman.httpd.server import build_app
from helmsman.hub.suspects import Suspect
from helmsman.service import HelmsmanService
from helmsman.steering.shared import Shared
from helmsman.tasks.calls import CallLog
from tests.played import PlayedAgent
from tests.sessions.test_service_properties import unhurried

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from anyio.abc import TaskGroup
    from starlette.types import Message

pytestmark = pytest.mark.anyio

SECONDS = 20
TOKEN = "a token of these tests"
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"elicitation": {}},
    "clientInfo": {"name": "raw", "version": "1"},
}


class Stream:
    """A request, and what is said in answer while its connection is open."""

    def __init__(self, body: bytes) -> None:
        self.headers: dict[str, str] = {}
        self.status = 0
        self.ids: list[str] = []
        self.said: list[dict[str, Any]] = []
        self._body: bytes | None = body
        self._left = anyio.Event()
        self._news = anyio.Event()

    def leave(self) -> None:
        """Close the connection."""
        self._left.set()

    async def receive(self) -> Message:
        if self._body is None:
            await self._left.wait()
            return {"type": "http.disconnect"}
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if self._left.is_set():
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        for line in message.get("body", b"").decode().splitlines():
            name, _, value = line.partition(": ")
            if name == "id":
                self.ids.append(value)
            elif name == "data" and value.strip():
                self.said.append(json.loads(value))
        self._news.set()
        self._news = anyio.Event()

    async def until(self, found: Callable[[], Any]) -> Any:
        with anyio.fail_after(SECONDS):
            while not (value := found()):
                await self._news.wait()
        return value

    async def has_id(self) -> str:
        """The id that the stream begins with."""
        return str((await self.until(lambda: self.ids))[0])

    async def form(self) -> Any:
        """The id of the form that the client is to show."""
        found = await self.until(lambda: [one for one in self.said if one.get("method") == "elicitation/create"])
        return found[0]["id"]

    async def answer(self) -> dict[str, Any]:
        """What the request came to."""
        found = await self.until(lambda: [one for one in self.said if "method" not in one])
        answer: dict[str, Any] = found[0]
        return answer


class Client:
    """An MCP client on whichever hub there is."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._app: Any = None
        self._session: str | None = None
        self._number = 0

    def use(self, app: Any) -> None:
        self._app = app

    def ask(self, method: str, body: Any = None, **headers: str) -> Stream:
        stream = Stream(b"" if body is None else json.dumps(body).encode())
        known = {
            "host": "127.0.0.1",
            "authorization": f"Bearer {TOKEN}",
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            **({"mcp-session-id": self._session, "mcp-protocol-version": "2025-11-25"} if self._session else {}),
            **headers,
        }
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": MCP_PATH,
            "raw_path": MCP_PATH.encode(),
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in known.items()],
        }
        self._tasks.start_soon(self._app, scope, stream.receive, stream.send)
        return stream

    def request(self, method: str, **params: Any) -> Stream:
        self._number += 1
        return self.ask("POST", {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})

    def call(self, name: str, **arguments: Any) -> Stream:
        return self.request("tools/call", name=name, arguments=arguments)

    def resume(self, event_id: str) -> Stream:
        return self.ask("GET", **{"last-event-id": event_id})

    async def post(self, **content: Any) -> int:
        stream = self.ask("POST", {"jsonrpc": "2.0", **content})
        return int(await stream.until(lambda: stream.status))

    async def introduce(self) -> None:
        hello = self.request("initialize", **HELLO)
        await hello.answer()
        self._session = hello.headers["mcp-session-id"]
        assert await self.post(method="notifications/initialized") == 202

    async def gives(self, name: str, **arguments: Any) -> Any:
        return (await self.call(name, **arguments).answer())["result"]["structuredContent"]


class Front:
    """What has the port, and hubs that follow each other on it."""

    def __init__(self, helm: HelmsmanService, agent: PlayedAgent, client: Client, hubs: AsyncExitStack) -> None:
        self.helm = helm
        self.agent = agent
        self.client = client
        self.kept: dict[str, Any] = {}
        self._hubs = hubs
        self._epoch = 0

    @asynccontextmanager
    async def hub(self) -> AsyncIterator[Client]:
        """A hub that serves in the block, and is as good as dead after it: nobody hears what it says."""
        self._epoch += 1
        alive = True

        def tell(keep: dict[str, Any] | None = None, drop: tuple[str, ...] = ()) -> None:
            if alive:
                self.kept.update(json.loads(json.dumps(keep or {})))
                for key in drop:
                    del self.kept[key]

        lasting = partial(
            LastingSessions,
            path=MCP_PATH,
            helm=self.helm,
            calls=CallLog(self.helm.task_writer),
            door=("front", Process(1, "")),
            epoch=self._epoch,
            kept=Kept(self.kept, tell),
        )
        app = build_app(self.helm, token=TOKEN, options=HttpOptions(), before_mcp=lasting)
        await self._hubs.enter_async_context(app.router.lifespan_context(app))
        self.client.use(app)
        yield self.client
        alive = False

    async def without(self, key: str) -> None:
        """Wait until nobody has to keep that any more."""
        with anyio.fail_after(SECONDS):
            while key in self.kept:
                await anyio.sleep(0.01)

    async def asked(self, directory: Path) -> tuple[str, str]:
        """Start a session of the client that asks something; return its id, and the question's."""
        session = await self.helm.start("go", cwd=directory, agent=self.agent.name)
        await self.helm.hand(session.id, "raw")
        self.agent.engines[-1].ask()
        with anyio.fail_after(SECONDS):
            await session.wait()
        return session.id, session.questions[0].id


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    agent, settings = PlayedAgent(), unhurried(tmp_path)
    async with (
        Shared(settings.state_dir, [agent]) as shared,
        HelmsmanService(settings, shared=shared) as helm,
        anyio.create_task_group() as tasks,
        AsyncExitStack() as hubs,
    ):
        yield Front(helm, agent, Client(tasks), hubs)
        agent.engines[-1].end("completed")  # what still waits for it would keep the hubs from ending
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_a_session_goes_on_and_a_request_is_answered_by_the_next_hub(front: Front, tmp_path: Path) -> None:
    session, _ = await front.asked(tmp_path)
    async with front.hub() as client:
        await client.introduce()
        waiting = client.call("codex_wait", sessionId=session)
        event_id, old = await waiting.has_id(), await waiting.form()
    async with front.hub() as client:
        resumed = client.resume(event_id)
        fresh = await resumed.form()
        assert fresh != old
        withdrawn = [said["params"] for said in resumed.said if said.get("method") == "notifications/cancelled"]
        assert withdrawn == [{"requestId": old, "reason": "closed"}]
        yes = {"action": "accept", "content": {"decision": "approve"}}
        assert await client.post(id=old, result=yes) == 202  # to what nobody asks any more
        assert front.agent.engines[-1].open_questions
        assert await client.post(id=fresh, result={"action": "accept", "content": {"decision": "deny"}}) == 202
        with anyio.fail_after(SECONDS):
            while front.agent.engines[-1].open_questions:
                await anyio.sleep(0.01)
        front.agent.engines[-1].end("completed")
        assert (await resumed.answer())["result"]["structuredContent"]["status"] == "done"
        assert resumed.headers["mcp-session-id"] == waiting.headers["mcp-session-id"]
        await front.without(event_id)
        assert (await client.gives("codex_status", sessionId=session))["status"] == "done"


async def test_what_was_done_is_not_done_twice_and_its_answer_waits_for_the_client(
    front: Front, tmp_path: Path
) -> None:
    session, question = await front.asked(tmp_path)
    answer = {"sessionId": session, "id": question, "answers": ["approve"]}
    async with front.hub() as client:
        await client.introduce()
        answering = client.call("codex_respond", **answer)
        event_id = await answering.has_id()
        answering.leave()  # its connection breaks
        with anyio.fail_after(SECONDS):
            while front.agent.engines[-1].open_questions:
                await anyio.sleep(0.01)
        front.agent.engines[-1].end("completed")
        first = await client.resume(event_id).answer()
        assert not first["result"].get("isError"), first
        await front.without(event_id)
        gone = client.resume(event_id)
        assert await gone.until(lambda: gone.status) == 404
        turn = front.agent.engines[-1].turn_id
        again = client.call("codex_say", sessionId=session, message="more")
        event_id = await again.has_id()
        again.leave()
        with anyio.fail_after(SECONDS):
            while front.agent.engines[-1].turn_id == turn:
                await anyio.sleep(0.01)
        turn = front.agent.engines[-1].turn_id
    async with front.hub() as client:
        said = await client.resume(event_id).answer()
        assert not said["result"].get("isError"), said
        assert front.agent.engines[-1].turn_id == turn


async def test_what_is_over_is_over(front: Front, tmp_path: Path) -> None:
    session, _ = await front.asked(tmp_path)
    async with front.hub() as client:
        await client.introduce()
        await client.request("resources/subscribe", uri=f"codex://sessions/{session}").answer()
        waiting = client.call("codex_wait", sessionId=session)
        event_id = await waiting.has_id()
        call = front.kept[event_id]
        (kept,) = (value for key, value in front.kept.items() if key.startswith("s/"))
        assert list(kept["subscribed"]) == [f"codex://sessions/{session}"]
    async with front.hub() as client:  # cancelled while there was no hub
        assert await client.post(method="notifications/cancelled", params={"requestId": call["said"]["id"]}) == 202
        gone = client.resume(event_id)
        assert await gone.until(lambda: gone.status) == 404
        waiting = client.call("codex_wait", sessionId=session)
        event_id = await waiting.has_id()
        held = Suspect(deaths=5, accusations=2, hold=2.0)
        held.hold_back()
        front.kept[event_id]["suspect"] = held.values()
    async with front.hub() as client:  # while it was held back, the hub died of something else
        waiting = client.resume(event_id)
        await waiting.has_id()
        assert Suspect(*front.kept[event_id]["suspect"]).deaths == 0
        taken = Suspect(deaths=5, accusations=2, hold=2.0)
        taken.take()
        front.kept[event_id]["suspect"] = taken.values()
    async with front.hub() as client:  # it has ended two hubs, and three more that lived until they got it
        assert "may have been done" in (await client.resume(event_id).answer())["error"]["message"]
        left = client.ask("DELETE")
        assert await left.until(lambda: left.status) == 200
        assert front.kept == {}
        late = client.request("tools/list")
        assert await late.until(lambda: late.status) == 404


async def test_what_nobody_comes_for_is_dropped(front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = await front.asked(tmp_path)
    async with front.hub() as client:
        await client.introduce()
        left = client.call("codex_wait", sessionId=session)
        event_id = await left.has_id()
    monkeypatch.setattr("helmsman.httpd.lasting_sessions._UNCLAIMED_SECONDS", 0.01)
    async with front.hub() as client:
        assert await client.post(method="notifications/initialized") == 202
        await front.without(event_id)
        assert [key[0] for key in front.kept] == ["s"]
