"""`codex exec --json` as a dialect: a process per turn, for a Codex without an app-server.

A session lives on disk between its turns. The process of a turn begins the session or resumes it, reads the prompt from its
standard input, and writes lines of JSON. It names a new session only after it has read the prompt: until then the session
has an id of ours. The end of a turn is reported when its process is gone, because only then can the next turn resume the
session.

Everything a caller can choose is checked before a process exists. Values go in as `--option=value`, so that none can be
taken for an option, and all options stand before `resume`: its own are fewer, and differ from version to version. Texts
without a natural limit (instructions, a schema) go in files; the prompt goes over standard input.
"""

from __future__ import annotations

import json
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

from helmsman.agents.agent_process import ChildAgent, Greeting, Launch, error_line
from helmsman.agents.codex.access import (
    NO_ROOTS,
    WORKSPACE_KEYS,
    Confinement,
    asked_sandbox,
    confined_sandbox,
    refuse_rules_nobody_trusts,
    refuse_writing_everything,
)
from helmsman.agents.codex.binary import TITLE, exec_capabilities
from helmsman.agents.codex.configuration import check_config, merge_config, profile_config, user_config
from helmsman.agents.codex.features import Feature
from helmsman.agents.codex.normalise import from_exec
from helmsman.agents.codex.processes import codex_environment, command_path_options
from helmsman.agents.codex.storage import CodexSessions
from helmsman.agents.found_programs import check_command
from helmsman.agents.process_engine import (
    AgentDialect,
    AgentTurn,
    Conversation,
    LaunchConfig,
    open_process_engine,
    session_not_found,
)
from helmsman.agents.protocol import Capability, Opened, Trust
from helmsman.base.caller_context import environment
from helmsman.base.config_values import as_toml
from helmsman.base.json_values import text
from helmsman.base.redaction import redact
from helmsman.base.structs import replace
from helmsman.errors import (
    EngineLost,
    EngineProtocolError,
    EngineStartFailed,
    HelmsmanError,
    InvalidInput,
    SessionLocked,
    SessionNotFound,
)
from helmsman.git.command import repository_root
from helmsman.model.events import Failure, TurnEnded
from helmsman.model.options import DEFAULT_AGENT, WRITES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from helmsman.agents.agent_process import AgentProcess
    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.process_engine import AgentSession, ProcessEngine
    from helmsman.agents.sandbox import Sandbox
    from helmsman.base.processes import Process
    from helmsman.model.events import PastTurn
    from helmsman.model.options import SessionOptions, TurnInput

START_TIMEOUT: Final = 60.0
"""Seconds until Codex names the session. Some versions look for news of their models first."""
INTERRUPTED_GRACE: Final = 3.0
"""Seconds to stop on SIGINT: Codex then stops its commands too, which it does on no other signal."""
_PROMPT_SECONDS: Final = 5.0
"""Seconds between the start of a process and its prompt."""
_STOP: Final = signal.SIGTERM if sys.platform == "win32" else signal.SIGINT


class ExecConversation(Conversation):
    """The one turn of a process."""

    def __init__(self, engine: ProcessEngine, session: AgentSession, process: AgentProcess) -> None:
        super().__init__(engine, session, process)
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
            # Without a limit, a caller that was cancelled before the prompt would leave the process here.
            await self._has_prompt.wait()  # an exit before the prompt is a failure of the turn too
        with anyio.CancelScope(shield=True):
            # An output that is not understood is not worth waiting for.
            await self.process.end(at_once=broken is not None)
            self._exit = await self.process.end_of_output()
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
                # All that comes before the name is about no session yet.
                elif line.get("type") == "thread.started" and (session_id := text(line.get("thread_id"))):
                    self._name(session_id)
        except (EngineProtocolError, SessionNotFound) as error:
            return error
        return None

    def _name(self, session_id: str) -> None:
        session = self.session
        if session.is_new:
            self.engine.name_session(session, session_id)
        elif session.id != session_id:
            raise session_not_found(TITLE, session.id)  # Codex could not find that session, and began another
        self._is_named = True
        self._settled.set()

    def _read(self, line: Mapping[str, Any]) -> None:
        turn = self.session.turn
        for event in () if turn is None else from_exec(line, self.session.id, turn.id):
            # The first end counts; a later line may report the same failure again.
            if isinstance(event, TurnEnded):
                self._end = self._end or event  # reported when the process is gone
            else:
                self.deliver(event)

    async def prompt(self, turn: TurnInput) -> AgentTurn:
        # Codex names the turn nowhere in its output.
        begun = AgentTurn(str(uuid.uuid4()), notes=tuple(self.session.about["notes"]))
        self.session.begin(begun)
        self._has_prompt.set()
        with anyio.move_on_after(START_TIMEOUT) as limit:
            assert isinstance(self.process, ChildAgent)
            await self.process.send_last(turn.text)
            await self._settled.wait()
        if self._is_named:
            return begun
        # The caller gets the error, so no event must report the turn.
        begun.is_told = True
        self.session.finish(begun)
        await self.engine.end(self.session)
        if limit.cancelled_caught:
            raise self._start_failed(f"did not answer within {START_TIMEOUT:.0f} seconds and was stopped")
        assert self._refusal is not None
        raise self._refusal

    async def stop_turn(self, turn: AgentTurn) -> None:
        # Only on SIGINT does Codex stop its commands.
        assert isinstance(self.process, ChildAgent)
        self.process.child.signal(_STOP)
        with anyio.move_on_after(INTERRUPTED_GRACE):
            await turn.ended.wait()
        if not turn.ended.is_set():
            await self.process.end(at_once=True)

    # --- how it ended ------------------------------------------------------------------------------------------------

    def ended(self, turn: AgentTurn) -> TurnEnded:
        # An interrupt may come too late: a completed turn stays completed.
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
                return session_not_found(TITLE, session_id)
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
    title = TITLE
    engine_name = "exec"
    greeting = Greeting(
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
        reading_mode=None,
        asking_options={},
        acts_unasked=True,
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
        self._rollouts = CodexSessions(codex_home)

    def converse(self, engine: ProcessEngine, session: AgentSession, process: AgentProcess) -> ExecConversation:
        return ExecConversation(engine, session, process)

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
            InvalidInput: The options are invalid.
            Unsupported: They request something that `codex exec` cannot do.
            ProgramRefused: A session may have replaced it.
        """
        directory = options.cwd or session.directory
        assert turn is not None
        assert directory is not None
        # Removed with the process, or below if none is started.
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
            # Options stand after `exec` and before `resume`.
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
            raise self.not_found(session_id)
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
    # Exec engines are never supervised, so no state is kept.
    config = LaunchConfig(argv=(str(binary.path),), env=given, state_dir=codex_home, sandbox=_no_sandbox)
    async with open_process_engine(dialect, config, state_dir=codex_home, idle=START_TIMEOUT) as engine:
        yield engine


async def _no_sandbox() -> Sandbox:
    raise AssertionError("Codex has its own")


# --- the command line --------------------------------------------------------------------------------------------------


_MAX_ARGUMENT_BYTES: Final = 128 * 1024 - 1
"""Linux takes no longer argument."""

_WRITABLE_BY_CONFIG: Final = ("sandbox_mode", "default_permissions")
_POLICY_KEYS: Final = frozenset({*_WRITABLE_BY_CONFIG, "sandbox_workspace_write"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecCommand:
    """What to run after the name of the program, and what to tell the caller about it."""

    arguments: tuple[str, ...]
    notes: tuple[str, ...] = ()


def exec_command(
    binary: CodexBinary,
    codex_home: Path,
    options: SessionOptions,
    turn: TurnInput,
    *,
    directory: Path,
    scratch: Path,
    session_id: str | None = None,
    confinement: Confinement = NO_ROOTS,
) -> ExecCommand:
    """The command for a turn in a new session, or in the one with `session_id`. Writes files into `scratch`.

    Raises:
        InvalidInput: The options are invalid.
        Unsupported: They ask for what `codex exec` cannot do.
    """
    _check(options, directory)
    # Before any file is written.
    refuse_rules_nobody_trusts(binary, options, directory)
    profile = profile_config(binary, codex_home, options.profile)
    config = check_config(options.config)
    if confinement:
        options, config = _confined(confinement, codex_home, options, profile, config, directory)
    # Exec cannot ask: whatever needs approval would be refused.
    if config.get("approval_policy") not in (None, "never"):
        raise exec_capabilities().refusal(Capability.ASK)
    if options.writes == "workspace":
        refuse_writing_everything(binary, (directory, *options.writable_roots))
    trust, notes = _trust(binary, codex_home, options, profile | config, directory, resuming=session_id is not None)
    # An answer that the caller gives in the configuration goes over ours.
    if trust:
        projects = config.get("projects")
        config["projects"] = trust | (projects if isinstance(projects, dict) else {})
    if turn.effort is not None:
        config["model_reasoning_effort"] = turn.effort
    config |= {f"shell_environment_policy.set.{name}": value for name, value in options.environment.items()}
    if options.developer_instructions is not None:
        config["developer_instructions"] = options.developer_instructions
    if options.base_instructions is not None:
        # There is no option for them, only a configuration key that names a file.
        config["model_instructions_file"] = _file(scratch / "instructions.md", options.base_instructions)

    arguments = [f"--image={_image(path, scratch / str(number))}" for number, path in enumerate(turn.images)]
    arguments += ["--json", f"--cd={directory}"]
    if options.writes is not None:
        arguments.append(f"--sandbox={asked_sandbox(options)}")
    if options.model is not None:
        arguments.append(f"--model={options.model}")
    if options.profile is not None:
        arguments.append(f"--profile={options.profile}")
    arguments += [f"--add-dir={root}" for root in options.writable_roots]
    arguments += [f"--config={key}={as_toml(value)}" for key, value in config.items()]
    if options.skip_git_repo_check:
        arguments.append("--skip-git-repo-check")
    if turn.output_schema is not None:
        arguments.append(f"--output-schema={_file(scratch / 'schema.json', json.dumps(dict(turn.output_schema)))}")
    _check_arguments(arguments)
    # Everything after `resume` is positional, and a dash would make it an option.
    if session_id is not None and session_id.startswith("-"):
        raise InvalidInput(f"{session_id!r} is not the id of a session. List the sessions to see which there are.")
    resume = () if session_id is None else ("resume", session_id)
    # `-` reads the prompt from standard input, where it cannot be taken for an option.
    return ExecCommand(arguments=("exec", *arguments, *resume, "-"), notes=notes)


# --- checks ----------------------------------------------------------------------------------------------------------


def _check(options: SessionOptions, directory: Path) -> None:
    if not directory.is_dir():
        raise InvalidInput(f"The working directory {directory} is not a directory. Name one that exists.")
    if options.writable_roots and options.writes not in (None, "workspace"):
        raise InvalidInput(
            "Writable roots belong to the sandbox workspace-write. Ask for that sandbox, or leave the roots out."
        )


def _check_arguments(arguments: list[str]) -> None:
    for argument in arguments:
        option = argument.partition("=")[0]
        if "\0" in argument:
            raise InvalidInput(f"The value for {option} contains a NUL character. Remove it.")
        if len(argument.encode("utf-8", "surrogateescape")) > _MAX_ARGUMENT_BYTES:
            raise InvalidInput(f"The value for {option} is too long for a command line. Use the engine app-server.")


# --- allowed roots ---------------------------------------------------------------------------------------------------


def _confined(
    confinement: Confinement,
    codex_home: Path,
    options: SessionOptions,
    profile: Mapping[str, Any],
    config: Mapping[str, Any],
    directory: Path,
) -> tuple[SessionOptions, dict[str, Any]]:
    """Options and configuration that leave nothing to Codex's own: exec reports no policy, so all of it is said."""
    given = merge_config(profile, config)
    mode, said = confined_sandbox(confinement, codex_home, options, given, user_config(codex_home), directory)
    # Everything about the policy is said in options, which the caller's configuration must not override.
    rest = {key: value for key, value in config.items() if key.partition(".")[0] not in _POLICY_KEYS}
    for wire, key in ({"writableRoots": "writable_roots"} | WORKSPACE_KEYS).items():
        if wire in said:
            rest[f"sandbox_workspace_write.{key}"] = said[wire]
    return replace(options, writes=WRITES[mode], writable_roots=()), rest


# --- trust -----------------------------------------------------------------------------------------------------------


def _trust(
    binary: CodexBinary,
    codex_home: Path,
    options: SessionOptions,
    given: Mapping[str, Any],
    directory: Path,
    *,
    resuming: bool,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What to say about the repository's trust, so that Codex neither marks it as trusted for good nor loads its files.

    exec has no sandbox of its own for a turn, as the app-server has, so the repository has to be called untrusted while
    Codex may write to it. An answer that the user gave for this repository stands.
    """
    directory = directory.resolve()
    root = repository_root(directory) or directory
    places = (str(directory), str(root))  # Codex looks at both
    if options.trust_repository:
        return {place: {"trust_level": "trusted"} for place in places}, ()
    if resuming or options.writes == "nothing" or not binary.can(Feature.TRUST_ON_START):
        return {}, ()
    configured = user_config(codex_home)
    may_write = options.writes is not None or any(key in given or key in configured for key in _WRITABLE_BY_CONFIG)
    projects = configured.get("projects")
    # A decision of the user, either way, is not overridden.
    if not may_write or (isinstance(projects, dict) and not projects.keys().isdisjoint(places)):
        return {}, ()
    notes: tuple[str, ...] = ()
    if not binary.can(Feature.EXEC_UNTRUSTED_INSTRUCTIONS) and (root / "AGENTS.md").exists():
        notes = (
            f"{root} is not trusted, so this Codex does not read its AGENTS.md in `codex exec`. Trust the repository, "
            "or use the engine app-server.",
        )
    return {place: {"trust_level": "untrusted"} for place in places}, notes


# --- values ----------------------------------------------------------------------------------------------------------


def _file(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def _image(path: Path, copy: Path) -> Path:
    """Codex splits the value of --image at commas, so a file with one in its name is given a plain one."""
    if "," not in str(path):
        return path.absolute()
    return shutil.copyfile(path, copy.with_suffix(path.suffix))
