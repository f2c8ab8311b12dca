"""The three ways to reach a real Codex."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskGroup

from helmsman.agents.child_process import open_child
from helmsman.agents.codex.binary import find_codex
from helmsman.agents.codex.connection import open_remote, open_unix
from helmsman.agents.codex.engine import AppServerEngine, connect_app_server
from helmsman.base.concurrency import background_tasks
from helmsman.base.jsonrpc import Transport
from helmsman.errors import EngineLost
from helmsman.model.events import Event, QuestionAsked, TurnEnded
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.model.questions import Choice
from helmsman.testing import CodexHome, ScriptedModel, run, say
from tests.engines import start_turn

pytestmark = pytest.mark.anyio


@pytest.fixture
async def listening(codex_binary: Path, codex_home: CodexHome) -> AsyncIterator[Callable[..., None]]:
    """Starts app-servers that listen, and ends them."""
    async with background_tasks() as tasks:

        async def serve(arguments: tuple[str, ...]) -> None:
            argv = [str(codex_binary), "app-server", *arguments]
            async with open_child(tasks, argv, env=codex_home.env) as child:
                try:
                    await anyio.sleep_forever()
                finally:
                    child.signal(signal.SIGTERM)  # one that listens does not end with its input

        def start(*arguments: str) -> None:
            tasks.start_soon(serve, arguments)

        yield start


@asynccontextmanager
async def engine_at(
    codex_binary: Path,
    codex_home: CodexHome,
    connect: Callable[[TaskGroup], AbstractAsyncContextManager[Transport]],
) -> AsyncIterator[AppServerEngine]:
    binary = await find_codex(explicit=codex_binary, env=codex_home.env, state_dir=None)
    with anyio.fail_after(20):
        while True:  # until it listens
            try:
                async with connect_app_server(binary, connect, codex_home=codex_home.path) as engine:
                    yield engine
                    return
            except EngineLost:
                await anyio.sleep(0.02)


async def one_turn(engine: AppServerEngine, folder: Path) -> str:
    opened = await start_turn(engine, SessionOptions(cwd=folder), TurnInput(text="hello"))
    ended = anyio.Event()

    def watch(event: Event) -> None:
        if isinstance(event, TurnEnded):
            ended.set()

    engine.attach(opened.session_id, watch)
    with anyio.fail_after(20):
        await ended.wait()
    return opened.session_id


async def test_a_turn_over_a_unix_socket(
    codex_binary: Path,
    codex_home: CodexHome,
    model: ScriptedModel,
    folder: Path,
    tmp_path: Path,
    listening: Callable[..., None],
) -> None:
    path = tmp_path / "e.sock"
    listening("--listen", f"unix://{path}")
    model.on("hello", say("hi"))
    async with engine_at(codex_binary, codex_home, lambda _tasks: open_unix(path)) as engine:
        await one_turn(engine, folder)


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="This system does not say whose a socket is.")
async def test_an_engine_of_another_user_is_refused(
    codex_binary: Path,
    codex_home: CodexHome,
    tmp_path: Path,
    listening: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "e.sock"
    listening("--listen", f"unix://{path}")
    async with engine_at(codex_binary, codex_home, lambda _tasks: open_unix(path)):
        pass
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(EngineLost, match="belongs to another user"):
        async with open_unix(path):
            pass


async def test_a_question_survives_the_client_that_was_asked(
    codex_binary: Path,
    codex_home: CodexHome,
    model: ScriptedModel,
    folder: Path,
    tmp_path: Path,
    listening: Callable[..., None],
) -> None:
    path = tmp_path / "e.sock"
    listening("--listen", f"unix://{path}")
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    options = SessionOptions(cwd=folder, writes="workspace", asks="when_needed")
    seen: list[Event] = []
    changed = anyio.Event()

    def watch(event: Event) -> None:
        seen.append(event)
        changed.set()

    async def until(kind: type[Event]) -> Event:
        nonlocal changed
        with anyio.fail_after(20):
            while not any(isinstance(event, kind) for event in seen):
                changed = anyio.Event()
                await changed.wait()
        return next(event for event in seen if isinstance(event, kind))

    async with engine_at(codex_binary, codex_home, lambda _tasks: open_unix(path)) as first:
        opened = await start_turn(first, options, TurnInput(text="touch"))
        first.attach(opened.session_id, watch)
        asked = await until(QuestionAsked)
    seen.clear()
    async with engine_at(codex_binary, codex_home, lambda _tasks: open_unix(path)) as second:
        again = await second.resume(opened.session_id, options)
        assert again.turn_id == opened.turn_id
        second.attach(opened.session_id, watch)
        asked_again = await until(QuestionAsked)
        assert isinstance(asked, QuestionAsked)
        assert isinstance(asked_again, QuestionAsked)
        assert asked_again.question.id == asked.question.id
        await second.answer(asked_again.question, (Choice("approve"),))
        ended = await until(TurnEnded)
    assert isinstance(ended, TurnEnded)
    assert ended.outcome == "completed"
    assert (folder / "made.txt").exists()


async def test_a_turn_over_a_remote_websocket_with_a_token(
    codex_binary: Path,
    codex_home: CodexHome,
    model: ScriptedModel,
    folder: Path,
    tmp_path: Path,
    listening: Callable[..., None],
) -> None:
    token = tmp_path / "token"
    token.write_text("a-very-secret-token-of-sufficient-length", encoding="utf-8")
    url = f"ws://127.0.0.1:{free_port()}"
    listening("--listen", url, "--ws-auth", "capability-token", "--ws-token-file", str(token))
    model.on("hello", say("hi"))
    right = token.read_text(encoding="utf-8")
    async with engine_at(codex_binary, codex_home, lambda _tasks: open_remote(url, token=right)) as engine:
        await one_turn(engine, folder)
    for wrong in ("wrong", None):
        with pytest.raises(EngineLost, match="Check the token"):
            async with open_remote(url, token=wrong):
                pass


async def test_the_end_of_the_engine_is_noticed_on_a_socket_too(
    codex_binary: Path, codex_home: CodexHome, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "e.sock"
    binary = await find_codex(explicit=codex_binary, env=codex_home.env, state_dir=None)
    async with background_tasks() as tasks:
        gone: list[Event] = []
        async with (
            open_child(tasks, [codex_binary, "app-server", "--listen", f"unix://{path}"], env=codex_home.env) as child,
            engine_at(codex_binary, codex_home, lambda _tasks: open_unix(path)) as engine,
        ):
            engine.attach("anyone", gone.append)
            os.kill(child.pid, 9)
            with anyio.fail_after(5):
                while engine.lost is None:
                    await anyio.sleep(0.01)
    assert binary.version is not None
    assert [type(event).__name__ for event in gone] == ["EngineGone"]


async def test_an_address_without_a_server_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EngineLost, match="No Codex engine answers"):
        async with open_unix(tmp_path / "none.sock"):
            pass
    with pytest.raises(EngineLost, match="No Codex engine answers"):
        async with open_remote(f"ws://127.0.0.1:{free_port()}", token=None):
            pass


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
