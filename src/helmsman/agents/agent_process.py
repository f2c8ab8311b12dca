"""A running agent that has one session: a child of this process, or of a supervisor, which outlives it.

Both are started with the same greeting, speak lines of JSON, and are ended with all that they have started. What differs
between agents is a `Greeting`. The output of a supervised process is committed up to the start of its running turn
(`ReplayWindow`), so that the next owner can follow the turn.
"""

from __future__ import annotations

import json
import logging
import signal
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import anyio.to_thread

from helmsman.agents.agent_processes import AgentProcesses
from helmsman.agents.child_process import open_child
from helmsman.agents.error_line import error_line
from helmsman.agents.replay_window import ReplayWindow
from helmsman.agents.supervised_transport import SupervisedTransport
from helmsman.agents.supervisor.client import GREETING_ID, attach, start_supervised
from helmsman.agents.transports import StdioTransport
from helmsman.base.json_values import json_object
from helmsman.base.processes import running_process
from helmsman.errors import EngineLost, EngineProtocolError, EngineStartFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup

    from helmsman.agents.child_process import Child
    from helmsman.agents.event_router import OutputPosition
    from helmsman.agents.supervised_transport import OutputWatcher
    from helmsman.agents.supervisor.client import Owner, SupervisedProcess
    from helmsman.agents.supervisor.records import ProcessRecord
    from helmsman.base.jsonrpc import RequestId
    from helmsman.base.processes import Process

log = logging.getLogger(__name__)

TURN: Final = "turn"
"""The key of the turn in a `ReplayWindow`: a process has one session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """How an agent is greeted, and what is read from its lines.

    `request` has the id `GREETING_ID`. `read_answer` returns what matters of the answer, or raises `EngineProtocolError`.
    `watcher` is the class that tells a supervisor what runs (`module:Class`), `output` notes turns and questions in a
    `ReplayWindow`. `advice` ends the error of an agent that does not come up.
    """

    agent: str
    title: str
    request: Mapping[str, Any]
    read_answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    watcher: str
    output: Callable[[ReplayWindow], OutputWatcher]
    seconds: float
    advice: str


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
    """A process to start. `fingerprint` identifies what is fixed in the process, `about` goes into its record."""

    argv: Sequence[str]
    env: Mapping[str, str]
    directory: Path
    fingerprint: str
    about: Mapping[str, Any]
    files: LaunchFiles | None = None


@dataclass(frozen=True, slots=True)
class _Supervised:
    process: SupervisedProcess
    record: ProcessRecord
    window: ReplayWindow


class AgentProcess:
    """A running agent. Made by `open_child_agent` and `open_supervised_agent` only."""

    def __init__(
        self,
        transport: StdioTransport | SupervisedTransport,
        answer: Mapping[str, Any],
        child: Child | None = None,
        supervised: _Supervised | None = None,
    ) -> None:
        self.transport = transport
        self.answer = answer
        """What it said of itself when it was greeted."""
        self._child = child
        self._supervised = supervised
        self.processes = AgentProcesses(child, None if supervised is None else supervised.record)

    @property
    def position(self) -> OutputPosition:
        return self.transport.position

    @property
    def is_supervised(self) -> bool:
        return self._supervised is not None

    @property
    def input_position(self) -> str | None:
        """The number of input lines it has received, from all owners; None without a supervisor."""
        return None if self._supervised is None else self._supervised.process.input_position

    @property
    def inputs(self) -> int:
        """The number of input lines that the supervisor has counted; 0 without one."""
        return 0 if self._supervised is None else self._supervised.process.inputs

    @property
    def is_taken_over(self) -> bool:
        """Return whether it has another owner now. Valid when its output has ended."""
        return self._supervised is not None and self._supervised.process.newer_epoch is not None

    async def lines(self) -> AsyncIterator[Mapping[str, Any]]:
        """Yield its lines until it has ended or has another owner. Events that are delivered between name their line."""
        async for batch in self.transport.messages():
            for index, raw in enumerate(batch):
                if (line := json_object(raw)) is None:
                    log.warning("skipped a line of an agent that is not a JSON object (%d bytes)", len(raw))
                    continue
                self.transport.on_message(index)
                yield line
            self.transport.on_message(None)

    async def send(self, line: Mapping[str, Any], *, answering: RequestId | None = None) -> None:
        """Send a line, the answer to a request of its or not.

        Raises:
            EngineLost: It is gone.
        """
        with anyio.CancelScope(shield=True):  # half a line would spoil the next one
            await self.transport.send(json.dumps(line), answering)

    # --- what the next owner has to know -----------------------------------------------------------------------------

    def note(self, **notes: Any) -> None:
        """Note something for the next owner, where there can be one."""
        if self._supervised is not None:
            self._supervised.record.note(**notes)

    def turn_begins(self) -> None:
        """The next owner reads the output from here, until the turn has ended."""
        if self._supervised is not None and not self._supervised.window.has_turn(TURN):
            self._supervised.window.begin_turn(TURN)

    def turn_ended(self) -> None:
        """The next owner need not read the turn again."""
        if self._supervised is not None:
            self._supervised.record.note(turn=None)
            self._supervised.window.end_turn(TURN)

    # --- its end -----------------------------------------------------------------------------------------------------

    async def loss(self) -> EngineLost:
        """Return why its output has ended, with what it said last."""
        loss = await self.transport.loss()
        said = error_line(str(loss.details.get("stderr") or ""))
        what, _, what_next = loss.message.partition(". ")
        return EngineLost(f"{what}: {said[:300]}. {what_next}", **loss.details) if said else loss

    @property
    def has_ended(self) -> bool:
        """Return whether it is gone, as far as was read."""
        if self._supervised is not None:
            return self._supervised.process.ended is not None or self._supervised.process.is_lost
        return True

    async def end(self, *, at_once: bool) -> None:
        """Tell it to end: `at_once` if a turn runs, which it would finish first if only its input were closed."""
        if self._child is not None:
            if at_once:
                self._child.signal(signal.SIGTERM)
            await self._child.end()
        elif self._supervised is not None:
            with suppress(EngineLost):
                await self._supervised.process.end()

    async def kill(self) -> None:
        """End it with all it has started, and leave it no time to do anything before."""
        await anyio.to_thread.run_sync(self.processes.kill_all)


@asynccontextmanager
async def open_child_agent(greeting: Greeting, launch: Launch, tasks: TaskGroup) -> AsyncIterator[AgentProcess]:
    """Run an agent for the length of the block, greeted. Nothing that it has started is left afterwards.

    Raises:
        EngineStartFailed: It does not come up.
    """
    try:
        async with open_child(tasks, launch.argv, env=launch.env, cwd=launch.directory) as child:
            if launch.files is not None:
                await anyio.to_thread.run_sync(launch.files.used_by, running_process(child.pid))
            transport = StdioTransport(child, greeting.title)
            tasks.start_soon(transport.close_output_after_exit)
            try:
                with anyio.fail_after(greeting.seconds):
                    answer = await transport.greet(json.dumps(greeting.request), GREETING_ID)
                about = greeting.read_answer(answer)
            except TimeoutError as error:
                slow = EngineLost(f"It did not answer within {greeting.seconds:g} s.")
                raise _not_up(greeting, slow, None, child.stderr_tail) from error
            except (EngineLost, EngineProtocolError) as error:
                raise _not_up(greeting, error, child.exit_code, child.stderr_tail) from error
            yield AgentProcess(transport, about, child)
    finally:
        if launch.files is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(launch.files.remove)


async def start_supervised_agent(
    greeting: Greeting, launch: Launch, *, state_dir: Path, idle: float, owner: Owner, about: Mapping[str, Any]
) -> ProcessRecord:
    """Have a supervisor start an agent, and greet it. `about` goes into the record beside what the launch says.

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
            about={
                **about,
                **launch.about,
                "agent": greeting.agent,
                "place": str(launch.directory),
                "launch": launch.fingerprint,
            },
            ready_seconds=greeting.seconds,
        )
    except EngineLost as error:
        if launch.files is not None:
            await anyio.to_thread.run_sync(launch.files.remove)
        stderr = str(error.details.get("stderr") or "")
        raise _not_up(greeting, error, error.details.get("exit_code"), stderr) from error
    if launch.files is not None:
        await anyio.to_thread.run_sync(launch.files.used_by, record.child)
    return record


@asynccontextmanager
async def open_supervised_agent(
    greeting: Greeting, record: ProcessRecord, *, epoch: int
) -> AsyncIterator[AgentProcess]:
    """Own an agent in a supervisor for the length of the block. It goes on without us.

    Raises:
        EngineLost: It has ended, or has another owner.
        EngineStartFailed: It refused the greeting.
    """
    async with attach(record, epoch=epoch, title=greeting.title) as process:
        window = ReplayWindow(process.offset)
        try:
            answer = greeting.read_answer(json_object(process.answer.encode()) or {})
        except EngineProtocolError as error:
            await process.end()
            raise EngineStartFailed(error.message) from error
        transport = SupervisedTransport(process, window, greeting.output(window), greeting.title, answer)
        yield AgentProcess(transport, answer, supervised=_Supervised(process, record, window))


def _not_up(
    greeting: Greeting, error: EngineLost | EngineProtocolError, exit_code: object, stderr: str
) -> EngineStartFailed:
    said = f" It said: {error_line(stderr):.300}" if stderr.strip() else ""
    return EngineStartFailed(
        f"{greeting.title} did not come up: {error.message.partition('. ')[0].rstrip('.')}.{said} {greeting.advice}",
        exit_code=exit_code,
        stderr=stderr or None,
    )
