"""A running Claude Code as lines both ways: a child of this process, or a supervised process, which outlives it.

The output of a supervised one is committed up to the start of the running turn (`ReplayWindow`). An answer drops the line of
its question in the same step.
"""

from __future__ import annotations

import json
import logging
import signal
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

from helmsman.agents.agent_processes import AgentProcesses
from helmsman.agents.child_process import open_child
from helmsman.agents.claude.binary import CLAUDE, TITLE
from helmsman.agents.error_line import error_line
from helmsman.agents.event_router import OutputPosition
from helmsman.agents.replay_window import ReplayWindow
from helmsman.agents.supervisor.client import attach
from helmsman.agents.supervisor.starting import GREETING_ID, start_supervised
from helmsman.base.json_values import integer, json_object, mapping, text
from helmsman.base.line_framer import LineFramer
from helmsman.errors import EngineLost, EngineProtocolError, EngineStartFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup

    from helmsman.agents.child_process import Child
    from helmsman.agents.supervisor.client import Owner, SupervisedProcess
    from helmsman.agents.supervisor.output_log import OutputLine
    from helmsman.agents.supervisor.records import ProcessRecord

log = logging.getLogger(__name__)

START_TIMEOUT: Final = 30.0
_EXIT_GRACE: Final = 2.0
_TURN: Final = "turn"
"""The key of the turn: a process has one session."""
_GREETING: Final = json.dumps(
    {"type": "control_request", "request_id": GREETING_ID, "request": {"subtype": "initialize", "hooks": None}}
)


class ClaudePipe(Protocol):
    """A running Claude Code. Closed by whoever opened it."""

    answer: Mapping[str, Any]
    """What it said of itself when it was greeted: its models, its account."""

    @property
    def input_position(self) -> str | None:
        """How much it has been told by now, by whomever; None where only we know."""
        ...

    def lines(self) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        """What it says, until it has ended or is ours no more."""
        ...

    async def send(self, line: Mapping[str, Any], *, answering: str | None = None) -> None:
        """Say something to it, the answer to a request of its or not; raises `EngineLost` when it is gone."""
        ...

    async def loss(self) -> EngineLost:
        """Why it is gone. Called when `lines` has ended."""
        ...

    async def end(self) -> None:
        """End it; returns when it has been told to."""
        ...

    @property
    def has_ended(self) -> bool:
        """Once `lines` has ended: whether it has, too, or only is ours no more."""
        ...

    processes: AgentProcesses
    position: OutputPosition


def parsed(line: bytes) -> Mapping[str, Any] | None:
    """A line of JSON; None where it is none."""
    message = json_object(line)
    if message is None:
        log.warning("skipped a line of Claude Code that is not a JSON object (%d bytes)", len(line))
    return message


def _said_of_itself(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    response = mapping(answer.get("response"))
    if response.get("subtype") != "success":
        raise EngineProtocolError("Claude Code refused the handshake. Run `helmsman doctor` to find out why.")
    return mapping(response.get("response"))


def _ended(code: int | None, stderr: str) -> EngineLost:
    how = "is gone" if code is None else f"was ended by signal {-code}" if code < 0 else f"exited ({code})"
    said = error_line(stderr)
    return EngineLost(
        f"Claude Code {how}{f': {said[:300]}' if said else ''}. Send the next message to go on from what was saved.",
        exit_code=code,
        stderr=stderr or None,
    )


# --- our own child ---------------------------------------------------------------------------------------------------


class ChildPipe:
    """See `ClaudePipe`. Made by `open_child_pipe` only."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.processes = AgentProcesses(child)
        self.position = OutputPosition()
        self._framer = LineFramer()
        self._early: list[Mapping[str, Any]] = []
        self.answer: Mapping[str, Any] = {}
        self.input_position: str | None = None

    async def greet(self) -> None:
        await self._write(_GREETING)
        async for lines in self._read():
            for index, line in enumerate(lines):
                if mapping(line.get("response")).get("request_id") == GREETING_ID:
                    self.answer = _said_of_itself(line)
                    self._early = list(lines[index + 1 :])
                    return
        raise await self.loss()

    async def lines(self) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        if self._early:
            yield self._early
        async for lines in self._read():
            yield lines

    async def _read(self) -> AsyncIterator[list[Mapping[str, Any]]]:
        with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while True:
                found = self._framer.feed(await self._child.stdout.receive())
                lines = [one for line in found if (one := parsed(line)) is not None]
                if lines:
                    yield lines

    async def send(self, line: Mapping[str, Any], *, answering: str | None = None) -> None:
        await self._write(json.dumps(line))

    async def _write(self, line: str) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await self._child.stdin.send(f"{line}\n".encode())
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError) as error:
            raise _ended(self._child.exit_code, self._child.stderr_tail) from error

    async def loss(self) -> EngineLost:
        with anyio.move_on_after(_EXIT_GRACE):
            await self._child.wait()
            await self._child.stderr_ended()
        return _ended(self._child.exit_code, self._child.stderr_tail)

    async def end(self) -> None:
        self._child.signal(signal.SIGTERM)  # with its input closed it would go on with its turn

    @property
    def has_ended(self) -> bool:
        return True


@asynccontextmanager
async def open_child_pipe(
    tasks: TaskGroup, argv: Sequence[str], *, env: Mapping[str, str], directory: Path
) -> AsyncIterator[ChildPipe]:
    """Run it for the length of the block.

    Raises:
        EngineStartFailed: It did not come up.
    """
    async with open_child(tasks, argv, env=env, cwd=directory) as child:
        pipe = ChildPipe(child)
        try:
            try:
                with anyio.fail_after(START_TIMEOUT):
                    await pipe.greet()
            except (EngineLost, TimeoutError) as error:
                raise _not_up(error) from error
            yield pipe
        finally:
            await pipe.end()


def _not_up(error: EngineLost | TimeoutError) -> EngineStartFailed:
    if isinstance(error, TimeoutError):
        return EngineStartFailed(
            f"Claude Code did not answer within {START_TIMEOUT:.0f} s. Run `helmsman doctor` to find out why."
        )
    stderr = str(error.details.get("stderr") or "").strip()
    said = f" It said: {error_line(stderr):.300}" if stderr else ""
    return EngineStartFailed(
        f"Claude Code did not come up: {error.message.partition('. ')[0]}.{said} Run `helmsman doctor` to find out why.",
        exit_code=error.details.get("exit_code"),
        stderr=stderr or None,
    )


# --- in a supervisor -----------------------------------------------------------------------------------------------------


def _watch(window: ReplayWindow, said: OutputLine, line: Mapping[str, Any]) -> None:
    """Note which turns and questions a line begins and ends."""
    match line.get("type"):
        case "control_request":
            window.ask(text(line.get("request_id")), said.offset, _TURN)
        case "control_cancel_request":
            window.withdraw(text(line.get("request_id")))
        case "command_lifecycle" if line.get("state") == "started" and not window.has_turn(_TURN):
            window.begin_turn(_TURN, said.offset)
        case "result" if not integer(line.get("queued_turn_count")):
            window.end_turn(_TURN)
        case _:
            pass


class KeptPipe:
    """See `ClaudePipe`. Made by `open_kept_pipe` only."""

    def __init__(self, child: SupervisedProcess, record: ProcessRecord) -> None:
        self._child = child
        self._record = record
        self.processes = AgentProcesses(record=record)
        self.position = OutputPosition(child.process)
        self._window = ReplayWindow(child.offset)
        self.answer = _said_of_itself(parsed(child.answer.encode()) or {})

    @property
    def input_position(self) -> str | None:
        return self._child.input_position

    async def lines(self) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        async for said in self._child.lines():
            for one in said:
                if (line := self._read(one)) is not None:
                    with self.position.at(one.offset):
                        yield [line]
            # The reader has handled these lines when it asks for more.
            with suppress(EngineLost):  # its last output may still come
                await self._child.commit(self._window.start, drop=self._window.take_dropped())

    def _read(self, said: OutputLine) -> Mapping[str, Any] | None:
        line = parsed(said.line)
        if line is not None:
            _watch(self._window, said, line)
        self._window.read(said.end)
        return line

    async def send(self, line: Mapping[str, Any], *, answering: str | None = None) -> None:
        await self._child.send(json.dumps(line), drop=() if answering is None else self._window.answer(answering))

    async def loss(self) -> EngineLost:
        ended = self._child.ended
        if ended is not None:
            return _ended(ended.exit_code, ended.stderr)
        if self._child.newer_epoch is not None:
            return EngineLost("Another Helmsman has taken this Claude Code over. Connect again to go on.")
        return EngineLost("The supervisor of Claude Code is gone. Send the next message to go on from what was saved.")

    async def end(self) -> None:
        with suppress(EngineLost):
            await self._child.end()

    @property
    def has_ended(self) -> bool:
        return self._child.newer_epoch is None


async def start_kept(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    directory: Path,
    state_dir: Path,
    idle: float,
    owner: Owner,
    about: Mapping[str, Any],
) -> ProcessRecord:
    """Have a supervisor start it; `about` is what its record says beside.

    Raises:
        EngineStartFailed: It did not come up. No process is left behind.
    """
    try:
        return await start_supervised(
            argv,
            env=env,
            directory=directory,
            state_dir=state_dir,
            idle=idle,
            owner=owner,
            watcher="helmsman.agents.claude.watching:ClaudeWatcher",
            greeting=[_GREETING],
            about={**about, "agent": CLAUDE, "place": str(directory)},
        )
    except EngineLost as error:
        raise _not_up(error) from error


@asynccontextmanager
async def open_kept_pipe(record: ProcessRecord, *, epoch: int) -> AsyncIterator[KeptPipe]:
    """Own a Claude Code in a supervisor, for the length of the block. It goes on without us.

    Raises:
        EngineLost: It has ended, or is not ours to have.
    """
    async with attach(record, epoch=epoch, title=TITLE) as child:
        yield KeptPipe(child, record)
