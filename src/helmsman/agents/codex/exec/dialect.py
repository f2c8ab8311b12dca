"""`codex exec --json` as a dialect: a process per turn, for a Codex without an app-server.

A session lives on disk between its turns. The process of a turn begins the session or resumes it, reads the prompt from its
standard input, and writes lines of JSON. It names a new session only after it has read the prompt: until then the session
has an id of ours. The end of a turn is reported when its process is gone, because only then can the next turn resume the
session.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.agents.agent_process import Greeting, Launch, error_line
from helmsman.agents.codex.access import Confinement, asked_sandbox
from helmsman.agents.codex.binary import exec_capabilities
from helmsman.agents.codex.exec.command import exec_command
from helmsman.agents.codex.normalise import from_exec
from helmsman.agents.codex.processes import codex_environment, command_path_options
from helmsman.agents.codex.rollouts import RolloutIndex
from helmsman.agents.found_programs import check_command
from helmsman.agents.process_engine import (
    AgentDialect,
    AgentTurn,
    Conversation,
    LaunchConfig,
    open_process_engine,
)
from helmsman.agents.protocol import Capability, Opened, Trust
from helmsman.base.caller_context import environment
from helmsman.base.json_values import text
from helmsman.base.redaction import redact
from helmsman.errors import (
    EngineLost,
    EngineProtocolError,
    EngineStartFailed,
    HelmsmanError,
    InvalidInput,
    SessionLocked,
    SessionNotFound,
)
from helmsman.model.events import Failure, TurnEnded
from helmsman.model.options import DEFAULT_AGENT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from helmsman.agents.agent_process import AgentProcess
    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.process_engine import AgentSession, EngineContext, ProcessEngine
    from helmsman.agents.sandbox import Sandbox
    from helmsman.base.processes import Process
    from helmsman.model.events import PastTurn
    from helmsman.model.options import SessionOptions, TurnInput
    from helmsman.model.questions import Choice, Question

START_TIMEOUT: Final = 60.0
"""Seconds until Codex names the session. Some versions look for news of their models first."""
INTERRUPTED_GRACE: Final = 3.0
"""Seconds to stop on SIGINT: Codex then stops its commands too, which it does on no other signal."""
_PROMPT_SECONDS: Final = 5.0
"""Seconds between the start of a process and its prompt."""
_STOP: Final = signal.SIGTERM if sys.platform == "win32" else signal.SIGINT


class ExecConversation(Conversation):
    """The one turn of a process."""

    def __init__(self, context: EngineContext, session: AgentSession, process: AgentProcess, title: str) -> None:
        super().__init__(context, session, process, title)
        self._is_named = False
        self._has_prompt = anyio.Event()
        self._settled = anyio.Event()
        """The session has its name, or will get none."""
        self._end: TurnEnded | None = None
        self._refusal: HelmsmanError | None = None
        """Why the turn has not begun."""
        self._exit: EngineLost | None = None

    async def run(self) -> None:
        broken = await self._read_lines()
        with anyio.move_on_after(_PROMPT_SECONDS):
            await self._has_prompt.wait()  # an exit before the prompt is a failure of the turn too
        with anyio.CancelScope(shield=True):
            await self.process.end(at_once=broken is not None)
            self._exit = await self.process.loss()
        turn = self.session.turn
        if self._is_named and turn is not None:
            if broken is not None:
                self._end = self._failed(turn, broken)
            self.end_turn(turn)
        self._refusal = self._refusal or broken or self._not_begun()
        self._settled.set()

    async def _read_lines(self) -> HelmsmanError | None:
        """Read the output to its end; return why that was given up, if it was."""
        try:
            async for line in self.process.lines():
                if self._is_named:
                    self._read(line)
                elif line.get("type") == "thread.started" and (session_id := text(line.get("thread_id"))):
                    self._name(session_id)
        except (EngineProtocolError, SessionNotFound) as error:
            return error
        return None

    def _name(self, session_id: str) -> None:
        session = self.session
        if session.is_new:
            self.context.rename(session, session_id)
        elif session.id != session_id:
            raise _not_found(session.id)  # Codex could not find that session, and began another
        self._is_named = True
        self._settled.set()

    def _read(self, line: Mapping[str, Any]) -> None:
        turn = self.session.turn
        for event in () if turn is None else from_exec(line, self.session.id, turn.id):
            if isinstance(event, TurnEnded):
                self._end = self._end or event  # reported when the process is gone
            else:
                self.deliver(event)

    async def prompt(self, turn: TurnInput) -> AgentTurn:
        begun = AgentTurn(str(uuid.uuid4()), notes=tuple(self.session.about["notes"]))
        self.session.begin(begun)
        self._has_prompt.set()
        with anyio.move_on_after(START_TIMEOUT) as limit:
            await self.process.send_last(turn.text)
            await self._settled.wait()
        if self._is_named:
            return begun
        begun.is_told = True
        self.session.finish(begun)
        await self.context.end(self.session)
        if limit.cancelled_caught:
            raise self._start_failed(f"did not answer within {START_TIMEOUT:.0f} seconds and was stopped")
        assert self._refusal is not None
        raise self._refusal

    async def stop_turn(self, turn: AgentTurn) -> None:
        self.process.send_signal(_STOP)
        with anyio.move_on_after(INTERRUPTED_GRACE):
            await turn.ended.wait()
        if not turn.ended.is_set():
            await self.process.end(at_once=True)

    def end_turn(self, turn: AgentTurn) -> None:
        if not turn.is_told:
            turn.is_told = True
            ended = self._outcome(turn)
            self.session.finish(turn)
            self.deliver(ended)

    # --- how it ended ------------------------------------------------------------------------------------------------

    def _outcome(self, turn: AgentTurn) -> TurnEnded:
        if self._end is not None and (self._end.outcome == "completed" or not turn.interrupted):
            return self._end
        if turn.interrupted:
            return TurnEnded(session_id=self.session.id, turn_id=turn.id, outcome="interrupted")
        message = f"`codex exec` {self._how()} in mid-turn{self._reason()} Send the next message to continue."
        return self._failed(turn, EngineLost(message))

    def _failed(self, turn: AgentTurn, error: HelmsmanError) -> TurnEnded:
        failure = Failure(code=error.code, message=error.message, retryable=error.retryable)
        return TurnEnded(session_id=self.session.id, turn_id=turn.id, outcome="failed", failure=failure)

    def _not_begun(self) -> HelmsmanError:
        """Return why a process did not name its session."""
        said, session_id = self._stderr, self.session.id
        if not self.session.is_new:
            if "no rollout found" in said:
                return _not_found(session_id)
            if "already has an active writer" in said:
                return SessionLocked(f"Another process has session {session_id} open. Close it there, then try again.")
        if "--skip-git-repo-check" in said:
            return InvalidInput(
                "The working directory is not inside a git repository, where `codex exec` refuses to work. Choose another "
                "one, or ask to skip the check."
            )
        return self._start_failed(self._how())

    def _start_failed(self, how: str) -> EngineStartFailed:
        return EngineStartFailed(
            f"`codex exec` {how} before it began{self._reason()} Check the options and the configuration, or run "
            "`helmsman doctor`.",
            exit_code=None if self._exit is None else self._exit.details.get("exit_code"),
            stderr=self._stderr or None,
        )

    @property
    def _stderr(self) -> str:
        return "" if self._exit is None else redact(str(self._exit.details.get("stderr") or ""))

    def _how(self) -> str:
        code = None if self._exit is None else self._exit.details.get("exit_code")
        if not isinstance(code, int):
            return "closed its output"
        return f"was ended by signal {-code}" if code < 0 else f"exited ({code})"

    def _reason(self) -> str:
        reason = error_line(self._stderr)
        return f": {reason}" if reason else "."

    # --- unsupported operations ------------------------------------------------------------------------------------------

    async def steer(self, turn: AgentTurn, message: str) -> None:
        raise exec_capabilities().refusal(Capability.STEER)

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> bool:
        raise exec_capabilities().refusal(Capability.ASK)

    def recall(self, notes: Mapping[str, Any], *, is_running: bool) -> None:
        """It ends with the hub."""

    async def caught_up(self, *, is_running: bool) -> None:
        """It ends with the hub."""

    async def adopt(self, options: SessionOptions) -> None:
        """It ends with the hub."""


@dataclass(frozen=True, slots=True)
class _Scratch:
    """The directory with the files of one process."""

    path: Path

    def used_by(self, process: Process | None) -> None:
        """It goes with the process in any case."""

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class ExecDialect(AgentDialect):
    """See `AgentDialect`."""

    agent = DEFAULT_AGENT
    title = "Codex"
    engine_name = "exec"
    greeting = Greeting(
        agent=DEFAULT_AGENT,
        title="`codex exec`",
        request=None,
        read_answer=dict,
        watcher="",
        seconds=START_TIMEOUT,
        advice="",
    )
    starts_with_session = False
    ends_with_turn = True
    trust = Trust(
        asking_mode=None,  # it never asks
        safe_modes=(),
        memory=(),
        runs_repository_files=False,  # the repository is called untrusted (`exec_command`)
        variables=(),
        shared=(),
    )

    def __init__(self, binary: CodexBinary, codex_home: Path, env: Mapping[str, str], confinement: Confinement) -> None:
        self.program = binary.path
        self.capabilities = exec_capabilities()
        self._binary = binary
        self._codex_home = codex_home
        self._env = env
        self._confinement = confinement
        self._rollouts = RolloutIndex(codex_home)

    def converse(self, context: EngineContext, session: AgentSession, process: AgentProcess) -> ExecConversation:
        return ExecConversation(context, session, process, "`codex exec`")

    def opened(self, session: AgentSession, options: SessionOptions) -> Opened:
        return Opened(
            session_id=session.id,
            is_named=not session.is_new,
            turn_id=None if session.turn is None else session.turn.id,
            directory=str(options.cwd or session.directory),
            model=options.model,
            approval_policy="never",
            sandbox=asked_sandbox(options),
        )

    def is_like(self, other: AgentDialect) -> bool:
        return isinstance(other, ExecDialect)

    def notes_on(self, turn: TurnInput) -> tuple[str, ...]:
        return ()

    async def check(self, config: LaunchConfig | None, options: SessionOptions) -> None:
        """Options are checked with the command, for each turn."""

    def fingerprint(
        self, config: LaunchConfig, session: AgentSession, options: SessionOptions, turn: TurnInput | None
    ) -> str:
        return ""  # no process has a second turn

    async def launch(
        self, config: LaunchConfig, session: AgentSession, options: SessionOptions, turn: TurnInput | None
    ) -> Launch:
        """Return how to start the process of a turn.

        Raises:
            InvalidInput: The options make no sense.
            Unsupported: They request something that `codex exec` cannot do.
            ProgramRefused: A session may have replaced it.
        """
        directory = options.cwd or session.directory
        assert turn is not None
        assert directory is not None
        scratch = _Scratch(Path(await anyio.to_thread.run_sync(partial(tempfile.mkdtemp, prefix="helmsman-"))))
        try:
            command = await anyio.to_thread.run_sync(
                partial(
                    exec_command,
                    self._binary,
                    self._codex_home,
                    options,
                    turn,
                    directory=directory,
                    scratch=scratch.path,
                    session_id=None if session.is_new else session.id,
                    confinement=self._confinement,
                )
            )
            await anyio.to_thread.run_sync(check_command, config.argv, config.env)
            known = self._binary, self._codex_home, self._env
            env = await anyio.to_thread.run_sync(codex_environment, *known)
            paths = await anyio.to_thread.run_sync(command_path_options, *known)
        except BaseException:
            scratch.remove()
            raise
        first, *others = command.arguments
        return Launch(
            argv=[*config.argv, first, *paths, *others],
            env=env,
            directory=directory,
            fingerprint="",
            about={"notes": command.notes},
            files=scratch,
        )

    def find(self, session_id: str) -> Path | None:
        """`codex exec` would begin a new session under an id that it cannot find."""
        known = self._rollouts.find(session_id)
        if known is None:
            raise _not_found(session_id)
        return Path(known.directory) if known.directory else None

    def history(self, session: AgentSession | None, session_id: str) -> tuple[PastTurn, ...]:
        raise self.capabilities.refusal(Capability.HISTORY)


@asynccontextmanager
async def open_exec_engine(
    binary: CodexBinary,
    *,
    codex_home: Path,
    env: Mapping[str, str] | None = None,
    allowed_roots: Sequence[Path] = (),
) -> AsyncIterator[ProcessEngine]:
    """Open an engine for the block. No process is left when it ends."""
    given = dict(environment() if env is None else env)
    dialect = ExecDialect(binary, codex_home, given, Confinement(tuple(allowed_roots)))
    config = LaunchConfig(argv=(str(binary.path),), env=given, state_dir=codex_home, sandbox=_no_sandbox)
    async with open_process_engine(dialect, config, state_dir=codex_home, idle=START_TIMEOUT) as engine:
        yield engine


async def _no_sandbox() -> Sandbox:
    raise AssertionError("Codex has its own")


def _not_found(session_id: str) -> SessionNotFound:
    return SessionNotFound(f"Codex knows no session {session_id}. List the sessions to find the right id.")
