"""The fallback engine: `codex exec --json`, one process per turn.

A session lives on disk between its turns; a turn is one process that begins it or resumes it, reads the prompt from its
standard input, and says in lines of JSON what it does. It names a new session only once it has the prompt: until then the
session goes by an id of our own.

The life of a turn (`ExecEngine._run`): the process starts; its first line names the session, and `run_turn` returns; its
lines become events; it ends, by itself, by an interrupt or by a kill; and when it is gone, the end of the
turn is told, exactly once. Waiting for the process to be gone matters: only then can the next turn resume the session.
"""

from __future__ import annotations

import logging
import math
import signal
import sys
import uuid
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.agents.child_process import Child, open_child
from helmsman.agents.codex.access import Confinement, asked_sandbox
from helmsman.agents.codex.binary import CodexBinary, exec_capabilities
from helmsman.agents.codex.exec.command import exec_command
from helmsman.agents.codex.normalise import from_exec
from helmsman.agents.codex.processes import codex_environment, command_path_options
from helmsman.agents.codex.rollouts import RolloutIndex
from helmsman.agents.event_router import RoutedEngine, engine_closed
from helmsman.agents.found_programs import check_command
from helmsman.agents.protocol import Begun, Capabilities, Opened
from helmsman.base.caller_context import environment
from helmsman.base.concurrency import background_tasks
from helmsman.base.json_values import json_object, text
from helmsman.base.line_framer import LineFramer
from helmsman.base.process_ending import end_processes
from helmsman.base.processes import descendants, still_running
from helmsman.base.redaction import redact
from helmsman.base.structs import replace
from helmsman.errors import (
    EngineLost,
    EngineProtocolError,
    EngineStartFailed,
    HelmsmanError,
    InvalidInput,
    SessionBusy,
    SessionLocked,
    SessionNotFound,
)
from helmsman.model.events import Failure, TurnEnded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from anyio.abc import TaskGroup, TaskStatus

    from helmsman.model.options import SessionOptions, TurnInput

log = logging.getLogger(__name__)

START_TIMEOUT: Final = 60.0
"""How long Codex may take to name the session. Some versions look for news of their models first."""

EXIT_GRACE: Final = 10.0
"""How long it may take to exit once it has nothing more to say; it was seen to need a tenth of a second."""

OUTPUT_GRACE: Final = 2.0
"""How long its output may take to end after the process has."""

LAST_WORDS_GRACE: Final = 0.05
"""What it wrote to its error output before it exited may still be in the pipe."""

INTERRUPTED_GRACE: Final = 3.0
"""How long it may take to stop on SIGINT: it then stops its commands too, which it does on no other signal."""

TERMINATED_GRACE: Final = 2.0

_STOPPING: Final = (
    ((signal.SIGTERM, TERMINATED_GRACE),)
    if sys.platform == "win32"
    else ((signal.SIGINT, INTERRUPTED_GRACE), (signal.SIGTERM, TERMINATED_GRACE))
)


@dataclass(slots=True, eq=False)
class _Turn:
    """One process and what is known of it. `session_id` is the one expected until Codex has `named` it."""

    id: str
    directory: Path
    session_id: str | None
    named: bool = False
    child: Child | None = None
    interrupted: bool = False
    end: TurnEnded | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    launched: anyio.Event = field(default_factory=anyio.Event)
    gone: anyio.Event = field(default_factory=anyio.Event)


class ExecEngine(RoutedEngine):
    """See `helmsman.agents.protocol.Engine`. Made by `open_exec_engine` only."""

    def __init__(
        self,
        tasks: TaskGroup,
        binary: CodexBinary,
        codex_home: Path,
        env: Mapping[str, str] | None,
        confinement: Confinement,
    ) -> None:
        super().__init__()
        self._tasks = tasks
        self._confinement = confinement
        self._binary = binary
        self._codex_home = codex_home
        self._env = dict(environment() if env is None else env)
        self._rollouts = RolloutIndex(codex_home)
        self._unnamed: set[str] = set()
        """Sessions that have not had their first turn, by ids of our own."""
        self._running: dict[str, _Turn] = {}
        self._starting: set[_Turn] = set()
        self._lost: HelmsmanError | None = None

    @property
    def name(self) -> str:
        return "exec"

    @property
    def program(self) -> Path | None:
        return self._binary.path

    @property
    def capabilities(self) -> Capabilities:
        return exec_capabilities()

    @property
    def lost(self) -> HelmsmanError | None:
        return self._lost

    async def until_lost(self) -> None:
        await anyio.sleep_forever()

    # --- sessions and turns ------------------------------------------------------------------------------------------

    async def open(self, options: SessionOptions) -> Opened:
        if options.cwd is None:
            raise InvalidInput("A session needs a working directory. Name one that exists.")
        self._check()
        session_id = str(uuid.uuid4())
        self._unnamed.add(session_id)
        return replace(_opened(session_id, options, options.cwd), is_named=False)

    async def resume(self, session_id: str, options: SessionOptions) -> Opened:
        running = self._running.get(session_id)
        if running is not None:
            return replace(_opened(session_id, options, running.directory), turn_id=running.id)
        return _opened(session_id, options, await self._directory_of(session_id, options))

    async def run_turn(self, session_id: str, options: SessionOptions, turn: TurnInput) -> Begun:
        if session_id in self._unnamed and options.cwd is not None:
            self._unnamed.remove(session_id)
            return await self._launch(None, options, turn, options.cwd)
        self._refuse_if_running(session_id)
        return await self._launch(session_id, options, turn, await self._directory_of(session_id, options))

    async def interrupt(self, session_id: str) -> None:
        turn = self._running.get(session_id)
        if turn is None:
            return
        turn.interrupted = True
        await turn.launched.wait()
        if turn.child is not None:
            await _stop(turn.child)
        await turn.gone.wait()

    def _environment(self) -> tuple[dict[str, str], tuple[str, ...]]:
        """Return the environment of the next process, and the options for that of its commands."""
        known = self._binary, self._codex_home, self._env
        return codex_environment(*known), command_path_options(*known)

    async def _directory_of(self, session_id: str, options: SessionOptions) -> Path:
        """Where to resume: `codex exec` would begin a new session under an id it cannot find, so it is looked up."""
        known = await anyio.to_thread.run_sync(self._rollouts.find, session_id)
        if known is None:
            raise _not_found(session_id)
        directory = options.cwd or (Path(known.directory) if known.directory else None)
        if directory is None:
            raise InvalidInput(f"It is not known where session {session_id} worked. Name a working directory.")
        return directory

    # --- the life of a turn ------------------------------------------------------------------------------------------

    async def _launch(
        self, session_id: str | None, options: SessionOptions, given: TurnInput, directory: Path
    ) -> Begun:
        self._check()
        turn = _Turn(id=str(uuid.uuid4()), directory=directory, session_id=session_id)
        if session_id is not None:
            self._refuse_if_running(session_id)
            self._running[session_id] = turn
        self._starting.add(turn)
        try:
            begun: Begun = await self._tasks.start(self._run, turn, options, given)
        except RuntimeError as error:
            if self._lost is None:
                raise
            raise self._lost.again() from error  # the task ended without a word: `refuse_more` has cancelled it
        finally:
            self._starting.discard(turn)
            if turn.child is None:
                self._forget(turn)
        return begun

    async def _run(
        self, turn: _Turn, options: SessionOptions, given: TurnInput, *, task_status: TaskStatus[Begun]
    ) -> None:
        with turn.scope:
            try:
                child = await self._live(turn, options, given, task_status)
            finally:
                self._forget(turn)
            self._router.deliver(_how_it_ended(turn, child))

    async def _live(
        self, turn: _Turn, options: SessionOptions, given: TurnInput, task_status: TaskStatus[Begun]
    ) -> Child:
        """From the start of the process to its end."""
        async with anyio.TemporaryDirectory(prefix="helmsman-") as scratch, background_tasks() as helpers:
            command = await anyio.to_thread.run_sync(
                lambda: exec_command(
                    self._binary,
                    self._codex_home,
                    options,
                    given,
                    directory=turn.directory,
                    scratch=Path(scratch),
                    session_id=turn.session_id,
                    confinement=self._confinement,
                )
            )

            def started(session_id: str) -> None:
                task_status.started(Begun(session_id=session_id, turn_id=turn.id, notes=command.notes))

            await anyio.to_thread.run_sync(check_command, [str(self._binary.path)], self._env)
            env, paths = await anyio.to_thread.run_sync(self._environment)
            first, *others = command.arguments
            argv: list[str | Path] = [self._binary.path, first, *paths, *others]
            async with open_child(helpers, argv, env=env, cwd=turn.directory) as child:
                turn.child = child
                turn.launched.set()
                try:
                    await self._follow(turn, child, helpers, given.text, started)
                finally:
                    with anyio.CancelScope(shield=True):
                        await _stop(child)
            return child

    async def _follow(
        self, turn: _Turn, child: Child, helpers: TaskGroup, prompt: str, started: Callable[[str], None]
    ) -> None:
        """Give the process its prompt and turn its lines into events, until it has said all it has to say.

        Raises:
            HelmsmanError: It did not begin the turn. Once it has, whatever goes wrong is how the turn ends.
        """
        framer = LineFramer()
        try:
            with anyio.move_on_after(START_TIMEOUT) as limit:
                helpers.start_soon(_cancel_after_exit, child, limit)
                await _give_prompt(child, prompt)
                async for chunk in child.stdout:
                    for message in _messages(framer.feed(chunk)):
                        if turn.named:
                            self._emit(turn, message)
                        elif session_id := _named_session(message):
                            self._name(turn, session_id)
                            started(session_id)
                            limit.deadline = math.inf
        except EngineProtocolError as error:
            if not turn.named:
                raise
            turn.end = _failed(turn, Failure(code=error.code, message=error.message, retryable=error.retryable))
            return
        if not limit.cancelled_caught:
            with anyio.move_on_after(EXIT_GRACE):
                await child.wait()
        if not turn.named:
            await anyio.sleep(LAST_WORDS_GRACE)
            raise _not_begun(turn, child)

    def _name(self, turn: _Turn, session_id: str) -> None:
        if turn.session_id is not None and turn.session_id != session_id:
            raise _not_found(turn.session_id)  # Codex could not find that session, and began another
        turn.session_id, turn.named = session_id, True
        self._running[session_id] = turn

    def _emit(self, turn: _Turn, message: Mapping[str, Any]) -> None:
        for event in from_exec(message, turn.session_id or "", turn.id):
            if isinstance(event, TurnEnded):
                turn.end = turn.end or event  # told when the process is gone
            else:
                self._router.deliver(event)

    def _refuse_if_running(self, session_id: str) -> None:
        if session_id in self._running:
            raise SessionBusy(f"A turn is running in session {session_id}. Wait for it, or interrupt it.")

    def _forget(self, turn: _Turn) -> None:
        if turn.session_id is not None and self._running.get(turn.session_id) is turn:
            del self._running[turn.session_id]
        turn.launched.set()
        turn.gone.set()

    def refuse_more(self) -> None:
        """Take no more work from now on, and give up what is being started: that still belongs to its caller."""
        self._lost = engine_closed()
        for turn in self._starting:
            turn.scope.cancel()

    def report_loss(self) -> None:
        """Tell every session that the engine is no more."""
        lost = self._lost or engine_closed()
        self._router.engine_gone(Failure(code=lost.code, message=lost.message, retryable=lost.retryable))


@asynccontextmanager
async def open_exec_engine(
    binary: CodexBinary,
    *,
    codex_home: Path,
    env: Mapping[str, str] | None = None,
    allowed_roots: Sequence[Path] = (),
) -> AsyncIterator[ExecEngine]:
    """An engine for the length of the block. No process is left when it ends."""
    engine: ExecEngine | None = None
    try:
        async with background_tasks() as tasks:
            engine = ExecEngine(tasks, binary, codex_home, env, Confinement(tuple(allowed_roots)))
            try:
                yield engine
            finally:
                engine.refuse_more()
    finally:
        if engine is not None:
            engine.report_loss()


def _opened(session_id: str, options: SessionOptions, directory: Path) -> Opened:
    return Opened(
        session_id=session_id,
        directory=str(directory),
        model=options.model,
        approval_policy="never",
        sandbox=asked_sandbox(options),
    )


# --- the process -----------------------------------------------------------------------------------------------------


async def _give_prompt(child: Child, prompt: str) -> None:
    """A process that has exited already cannot take it; why it has is found out later."""
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        await child.stdin.send(prompt.encode("utf-8", "replace"))
        await child.stdin.aclose()


def _messages(lines: list[bytes]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        if (message := json_object(line)) is not None:
            yield message
        else:
            log.warning("skipped a line of codex exec that is not a JSON object (%d bytes)", len(line))


def _named_session(message: Mapping[str, Any]) -> str:
    return text(message.get("thread_id")) if message.get("type") == "thread.started" else ""


async def _cancel_after_exit(child: Child, reading: anyio.CancelScope) -> None:
    """A process that is gone says nothing more, even if something it left behind holds its output open."""
    await child.wait()
    await anyio.sleep(OUTPUT_GRACE)
    reading.cancel()


async def _stop(child: Child) -> None:
    """End the process and the commands it runs; returns when all are gone. Each step is bounded."""
    if child.exit_code is not None:
        return
    commands = await anyio.to_thread.run_sync(descendants, child.process)
    for number, grace in _STOPPING:
        child.signal(number)
        if await _gone_within(child, grace):
            break
        commands |= await anyio.to_thread.run_sync(descendants, child.process)
    else:
        await anyio.to_thread.run_sync(child.kill)
        await child.wait()
    await anyio.to_thread.run_sync(end_processes, partial(still_running, commands))


async def _gone_within(child: Child, seconds: float) -> bool:
    with anyio.move_on_after(seconds):
        await child.wait()
        return True
    return False


# --- how it ended ----------------------------------------------------------------------------------------------------


def _how_it_ended(turn: _Turn, child: Child) -> TurnEnded:
    if turn.end is not None and (turn.end.outcome == "completed" or not turn.interrupted):
        return turn.end
    if turn.interrupted:
        return TurnEnded(session_id=turn.session_id or "", turn_id=turn.id, outcome="interrupted")
    reason = _last_words(child)
    return _failed(
        turn,
        Failure(
            code=EngineLost.code,
            message=f"`codex exec` {_exit(child)} in mid-turn{f': {reason}' if reason else '.'} "
            "Send the next message to continue from what was saved.",
            retryable=EngineLost.retryable,
        ),
    )


def _failed(turn: _Turn, failure: Failure) -> TurnEnded:
    return TurnEnded(session_id=turn.session_id or "", turn_id=turn.id, outcome="failed", failure=failure)


def _not_begun(turn: _Turn, child: Child) -> HelmsmanError:
    """Why a process did not even name its session."""
    said = child.stderr_tail
    if turn.session_id is not None:
        if "no rollout found" in said:
            return _not_found(turn.session_id)
        if "already has an active writer" in said:
            return SessionLocked(f"Another process has session {turn.session_id} open. Close it there, then try again.")
    if "--skip-git-repo-check" in said:
        return InvalidInput(
            "The working directory is not inside a git repository, where `codex exec` refuses to work. Choose another "
            "one, or ask to skip the check."
        )
    reason = _last_words(child)
    return EngineStartFailed(
        f"`codex exec` {_exit(child)} before it began{f': {reason}' if reason else '.'} "
        "Check the options and the configuration, or run `helmsman doctor`.",
        exit_code=child.exit_code,
        stderr=redact(said) or None,
    )


def _exit(child: Child) -> str:
    code = child.exit_code
    if code is None:
        return f"did not answer within {START_TIMEOUT:.0f} seconds and was stopped"
    return f"was ended by signal {-code}" if code < 0 else f"exited ({code})"


def _last_words(child: Child) -> str:
    """The line of the error output that says why: the last one that calls itself an error, else the last one."""
    lines = [line.strip() for line in redact(child.stderr_tail).splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or [""])[-1]


def _not_found(session_id: str) -> SessionNotFound:
    return SessionNotFound(f"Codex knows no session {session_id}. List the sessions to find the right id.")
