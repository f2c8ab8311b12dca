"""The walks on the page on architecture are those that calls take: `codex_start` to Codex's pipe, a question up and back.

What passes it on are the modules that stand on the stack when it arrives; all others that run on the way are asked by these.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
import sys
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

from helmsman.agents.codex.engine.app_server_engine import AppServerEngine
from helmsman.agents.codex.wire.app_server import AppServer
from helmsman.approvals import rule_book
from helmsman.base.jsonrpc import Peer
from helmsman.mcp import session_tools
from helmsman.mcp.server import build_server
from helmsman.model.events import QuestionAsked
from helmsman.sessions import desk
from helmsman.sessions.session import Session
from helmsman.testing import run, say
from mcp import Client
from tests.architecture import PAGE, modules
from tests.mcp.caller import Caller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from types import FrameType

    from helmsman import Helmsman
    from helmsman.testing import ScriptedModel

pytestmark = pytest.mark.anyio

ON_THE_WAY: ContextVar[bool] = ContextVar("on_the_way", default=False)
MADE_BY: ContextVar[frozenset[str]] = ContextVar("made_by", default=frozenset())
"""What stood on the stack when the task that we are in was begun, if that was on the way."""
WALK = re.compile(r"^<!-- (.*?) -->\n(.*?)\n\n", re.MULTILINE | re.DOTALL)


class Walk:
    """The modules in which something runs for one call: in its task, and in the tasks and threads that these start."""

    def __init__(self) -> None:
        self.modules: list[str] = []
        self.passing: set[str] = set()
        """Those that pass it on."""
        self.has_arrived = False

    def arrive(self) -> None:
        """It has come to a stop on its way."""
        self.passing |= on_stack(sys._getframe(1)) | MADE_BY.get()

    def when_called(
        self, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, *, if_: Any = lambda *_: True
    ) -> None:
        """Have it arrive whenever this is called, by somebody on the way, with what is meant."""
        called = getattr(place, name)

        def arrives(*arguments: Any, **more: Any) -> Any:
            if ON_THE_WAY.get() and not self.has_arrived and if_(*arguments):
                self.passing |= {called.__module__.removeprefix("helmsman.")}
                self.arrive()
            return called(*arguments, **more)

        monkeypatch.setattr(place, name, arrives)

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        name = frame.f_globals.get("__name__") or ""
        if event != "call" or self.has_arrived or not ON_THE_WAY.get() or not name.startswith("helmsman."):
            return
        name = name.removeprefix("helmsman.")
        if name not in self.modules and name != "base.lazy_dataclass":  # how values are made is no step of the way
            self.modules.append(name)

    def __enter__(self) -> Walk:
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def on_stack(frame: FrameType | None) -> frozenset[str]:
    names = set()
    while frame is not None:
        names.add(frame.f_globals.get("__name__") or "")
        frame = frame.f_back
    return frozenset(name.removeprefix("helmsman.") for name in names if name.startswith("helmsman."))


def made_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks know what stood on the stack of whoever began them."""
    loop = asyncio.get_running_loop()

    def make(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        context = contextvars.copy_context()
        if ON_THE_WAY.get():
            context.run(MADE_BY.set, MADE_BY.get() | on_stack(sys._getframe(1)))
        return asyncio.Task(work, loop=loop, **{**more, "context": context})

    monkeypatch.setattr(loop, "_task_factory", make)


@pytest.fixture
async def codex(helm: Helmsman) -> AsyncIterator[Caller]:
    async with Client(build_server(helm), mode="auto") as client:
        yield Caller(client)


async def test_the_walk_of_a_start(
    codex: Caller, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    model.on("warm", say("ok"))
    model.on("hello", say("ok"))
    started = await codex("codex_start", prompt="warm", workingDirectory=str(folder))
    await codex.until_settled(started["sessionId"])
    start_turn = AppServer.start_turn
    made_on_the_way(monkeypatch)
    walk = Walk()
    walk.when_called(monkeypatch, Peer, "_send")

    async def arrives(self: AppServer, *arguments: Any, **more: Any) -> str:
        turn = await start_turn(self, *arguments, **more)
        walk.has_arrived = True
        return turn

    monkeypatch.setattr(AppServer, "start_turn", arrives)
    with walk:
        token = ON_THE_WAY.set(True)
        started = await codex("codex_start", prompt="hello", workingDirectory=str(folder))
        ON_THE_WAY.reset(token)
    await codex.until_settled(started["sessionId"])
    held_to("codex_start", walk)


async def test_the_walk_of_a_question(
    codex: Caller, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch, git_repo: Path
) -> None:
    _ = desk, rule_book  # loaded with the first question, and loading is not what a question crosses
    model.on("ask", run("touch made.txt"), say("done"))
    on_request = AppServerEngine._on_request

    def asks(self: AppServerEngine, request: Any) -> bool:
        token = ON_THE_WAY.set(True)
        try:
            return on_request(self, request)
        finally:
            ON_THE_WAY.reset(token)

    monkeypatch.setattr(AppServerEngine, "_on_request", asks)
    walk = Walk()
    walk.when_called(monkeypatch, Session, "apply", if_=lambda _, event: isinstance(event, QuestionAsked))
    walk.when_called(monkeypatch, Peer, "_send")
    walk.when_called(monkeypatch, session_tools, "session_status")
    asking = {"approvalPolicy": "untrusted", "sandbox": "workspace-write", "workingDirectory": str(git_repo)}
    with walk:
        started = await codex("codex_start", prompt="ask", **asking)
        token = ON_THE_WAY.set(True)
        status = await codex("codex_wait", sessionId=started["sessionId"])
        await codex(
            "codex_respond", sessionId=started["sessionId"], id=status["pendingQuestion"]["id"], answers=["approve"]
        )
        ON_THE_WAY.reset(token)
    await codex.until_settled(started["sessionId"])
    held_to("a question", walk)


def held_to(name: str, walk: Walk) -> None:
    """The page has each module of the walk; its first line has those that pass it on, with both numbers."""
    (described,) = [
        text for title, text in WALK.findall(PAGE.read_text(encoding="utf-8")) if title == f"the walk of {name}"
    ]
    listed = set(re.findall(r"`([a-z_.]+)`", described))
    assert set(walk.modules) - listed == set()
    assert listed <= modules().keys()
    first, _ = described.split("\n", 1)
    assert set(re.findall(r"`([a-z_.]+)`", first)) == walk.passing
    assert first.startswith(
        f"**{len(walk.passing)} modules pass it on**, {len(listed - walk.passing)} more are called,"
    )
