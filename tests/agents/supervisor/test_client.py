"""Tests of the owner's end of the connection with a supervisor."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from helmsman.agents.supervisor.client import Owner, SupervisedProcess, attach, attach_to, start_supervised
from helmsman.agents.supervisor.records import ProcessRecord, end_left, read_records
from helmsman.agents.supervisor.relay import OutputLog
from helmsman.errors import EngineLost
from tests.agents.supervisor import stand_in

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name != "posix", reason="There are no supervisors here.")]

POLL = 0.01
HELLO = {"epoch": 5, "inputs": 0, "answer": "", "from": 0, "size": 0, "open": []}
SECONDS = 10


@contextmanager
def listening() -> Iterator[tuple[Path, socket.socket]]:
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        address = Path(folder) / "supervisor"
        listener.bind(str(address))
        listener.listen()
        listener.settimeout(SECONDS)
        yield address, listener


def greet(listener: socket.socket) -> socket.socket:
    connected, _ = listener.accept()
    connected.recv(100)
    output = Path(listener.getsockname()).with_name("output")
    connected.sendall(json.dumps({**HELLO, "output": str(output)}).encode() + b"\n")
    return connected


@asynccontextmanager
async def owned() -> AsyncIterator[tuple[SupervisedProcess, socket.socket]]:
    """Child, and its supervisor's end of the connection."""
    with listening() as (address, listener):
        async with anyio.create_task_group() as tasks:
            accepted: list[socket.socket] = []
            tasks.start_soon(lambda: _append(accepted, listener))
            async with attach_to(address, epoch=5) as child:
                while not accepted:
                    await anyio.lowlevel.checkpoint()
                yield child, accepted[0]


async def test_the_last_word_of_a_supervisor_is_read_when_it_takes_nothing() -> None:
    with anyio.fail_after(SECONDS):
        async with owned() as (child, connected):
            with connected as supervisor:
                output = OutputLog(Path(supervisor.getsockname()).with_name("output"))
                output.append([b"said"])
                output.close()
                supervisor.sendall(b"+5\nr9\n")
            with pytest.raises(EngineLost):
                while True:  # until it is known that no supervisor listens
                    await child.send("more")
            assert [said.line for part in [one async for one in child.lines()] for said in part] == [b"said"]
            assert (child.newer_epoch, child.is_lost) == (9, False)


async def test_after_half_a_frame_nothing_more_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the connection survives when the system refuses to send for lack of memory."""
    send = socket.socket.send

    def send_half(connected: socket.socket, data: memoryview) -> int:
        if bytes(data[:2]) == b"i1":
            return send(connected, data[:8])
        if bytes(data).startswith(b"a frame"):
            raise OSError(errno.ENOBUFS, "No buffer space available")
        return send(connected, data)

    with anyio.fail_after(SECONDS):
        async with owned() as (child, connected):
            monkeypatch.setattr(socket.socket, "send", send_half)
            with connected as supervisor, supervisor.makefile("rb") as heard:
                refused = 0
                for saying in (child.send("half a frame"), child.commit(7)):
                    try:
                        await saying
                    except EngineLost:
                        refused += 1
                assert refused == 2
                assert await anyio.to_thread.run_sync(heard.read) == b"i1 half "


async def test_readers_and_writers_are_released_when_the_connection_closes() -> None:
    with anyio.fail_after(SECONDS), listening() as (address, listener):
        accepted: list[socket.socket] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: _append(accepted, listener))
            refused = anyio.Event()
            async with anyio.create_task_group() as using, attach_to(address) as child:

                async def read() -> None:
                    assert [one async for one in child.lines()] == []

                async def write() -> None:
                    with pytest.raises(EngineLost):
                        await child.send("x" * 10_000_000)  # more than the buffer holds, without a reader
                    refused.set()

                using.start_soon(read)
                using.start_soon(write)
                await anyio.wait_all_tasks_blocked()
            assert refused.is_set()
            assert not child.is_lost
        accepted[0].close()


@asynccontextmanager
async def kept(tmp_path: Path, *, idle: float = 900) -> AsyncIterator[ProcessRecord]:
    """Stand-in in a supervisor of hub 1."""
    with anyio.fail_after(6 * SECONDS):
        record = await start_supervised(
            [sys.executable, str(Path(stand_in.__file__))],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            directory=tmp_path,
            state_dir=tmp_path / "state",
            idle=idle,
            owner=Owner(1),
            watcher="helmsman.agents.acp.watching:AcpWatcher",
            greeting=[stand_in.GREETING],
            about={"agent": "stand-in", "engine_id": "e", "place": str(tmp_path)},
        )
        try:
            yield record
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(record.stop)


async def test_an_owner_that_is_slow_to_read_does_not_end_what_the_next_one_has(tmp_path: Path) -> None:
    async with kept(tmp_path) as record:
        async with attach(record, epoch=1, title="stand-in") as old:
            await old.send("say 10000")
            while _logged_bytes(record) < 5_000_000:
                await anyio.sleep(POLL)
            async with attach(record, epoch=2, title="stand-in") as new:
                async for _ in old.lines():
                    pass
                assert (old.newer_epoch, old.is_lost) == (2, False)
                await new.send("more")
        assert record.is_supervised
        assert record.is_running


async def test_the_owner_ends_the_processes_of_a_killed_supervisor(tmp_path: Path) -> None:
    async with kept(tmp_path) as record:
        async with attach(record, epoch=1, title="stand-in") as child:
            os.kill(record.supervisor.pid, signal.SIGKILL)
            assert [one async for one in child.lines()] == []
            assert (child.newer_epoch, child.is_lost) == (None, True)
        assert not record.is_running
        assert not record.directory.exists()


@pytest.mark.parametrize("late", ["its owner", "the next process of its session"])
async def test_who_comes_after_the_kill_of_a_supervisor_ends_its_processes(tmp_path: Path, late: str) -> None:
    async with kept(tmp_path) as record:
        os.kill(record.child.pid, signal.SIGSTOP)  # or it would end with its supervisor
        status = Path(f"/proc/{record.child.pid}/stat")
        while status.exists() and status.read_text(encoding="utf-8").rpartition(") ")[2][0] != "T":
            await anyio.sleep(POLL)
        os.kill(record.supervisor.pid, signal.SIGKILL)
        while record.is_supervised:
            await anyio.sleep(POLL)
        assert read_records(record.state_dir), "the agent runs on"
        if late == "its owner":
            with pytest.raises(EngineLost):
                async with attach(record, epoch=1, title="stand-in"):
                    pass
        else:
            await anyio.to_thread.run_sync(end_left, record.state_dir, record.agent, record.session_id)
        assert not record.is_running
        assert not record.directory.exists()


_STOP_FROM_BELOW = """
import os, signal, sys
from pathlib import Path
from helmsman.agents.supervisor.records import read_record
record = read_record(Path(sys.argv[1]))
assert os.getppid() == record.child.pid
os.kill(record.child.pid, signal.SIGSTOP)  # or it would end with its supervisor
os.kill(record.supervisor.pid, signal.SIGKILL)
record.stop()
Path(sys.argv[2]).write_text(str(record.child.is_alive()))
"""


async def test_a_process_below_an_agent_ends_it_after_the_kill_of_its_supervisor(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    async with kept(tmp_path) as record:
        async with attach(record, epoch=1, title="stand-in") as child:
            command = [sys.executable, "-c", _STOP_FROM_BELOW, str(record.directory), str(ended)]
            await child.send(f"run {json.dumps(command)}")
            while not ended.exists() or not ended.read_text():
                await anyio.sleep(POLL)
        assert ended.read_text() == "False"
        assert not record.is_running
        assert not record.directory.exists()


async def test_an_owner_reads_what_a_killed_supervisor_has_logged(tmp_path: Path) -> None:
    async with kept(tmp_path) as record:
        async with attach(record, epoch=1, title="stand-in") as child:
            await child.send("say 10000")
            while _logged_bytes(record) < 5_000_000:
                await anyio.sleep(POLL)
            os.kill(record.supervisor.pid, signal.SIGKILL)
            said = [line.line.split()[0] async for lines in child.lines() for line in lines]
            assert child.is_lost
        assert len(said) > 9_000
        assert said == [*(b"%d" % number for number in range(10_000)), b"said"][: len(said)]


async def test_an_owner_reads_all_that_was_said_before_the_end_however_late_it_reads(tmp_path: Path) -> None:
    async with kept(tmp_path) as record, attach(record, epoch=1, title="stand-in") as child:
        await child.send("say 10000")
        await child.send("exit 0")
        while record.is_running:
            await anyio.sleep(POLL)
        said: list[bytes] = []
        async for lines in child.lines():
            said += [line.line.split()[0] for line in lines]
            await child.commit(lines[-1].end)
        assert said == [*(b"%d" % number for number in range(10_000)), b"said"]
        assert child.ended is not None


def _logged_bytes(record: ProcessRecord) -> int:
    return sum(path.stat().st_size for path in (record.directory / "output").iterdir())


async def _append(accepted: list[socket.socket], listener: socket.socket) -> None:
    accepted.append(await anyio.to_thread.run_sync(greet, listener))
