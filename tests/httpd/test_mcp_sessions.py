"""MCP sessions over HTTP, when one hub follows another. Hubs are applications here."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from starlette.types import Message

from helmsman.httpd.application import build_app
from helmsman.httpd.listening import MCP_PATH, HttpOptions
from helmsman.httpd.mcp_sessions import CUT
from helmsman.service import HelmsmanService
from helmsman.steering.shared import Shared
from tests.played import PlayedAgent
from tests.sessions.test_service_properties import unhurried

pytestmark = pytest.mark.anyio

SECONDS = 20
TOKEN = "a token of these tests"
HELLO: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"elicitation": {}},
    "clientInfo": {"name": "raw", "version": "1"},
}


class Stream:
    """Send a request, and yield the messages while its connection is open."""

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
    """MCP client of the current hub."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._app: Any = None
        self.session: str | None = None
        self._number = 0

    def use(self, app: Any) -> None:
        self._app = app

    def ask(self, method: str, body: Any = None, session: str | None = None, **headers: str) -> Stream:
        session = session or self.session
        stream = Stream(b"" if body is None else json.dumps(body).encode())
        known = {
            "host": "127.0.0.1",
            "authorization": f"Bearer {TOKEN}",
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            **({"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"} if session else {}),
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

    def request(self, method: str, session: str | None = None, **params: Any) -> Stream:
        self._number += 1
        said = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        return self.ask("POST", said, session)

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
        self.session = hello.headers["mcp-session-id"]
        assert await self.post(method="notifications/initialized") == 202

    async def gives(self, name: str, **arguments: Any) -> Any:
        return (await self.call(name, **arguments).answer())["result"]["structuredContent"]


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[None]:
    """Start an application, as a server does, and shut it down after the block."""
    to_app, heard = anyio.create_memory_object_stream[Any](2)
    from_app, said = anyio.create_memory_object_stream[Any](2)
    async with anyio.create_task_group() as tasks, to_app, heard, from_app, said:
        tasks.start_soon(
            app, {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, heard.receive, from_app.send
        )
        await to_app.send({"type": "lifespan.startup"})
        await said.receive()
        yield
        await to_app.send({"type": "lifespan.shutdown"})
        await said.receive()


class Front:
    """Hubs that follow each other on one port."""

    def __init__(self, helm: HelmsmanService, agent: PlayedAgent, client: Client, hubs: AsyncExitStack) -> None:
        self.helm = helm
        self.agent = agent
        self.client = client
        self._hubs = hubs
        self._epoch = 0

    @asynccontextmanager
    async def hub(self) -> AsyncIterator[Client]:
        """A hub that serves in the block, and is as good as dead after it."""
        self._epoch += 1
        app = build_app(self.helm, token=TOKEN, options=HttpOptions(), epoch=self._epoch)
        await self._hubs.enter_async_context(lifespan(app))
        self.client.use(app)
        yield self.client

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
        for engine in agent.engines:
            engine.end("completed")  # what still waits for it would keep the hubs from ending
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_a_session_continues_in_the_next_hub_under_its_id(front: Front) -> None:
    async with front.hub() as client:
        await client.introduce()
    async with front.hub() as client:
        listed = client.request("tools/list")
        assert (await listed.answer())["result"]["tools"]
        assert listed.headers["mcp-session-id"] == client.session
        left = client.ask("DELETE")
        assert await left.until(lambda: left.status) == 200
        late = client.request("tools/list")
        assert await late.until(lambda: late.status) == 404


async def test_an_id_that_no_hub_has_given_gets_404(front: Front) -> None:
    async with front.hub() as client:
        await client.introduce()
        packed, _, signature = str(client.session).partition(".")
        for forged in ("x", f"{packed}.", f"{packed}.{'0' * len(signature)}", f"{packed}x.{signature}", signature):
            refused = client.request("tools/list", session=forged)
            assert await refused.until(partial(getattr, refused, "status")) == 404
            assert refused.said == []


async def test_a_call_that_is_cut_is_answered_by_the_next_hub_and_not_repeated(front: Front, tmp_path: Path) -> None:
    session, _ = await front.asked(tmp_path)
    async with front.hub() as client:
        await client.introduce()
        waiting = client.call("codex_wait", sessionId=session)
        event_id, old = await waiting.has_id(), await waiting.form()
        listening = client.request("ping")
        await listening.answer()
    async with front.hub() as client:
        resumed = client.resume(event_id)
        cut = (await resumed.answer())["result"]
        assert (cut["isError"], cut["content"][0]["text"]) == (True, f"unknown_outcome: {CUT}")
        assert cut["_meta"]["helmsman/error"]["code"] == "unknown_outcome"
        again = client.resume(resumed.ids[-1])
        assert await again.until(lambda: again.status) == 404
        other = client.resume(listening.ids[0])
        assert (await other.answer())["error"]["message"] == CUT

        # The form of the next wait has another id, and the answer to the old one answers nothing.
        waiting = client.call("codex_wait", sessionId=session)
        fresh = await waiting.form()
        assert fresh != old
        yes = {"action": "accept", "content": {"decision": "approve"}}
        assert await client.post(id=old, result=yes) == 202
        assert front.agent.engines[-1].open_questions
        assert await client.post(id=fresh, result={"action": "accept", "content": {"decision": "deny"}}) == 202
        with anyio.fail_after(SECONDS):
            while front.agent.engines[-1].open_questions:
                await anyio.sleep(0.01)
        front.agent.engines[-1].end("completed")
        assert (await waiting.answer())["result"]["structuredContent"]["status"] == "done"


async def test_an_answer_waits_for_a_client_whose_connection_breaks(front: Front, tmp_path: Path) -> None:
    session, question = await front.asked(tmp_path)
    answer = {"sessionId": session, "id": question, "answers": ["approve"]}
    async with front.hub() as client:
        await client.introduce()
        answering = client.call("codex_respond", **answer)
        event_id = await answering.has_id()
        answering.leave()
        with anyio.fail_after(SECONDS):
            while front.agent.engines[-1].open_questions:
                await anyio.sleep(0.01)
        front.agent.engines[-1].end("completed")
        first = await client.resume(event_id).answer()
        assert not first["result"].get("isError"), first
        gone = client.resume("1.5.t.unknown")
        assert await gone.until(lambda: gone.status) == 404
