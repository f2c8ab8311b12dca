"""Tests that processes of a turn end with the turn, and processes of the agent do not."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from helmsman.agents.agent_process import ChildAgent
from helmsman.agents.child_process import open_child
from helmsman.agents.process_engine import ProcessEngine
from helmsman.base.concurrency import background_tasks
from helmsman.base.processes import Process, running_process
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.model.questions import Choice
from helmsman.testing.fake_acp_agent import FakeAcpAgent, asks, runs, says
from tests.agents.acp.test_acp_engine import Fake, Followed, engine_of, options
from tests.agents.acp.test_acp_supervisors import Place, begun, place

__all__ = ["options", "place"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="there is no subreaper"),
]

DAEMON = r"""
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.environ.clear()
os.execve(sys.executable, ["innocent", "-S", "-c", f'''
import os, time
import ctypes, threading
def go_on():
    open({sys.argv[1]!r} + ".new", "w").write(str(os.getpid()))
    os.rename({sys.argv[1]!r} + ".new", {sys.argv[1]!r})
    time.sleep(600)
threading.Thread(target=go_on).start()
ctypes.CDLL(None).pthread_exit(None)'''], {})
"""
"""Process that has left its parent, group, environment and first thread, and writes its pid to a file."""


def daemon(pid_file: Path, folder: Path) -> str:
    (folder / "daemon.py").write_text(DAEMON)
    return f"{sys.executable} -S {folder / 'daemon.py'} {pid_file}"


async def process_in(pid_file: Path) -> Process:
    with anyio.fail_after(20):
        while not pid_file.exists():
            await anyio.sleep(0.01)
    process = running_process(int(pid_file.read_text()))
    assert process is not None
    return process


async def test_a_daemon_of_a_turn_ends_with_the_turn_and_its_agent_continues(place: Place, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    place.fake.on("run", runs(daemon(pid_file, tmp_path)), asks("execute", "rm x"))
    place.fake.on("more", says("again"))
    async with place.hub(1).open_engine(place.settings, place.env) as engine:
        assert isinstance(engine, ProcessEngine)
        followed = await begun(engine, place.options, "run it")
        question = await followed.question()
        left = await process_in(pid_file)
        agent = place.record.child
        await engine.answer(question, (Choice("approve"),))
        await followed.end()
        assert not left.is_alive()
        assert agent.is_alive()
        await engine.run_turn(followed.session_id, place.options, TurnInput(text="more"))
        assert (await followed.end(2)).outcome == "completed"
        assert agent.is_alive()


async def test_the_next_hub_ends_what_a_turn_left_that_ended_without_one(place: Place, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    place.fake.on("run", runs(daemon(pid_file, tmp_path)), asks("execute", "rm x"))
    first = await place.left("run it")
    left = await process_in(pid_file)
    async with place.reopened() as engine:
        again = Followed(engine, first.session_id)
        await engine.adopt(first.session_id, place.options)
        await engine.answer(await again.question(), (Choice("approve"),))
        await again.end()
        assert not left.is_alive()


async def test_without_a_supervisor_a_daemon_ends_with_the_turn_too(tmp_path: Path, options: SessionOptions) -> None:
    fake, pid_file = FakeAcpAgent(tmp_path / "fake"), tmp_path / "pid"
    fake.on("run", runs(daemon(pid_file, tmp_path)), asks("execute", "rm x"))
    async with engine_of(fake, tmp_path / "places", Fake()) as engine:
        followed = await begun(engine, options, "run it")
        question = await followed.question()
        left = await process_in(pid_file)
        await engine.answer(question, (Choice("approve"),))
        await followed.end()
        assert not left.is_alive()


async def test_before_a_check_the_agent_itself_is_ended(place: Place, tmp_path: Path) -> None:
    """Check a process that a command could have changed with ptrace: the agent, or an MCP server."""
    place.fake.on("run", says("done"))
    async with place.hub(1).open_engine(place.settings, place.env) as engine:
        assert isinstance(engine, ProcessEngine)
        followed = await begun(engine, place.options, "run it")
        await followed.end()
        agent = place.record.child
        await engine.end_leftovers(followed.session_id)
        assert not agent.is_alive()
        await engine.run_turn(followed.session_id, place.options, TurnInput(text="run it again"))
        assert (await followed.end(2)).outcome == "completed"


async def test_a_daemon_ends_with_its_child(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    argv = [sys.executable, "-S", "-c", f"import os, sys; os.system({daemon(pid_file, tmp_path)!r}); sys.stdin.read()"]
    async with background_tasks() as tasks, open_child(tasks, argv, env=None):
        left = await process_in(pid_file)
    assert not left.is_alive()


async def test_processes_that_an_mcp_server_starts_later_belong_to_it() -> None:
    """Check a server like `npx`, which exists before the first turn, unlike the program that it runs."""
    server = """import subprocess, sys; sys.stdin.readline()
p = subprocess.Popen(["sleep", "600"]); print(p.pid, flush=True); sys.stdin.read()"""
    agent = f"""import os, subprocess, sys
server = subprocess.Popen([sys.executable, "-S", "-c", {server!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(server.pid, flush=True)
sys.stdin.readline()
server.stdin.write("go\\n"); server.stdin.flush()
late = server.stdout.readline().strip()
command = subprocess.Popen(["sleep", "600"]).pid
print(late, command, flush=True)
sys.stdin.read()"""
    async with background_tasks() as tasks, open_child(tasks, [sys.executable, "-S", "-c", agent], env=None) as child:
        said = BufferedByteReceiveStream(child.stdout)
        server_process = running_process(int(await said.receive_until(b"\n", 100)))
        assert server_process is not None
        await anyio.sleep(0.02)  # ages have a resolution of hundredths of a second
        processes = ChildAgent(child, "Agent")
        processes.note_baseline()
        await child.stdin.send(b"go\n")
        browser, sleeping = (running_process(int(pid)) for pid in (await said.receive_until(b"\n", 100)).split())
        assert browser is not None
        assert sleeping is not None
        assert processes.started_by_turns() == {sleeping}
        assert await anyio.to_thread.run_sync(processes.end_started_by_turns) == frozenset()
        assert server_process.is_alive()
        assert browser.is_alive()


@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGKILL", "SIGINT"])
async def test_an_exit_by_a_signal_is_reported_as_it_was(signal_name: str) -> None:
    code = (
        f"import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.{signal_name})"
    )
    async with background_tasks() as tasks, open_child(tasks, [sys.executable, "-S", "-c", code], env=None) as child:
        assert await child.wait() == -signal.Signals[signal_name]
