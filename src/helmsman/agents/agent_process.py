"""A running agent that has one session: a child of this process, or of a supervisor, which outlives it.

Both are started with the same greeting, speak lines of JSON, and are ended with all that they have started. What differs
between agents is a `Greeting`. The output of a supervised process is committed up to the start of its running turn
(`ReplayWindow`), so that the next owner can follow the turn.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
from abc import abstractmethod
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import anyio.to_thread
import msgspec

from helmsman.agents.child_process import open_child
from helmsman.agents.event_router import OutputPosition
from helmsman.agents.supervisor.client import GREETING_ID, attach, start_supervised
from helmsman.agents.supervisor.relay import is_answer
from helmsman.base.json_values import json_object
from helmsman.base.jsonrpc import Resumed, Transport
from helmsman.base.line_framer import LineFramer
from helmsman.base.process_ending import end_processes, namespace_init
from helmsman.base.processes import (
    KEPT_MARK,
    Process,
    descendants,
    parent_of,
    running_process,
    started_before,
    started_now,
    with_variable,
)
from helmsman.base.structs import Value
from helmsman.errors import EngineLost, EngineProtocolError, EngineStartFailed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup

    from helmsman.agents.child_process import Child
    from helmsman.agents.supervisor.client import Owner, SupervisedProcess
    from helmsman.agents.supervisor.records import ProcessRecord
    from helmsman.agents.supervisor.relay import OutputLine
    from helmsman.base.jsonrpc import RequestId
    from helmsman.errors import HelmsmanError

log = logging.getLogger(__name__)

_ERROR: Final = re.compile(
    r"(?:Uncaught )?(?:[\w.]*(?:Error|Exception)\b[^:]*:|(?:error|fatal|panic)\b)", re.IGNORECASE
)


def error_line(stderr: str) -> str:
    """Return the last line that names an error, else the last line. Lines of a stack trace are indented, or follow it."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if _ERROR.match(line)]
    return (named or lines or [""])[-1].strip()


# --- replay ----------------------------------------------------------------------------------------------------------
# The next owner of a supervised agent reads all output since the oldest running turn began again, and the questions that
# wait for an answer, which the supervisor knows. The log of a session has most of these events already, and says up to
# which line. The rest of the state of the turn (items in progress, open questions) comes from the same lines as it did for
# the owner before.


REPLAYED_BYTES: Final = 128 * 1024 * 1024
"""A turn with more output than this is not read again, except for its open questions."""


class ReplayWindow:
    """The running turns of a process, by a key."""

    def __init__(self, offset: int) -> None:
        self._end = offset
        self._turns: dict[str, int] = {}

    def read(self, end: int) -> None:
        """Note how far the output was read."""
        self._end = end

    def begin_turn(self, key: str, offset: int | None = None) -> None:
        """A turn begins with the line at an offset, or with the next line."""
        self._turns[key] = self._end if offset is None else offset

    def has_turn(self, key: str) -> bool:
        return key in self._turns

    def end_turn(self, key: str) -> None:
        """A turn has ended, and all of it was delivered."""
        self._turns.pop(key, None)

    @property
    def start(self) -> int:
        """The offset from which the next owner has to read."""
        # A turn with too much output is left out, so that the next owner need not read it all.
        turns = (offset for offset in self._turns.values() if self._end - offset <= REPLAYED_BYTES)
        return min(turns, default=self._end)


# --- greeting and starting -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """Greeting of an agent, and the parser of its lines. An agent that is not greeted cannot be supervised.

    `request` has the id `GREETING_ID`, to which the names in `answer` lead in its answer. `read_answer` returns what matters
    of the answer, or raises `EngineProtocolError`. `watcher` is the class that says what runs (`module:Class`). `advice`
    ends the error of an agent that does not come up. Where turns begin with lines of the agent, `follow` returns what gets
    each line before it counts as read.
    """

    title: str
    request: Mapping[str, Any] | None
    read_answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    watcher: str
    seconds: float
    advice: str
    answer: tuple[str, ...] = ("id", GREETING_ID)
    follow: Callable[[ReplayWindow], Callable[[OutputLine], None]] = lambda window: lambda line: None


class LaunchFiles(Protocol):
    """Files that were made for one process, and are removed after it. Methods block, briefly."""

    def used_by(self, process: Process | None) -> None:
        """Keep the files for as long as this process runs."""
        ...

    def remove(self) -> None:
        """Remove the files."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A process to start. `fingerprint` identifies the fixed settings of the process, `about` goes into its record."""

    argv: Sequence[str]
    env: Mapping[str, str]
    directory: Path
    fingerprint: str
    about: Mapping[str, Any]
    files: LaunchFiles | None = None


# --- processes of an agent -------------------------------------------------------------------------------------------
# A command that an agent runs can leave its parent, its group and its environment, and outlive the turn. It could
# change files while they are verified or applied. So the end of a turn ends all descendants of the agent except those
# that existed when its first turn began: the agent, its wrappers, and its MCP servers with their own children.
#
# No descendant escapes: the supervisor of an agent, or the reaper of a child, is a subreaper, and a sandbox is a PID
# namespace whose first process inherits all orphans. Where the system has neither, processes are found by their parents
# and by a mark in their environment.


_BASELINE: Final = "baseline"


class ProcessBaseline(Value, frozen=True):
    """The processes that were there at a moment: all that are older than `since`, or those `seen` if age cannot be told."""

    since: str | None = None
    seen: frozenset[Process] = frozenset()

    @classmethod
    def now(cls, found: frozenset[Process]) -> ProcessBaseline:
        """Return the baseline of this moment, at which these were found."""
        # Start times of Linux can be compared; elsewhere only identity tells.
        since = started_now()
        return cls(seen=found) if since is None else cls(since)

    def contains(self, process: Process) -> bool:
        if self.since is None:
            return process in self.seen
        return started_before(process, self.since)


def _servers(older: Iterable[Process]) -> frozenset[int]:
    """Return the MCP servers among the processes of an agent: those that do not share its standard input.

    What a server starts is its own, whenever that was: a browser, or the program that `npx` runs in the end. The agent and
    the programs around it (sandbox, wrapper scripts) all have the agent's input pipe as standard input, and
    only a process started below those is a command. A process in doubt is not taken for a server.
    """
    # Start times are decimal texts: compare their lengths first.
    by_age = sorted(older, key=lambda process: (len(process.started), process.started, process.pid))
    inputs = {process.pid: _input_of(process.pid) for process in by_age}
    agents_input = next(iter(inputs.values()), None)
    return frozenset(pid for pid, given in inputs.items() if given is not None and given != agents_input)


def _input_of(pid: int) -> tuple[int, int] | None:
    with suppress(OSError):
        status = os.stat(f"/proc/{pid}/fd/0")  # noqa: PTH116 - called for many processes
        return status.st_dev, status.st_ino
    return None


def _is_below(process: Process, servers: frozenset[int]) -> bool:
    pid: int | None = process.pid
    while pid is not None and pid > 1:
        pid = parent_of(pid)
        if pid in servers:
            return True
    return False


# --- the agent -------------------------------------------------------------------------------------------------------


TURN: Final = "turn"
"""The key of the turn in a `ReplayWindow`: a process has one session."""
_EXIT_GRACE: Final = 0.5
"""How long we wait for the exit code after the end of the output, and for the rest of the output after the exit."""


class AgentProcess(Transport):
    """A running agent that speaks lines of JSON, called `title` in errors. Methods that are not async block, briefly."""

    is_supervised = False

    def __init__(self, title: str, position: OutputPosition) -> None:
        self.title = title
        self.position = position
        self.answer: Mapping[str, Any] = {}
        """Answer of the agent to the greeting."""
        self._baseline: ProcessBaseline | None = None

    @property
    def input_position(self) -> str | None:
        """The number of input lines it has received, from all owners; None without a supervisor."""
        return None

    @property
    def inputs(self) -> int:
        """The number of input lines that the supervisor has counted; 0 without one."""
        return 0

    @property
    def is_taken_over(self) -> bool:
        """Return whether it has another owner now. Valid when its output has ended."""
        return False

    @property
    def has_ended(self) -> bool:
        """Return whether it is gone, as far as was read."""
        return True

    async def lines(self) -> AsyncIterator[Mapping[str, Any]]:
        """Yield its lines until it has ended or has another owner. Events that are delivered between name their line."""
        async for batch in self.messages():
            for index, raw in enumerate(batch):
                # Programs print warnings on standard output, too. A line that is no object must not end the session.
                if (line := json_object(raw)) is None:
                    log.warning("skipped a line of an agent that is not a JSON object (%d bytes)", len(raw))
                    continue
                self.on_message(index)
                yield line
            self.on_message(None)

    async def send_object(self, line: Mapping[str, Any]) -> None:
        """Send a line.

        Raises:
            EngineLost: It is gone.
        """
        with anyio.CancelScope(shield=True):  # half a line would spoil the next one
            await self.send(json.dumps(line))

    # --- what the next owner has to know -----------------------------------------------------------------------------

    def note(self, **notes: Any) -> None:
        """Note something for the next owner, where there can be one."""

    def turn_begins(self) -> None:
        """The next owner reads the output from here, until the turn has ended."""

    def turn_ended(self) -> None:
        """The next owner need not read the turn again."""

    # --- its end -----------------------------------------------------------------------------------------------------

    async def end_of_output(self) -> EngineLost:
        """Return why its output has ended, with its last lines."""
        loss = await self.loss()
        said = error_line(str(loss.details.get("stderr") or ""))
        what, _, what_next = loss.message.partition(". ")
        return EngineLost(f"{what}: {said[:300]}. {what_next}", **loss.details) if said else loss

    @abstractmethod
    async def end(self, *, at_once: bool) -> None:
        """Tell it to end: `at_once` if a turn runs, which it would finish first if only its input were closed."""

    def kill(self) -> None:
        """Kill the agent and all that it has started, without a grace period."""
        end_processes(self.all_processes, grace=0)

    # --- its processes -----------------------------------------------------------------------------------------------

    @abstractmethod
    def all_processes(self) -> frozenset[Process]:
        """Return the agent and all that it has started."""

    def note_baseline(self) -> None:
        """Note which processes belong to the agent, unless that was noted; called before its first turn begins.

        It is kept for the next owner too, which may find the agent in the middle of a turn.
        """
        if self._baseline is None:
            self._baseline = ProcessBaseline.now(self.all_processes())
            self.note(**{_BASELINE: msgspec.to_builtins(self._baseline)})

    def started_by_turns(self) -> frozenset[Process]:
        """Return what turns have started and is still there; none before the first turn."""
        baseline = self._baseline
        if baseline is None:
            return frozenset()
        found = self.all_processes()
        older = {process for process in found if baseline.contains(process)}
        servers = _servers(older)
        return frozenset(process for process in found - older if not servers or not _is_below(process, servers))

    def end_started_by_turns(self) -> frozenset[Process]:
        """End what turns have started; return what could not be ended.

        Then the agent is killed with it, since the end of a PID namespace is certain. The next turn starts another one.
        """
        # Before the first turn there is nothing that a turn could have started.
        baseline = self._baseline
        if baseline is None:
            return frozenset()
        # Signals by namespace reach processes that fork faster than they are listed.
        inits = (namespace_init(process) for process in self.all_processes() if baseline.contains(process))
        left = end_processes(self.started_by_turns, namespace=next(filter(None, inits), None))
        if left:
            # Killing the agent ends its sandbox's namespace, and everything in it.
            self.kill()
        return left


class ChildAgent(AgentProcess):
    """Agent that is a child of this process. It has no log of its output, so that no event can name its line."""

    def __init__(self, child: Child, title: str) -> None:
        super().__init__(title, OutputPosition())
        self.child = child
        self._framer = LineFramer()
        self._early: list[bytes] = []

    async def greet(self, greeting: str, awaited: Sequence[str]) -> Mapping[str, Any]:
        """Send the first request of a conversation, and return its answer. Other lines wait for the next reader.

        Raises:
            EngineLost: The output has ended before.
        """
        await self.send(greeting)
        async with aclosing(self._read()) as batches:
            async for lines in batches:
                for index, line in enumerate(lines):
                    message = json_object(line) or {}
                    if is_answer(message, awaited):
                        # The rest of the batch may hold messages that came right after the answer.
                        self._early += lines[index + 1 :]
                        return message
                    self._early.append(line)
        raise await self.loss()

    async def messages(self) -> AsyncIterator[list[bytes]]:
        if self._early:
            early, self._early = self._early, []
            yield early
        async for lines in self._read():
            yield lines

    async def _read(self) -> AsyncGenerator[list[bytes]]:
        try:
            async for chunk in self.child.stdout:
                yield self._framer.feed(chunk)
        # The pipe was closed by `close_output_after_exit`: an end like any other.
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return

    async def send(self, message: str) -> None:
        try:
            await self.child.stdin.send(message.encode() + b"\n")
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError) as error:
            raise EngineLost(f"{self.title} no longer reads its input. Send the message again.") from error

    async def send_last(self, content: str) -> None:
        """Send all that it is ever told, which is no line of JSON, and close its input. It may have ended."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            await self.child.stdin.send(content.encode("utf-8", "replace"))
            await self.child.stdin.aclose()

    async def loss(self) -> EngineLost:
        # Output usually ends a moment before the exit code is known.
        with anyio.move_on_after(_EXIT_GRACE):
            await self.child.wait()
            await self.child.stderr_ended()
        return _ended(self.title, self.child.exit_code, self.child.stderr_tail)

    async def close_output_after_exit(self) -> None:
        """Make sure that `messages` ends with the process, even if a grandchild holds the pipe open."""
        await self.child.wait()
        # Output that the program wrote just before its exit is still in the pipe.
        await anyio.sleep(_EXIT_GRACE)
        await self.child.stdout.aclose()

    async def end(self, *, at_once: bool) -> None:
        if at_once:
            self.child.signal(signal.SIGTERM)
        await self.child.end()

    def kill(self) -> None:
        self.child.kill()

    def all_processes(self) -> frozenset[Process]:
        return self.child.below()


class AttachedAgent(AgentProcess):
    """Agent in a supervisor, which outlives this process."""

    is_supervised = True

    def __init__(
        self,
        process: SupervisedProcess,
        record: ProcessRecord,
        window: ReplayWindow,
        greeting: Greeting,
        answer: Mapping[str, Any],
    ) -> None:
        """`answer` is the parsed answer to the greeting."""
        super().__init__(greeting.title, OutputPosition(process.process))
        self._process = process
        self._record = record
        self._window = window
        self._read = greeting.follow(window)
        self._offsets: list[int] = []
        self.answer = answer
        self.resumed = Resumed(epoch=process.epoch, requests=process.inputs, answer=self.answer)

    @property
    def input_position(self) -> str | None:
        return self._process.input_position

    @property
    def inputs(self) -> int:
        return self._process.inputs

    @property
    def is_taken_over(self) -> bool:
        return self._process.newer_epoch is not None

    @property
    def has_ended(self) -> bool:
        return self._process.ended is not None or self._process.is_lost

    async def messages(self) -> AsyncIterator[list[bytes]]:
        async for lines in self._process.lines():
            # The window moves before the lines are yielded: a turn that begins with one of them starts there.
            for said in lines:
                self._read(said)
                self._window.read(said.end)
            self._offsets = [said.offset for said in lines]
            yield [said.line for said in lines]
            # The reader has handled these lines when it asks for more.
            try:
                await self._process.commit(self._window.start)
            except EngineLost:
                continue  # its last output may still come

    def on_message(self, index: int | None) -> None:
        self.position.offset = None if index is None else self._offsets[index]

    def was_answered(self, request_id: RequestId) -> bool:
        offset = self.position.offset
        return offset is not None and self._process.was_answered(request_id, offset)

    async def send(self, message: str) -> None:
        await self._process.send(message)

    async def loss(self) -> EngineLost:
        ended = self._process.ended
        if ended is not None:
            return _ended(self.title, ended.exit_code, ended.stderr)
        # Attaching with a newer epoch takes the process away from this owner.
        if self.is_taken_over:
            return EngineLost(f"Another Helmsman has taken {self.title} over. Connect again to continue.")
        return EngineLost(f"The supervisor of {self.title} is gone. Send the next message to start another.")

    def note(self, **notes: Any) -> None:
        self._record.note(**notes)

    def turn_begins(self) -> None:
        if not self._window.has_turn(TURN):
            self._window.begin_turn(TURN)

    def turn_ended(self) -> None:
        # First the note, then the window: a crash in between replays a turn rather than losing one.
        self.note(turn=None)
        self._window.end_turn(TURN)

    async def end(self, *, at_once: bool) -> None:
        with suppress(EngineLost):
            await self._process.end()

    def all_processes(self) -> frozenset[Process]:
        # By parent, and by the mark in the environment: a process may lose either.
        found = descendants(self._record.supervisor) | with_variable(KEPT_MARK, str(self._record.directory))
        return frozenset(process for process in found if process != self._record.supervisor)

    def recall_baseline(self) -> None:
        """Take over the baseline of an earlier owner.

        If that is lost, the agent counts as started by the turn: it is ended with the rest, and the next turn starts
        another.
        """
        try:
            self._baseline = msgspec.convert(self._record.notes()[_BASELINE], ProcessBaseline)
        except (LookupError, msgspec.ValidationError):
            # Without a baseline nothing may be taken for harmless.
            self._baseline = ProcessBaseline(seen=frozenset({self._record.child}))


def _ended(title: str, code: int | None, stderr: str) -> EngineLost:
    how = "closed its output" if code is None else f"was ended by signal {-code}" if code < 0 else f"exited ({code})"
    return EngineLost(
        f"{title} {how}. Send the next message to start it again; sessions continue from disk.",
        exit_code=code,
        stderr=stderr or None,
    )


@asynccontextmanager
async def open_child_process(
    tasks: TaskGroup,
    argv: Sequence[str | Path],
    *,
    title: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> AsyncIterator[ChildAgent]:
    """Run an agent as a child for the length of the block.

    Raises:
        EngineStartFailed: The program cannot be run.
    """
    async with open_child(tasks, argv, env=env, cwd=cwd) as child:
        agent = ChildAgent(child, title)
        tasks.start_soon(agent.close_output_after_exit)
        yield agent


@asynccontextmanager
async def open_child_agent(greeting: Greeting, launch: Launch, tasks: TaskGroup) -> AsyncIterator[ChildAgent]:
    """Run an agent for the length of the block, greeted. Nothing that it has started is left afterwards.

    Raises:
        EngineStartFailed: It does not come up.
    """
    opening = open_child_process(tasks, launch.argv, title=greeting.title, env=launch.env, cwd=launch.directory)
    try:
        async with opening as agent:
            child = agent.child
            if launch.files is not None:
                # Before the greeting: another Helmsman must not remove the files of a process that is starting.
                await anyio.to_thread.run_sync(launch.files.used_by, running_process(child.pid))
            try:
                if greeting.request is not None:
                    with anyio.fail_after(greeting.seconds):
                        answer = await agent.greet(json.dumps(greeting.request), greeting.answer)
                    agent.answer = greeting.read_answer(answer)
            except TimeoutError as error:
                slow = EngineLost(f"It did not answer within {greeting.seconds:g} s.")
                raise not_up(greeting.title, greeting.advice, slow, None, child.stderr_tail) from error
            except (EngineLost, EngineProtocolError) as error:
                raise not_up(greeting.title, greeting.advice, error, child.exit_code, child.stderr_tail) from error
            yield agent
    finally:
        if launch.files is not None:
            # Shielded, because the files hold copies of logins.
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(launch.files.remove)


async def start_supervised_agent(
    greeting: Greeting, launch: Launch, *, state_dir: Path, idle: float, owner: Owner, about: Mapping[str, Any]
) -> ProcessRecord:
    """Let a supervisor start an agent, and greet it. `about` goes into the record beside what the launch says.

    Raises:
        EngineStartFailed: It does not come up. No process is left behind.
    """
    try:
        record = await start_supervised(
            launch.argv,
            env=launch.env,
            directory=launch.directory,
            state_dir=state_dir,
            idle=idle,
            owner=owner,
            watcher=greeting.watcher,
            greeting=[json.dumps(greeting.request)],
            answer=greeting.answer,
            about={
                **about,
                **launch.about,
                "place": str(launch.directory),
                "launch": launch.fingerprint,
            },
            ready_seconds=greeting.seconds,
        )
    except EngineLost as error:
        # On success the files belong to the process, and are removed after it.
        if launch.files is not None:
            await anyio.to_thread.run_sync(launch.files.remove)
        stderr = str(error.details.get("stderr") or "")
        raise not_up(greeting.title, greeting.advice, error, error.details.get("exit_code"), stderr) from error
    if launch.files is not None:
        await anyio.to_thread.run_sync(launch.files.used_by, record.child)
    return record


@asynccontextmanager
async def open_supervised_agent(
    greeting: Greeting, record: ProcessRecord, *, epoch: int
) -> AsyncIterator[AttachedAgent]:
    """Own an agent in a supervisor for the length of the block. The agent outlives the block.

    Raises:
        EngineLost: It has ended, or has another owner.
        EngineStartFailed: It refused the greeting.
    """
    async with attach(record, epoch=epoch, title=greeting.title) as process:
        try:
            answer = greeting.read_answer(json_object(process.answer.encode()) or {})
        except EngineProtocolError as error:
            # It could never be spoken to, so nothing would ever end it.
            await process.end()
            raise EngineStartFailed(error.message) from error
        yield AttachedAgent(process, record, ReplayWindow(process.offset), greeting, answer)


def not_up(title: str, advice: str, error: HelmsmanError, exit_code: object, stderr: str) -> EngineStartFailed:
    """Return the error for an agent that does not come up."""
    said = f" It said: {error_line(stderr).rstrip('.'):.300}." if stderr.strip() else ""
    return EngineStartFailed(
        f"{title} did not come up: {error.message.partition('. ')[0].rstrip('.')}.{said} {advice}",
        exit_code=exit_code,
        stderr=stderr or None,
    )
