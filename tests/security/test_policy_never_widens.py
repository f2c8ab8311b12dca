"""Sandbox and approval policy never become wider: not on resume, not on fork, not in another process, on no Codex.

What counts is what a command can do, so each story ends with Codex trying to write where it may not.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from helmsman.agents.codex.engine import AppServerEngine
from helmsman.agents.supervisor.records import read_records
from helmsman.base.peers import can_tell_sandboxed
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput
from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, run, say
from mcp import Client
from tests.hub_service import hub_service
from tests.mcp.caller import Caller

pytestmark = pytest.mark.anyio

SECONDS = 60
READ_ONLY = ("read-only", "on-request")


async def finished(session: Session) -> Session:
    assert await session.wait(until="end", timeout=SECONDS)
    return session


def policy(session: Session) -> tuple[str | None, str | None]:
    return session.state.sandbox, session.state.approval_policy


@pytest.fixture
def made(folder: Path, model: ScriptedModel) -> Path:
    """The file that Codex tries to write whenever it is told to `touch`."""
    model.on("touch", run("touch made.txt"), say("tried"))
    model.otherwise(say("ok"))
    return folder / "made.txt"


@pytest.fixture
async def persons_session(codex_binary: Path, codex_home: CodexHome, folder: Path, made: Path) -> str:
    """A session that a person made in the terminal, with nothing asked and nothing forbidden."""
    configuration = codex_home.config_path.read_bytes()
    full_access = ["exec", "--json", "--dangerously-bypass-approvals-and-sandbox", "touch"]
    told = await anyio.to_thread.run_sync(
        lambda: subprocess.run(
            [codex_binary, *full_access],
            cwd=folder,
            env=codex_home.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=SECONDS,
            check=True,
        )
    )
    assert made.exists(), told.stderr
    made.unlink()
    codex_home.config_path.write_bytes(configuration)  # newer Codex has trusted the repository, which is another matter
    return next(
        str(message["thread_id"])
        for message in map(json.loads, told.stdout.splitlines())
        if message["type"] == "thread.started"
    )


# --- a session of somebody else --------------------------------------------------------------------------------------


@pytest.mark.matrix
async def test_a_persons_full_access_is_not_taken_over_by_say_or_fork(
    settings: Settings, codex_home: CodexHome, persons_session: str, made: Path
) -> None:
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        resumed = await finished(await helm.say(persons_session, "touch"))
        assert policy(resumed) == READ_ONLY
        forked = await finished(await helm.fork(persons_session, "touch"))
        assert policy(forked) == READ_ONLY
        assert (resumed.result, forked.result) == ("tried", "tried")
    assert not made.exists()


@pytest.mark.matrix
async def test_a_persons_full_access_is_not_taken_over_by_the_exec_engine(
    settings: Settings, codex_home: CodexHome, persons_session: str, made: Path
) -> None:
    async with HelmsmanService(replace(settings, engine="exec"), env=codex_home.env) as helm:
        tried = await helm.say(persons_session, "touch", skip_git_repo_check=True)
        assert (await finished(tried)).result == "tried"
    assert not made.exists()


@pytest.mark.matrix
async def test_a_persons_full_access_is_not_taken_over_by_the_tools(
    settings: Settings, codex_home: CodexHome, persons_session: str, made: Path
) -> None:
    tools = ("sessions", "compat")
    async with (
        HelmsmanService(replace(settings, tools=tools), env=codex_home.env) as helm,
        Client(build_server(helm)) as client,
    ):
        codex = Caller(client)
        assert (await codex("codex-reply", threadId=persons_session, prompt="touch"))["content"] == "tried"
        await codex("codex_say", sessionId=persons_session, message="touch")
        assert (await codex.until_settled(persons_session))["result"] == "tried"
    assert not made.exists()


# --- a session of ours, in another process ---------------------------------------------------------------------------


async def narrow_session(settings: Settings, codex_home: CodexHome, folder: Path) -> str:
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        options: dict[str, Any] = {"sandbox": "read-only", "approval_policy": "untrusted"}
        return (await finished(await helm.start("hello", cwd=folder, **options))).id


@pytest.mark.matrix
async def test_another_process_continues_under_the_policy_the_session_was_given(
    settings: Settings, codex_home: CodexHome, folder: Path, made: Path
) -> None:
    session_id = await narrow_session(settings, codex_home, folder)
    codex_home.configure(sandbox_mode="danger-full-access", approval_policy="never")
    async with HelmsmanService(replace(settings, approval_timeout=0.2), env=codex_home.env) as helm:
        resumed = await finished(await helm.say(session_id, "touch"))
        assert policy(resumed) == ("read-only", "untrusted")
        forked = await finished(await helm.fork(session_id, "touch"))
        assert policy(forked) == ("read-only", "untrusted")
    assert not made.exists()


@pytest.mark.matrix
@pytest.mark.skipif(os.name != "posix", reason="there is no SIGKILL here")
async def test_an_engine_that_died_is_replaced_by_one_under_the_same_policy(
    settings: Settings, codex_home: CodexHome, folder: Path, made: Path
) -> None:
    async with HelmsmanService(replace(settings, approval_timeout=0.2), env=codex_home.env) as helm:
        options: dict[str, Any] = {"sandbox": "read-only", "approval_policy": "untrusted"}
        session = await finished(await helm.start("hello", cwd=folder, **options))
        engine = await helm.engine()
        assert isinstance(engine, AppServerEngine)
        codex_home.configure(sandbox_mode="danger-full-access", approval_policy="never")
        os.kill(process_id(engine), signal.SIGKILL)
        with anyio.fail_after(SECONDS):
            await engine.until_lost()
        assert policy(await finished(await helm.say(session.id, "touch"))) == ("read-only", "untrusted")
    assert not made.exists()


def process_id(engine: AppServerEngine) -> int:
    transport: Any = engine._peer._transport
    return int(transport.child.pid)


async def test_a_new_model_is_no_new_permission(
    settings: Settings, codex_home: CodexHome, folder: Path, made: Path
) -> None:
    codex_home.configure(sandbox_mode="danger-full-access", approval_policy="never")
    async with HelmsmanService(replace(settings, approval_timeout=0.2), env=codex_home.env) as helm:
        options: dict[str, Any] = {"sandbox": "read-only", "approval_policy": "on-request"}
        session = await finished(await helm.start("hello", cwd=folder, **options))
        said = await finished(await helm.say(session.id, "touch", model="gpt-5.4"))
        assert said.options.model == "gpt-5.4"
        assert (said.options.writes, said.options.asks) == ("nothing", "when_needed")
        forked = await finished(await helm.fork(session.id, "touch", model="gpt-5.4"))
        assert policy(forked) == READ_ONLY
    assert not made.exists()


async def test_a_wider_policy_is_had_by_asking_for_it(
    settings: Settings, codex_home: CodexHome, folder: Path, made: Path
) -> None:
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await finished(await helm.start("hello", cwd=folder, sandbox="read-only"))
        await finished(await helm.say(session.id, "touch", full_auto=True))
        assert (session.options.writes, session.options.asks) == ("workspace", "when_needed")
    assert made.exists()


# --- what an earlier process kept of it, tampered with ---------------------------------------------------------------


def tamper(settings: Settings, change: Callable[[dict[str, Any]], Any]) -> None:
    with closing(sqlite3.connect(settings.state_dir / "registry.sqlite3")) as registry, registry:
        logged = "SELECT rowid, body FROM events WHERE kind = 'options_changed'"
        for row, body in registry.execute(logged).fetchall():
            registry.execute("UPDATE events SET body = ? WHERE rowid = ?", (json.dumps(change(json.loads(body))), row))


def unknown_values(event: dict[str, Any]) -> Any:
    unknown = {"writes": "everything", "asks": "always", "writableRoots": [7, "/"], "config": ["x"], "profile": 7}
    return {**event, "options": unknown}


def other_spellings(event: dict[str, Any]) -> Any:
    return {**event, "options": {"sandbox": {"type": "dangerFullAccess"}, "approval_policy": ["never"]}}


def no_table(event: dict[str, Any]) -> Any:
    return {**event, "options": "danger-full-access"}


def no_event(event: dict[str, Any]) -> Any:
    return ["danger-full-access"]


@pytest.mark.parametrize("change", [unknown_values, other_spellings, no_table, no_event])
async def test_kept_options_that_make_no_sense_give_nothing(
    settings: Settings,
    codex_home: CodexHome,
    folder: Path,
    made: Path,
    change: Callable[[dict[str, Any]], Any],
) -> None:
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        options: dict[str, Any] = {"sandbox": "danger-full-access", "approval_policy": "never"}
        session = await finished(await helm.start("hello", cwd=folder, **options))
    tamper(settings, change)
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        assert policy(await finished(await helm.say(session.id, "touch"))) == READ_ONLY
    assert not made.exists()


# --- an engine that could be reached from inside the sandbox ---------------------------------------------------------


@pytest.mark.matrix(changed_in=["0.125.0", "0.163.0"])
@pytest.mark.skipif(os.name != "posix", reason="there are no detached engines here")
@pytest.mark.parametrize("given", ["by the caller", "by the configuration"])
@pytest.mark.parametrize("at", ["agent", "supervisor"])
async def test_a_command_with_network_access_cannot_reach_the_engine_it_runs_in(
    settings: Settings,
    codex_home: CodexHome,
    model: ScriptedModel,
    folder: Path,
    detached_engines: Path,
    given: str,
    at: str,
) -> None:
    """Whoever reaches the socket of an engine may start a session with full access in it.

    Newer Codex keeps its commands from its own socket. A supervisor accepts no sandboxed command, not even one that has left
    its parents. Where the system cannot recognise such commands, the work is refused.
    """
    options: dict[str, Any] = {"sandbox": "workspace-write", "approval_policy": "never"}
    if given == "by the caller":
        options["config"] = {"sandbox_workspace_write.network_access": True}
    else:
        codex_home.configure(sandbox_workspace_write={"network_access": True})

    async def reach() -> None:
        async with hub_service(replace(settings, detach=True), codex_home.env) as helm:
            engine = await helm.engine()
            if engine.id is None:
                pytest.skip("This Codex has no detached engines.")
            (record,) = [record for record in read_records(detached_engines) if record.id == engine.id]
            socket = record.listens_at or record.socket if at == "agent" else record.socket
            listens = at == "agent" and record.listens_at is not None
            assert socket.exists()
            (folder / "reach.py").write_text(_REACH.format(socket=str(socket), listens=listens), encoding="utf-8")
            away = "(setsid python3 reach.py away &); while [ ! -e tried-away ]; do sleep 0.05; done"
            model.on("reach", run(f"python3 reach.py here; {away}"), say("tried"))
            await finished(await helm.start("reach", cwd=folder, **options))
        assert (folder / "tried-here").exists()

    await refused_or_done(reach, refused=not can_tell_sandboxed())
    assert list(folder.glob("reached-*")) == []


_REACH = """
import pathlib, socket, sys
try:
    with socket.socket(socket.AF_UNIX) as engine:
        engine.connect({socket!r})
        engine.sendall(b"e0\\n")
        if {listens} or engine.recv(1):
            pathlib.Path("reached-" + sys.argv[1]).touch()
except OSError:
    pass
pathlib.Path("tried-" + sys.argv[1]).touch()
"""


async def refused_or_done(work: Callable[[], Awaitable[None]], *, refused: bool) -> None:
    if not refused:
        await work()
        return
    with pytest.raises(InvalidInput, match="HELMSMAN_DETACH=0"):
        await work()
