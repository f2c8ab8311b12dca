"""Claude Code as a dialect: how its processes are started, and the verbs that it has beyond other agents.

A session lives on disk between its turns. Its access is fixed when its process starts, so a turn with other options gets
another process, which resumes the same session.
"""

from __future__ import annotations

import hashlib
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
import anyio.to_thread

from helmsman.agents.agent_process import Greeting, Launch, open_child_agent
from helmsman.agents.claude.access import TRUST, WRITABLE_AT_HOME, access_of, plan_launch
from helmsman.agents.claude.binary import CLAUDE, TITLE, ClaudeBinary, capabilities
from helmsman.agents.claude.conversation import COMPACT, ClaudeConversation, control
from helmsman.agents.claude.storage import refuse_if_open
from helmsman.agents.found_programs import check_command
from helmsman.agents.process_engine import AgentDialect, ForkPoint, LaunchConfig, ProcessEngine, note_on, require_config
from helmsman.agents.protocol import Account, Model, Opened, is_enforced
from helmsman.agents.sandbox import refuse_planted
from helmsman.agents.sandbox_view import cloud_logins, cloud_variables
from helmsman.agents.supervisor.client import GREETING_ID
from helmsman.base.concurrency import background_tasks
from helmsman.base.files import refuse_outside
from helmsman.base.json_values import mapping, optional_text, sequence, text, texts
from helmsman.base.mount_points import MountPoints
from helmsman.base.structs import replace
from helmsman.errors import EngineProtocolError, EngineRefused, EngineTimeout, InvalidInput
from helmsman.git.command import careful_environment
from helmsman.model.options import TurnInput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from helmsman.agents.agent_process import AgentProcess
    from helmsman.agents.claude.access import PlannedLaunch
    from helmsman.agents.claude.storage import ClaudeSessions
    from helmsman.agents.process_engine import AgentSession, EngineContext
    from helmsman.model.events import PastTurn
    from helmsman.model.options import SessionOptions

_START_SECONDS: Final = 30.0
_REPLY_SECONDS: Final = 20.0
_CLOUDS: Final = {
    "CLAUDE_CODE_USE_BEDROCK": "aws",
    "CLAUDE_CODE_USE_VERTEX": "google",
    "CLAUDE_CODE_USE_FOUNDRY": "azure",
}
"""Variables that select a cloud for its model. Claude Code then needs that cloud's login."""


def _read_greeting(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    response = mapping(answer.get("response"))
    if response.get("subtype") != "success":
        raise EngineProtocolError("Claude Code refused the handshake. Run `helmsman doctor` to find out why.")
    return mapping(response.get("response"))


_GREETING: Final = Greeting(
    agent=CLAUDE,
    title=TITLE,
    request={
        "type": "control_request",
        "request_id": GREETING_ID,
        # No hooks: each call of one would be another request to answer.
        "request": {"subtype": "initialize", "hooks": None},
    },
    read_answer=_read_greeting,
    watcher="helmsman.agents.claude.watching:ClaudeWatcher",
    seconds=_START_SECONDS,
    advice="Run `helmsman doctor` to find out why.",
    answer=("response", "request_id", GREETING_ID),
)


class ClaudeDialect(AgentDialect):
    """See `AgentDialect`. Sessions may only work in `roots`, if there are any."""

    agent = CLAUDE
    title = TITLE
    engine_name = CLAUDE
    trust = TRUST
    greeting = _GREETING
    starts_with_session = False
    idle_seconds: ClassVar[float | None] = 120.0  # it holds 200 MB, and another one starts within a second

    def __init__(self, sessions: ClaudeSessions, binary: ClaudeBinary, roots: Sequence[Path] = ()) -> None:
        self.stored = sessions
        self.binary = binary
        self.roots = roots
        self.version = binary.version
        self.capabilities = capabilities(binary)

    def converse(self, context: EngineContext, session: AgentSession, process: AgentProcess) -> ClaudeConversation:
        access = access_of(session.options, enforced=session.is_enforced, plans=session.about.get("plans") is True)
        return ClaudeConversation(context, session, process, self.title, access)

    def opened(self, session: AgentSession, options: SessionOptions) -> Opened:
        # A running turn keeps the enforcement its process was started with.
        enforced = is_enforced(options) if session.turn is None else session.is_enforced
        access = access_of(options, enforced=enforced)
        turn_id = session.left_turn if session.turn is None else session.turn.id
        return Opened(
            session_id=session.id,
            turn_id=turn_id or None,
            directory=None if session.directory is None else str(session.directory),
            model=options.model,
            approval_policy=access.approval_policy,
            sandbox=access.sandbox,
            enforced=access.enforced,
            notes=access.notes,
        )

    def is_like(self, other: AgentDialect) -> bool:
        return isinstance(other, ClaudeDialect) and other.roots == self.roots

    def notes_on(self, turn: TurnInput) -> tuple[str, ...]:
        return () if turn.text == COMPACT else note_on(turn.text, TITLE)

    # --- processes ---------------------------------------------------------------------------------------------------

    async def check(self, config: LaunchConfig | None, options: SessionOptions) -> None:
        if is_enforced(options):
            await require_config(config).sandbox()

    def fits(self, session: AgentSession, options: SessionOptions, turn: TurnInput | None) -> bool:
        plans = turn is not None and turn.plan
        # A process that plans refuses everything, so it cannot do another turn.
        return super().fits(session, options, turn) and (session.about.get("plans") is True) == plans

    def _plan(self, session: AgentSession, options: SessionOptions, turn: TurnInput | None) -> PlannedLaunch:
        assert session.directory is not None
        given = TurnInput(text="") if turn is None else turn
        enforced = is_enforced(options)
        return plan_launch(self.binary, options, given, session.directory, session.id, enforced=enforced)

    def fingerprint(
        self, config: LaunchConfig, session: AgentSession, options: SessionOptions, turn: TurnInput | None
    ) -> str:
        return _digest(self._plan(session, options, turn))

    async def launch(
        self, config: LaunchConfig, session: AgentSession, options: SessionOptions, turn: TurnInput | None
    ) -> Launch:
        """Return how to start a process for a turn.

        Raises:
            Unsupported: There is no sandbox that holds.
            SessionLocked: Another process has the session open.
            InvalidInput: Outside, it would write where a command in the sandbox may have led it.
            ProgramRefused: A session may have replaced it.
        """
        assert session.directory is not None
        for root in (session.directory, *options.writable_roots) if self.roots else ():
            refuse_outside(root, self.roots, "cwd")
        planned = self._plan(session, options, turn)
        await refuse_if_open(self.stored.home, session.id)
        stored = await anyio.to_thread.run_sync(self.stored.path, session.id)
        # A new process counts from zero, a resumed one from what the session has cost.
        session.cost = 0.0
        if stored is not None:
            session.cost = await anyio.to_thread.run_sync(self.stored.cost, session.id)
        identity = _identity(session) if stored is None else ("--resume", session.id)
        # Immediately before the start, so that little time is left to replace the program.
        await anyio.to_thread.run_sync(check_command, config.argv, config.env)
        argv, env = [*config.argv, *planned.arguments, *identity], self.binary.environment(config.env)
        if not options.trust_repository:
            env = await anyio.to_thread.run_sync(careful_environment, env, session.directory)
        about = {"plans": planned.access.plans}
        line, used = await self._confined(config, planned, argv, env, stored)
        return Launch(argv=line, env=used, directory=session.directory, fingerprint=_digest(planned), about=about)

    async def _confined(
        self,
        config: LaunchConfig,
        planned: PlannedLaunch,
        argv: Sequence[str],
        env: Mapping[str, str],
        stored: Path | None,
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        if planned.confined is None:
            places = [self.binary.home / name for name in WRITABLE_AT_HOME]
            await anyio.to_thread.run_sync(refuse_planted, TITLE, places)
            return argv, env
        sandbox, confined = await config.sandbox(), planned.confined
        # A session that was moved is in another directory than its project's; a link could lead out of the sandbox.
        if stored is not None and not stored.parent.is_symlink():
            confined = replace(confined, writable=(*confined.writable, stored.parent))
        confined = replace(
            confined,
            needs=(*confined.needs, *cloud_logins(env, _CLOUDS)),
            variables=(*confined.variables, *cloud_variables(env, _CLOUDS)),
        )
        return await anyio.to_thread.run_sync(lambda: sandbox.around(argv, env, confined))

    def clear_up(self, state_dir: Path, session: AgentSession) -> None:
        """Remove what the sandbox has left. Its temporary files stay, for the session's next process."""
        MountPoints(state_dir).clear(session.id)

    # --- session files -----------------------------------------------------------------------------------------------

    def find(self, session_id: str) -> Path | None:
        info = self.stored.find(session_id)
        if info is None:
            raise self.not_found(session_id)
        return None if info.directory is None else Path(info.directory)

    def history(self, session: AgentSession | None, session_id: str) -> tuple[PastTurn, ...]:
        turns = self.stored.past_turns(session_id)
        if turns is None and session is None:
            raise self.not_found(session_id)
        return turns or ()

    def fork_point(self, session_id: str, last_turn_id: str | None) -> ForkPoint:
        line = self.stored.last_line(session_id, last_turn_id)
        if line is None:
            raise InvalidInput(f"Nothing has been said yet in session {session_id}. Start a new one instead.")
        # The id of a line, since Claude Code forks after lines, not turns.
        return ForkPoint(session_id, last_turn_id, None if last_turn_id is None else line)


def _identity(session: AgentSession) -> tuple[str, ...]:
    """Return the arguments that say which session a process begins."""
    own, fork = ("--session-id", session.id), session.forked_from
    if fork is None:
        return own
    # Without the own id, Claude Code would choose one that is known only after its start.
    line = () if fork.line is None else ("--resume-session-at", fork.line)
    return ("--resume", fork.session_id, "--fork-session", *line, *own)


def _digest(planned: PlannedLaunch) -> str:
    return hashlib.sha256(repr(planned).encode("utf-8", "surrogateescape")).hexdigest()


class ClaudeEngine(ProcessEngine):
    """See `ProcessEngine`: with the verbs that Claude Code has beyond other agents."""

    dialect: ClaudeDialect
    _said_of_itself: Mapping[str, Any] = {}

    async def compact(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is None:
            raise self.dialect.not_found(session_id)
        await self.run_turn(session_id, session.options, TurnInput(text=COMPACT))

    async def rename(self, session_id: str, name: str) -> None:
        self._check()
        request = control("rename_session", title=name)
        session = self._sessions.get(session_id)
        with anyio.move_on_after(_REPLY_SECONDS):
            if session is not None and session.process is not None:
                assert isinstance(session.conversation, ClaudeConversation)
                reply = await session.conversation.request(request)
            else:
                # A session without a process gets one for this request only.
                reply = await self._ask_about(session_id, request)
            if reply.get("subtype") != "success":
                raise EngineRefused(f"Claude Code did not take the name: {text(reply.get('error'))}. Try another one.")
            return
        raise EngineTimeout(
            f"Claude Code did not say within {_REPLY_SECONDS:g} s whether it took the name. Look, try again."
        )

    async def _ask_about(self, session_id: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        directory = await anyio.to_thread.run_sync(self.dialect.find, session_id)
        await refuse_if_open(self.dialect.stored.home, session_id)
        config = require_config(self.config)
        return await ask_about(config, self.dialect.binary, session_id, directory or Path("/"), request)

    async def models(self) -> tuple[Model, ...]:
        return models_in(await self._about_itself())

    async def account(self) -> Account:
        return account_in(await self._about_itself())

    async def _about_itself(self) -> Mapping[str, Any]:
        self._check()
        running = (session.process for session in self._sessions.values() if session.process is not None)
        # A process that runs anyway has said it in its greeting.
        answer = next((process.answer for process in running if process.answer), self._said_of_itself)
        self._said_of_itself = answer or await said_of_itself(require_config(self.config), self.dialect.binary)
        return self._said_of_itself


# --- initialization ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _started(
    config: LaunchConfig, binary: ClaudeBinary, *arguments: str, directory: Path
) -> AsyncIterator[AgentProcess]:
    """Start a Claude Code in which nothing of the directory runs, and which gets no work.

    Raises:
        ProgramRefused: A session may have replaced it.
    """
    await anyio.to_thread.run_sync(check_command, config.argv, config.env)
    argv = [*config.argv, "-p", "--input-format", "stream-json", "--output-format", "stream-json"]
    # No MCP servers: starting them takes seconds, and nothing will use them.
    argv += ["--verbose", "--setting-sources", "user", "--strict-mcp-config", *arguments]
    env = await anyio.to_thread.run_sync(careful_environment, binary.environment(config.env), directory)
    launch = Launch(argv=argv, env=env, directory=directory, fingerprint="", about={})
    async with background_tasks() as tasks, open_child_agent(_GREETING, launch, tasks) as process:
        yield process


async def said_of_itself(config: LaunchConfig, binary: ClaudeBinary) -> Mapping[str, Any]:
    """Return its models and its account."""
    async with _started(config, binary, "--no-session-persistence", directory=Path("/")) as process:
        return process.answer


async def ask_about(
    config: LaunchConfig, binary: ClaudeBinary, session_id: str, directory: Path, request: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return its answer to a request about a stored session. The caller bounds the wait."""
    async with _started(config, binary, "--resume", session_id, directory=directory) as process:
        await process.send(request)
        async for line in process.lines():
            response = mapping(line.get("response"))
            if response.get("request_id") == request["request_id"]:
                return response
        raise await process.loss()


def models_in(said: Mapping[str, Any]) -> tuple[Model, ...]:
    return tuple(
        Model(
            id=text(one.get("value")),
            name=text(one.get("displayName")),
            description=optional_text(one.get("description")),
            is_default=one.get("value") == "default",
            efforts=tuple(texts(one.get("supportedEffortLevels"))),
            default_effort=None,
        )
        for one in map(mapping, sequence(said.get("models")))
    )


def account_in(said: Mapping[str, Any]) -> Account:
    about = mapping(said.get("account"))
    source = optional_text(about.get("apiKeySource")) or optional_text(about.get("tokenSource"))
    kind = None if source in (None, "none") else source
    return Account(
        kind=kind,
        email=optional_text(about.get("email")),
        plan=optional_text(about.get("subscriptionType")),
        requires_login=kind is None,
    )
