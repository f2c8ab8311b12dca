"""Default engine: one long-lived `codex app-server` that carries many sessions.

It adds to the bare methods of `connection`: each event reaches its session in order; a request of Codex becomes a
question and is answered exactly once (`questions`); work never runs under a wider policy than requested and never makes
the user's Codex trust a repository (`access`); an interrupt returns only after everything has stopped; and when Codex
dies, every waiter and every session gets the error immediately.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.agents.agent_process import AttachedAgent, ChildAgent, open_child_process
from helmsman.agents.child_process import run_command
from helmsman.agents.codex.access import (
    NO_ROOTS,
    Access,
    Confinement,
    Policy,
    configured_access,
    plan_access,
    refuse_wider,
)
from helmsman.agents.codex.binary import TITLE, CodexBinary, app_server_capabilities
from helmsman.agents.codex.configuration import Configuration, files_state
from helmsman.agents.codex.connection import (
    OPEN_TIMEOUT,
    AppServer,
    Thread,
    read_goal,
    read_login,
    read_model,
    read_skills,
)
from helmsman.agents.codex.features import Feature
from helmsman.agents.codex.normalise import app_server_item, from_app_server, join_pieces, sub_agents, turn_as_events
from helmsman.agents.codex.processes import (
    codex_environment,
    end_commands,
    path_without_tools,
    start_codex,
    start_failed,
)
from helmsman.agents.codex.questions import OpenQuestions
from helmsman.agents.codex.sandbox import keep_hiding
from helmsman.agents.codex.storage import from_text, is_of, read_review
from helmsman.agents.codex.threads import (
    CodexThread,
    HeldMessages,
    SpareThread,
    as_opened,
    client_tools,
    pause_goal,
    refuse_what_only_opening_takes,
    remark_on_ignored,
    resume_goal,
    thread_settings,
)
from helmsman.agents.process_engine import SessionEngine, no_turn_runs
from helmsman.agents.protocol import Begun, Capabilities, Capability, InForce, Opened, OwnTerminal
from helmsman.base.concurrency import background_tasks
from helmsman.base.config_values import as_toml, dotted, key_path
from helmsman.base.json_values import mapping, optional_text, rows
from helmsman.base.jsonrpc import IncomingRequest, Peer, Transport
from helmsman.base.peers import can_tell_sandboxed
from helmsman.base.structs import replace
from helmsman.base.unknown_names import nearest
from helmsman.errors import (
    EngineLost,
    EngineProtocolError,
    EngineRefused,
    EngineTimeout,
    HelmsmanError,
    InvalidInput,
    NotLoggedIn,
)
from helmsman.model.answered_by import TURN_ENDED
from helmsman.model.events import (
    Event,
    Failure,
    FileChange,
    ItemEnded,
    ItemStarted,
    ItemUpdated,
    McpToolCall,
    PastTurn,
    ProcessState,
    RateLimitsReported,
    TurnEnded,
    TurnStarted,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from anyio.abc import TaskGroup

    from helmsman.agents.codex.features import Version
    from helmsman.agents.protocol import Account, AgentConfig, ConfigEdit, Goal, Login, Model, ReviewReport, SkillList
    from helmsman.model.client_tools import ToolResult
    from helmsman.model.events import ToolCalled
    from helmsman.model.options import SessionOptions, TurnInput
    from helmsman.model.questions import Choice, Question
log = logging.getLogger(__name__)

# --- login -----------------------------------------------------------------------------------------------------------

_PROVIDER: Final = "model_provider"
_OPENAI: Final = "openai"
_LOGIN_SECONDS: Final = 60.0
"""Seconds for which a successful login check is valid while the login file is unchanged: a keyring has no file to
watch.
"""


@dataclass(slots=True)
class _PendingLogin:
    ended: anyio.Event = field(default_factory=anyio.Event)
    error: str | None = None


class CodexLogins:
    """Logins through one engine, and the check that a new session has one.

    Without the check a turn fails only after many retries.
    """

    def __init__(self, api: AppServer, configuration: Configuration) -> None:
        self._api = api
        self._configuration = configuration
        self._files = tuple(str(home / "auth.json") for home in configuration.homes)
        self._checked: object = None
        self._checked_until = 0.0
        self._pending: dict[str, _PendingLogin] = {}

    async def require(self, options: SessionOptions) -> None:
        """Refuse a session at OpenAI without a login. Other providers may need none.

        Raises:
            NotLoggedIn: Codex is not logged in, and its model needs that.
        """
        # Another provider may need no login at OpenAI.
        if options.profile is not None or any(key.split(".")[0].startswith(_PROVIDER) for key in options.config):
            return
        state = files_state(self._files)
        if state == self._checked and time.monotonic() < self._checked_until:
            return  # asking costs as much as the start itself
        # Asked late: the configuration costs a request, too.
        known = await self._configuration.effective(options.cwd)
        if known.get("profile") is not None or known.get(_PROVIDER) not in (None, _OPENAI):
            return
        try:
            account = await self._api.account()
        except EngineRefused:  # it does not say; the turn will show
            return
        if account.kind is None and account.requires_login:
            raise NotLoggedIn(
                "Codex is not logged in, so nothing was started. Run `helmsman agents login`, then try again."
            )
        # A remote engine's login file cannot be watched.
        if self._configuration.is_local:
            self._checked, self._checked_until = state, time.monotonic() + _LOGIN_SECONDS

    async def start(self, *, with_code: bool) -> Login:
        kind = "chatgptDeviceCode" if with_code else "chatgpt"
        login = read_login(await self._api.call("account/login/start", type=kind), with_code=with_code)
        # The end may have been reported already, before this answer was read.
        self._pending.setdefault(login.id, _PendingLogin())
        return login

    async def wait(self, login: Login) -> str | None:
        """Wait for the end of a login, or for the loss of the engine. Return why the login failed, or None."""
        # See `ended`: the first of the two creates the record.
        pending = self._pending.setdefault(login.id, _PendingLogin())
        try:
            await pending.ended.wait()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), suppress(HelmsmanError):
                await self._api.call("account/login/cancel", loginId=login.id)
            raise
        finally:
            del self._pending[login.id]
        return pending.error

    def engine_lost(self) -> None:
        """End all waiting: no login will end in this engine."""
        for pending in self._pending.values():
            pending.ended.set()

    def ended(self, params: Mapping[str, Any]) -> None:
        """Record the end of a login, perhaps before the answer that names it was read."""
        pending = self._pending.setdefault(str(params.get("loginId")), _PendingLogin())
        pending.error = None if params.get("success") is True else str(params.get("error") or "Codex does not say why.")
        pending.ended.set()


# --- the engine ------------------------------------------------------------------------------------------------------

_FILE_ATTEMPTS: Final = 10
_FILE_PAUSE: Final = 0.1
_STRICT_SECONDS: Final = 10.0

INTERRUPT_TIMEOUT: Final = 10.0
"""Seconds that a turn may take to stop; Codex was seen to need some milliseconds."""

_INTERRUPT_AGAIN: Final = 0.05


class AppServerEngine(SessionEngine[CodexThread]):
    """See `helmsman.agents.protocol.Engine`. Made by `open_app_server` only."""

    listens_at: tuple[Path, Path] | None = None
    """Socket for additional clients, and its CODEX_HOME."""

    def __init__(
        self,
        tasks: TaskGroup,
        transport: Transport,
        binary: CodexBinary,
        codex_home: Path,
        engine_id: str | None = None,
        confinement: Confinement = NO_ROOTS,
    ) -> None:
        super().__init__()
        self._tasks = tasks
        self.confinement = confinement
        self._id = engine_id
        # Events name the line they came from only if a supervisor keeps the output.
        if isinstance(transport, AttachedAgent):
            self._router.position = transport.position
        self.binary = binary
        self._codex_home = codex_home
        self._peer = Peer(
            transport,
            other=TITLE,
            on_notification=self._on_notification,
            on_request=self._on_request,
            on_close=self._on_close,
            join=join_pieces,
        )
        self.api = AppServer(self._peer, binary)
        self._configuration = Configuration(self.api.config, codex_home, is_local=binary.remote is None)
        self._logins = CodexLogins(self.api, self._configuration)
        self._spare = SpareThread(tasks, self.api, binary, self._configuration)
        self._questions = OpenQuestions(tasks, self._peer, self.api, binary, self._router, self._sessions, codex_home)
        self._rate_limits: list[RateLimitsReported] = []
        """Newest limits, if any. A list, because views of the engine share it."""
        self._capabilities = app_server_capabilities(binary, detached=engine_id is not None)
        self.version: Version | None = None
        """Version of Codex from the handshake."""
        self._gone = anyio.Event()
        self._leaving = False
        self._held = HeldMessages(replaying=transport.resumed is not None)

    @property
    def id(self) -> str | None:
        """Name of an engine that outlives the hub (`codex.app_servers`); None for one that ends with the hub."""
        return self._id

    @property
    def name(self) -> str:
        return "app-server"

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def program(self) -> Path | None:
        return self.binary.path if self.binary.remote is None else None

    @property
    def lost(self) -> HelmsmanError | None:
        """Reason why this engine is unusable, or None."""
        return self._peer.closed

    async def until_lost(self) -> None:
        await self._gone.wait()

    @property
    def known_rate_limits(self) -> RateLimitsReported | None:
        return self._rate_limits[0] if self._rate_limits else None

    async def shake_hands(self) -> None:
        self._tasks.start_soon(self._peer.run)
        self.version = await self.api.initialize()
        self._held.replaying = False  # all that was said before us came before that answer
        self._tasks.start_soon(self.api.watch, self._is_busy)

    def _is_busy(self) -> bool:
        return any(thread.turn is not None for thread in self._sessions.values())

    def leave(self) -> None:
        """Prepare to close the connection. Turns in a detached engine keep running, so no session is reported as ended."""
        self._leaving = self._id is not None

    def confined_to(self, roots: Sequence[Path]) -> AppServerEngine:
        """Return the same engine for a client with other allowed roots."""
        # A shallow copy: threads, router and peer are shared, only the roots differ.
        view = copy(self)
        view.confinement = Confinement(tuple(roots))
        return view

    # --- sessions ----------------------------------------------------------------------------------------------------

    def keep_goal_paused(self, session_id: str) -> None:
        """Leave the goal paused, so that Helmsman does not resume it automatically."""
        self._thread(session_id).is_goal_paused = False

    def forget(self, session_id: str) -> None:
        """Drop the state of a session that Codex has unloaded."""
        if (thread := self._sessions.pop(session_id, None)) is not None:
            thread.enter(ProcessState.STORED)
        self._held.forget(session_id)
        self._router.detach(session_id)

    async def open(self, options: SessionOptions) -> Opened:
        if options.cwd is None:
            raise InvalidInput("A session needs a working directory. Name one that exists.")
        access = await self._plan(options, resuming=False)
        await self._logins.require(options)
        thread = await self._spare.open(thread_settings(options, access) | client_tools(options))
        return self._opened(thread, options, access)

    async def resume(self, session_id: str, options: SessionOptions) -> Opened:
        access = await self._plan(options, resuming=True)
        is_loaded = session_id in self._sessions
        # Another process may have left the thread loaded. Codex then ignores the options of the resume.
        if not is_loaded and self._id is not None and session_id in await self.api.loaded_threads():
            is_loaded = True
            access = replace(access, notes=(*access.notes, *remark_on_ignored(options)))
        # A resumed thread with an active goal starts to work immediately, before its first message.
        is_goal_paused = not is_loaded and await pause_goal(self.api, self.binary, session_id)
        try:
            thread = await self.api.resume_thread(session_id, thread_settings(options, access))
            opened = self._opened(thread, options, access, was_loaded=is_loaded)
        except BaseException:
            if is_goal_paused:
                # Shielded, so that a cancelled resume does not leave the user's goal paused.
                with anyio.CancelScope(shield=True):
                    await resume_goal(self.api, session_id)
            raise
        self._thread(session_id).is_goal_paused |= is_goal_paused
        # Messages about a turn that an earlier hub left were held until the session had an owner.
        if self._held.is_running(session_id):
            await self._let_speak(session_id)
        self._held.forget(session_id)
        return replace(opened, turn_id=await self._running_turn(thread))

    async def running_sessions(self) -> tuple[str, ...]:
        """Return the sessions with a running turn, regardless of their owner; sub-agents belong to their session."""
        return tuple(
            thread.id
            for thread in await self._loaded()
            if (thread.is_active or self._held.is_running(thread.id)) and thread.parent_id is None
        )

    async def adopt(self, session_id: str, options: SessionOptions) -> Opened:
        """Take over a session that another process began in this engine.

        The sink gets its newest turn as far as it has come, with every question that is still open, and then what happens
        next. The policy in force stays until the next turn, which sends that of `options`.
        """
        access = await self._plan(options, resuming=True)
        family = [session_id]
        # The replayed output includes the children.
        loaded = [] if self._held.has_replayed(session_id) else await self._loaded()
        # The list grows while it is read, so grandchildren follow their parents.
        for parent in family:
            family += [thread.id for thread in loaded if thread.parent_id == parent and thread.is_active]
        for child in family[1:]:
            self._router.adopt(child, session_id)
        attached = [await self._attach_to(thread_id, options, access) for thread_id in family]
        return replace(attached[0], is_asking=any(thread.is_asking for thread in attached))

    async def _attach_to(self, thread_id: str, options: SessionOptions, access: Access) -> Opened:
        """Attach to a loaded thread. Its newest turn comes from the output of Codex, or else in Codex's answer."""
        state, settings = self._thread(thread_id), thread_settings(options, access)
        if self._held.has_replayed(thread_id):
            if self.binary.can(Feature.THREAD_STATUS):
                thread = await self.api.resume_thread(thread_id, settings)
            else:  # resuming a running thread would load it twice, and the first copy could not be interrupted
                thread = await self.api.read_thread(thread_id)
            # The policy is known before events are released, which may be questions.
            state.opened(thread, options, access)
            state.loaded(is_active=thread.is_active)
            await self._let_speak(thread_id)
        else:
            # Hold what Codex sends from here: it must come after the turn that its answer contains.
            self._held.begin(thread_id)
            try:
                thread = await self.api.join_thread(thread_id, settings)
                state.opened(thread, options, access)
                state.loaded(is_active=thread.is_active)
                for turn in thread.turns:
                    for event in turn_as_events(thread_id, turn):
                        self._take(event)
            finally:
                self._held.release(thread_id)
        if state.turn is None:
            state.enter(ProcessState.IDLE)
        return replace(as_opened(thread, access), turn_id=state.turn_id, sandbox=thread.sandbox)

    async def _let_speak(self, session_id: str) -> None:
        await self.api.loaded_threads()  # what Codex asks again, because the thread was joined, has come before this
        waiting = [session_id]
        for thread_id in waiting:
            self._held.release(thread_id)
            waiting += [child for child in self._router.children(session_id) if self._held.has_replayed(child)]

    async def _loaded(self) -> list[Thread]:
        threads: list[Thread] = []
        for thread_id in await self.api.loaded_threads():
            try:
                threads.append(await self.api.read_thread(thread_id))
            except EngineRefused:  # Codex cannot read a thread whose first turn has just begun
                threads.append(Thread(id=thread_id, is_active=True))
        return threads

    async def fork(self, session_id: str, options: SessionOptions, *, last_turn_id: str | None = None) -> Opened:
        access = await self._plan(options, resuming=True)
        settings = thread_settings(options, access)
        thread = await self.api.open_thread("thread/fork", threadId=session_id, lastTurnId=last_turn_id, **settings)
        return self._opened(thread, options, access)

    async def _plan(self, options: SessionOptions, *, resuming: bool) -> Access:
        return await plan_access(
            self._configuration,
            self.binary,
            self._codex_home,
            options,
            resuming=resuming,
            reachable=self._is_reachable,
            confinement=self.confinement,
        )

    @property
    def _is_reachable(self) -> bool:
        """True if a sandboxed command with network access could connect to the engine and leave its sandbox.

        A supervisor refuses sandboxed processes if it can recognize them. Any other engine that outlives its client
        listens itself: on a socket that Codex hides from its commands, or with a token.
        """
        if self._id is None:
            return False
        if self._peer.resumed is not None:
            return not can_tell_sandboxed()
        return not self.binary.can(Feature.GUARDED_SOCKET)

    def _opened(self, thread: Thread, options: SessionOptions, access: Access, *, was_loaded: bool = False) -> Opened:
        state = self._thread(thread.id)
        if was_loaded:  # it keeps its policy and its model until the next turn, which sends ours
            state.model = options.model
        else:
            # Codex reports the policy that it applies. Compare it before any work begins.
            refuse_wider(
                asked_sandbox=access.thread_sandbox,
                sandbox=thread.sandbox,
                asked_approval=access.approval_policy,
                approval=thread.approval_policy,
            )
        state.opened(thread, options, access)
        state.loaded(is_active=thread.is_active)
        return as_opened(thread, access)

    def _on_state(self, session: CodexThread) -> None:
        if self._router.parent(session.id) is None:
            super()._on_state(session)
        else:
            session.entered.clear()  # a sub-agent belongs to its session

    async def _running_turn(self, thread: Thread) -> str | None:
        if not thread.is_active:
            return None
        found = (await self.api.read_thread(thread.id, with_turns=True)).running_turn
        state = self._thread(thread.id)
        # The turn may have ended between the two requests.
        if found is not None and found != state.ended_turn_id:
            state.began(found)
        elif state.turn is None:
            state.enter(ProcessState.IDLE)
        return state.turn_id

    async def history(self, session_id: str) -> tuple[PastTurn, ...]:
        turns = (await self.api.read_thread(session_id, with_turns=True)).turns
        return tuple(
            PastTurn(
                id=str(turn.get("id", "")),
                status=str(turn.get("status", "")),
                items=tuple(app_server_item(item) for item in turn.get("items") or () if isinstance(item, dict)),
            )
            for turn in turns
        )

    # --- turns -------------------------------------------------------------------------------------------------------

    async def run_turn(self, session_id: str, options: SessionOptions, turn: TurnInput) -> Begun:
        state = self._thread(session_id)
        notes: tuple[str, ...] = ()
        # The options differ from those of the last turn: work out the policy again.
        if state.access is None or state.options != options:
            if state.options is not None:
                refuse_what_only_opening_takes(state.options, options)
            told = state.access.notes if state.access is not None else ()
            state.access = await self._plan(options, resuming=True)
            state.options, state.model = options, options.model
            notes = tuple(note for note in state.access.notes if note not in told)
        try:
            turn_id = await self._begin_turn(state, state.access, turn)
        finally:
            if state.is_goal_paused:  # Codex may continue with it after this turn
                state.is_goal_paused = False
                with anyio.CancelScope(shield=True):
                    await resume_goal(self.api, session_id)
        return Begun(session_id=session_id, turn_id=turn_id, notes=notes)

    async def _begin_turn(self, state: CodexThread, access: Access, turn: TurnInput) -> str:
        # Codex merges a second turn into the running one, and may never report its end.
        self._refuse_if_running(state)
        await anyio.to_thread.run_sync(keep_hiding, self.binary.hiding_bubblewraps)
        roots = None
        if self.confinement and turn.review is None:
            # A review runs under the policy in force; all other turns state theirs.
            state.policy = state.policy_of(turn, access, self.binary)
            roots = state.policy.workspace_roots if self.binary.can(Feature.WORKSPACE_ROOTS) else None
        self.hold_to_roots(state.id)
        # Events of this turn may come before its answer.
        state.ended_turn_id = None
        state.reviewing = turn.review is not None
        turn_id = await state.begin_turn(self.api, self.binary, turn, access, roots)
        # Codex keeps the model for later turns, so it is sent once.
        state.model = None
        if turn.plan:  # it leaves a narrower policy behind, so the next turn works out again what holds
            state.options = None
        if turn.review is not None:
            self._router.deliver(TurnStarted(session_id=state.id, turn_id=turn_id))
        if state.is_news(turn_id):
            state.began(turn_id)
        return turn_id

    def hold_to_roots(self, session_id: str) -> None:
        """Make sure that a loaded session can write only inside the allowed roots.

        Raises:
            InvalidInput: It could write elsewhere.
        """
        state = self._thread(session_id)
        self.confinement.refuse(state.policy or Policy(directory=state.directory, sandbox=None))

    async def steer(self, session_id: str, text: str) -> None:
        turn_id = self._thread(session_id).turn_id
        if turn_id is None:
            raise no_turn_runs(session_id)
        self.hold_to_roots(session_id)
        await self.api.steer_turn(session_id, turn_id, text)

    async def end_leftovers(self, session_id: str) -> None:
        threads = (session_id, *self._router.children(session_id))
        await anyio.to_thread.run_sync(end_commands, threads)

    async def interrupt(self, session_id: str) -> None:
        threads = [session_id, *self._router.children(session_id)]
        self._thread(session_id).stop()
        # Codex answers within milliseconds. The limit is for one that hangs.
        with anyio.move_on_after(INTERRUPT_TIMEOUT) as limit:
            for thread_id in threads:
                await self._interrupt_thread(thread_id)
        if limit.cancelled_caught:
            # Codex either answers here, or is given up, which ends all waiting.
            await self.api.check()
            for thread_id in threads:
                await self._notice_end(thread_id)
        await self._stop_commands(threads)
        if limit.cancelled_caught and self._thread(session_id).turn is not None:
            raise EngineTimeout(
                f"Codex did not stop session {session_id} within {INTERRUPT_TIMEOUT:g} s. Try again, or stop the engine."
            )

    async def _interrupt_thread(self, thread_id: str) -> None:
        """Ask until the turn has ended: a turn that has only just been answered for cannot be interrupted yet."""
        state = self._thread(thread_id)
        while (turn := state.turn) is not None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._ask_to_stop, thread_id, turn.id, tasks.cancel_scope)
                await turn.ended.wait()  # the end counts, not the answer: older Codex may give none
                tasks.cancel_scope.cancel()
            self._check()

    async def _notice_end(self, thread_id: str) -> None:
        """Codex knows whether a turn is running, also where it did not tell of its end."""
        turn_id = self._thread(thread_id).turn_id if self.binary.can(Feature.THREAD_STATUS) else None
        with suppress(EngineRefused, EngineProtocolError):
            if turn_id is not None and not (await self.api.read_thread(thread_id)).is_active:
                self._take(TurnEnded(session_id=thread_id, turn_id=turn_id, outcome="interrupted"))

    async def _ask_to_stop(self, thread_id: str, turn_id: str, waiting: anyio.CancelScope) -> None:
        try:
            # The answer says only that the request was heard.
            await self.api.call("turn/interrupt", timeout=INTERRUPT_TIMEOUT, threadId=thread_id, turnId=turn_id)
        except HelmsmanError as error:
            log.debug("turn/interrupt of %s: %s", thread_id, error)
            await anyio.sleep(_INTERRUPT_AGAIN)
            # Cancelled so that the loop looks at the state again.
            waiting.cancel()

    async def _stop_commands(self, threads: list[str]) -> None:
        """Stop commands that an interrupted turn leaves running as background terminals."""
        if not self.binary.can(Feature.BACKGROUND_TERMINALS):
            return
        for thread_id in threads:
            try:
                await self.api.call("thread/backgroundTerminals/clean", threadId=thread_id)
            except EngineLost:
                raise
            except HelmsmanError as error:
                log.warning("could not stop the background commands of session %s: %s", thread_id, error)

    # --- questions ---------------------------------------------------------------------------------------------------

    async def answer(self, question: Question, choices: tuple[Choice, ...] | None) -> None:
        await self._questions.answer(question, choices)

    async def answer_tool(self, call: ToolCalled, result: ToolResult) -> None:
        self._questions.answer_tool(call, result)

    def _on_request(self, request: IncomingRequest) -> bool:
        # After a restart of the hub, output is read again; the supervisor knows which requests were answered.
        if request.was_answered:
            return True
        # The position is bound now: the request may be handled after later lines.
        later = self._router.position.bound(partial(self._questions.take_or_refuse, request))
        if self._held.hold_request(request, later):
            return True
        return self._questions.take(request)

    # --- what Codex says ---------------------------------------------------------------------------------------------

    def _on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        later = partial(self._on_notification, method, params)
        if self._held.hold(method, params, self._router.position.bound(later)):
            return
        if method == "serverRequest/resolved":
            self._questions.resolved(params)
            return
        if method == "account/login/completed":
            self._logins.ended(params)
            return
        if method == "thread/settings/updated":
            self._thread(str(params.get("threadId"))).changed(params)
        event = from_app_server(method, params)
        if event is None:
            return
        # Limits belong to the account, not to a session.
        if isinstance(event, RateLimitsReported):
            # In place, since views of this engine share the list.
            self._rate_limits[:] = [event.over(self.known_rate_limits)]
            return
        self._take(event)

    def _take(self, event: Event) -> None:
        self._track(event)
        if isinstance(event, TurnStarted) and self._thread(event.session_id).reviewing:
            return  # the reviewer's turn inside the review: an interrupt has to name it, and only this event does
        self._router.deliver(event)

    def _track(self, event: Event) -> None:
        match event:
            case TurnStarted(turn_id=str(turn_id)):
                self._thread(event.session_id).began(turn_id)
            case TurnEnded():
                self._thread(event.session_id).ended(event.turn_id)
                self._questions.withdraw_of(event.session_id, by=str(TURN_ENDED))
                self._spare.turn_ended(self._is_busy)
            case ItemStarted(item=item) | ItemUpdated(item=item) | ItemEnded(item=item):
                # Questions about these items come without their content.
                if isinstance(item, FileChange | McpToolCall):
                    items = self._thread(event.session_id).asked_about
                    if isinstance(event, ItemEnded):
                        items.pop(item.id, None)
                    else:
                        items[item.id] = item
                # Before the first event of a sub-agent, or it would have no owner.
                for child in sub_agents(item):
                    self._router.adopt(child, event.session_id)
            case _:
                pass

    def _thread(self, thread_id: str) -> CodexThread:
        thread = self._sessions.get(thread_id)
        if thread is None:
            thread = self._sessions[thread_id] = CodexThread(thread_id, self._on_state)
        return thread

    def _on_close(self, reason: HelmsmanError) -> None:
        self._gone.set()
        self._logins.engine_lost()
        self._questions.clear()
        for thread in self._sessions.values():
            if thread.turn is not None:
                thread.turn.ended.set()
            # Leaving a detached engine ends no session.
            if not self._leaving:
                thread.enter(ProcessState.STORED)
        if not self._leaving:
            self._router.engine_gone(Failure(code=reason.code, message=reason.message, retryable=reason.retryable))

    # --- the agent's own program ---------------------------------------------------------------------------------------

    async def own_terminal(self, session_id: str) -> OwnTerminal:
        self.capabilities.require(Capability.ATTACH)
        if self.listens_at is None:
            raise self._refusal(Capability.ATTACH)
        socket, codex_home = self.listens_at
        # Its page about a newer model comes before all else, and the answer it proposes would change the session's model.
        models = rows((await self.api.call("model/list")).get("data"))
        newer = ((model.get("model"), model.get("upgrade")) for model in models)
        seen = ", ".join(f"{json.dumps(old)} = {json.dumps(new)}" for old, new in newer if old and new)
        options = "check_for_update_on_startup=false", f"notice.model_migrations={{ {seen} }}"
        return OwnTerminal(
            command=(
                *(str(self.binary.path), "resume", session_id, "--remote", f"unix://{socket}"),
                *(word for option in options for word in ("-c", option)),
            ),
            variables={"CODEX_HOME": str(codex_home)},
            engine=None if self.is_of_a_person else self.id,
        )

    # --- upkeep ------------------------------------------------------------------------------------------------------

    async def roll_back(self, session_id: str, turns: int) -> None:
        # Revert replaces rollback, which newer versions no longer have.
        if self.binary.can(Feature.REVERT):
            try:
                first = (await self.history(session_id))[-turns].id
                await self.api.call("thread/revert", timeout=OPEN_TIMEOUT, threadId=session_id, beforeTurnId=first)
            except EngineRefused:  # the history of older sessions cannot be reverted
                if not self.binary.can(Feature.ROLLBACK):
                    raise
            else:
                return
        await self.api.call("thread/rollback", timeout=OPEN_TIMEOUT, threadId=session_id, numTurns=turns)

    async def compact(self, session_id: str) -> None:
        # Compacting runs as a turn, after which Codex would continue with the goal.
        self.keep_goal_paused(session_id)
        await self.api.call("thread/compact/start", threadId=session_id)

    async def rename(self, session_id: str, name: str) -> None:
        await self.api.call("thread/name/set", threadId=session_id, name=name)

    async def archive(self, session_id: str) -> None:
        await self.api.call("thread/archive", threadId=session_id)
        self.forget(session_id)

    async def unarchive(self, session_id: str) -> None:
        await self.api.call("thread/unarchive", threadId=session_id)

    async def unload(self, session_id: str) -> None:
        """Make Codex release a thread by archiving it. It keeps any other thread in memory."""
        if session_id in await self.api.loaded_threads():
            await self.archive(session_id)
            await self.unarchive(session_id)

    async def goal(self, session_id: str) -> Goal | None:
        return await self.api.goal(session_id)

    async def set_goal(self, session_id: str, objective: str | None) -> Goal | None:
        self.keep_goal_paused(session_id)
        if objective is None:
            await self.api.call("thread/goal/clear", threadId=session_id)
            return None
        self.hold_to_roots(session_id)  # Codex starts to work on it immediately
        answer = await self.api.call("thread/goal/set", threadId=session_id, objective=objective, status="active")
        return read_goal(answer)

    # --- reviews -----------------------------------------------------------------------------------------------------

    async def review_report(self, session_id: str, shown: str | None) -> ReviewReport | None:
        """Codex tells of the end before it has written it down, so the file may still have to catch up."""
        path = (await self.api.read_thread(session_id)).path
        for _ in range(_FILE_ATTEMPTS if path is not None else 0):
            report = await anyio.to_thread.run_sync(read_review, Path(path or ""))
            if shown is None or (report is not None and is_of(report, shown)):
                return report
            await anyio.sleep(_FILE_PAUSE)
        return None if shown is None else from_text(shown)

    # --- about Codex -------------------------------------------------------------------------------------------------

    async def models(self) -> tuple[Model, ...]:
        return tuple(map(read_model, rows((await self.api.call("model/list")).get("data"))))

    async def account(self) -> Account:
        return await self.api.account()

    async def start_login(self, *, with_code: bool) -> Login:
        return await self._logins.start(with_code=with_code)

    async def login_ended(self, login: Login) -> str | None:
        self._check()
        error = await self._logins.wait(login)
        self._check()  # a lost engine ends the waiting too
        return error

    async def skills(self, directory: Path) -> SkillList:
        return read_skills(await self.api.call("skills/list", cwds=[str(directory)]))

    async def read_config(self, directory: Path | None) -> AgentConfig:
        return await self.api.config(directory)

    async def in_force(self, directory: Path) -> InForce:
        values = (await self.api.config(directory)).values
        sandbox, approval = configured_access(values, directory)
        return InForce(
            model=optional_text(values.get("model")),
            effort=optional_text(values.get("model_reasoning_effort")),
            sandbox=sandbox,
            approval_policy=approval,
        )

    async def write_config(self, edits: Sequence[ConfigEdit], *, version: str | None) -> str | None:
        """Change the user's file: all of it, or nothing. Return what overrides a value of it, in Codex's words."""
        written = [{"keyPath": edit.key, "value": edit.value, "mergeStrategy": "replace"} for edit in edits]
        # Deleting a key works only with the batch method.
        if len(edits) == 1 and edits[0].value is not None:
            answer = await self.api.call("config/value/write", expectedVersion=version, **written[0])
        else:
            answer = await self.api.call("config/batchWrite", edits=written, expectedVersion=version)
        return optional_text(mapping(answer.get("overriddenMetadata")).get("message")) or None

    async def refuse_unknown_settings(self, edits: Sequence[ConfigEdit], env: Mapping[str, str]) -> None:
        """Ask a Codex with `--strict-config` (0.145 and newer). Its home has nothing else, so that only these keys count."""
        if self.program is None:
            return
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
            child_env = codex_environment(self.binary, Path(home), env)
            for edit in edits:
                if edit.value is None or isinstance(edit.value, dict):
                    continue
                # In a file, because `-c` splits a quoted name at its dots.
                setting = f"{dotted(key_path(edit.key))} = {as_toml(edit.value)}\n"
                (Path(home) / "config.toml").write_text(setting, encoding="utf-8")
                command = [str(self.program), "app-server", "--strict-config"]
                done = await run_command(command, env=child_env, cwd=Path(home), seconds=_STRICT_SECONDS)
                if done.exit_code and "unknown configuration field" in done.stderr:
                    raise InvalidInput(
                        f"Codex does not know {edit.key}. {await self._known_instead(edit.key)}", parameter="edits"
                    )

    async def _known_instead(self, key: str) -> str:
        """Return the keys that Codex reports, set or not, and of those the one that was probably meant."""
        level = mapping((await self.api.call("config/read", includeLayers=False)).get("config"))
        path = key_path(key)
        depth = 0
        while depth < len(path) - 1 and (below := mapping(level.get(path[depth]))):
            level, depth = below, depth + 1
        known = [dotted([*path[:depth], name]) for name in sorted(level)]
        close = nearest(dotted(path), known)
        return f"{f'Did you mean {close}? ' if close else ''}Some that it knows: {', '.join(known)}."

    async def rate_limits(self) -> RateLimitsReported | None:
        """Return the limits.

        Codex can only be asked with a ChatGPT login; limits reported during work are always known.
        """
        try:
            answer = await self.api.call("account/rateLimits/read")
        # The answer without a ChatGPT login is an error.
        except EngineRefused as refused:
            log.debug("account/rateLimits/read: %s", refused)
            return self.known_rate_limits
        event = from_app_server("account/rateLimits/updated", answer)
        return event if isinstance(event, RateLimitsReported) else self.known_rate_limits


@asynccontextmanager
async def open_app_server(
    binary: CodexBinary,
    *,
    codex_home: Path,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    allowed_roots: Sequence[Path] = (),
) -> AsyncIterator[AppServerEngine]:
    """Start an engine as a child process, for the length of the block.

    Raises:
        EngineStartFailed: Codex did not come up. No process is left behind.
    """
    binary.require(Feature.APP_SERVER, doing="run the app-server engine")
    child_env = codex_environment(binary, codex_home, env)
    argv: list[str | Path] = [binary.path, "app-server", *options]

    def connect(tasks: TaskGroup) -> AbstractAsyncContextManager[Transport]:
        return open_child_process(tasks, argv, title="The Codex engine", env=child_env)

    # The stack holds the engine that came up; failed attempts have been closed by then.
    async with AsyncExitStack() as stack:
        opening = partial(connect_app_server, binary, connect, codex_home=codex_home, allowed_roots=allowed_roots)
        engine = await start_codex(lambda: stack.enter_async_context(opening()))
        engine.search_path = path_without_tools(binary, child_env["PATH"])
        yield engine


@asynccontextmanager
async def connect_app_server(
    binary: CodexBinary,
    connect: Callable[[TaskGroup], AbstractAsyncContextManager[Transport]],
    *,
    codex_home: Path,
    engine_id: str | None = None,
    allowed_roots: Sequence[Path] = (),
    kind: type[AppServerEngine] = AppServerEngine,
) -> AsyncIterator[AppServerEngine]:
    """Connect to an app-server, for the length of the block. One with an `engine_id` outlives the block.

    Raises:
        EngineStartFailed: It does not answer.
    """
    async with background_tasks() as tasks, connect(tasks) as transport:
        engine = kind(tasks, transport, binary, codex_home, engine_id, Confinement(tuple(allowed_roots)))
        try:
            await engine.shake_hands()
        except (EngineLost, EngineTimeout) as error:
            raise start_failed(error) from error
        try:
            yield engine
        finally:
            # Before the connection closes, which would otherwise be reported as a loss.
            engine.leave()
            if engine.api.hangs and isinstance(transport, ChildAgent):
                transport.kill()  # it does not respond, and holds the locks of its sessions
