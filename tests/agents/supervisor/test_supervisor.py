"""Tests of a supervisor and its child: no output is lost, input arrives once, and everything ends."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helmsman.agents.supervisor import process as program
from helmsman.agents.supervisor.directory import (
    WAKE,
    make_directory,
    mark_needed,
    private_directory,
    read_content,
    socket_path,
    try_attach,
)
from helmsman.agents.supervisor.process import become_subreaper, surviving_descendants
from helmsman.agents.supervisor.records import ask_supervisor
from helmsman.agents.supervisor.relay import Activity, OutputLine, OutputReader
from helmsman.base.process_ending import signal_all
from helmsman.base.processes import KILL, Process, descendants, running_process
from helmsman.errors import EngineLost
from tests.agents.supervisor import stand_in

pytestmark = pytest.mark.skipif(os.name != "posix", reason="There are no supervisors here.")

SECONDS = 30
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


class Owner:
    """Owner that sends and receives frames one by one, and reads the output line by line."""

    output: OutputReader
    offset: int
    lines: list[OutputLine]

    def __init__(self, address: Path, epoch: int = 0) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(SECONDS)
        self.socket.connect(str(address))
        self._file = self.socket.makefile("rb")
        self.send(f"e{epoch}")

    def hello(self) -> dict[str, Any]:
        hello: dict[str, Any] = json.loads(self.frame())
        self.output = OutputReader(Path(hello["output"]))
        self.offset = hello["from"]
        self.lines = []
        return hello

    def send(self, *frames: str) -> None:
        self.socket.sendall("".join(f"{frame}\n" for frame in frames).encode())

    def frame(self) -> str:
        return self._file.readline().decode().rstrip("\n")

    def frames(self, kind: str) -> Iterator[str]:
        while frame := self.frame():
            if frame.startswith(kind):
                yield frame[1:]

    def read(self) -> OutputLine:
        while not self.lines:
            found = self.output.read(self.offset, None)
            if found:
                self.offset = found[-1].end
                self.lines += found
            else:
                next(self.frames("+"))
        return self.lines.pop(0)

    def said(self) -> str:
        return self.read().line.decode()

    def leave(self) -> None:
        if hasattr(self, "output"):
            self.output.close()
        self._file.close()
        self.socket.close()


@dataclass
class Kept:
    """Supervisor with the stand-in as its child."""

    directory: Path
    address: Path
    said: dict[str, Any]
    owners: list[Owner] = field(default_factory=list[Owner])
    attached: ExitStack = field(default_factory=ExitStack)
    """Keeps the supervisor from ending, also before its first owner has come."""

    @property
    def record(self) -> dict[str, Any]:
        content: dict[str, Any] = read_content(self.directory)
        return content

    @property
    def supervisor(self) -> Process:
        return Process(*self.record["supervisor"])

    @property
    def child(self) -> Process:
        return Process(*self.record["child"])

    def own(self, epoch: int = 0) -> Owner:
        self.owners.append(Owner(self.address, epoch))
        return self.owners[-1]


@contextmanager
def kept(
    tmp_path: Path, *argv: str, idle: float = 900, next_one: tuple[str, ...] = (), epoch: int = 0, **output: int
) -> Iterator[Kept]:
    directory = tmp_path / "k"
    make_directory(directory)
    address = socket_path(directory)
    private_directory(address.parent)
    attached = ExitStack()
    attached.enter_context(try_attach(directory))
    order = {
        "directory": str(directory),
        "socket": str(address),
        "argv": argv or [sys.executable, str(Path(stand_in.__file__))],
        "env": ENV,
        "idle": idle,
        "watcher": "tests.agents.supervisor.stand_in:StandInWatcher",
        "greeting": [stand_in.GREETING],
        "answer": ["id", "helmsman"],
        "epoch": epoch,
        "output": output,
        "about": {},
        "successor": next_one,
    }
    answer = subprocess.run(
        [sys.executable, "-m", "helmsman.agents.supervisor.process"],
        input=json.dumps(order),
        capture_output=True,
        encoding="utf-8",
        env=ENV,
        timeout=SECONDS,
        check=True,
    )
    found = Kept(directory, address, json.loads(answer.stdout or "{}"), attached=attached)
    supervisor = found.supervisor if found.said.get("ready") else None
    try:
        yield found
    finally:
        attached.close()
        for owner in found.owners:
            owner.leave()
        if supervisor is not None:
            with suppress(ProcessLookupError):
                os.kill(supervisor.pid, signal.SIGTERM)
            until(lambda: not supervisor.is_alive())


# --- lines -----------------------------------------------------------------------------------------------------------


def test_an_owner_reads_what_was_not_committed(tmp_path: Path) -> None:
    with kept(tmp_path) as found:
        one = found.own()
        assert one.hello() == {
            "epoch": 0,
            "inputs": 0,
            "answer": '{"id": "helmsman", "result": {}}',
            "output": str(found.directory / "output"),
            "from": 0,
            "size": 0,
            "open": [],
        }
        one.send("i1 a", "i2 b", "i3 c", "i4 d")
        assert [one.read() for _ in range(4)] == [(0, b"a"), (2, b"b"), (4, b"c"), (6, b"d")]
        one.send("a2")
        one.leave()
        two = found.own()
        hello = two.hello()
        assert (hello["epoch"], hello["from"], hello["size"], hello["inputs"]) == (0, 2, 8, 4)
        assert [two.read() for _ in range(3)] == [(2, b"b"), (4, b"c"), (6, b"d")]
        two.send("a8")
        two.leave()
        three = found.own()
        assert three.hello()["from"] == 8
        three.send("i5 e")
        assert three.read() == (8, b"e")


def test_an_answer_closes_its_question_in_the_same_step_and_comes_once(tmp_path: Path) -> None:
    with kept(tmp_path) as found:
        one = found.own()
        one.hello()
        one.send("i1 question 1", "i2 question 1", "i3 question 2")  # asked again, and another one
        assert [one.said() for _ in range(3)] == ["question 1", "question 1", "question 2"]
        one.send("i4 answer 1")
        one.leave()  # without waiting for anything
        two = found.own()
        hello = two.hello()
        assert (hello["open"], hello["inputs"]) == (["2"], 4)
        two.send("i4 answer 1", "i5 more")  # again, by an owner that does not know that it has arrived
        assert [two.said() for _ in range(5)][3:] == ["answer 1", "more"]


def test_a_question_that_waits_is_read_by_the_next_owner_though_later_lines_were_committed(tmp_path: Path) -> None:
    with kept(tmp_path) as found:
        one = found.own()
        one.hello()
        one.send("i1 before", "i2 question 1", "i3 after")
        before, question, after = one.read(), one.read(), one.read()
        assert before.end == question.offset
        one.send(f"a{after.end}")
        one.leave()
        two = found.own()
        assert (two.hello()["from"], two.said()) == (question.offset, "question 1")
        two.send("i4 answer 1", f"a{after.end}")
        two.leave()
        assert found.own().hello()["from"] == after.end


def test_of_half_a_frame_nothing_reaches_the_child(tmp_path: Path) -> None:
    with kept(tmp_path) as found:
        one = found.own()
        one.hello()
        one.send("i1 question 1")
        question = one.read()
        one.socket.sendall(b"i2 answer 1")
        one.leave()
        two = found.own()
        assert two.hello()["open"] == ["1"]
        assert two.read() == question
        two.send("i2 answer 1")
        assert two.said() == "answer 1"


def test_the_newest_owner_wins_unless_its_epoch_is_older(tmp_path: Path) -> None:
    with kept(tmp_path, epoch=4) as found:
        one = found.own(7)
        assert one.hello()["epoch"] == 7
        for older in (6, -1):
            late = found.own(older)
            assert (late.frame(), late.frame()) == ("r7", "")
        two = found.own(7)
        assert two.hello()["epoch"] == 7
        assert (one.frame(), one.frame()) == ("r7", "")
        two.send("i1 mine")
        assert two.said() == "mine"


def test_a_line_that_is_much_too_long_is_left_out(tmp_path: Path) -> None:
    with kept(tmp_path) as found:
        one = found.own()
        one.hello()
        one.send(f"i1 long {65 * 1024 * 1024}", "i2 after")
        assert one.said() == "after"


def test_a_megabyte_passes_both_ways(tmp_path: Path) -> None:
    with kept(tmp_path) as found:
        one = found.own()
        one.hello()
        one.send(f"i1 {'z' * 3_000_000}")
        assert len(one.said()) == 3_000_000


# --- output that is not read immediately -----------------------------------------------------------------------------


def segments(found: Kept) -> dict[int, int]:
    """Return the size of each segment of the output, by the offset of its first byte."""
    sizes: dict[int, int] = {}
    for path in (found.directory / "output").iterdir():
        with suppress(FileNotFoundError):  # it was just removed
            sizes[int(path.name)] = path.stat().st_size
    return sizes


def test_the_output_without_an_owner_is_logged_for_this_user_alone(tmp_path: Path) -> None:
    with kept(tmp_path, segment_bytes=1_000_000) as found:
        one = found.own()
        one.hello()
        one.send("i1 work", "i2 say 20000", "i3 done")
        one.leave()
        until(lambda: ask_supervisor(found.address) == Activity())
        memory = Path(f"/proc/{found.supervisor.pid}/statm")
        assert not memory.exists() or int(memory.read_text().split()[1]) * 4096 < 60_000_000
        files = [found.directory / "output", *(found.directory / "output").iterdir()]
        assert {path.stat().st_mode & 0o777 for path in files} == {0o700, 0o600}
        two = found.own()
        two.hello()
        said = [two.said() for _ in range(20_003)]
        assert [line.split()[0] for line in said] == ["work", *map(str, range(20_000)), "said", "done"]


def test_segments_without_an_uncommitted_line_are_removed(tmp_path: Path) -> None:
    with kept(tmp_path, segment_bytes=1_000_000) as found:
        one = found.own()
        one.hello()
        one.send("i1 say 10000")
        lines = [one.read() for _ in range(10_001)]
        before = sorted(segments(found))
        assert len(before) > 3
        needed = next(line for line in lines if line.offset > before[1])
        one.send(f"a{needed.offset}")
        until(lambda: sorted(segments(found)) == before[1:])
        two = found.own()
        two.hello()
        assert two.read() == needed
        two.send(f"a{lines[-1].end}")
        until(lambda: sorted(segments(found)) == before[-1:])


def test_a_child_that_says_too_much_waits_until_it_is_committed(tmp_path: Path) -> None:
    with kept(tmp_path, segment_bytes=100_000, uncommitted_bytes=1_000_000) as found:
        one = found.own()
        one.hello()
        one.send("i1 work", "i2 say 20000", "i3 done")
        one.leave()
        until(lambda: sum(segments(found).values()) >= 1_000_000)
        two = found.own()
        two.hello()
        assert two.said() == "work"
        assert sum(segments(found).values()) < 2_000_000
        line = two.read()
        for number in range(20_001):
            line = two.read()
            if number % 100 == 0:
                assert (
                    ask_supervisor(found.address) == Activity(("it",)) or number > 10_000
                )  # it has not come to the end
                two.send(f"a{line.end}")
        assert line.line == b"done"


_READER = """
import os, signal, sys
from pathlib import Path
from tests.agents.supervisor.test_supervisor import Owner
book, last_line, place = Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
owner = Owner(Path(sys.argv[1]))
owner.hello()
if lines := book.read_text().splitlines():
    owner.offset = int(lines[-1].split()[0])
with book.open("a") as written:
    for number in range(last_line + 1):
        def die(where):
            if (number, where) == (last_line, place):
                os.kill(os.getpid(), signal.SIGKILL)
        line = owner.read()
        die("read")
        print(line.end, line.line.split()[0].decode(), file=written, flush=True)
        die("written")
        owner.send(f"a{line.end}")
        die("committed")
"""


@pytest.mark.long
def test_a_reader_that_is_killed_at_any_point_reads_every_line_once(tmp_path: Path) -> None:
    """Commit a line and the following offset in one step, like a hub."""
    book, count, randomness = tmp_path / "book", 5_000, random.Random(7)
    book.touch()
    with kept(tmp_path, segment_bytes=100_000) as found:
        one = found.own()
        one.hello()
        one.send(f"i1 say {count}")
        one.leave()
        while len(book.read_text().splitlines()) < count - 1000:
            place = randomness.choice(["read", "written", "committed"])
            last = str(randomness.randrange(1000))
            reader = [sys.executable, "-c", _READER, str(found.address), str(book), last, place]
            assert subprocess.run(reader, timeout=SECONDS, check=False).returncode == -signal.SIGKILL
        left = count - len(book.read_text().splitlines())
        subprocess.run([sys.executable, "-c", _READER, found.address, book, str(left), ""], timeout=SECONDS, check=True)
    assert [line.split()[1] for line in book.read_text().splitlines()] == [*map(str, range(count)), "said"]


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux limits another process.")
def test_on_a_full_disk_the_child_waits_and_nothing_is_lost(tmp_path: Path) -> None:
    with kept(tmp_path) as found:
        one = found.own()
        one.hello()
        resource.prlimit(found.supervisor.pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        one.send("i1 work", "i2 say 2000", "i3 done")
        log = found.directory / "stderr.log"
        until(lambda: log.exists() and "cannot write the output" in log.read_text())
        assert ask_supervisor(found.address) == Activity(("it",))
        resource.prlimit(found.supervisor.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        said = [one.said() for _ in range(2003)]
        assert [line.split()[0] for line in said] == ["work", *map(str, range(2000)), "said", "done"]


# --- the end ---------------------------------------------------------------------------------------------------------


def test_the_owner_learns_how_the_child_ended(tmp_path: Path) -> None:
    with kept(tmp_path) as found:
        one = found.own()
        one.hello()
        one.send("i1 last words", "i2 exit 7")
        assert one.said() == "last words"
        assert next(one.frames("x")) == '7 {"stderr": ""}'
        until(lambda: not found.directory.exists())


def test_a_child_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    with kept(tmp_path, "/bin/sh", "-c", "echo no luck >&2; exit 3") as found:
        assert found.said == {"ready": False, "exit_code": 3, "stderr": "no luck\n"}
        until(lambda: not found.directory.exists())


MUCH = "z" * 16_000_000


def test_a_child_that_hangs_is_ended_when_its_owner_says_so_however_much_it_has_yet_to_read(tmp_path: Path) -> None:
    with kept(tmp_path) as found:
        one = found.own()
        one.hello()
        one.send("i1 hang", f"i2 {MUCH}", f"i3 {MUCH}", "t")
        assert next(one.frames("x")) == '-15 {"stderr": ""}'


def test_a_child_that_hangs_is_idle_when_its_owner_has_left_however_much_it_has_yet_to_read(tmp_path: Path) -> None:
    with kept(tmp_path, idle=0.2) as found:
        supervisor = found.supervisor
        one = found.own()
        one.hello()
        one.send("i1 hang", f"i2 {MUCH}")
        one.leave()
        found.attached.close()
        until(lambda: not supervisor.is_alive())


def test_a_writer_to_an_ending_child_learns_how_it_ended(tmp_path: Path) -> None:
    with kept(tmp_path) as found:
        one = found.own()
        one.hello()
        one.send("i1 stay", "t")
        assert one.said() == "no more input"
        one.send("i2 more")
        assert next(one.frames("x")) == '-15 {"stderr": ""}'


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="There are no subreapers here.")
@pytest.mark.parametrize(
    "how", ["SIGTERM", *(pytest.param(one, marks=pytest.mark.rare) for one in ("t", "the child ends"))]
)
def test_nothing_below_it_outlives_the_child(tmp_path: Path, how: str) -> None:
    with kept(tmp_path) as found:
        supervisor = found.supervisor
        one = found.own()
        one.hello()
        one.send("i1 daemon")
        daemon = running_process(int(one.said().split()[1]))
        assert daemon is not None
        if how == "SIGTERM":
            os.kill(supervisor.pid, signal.SIGTERM)
        else:
            one.send("t" if how == "t" else "i2 exit 0")
        until(lambda: not supervisor.is_alive())
        assert not daemon.is_alive()


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux tells what carries a mark.")
def test_processes_of_a_killed_supervisor_are_known(tmp_path: Path) -> None:
    with kept(tmp_path) as found:
        one = found.own()
        one.hello()
        one.send("i1 daemon")
        daemon = running_process(int(one.said().split()[1]))
        supervisor, child = found.supervisor, found.child
        os.kill(supervisor.pid, signal.SIGKILL)
        until(lambda: not supervisor.is_alive() and not child.is_alive())  # the child ends with it
        left = surviving_descendants(found.directory)
        assert daemon in left
        signal_all(left, KILL)
        until(lambda: not any(process.is_alive() for process in left))


def test_an_unused_supervisor_ends_and_a_working_one_does_not(tmp_path: Path) -> None:
    with kept(tmp_path, idle=0.2) as found:
        supervisor = found.supervisor
        one = found.own()
        one.hello()
        one.send("i1 work")
        assert one.said() == "work"
        one.leave()
        found.attached.close()
        deadline = time.monotonic() + 0.6  # three times as long as it would wait
        while time.monotonic() < deadline:
            assert ask_supervisor(found.address) == Activity(("it",))
        two = found.own()
        two.hello()
        two.send("i2 done")
        two.leave()
        until(lambda: not supervisor.is_alive())
        with pytest.raises(EngineLost):
            ask_supervisor(found.address)


# --- who may connect -------------------------------------------------------------------------------------------------

_TRY = """
import ctypes, os, socket, sys
if sys.argv[2] == "sandboxed":
    ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with socket.socket(socket.AF_UNIX) as it:
            it.connect(sys.argv[1])
            try:
                it.sendall(b"?\\n")
                print(it.recv(100).decode() or "refused", flush=True)
            except OSError:
                print("refused", flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux tells.")
def test_a_sandboxed_process_is_not_let_in_however_far_it_has_got(tmp_path: Path) -> None:
    def answer(who: str) -> str:
        command = [sys.executable, "-c", _TRY, str(found.address), who]
        return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=SECONDS, check=True).stdout

    with kept(tmp_path) as found:
        assert answer("ordinary").strip() == "[[], []]"
        assert answer("sandboxed").strip() == "refused"


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux tells.")
def test_no_command_of_an_agent_owns_this_agent_or_another(tmp_path: Path) -> None:
    with kept(tmp_path / "mine") as mine, kept(tmp_path / "other") as other:
        agent = mine.own()
        agent.hello()
        for number, address in enumerate((mine.address, other.address), 1):
            agent.send(f"i{number} run {json.dumps([sys.executable, '-c', _TRY, str(address), 'ordinary'])}")
            assert agent.said() == "refused"


# --- who follows it ---------------------------------------------------------------------------------------------------


def test_a_supervisor_starts_the_next_hub_if_one_is_needed(tmp_path: Path) -> None:
    """Start it outside of the supervisor, or it would end with it."""
    started = tmp_path / "started"
    script = (
        f"import os, time; open({str(started)!r}, 'a').write(f'{{os.getpid()}} {{os.getppid()}}\\n'); time.sleep(60)"
    )
    with kept(tmp_path, next_one=(sys.executable, "-c", script)) as found:
        supervisor = found.supervisor
        owner = found.own()
        owner.hello()
        assert mark_needed(found.directory, needed=True)
        os.kill(supervisor.pid, WAKE)
        found.attached.close()
        owner.leave()
        until(started.exists)
        until(lambda: started.read_text().endswith("\n"))
        pid, parent = map(int, started.read_text().splitlines()[0].split())
        process = running_process(pid)
        assert process is not None
        assert parent != supervisor.pid
        assert process not in descendants(supervisor)
        mark_needed(found.directory, needed=False)
        assert found.child.is_alive()
    assert process.is_alive()
    for line in started.read_text().splitlines():
        with suppress(ProcessLookupError):
            os.kill(int(line.split()[0]), signal.SIGKILL)


@pytest.fixture
def as_supervisor() -> Iterator[None]:
    """Run this process as a supervisor, and restore it afterwards."""
    yield
    become_subreaper(really=False)


@pytest.mark.usefixtures("as_supervisor")
def test_a_hub_is_started_only_if_needed_and_missing_with_backoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(program, "time", SimpleNamespace(monotonic=lambda: now))
    said: list[bytes] = []
    directory = tmp_path / "k"
    make_directory(directory)
    next_one = program.Successor(directory, ("/bin/true",), said.append)

    def attempts(seconds: float, *, nobody_attached: bool) -> int:
        nonlocal now
        before, end = len(said), now + seconds
        while now < end:
            next_one.look(nobody_attached=nobody_attached)
            now += 0.25
        return len(said) - before

    assert attempts(60, nobody_attached=True) == 0, "nobody is needed"
    assert next_one.until_next_look() >= 60
    mark_needed(directory, needed=True)
    assert next_one.until_next_look() < 1
    assert attempts(60, nobody_attached=False) == 0, "somebody is there"
    assert attempts(0.9, nobody_attached=True) == 0, "somebody may be coming"
    assert attempts(600, nobody_attached=True) < 20
    assert attempts(1, nobody_attached=False) == 0
    assert attempts(2, nobody_attached=True) == 1, "one came, and has gone again"
    mark_needed(directory, needed=False)
    assert attempts(60, nobody_attached=True) == 0
