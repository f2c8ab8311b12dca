"""Run turns: the engines, their sessions, the limit on concurrent turns, and the events.

`TurnRunner` owns the engines, the loaded sessions and the broker for questions. Every turn is a task. The verbs that callers
use are in `helmsman.steering.core`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import anyio.to_thread

from helmsman.agents.protocol import Begun, Capability
from helmsman.approvals.rule_book import RuleBook
from helmsman.base.caller_context import asking_client, current
from helmsman.base.concurrency import log_failure
from helmsman.base.files import DirectoryIdentity, refuse_moved
from helmsman.base.programs import installation_places, remember_writable
from helmsman.base.sanitize import one_line
from helmsman.base.structs import pack, replace
from helmsman.errors import AnswerInvalid, BudgetExceeded, HelmsmanError, TooManySessions
from helmsman.git import lifecycle
from helmsman.model.events import (
    EngineGone,
    HistoryImported,
    ItemDelta,
    ItemStarted,
    OptionsChanged,
    OwnerChanged,
    PlaceRecorded,
    QuestionAsked,
    SettingsApplied,
    TaskLinked,
    ToolCalled,
    TurnAdopted,
    TurnEnded,
    TurnRequested,
    TurnStarted,
    UsageReported,
    UserMessage,
    WorktreeAssigned,
)
from helmsman.model.nature import READS, verb
from helmsman.model.options import DEFAULT_AGENT, TurnInput, TurnLimits
from helmsman.model.request import TurnRequest
from helmsman.sessions.history import SpentTurn, completed, turns_of, unknown_turns
from helmsman.sessions.question_broker import QuestionBroker
from helmsman.sessions.session import Session, Verbs
from helmsman.sessions.tool_calls import answer_call
from helmsman.sessions.watchdog import watch_turn
from helmsman.settings import Settings, ensure_state_dir, load_settings
from helmsman.steering.opening import needed_for, note_opened, writable_places
from helmsman.steering.session_loader import SessionLoader
from helmsman.steering.shared import Shared, fingerprint_of, is_of_hub, run_next
from helmsman.steering.turn_errors import busy, failed_turn, known_error, refuse_if_running
from helmsman.steering.turn_policy import TurnPolicy
from helmsman.steering.turn_recovery import RECEIVED, SENT, TurnRecovery
from helmsman.tasks.call_key import call_name, is_repeated
from helmsman.tasks.drafts import draft_task
from helmsman.tasks.images import forget_copies, packed_with_copies

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence

    from helmsman.agents.protocol import Agent, Capabilities, Engine
    from helmsman.agents.registry import EngineHolder
    from helmsman.model.answered_by import AnsweredBy
    from helmsman.model.events import Event, PastTurn, RequestedTurn
    from helmsman.model.options import SessionOptions
    from helmsman.model.questions import Question
    from helmsman.sessions.session import OwnAnswer, QuestionHandler, QueuedTurn
    from helmsman.steering.opening import SessionOpener
    from helmsman.tasks.model import Task
    from helmsman.tasks.writer import TaskWriter

log = logging.getLogger(__name__)

_LISTED: Final = 20
_ABOUT_CHARS: Final = 60
TurnBeginner = Callable[["Engine"], Awaitable["Begun"]]
"""Starts a turn in an engine."""
Ready = Callable[[], Awaitable[None]]


class Hooks(ABC):
    """Calls of the turn runner into the capabilities. `helmsman.service.HelmsmanService` dispatches them."""

    @abstractmethod
    async def check_remaining(self, percent: float, agent: str) -> tuple[str, ...]:
        """Refuse a start when less than this percentage of the account's limit is left. Return remarks otherwise."""

    @abstractmethod
    async def used_up(self, directory: str | None, task_id: str) -> BudgetExceeded | None:
        """Return the reason why a new task in a directory needs a person to grant more than a budget, or None."""

    @abstractmethod
    async def needs_session_first(self, task_id: str, directories: Sequence[Path]) -> bool:
        """Return whether a session in new worktrees is opened before its first turn is requested. `defer_turn` then
        delays the turn.
        """

    @abstractmethod
    async def defer_turn(self, session: Session, task_id: str, go_on: Callable[[], Awaitable[None]]) -> bool:
        """Return whether a requested turn is delayed: a person is asked, or the session's worktree is set up.

        Then `go_on` is called, unless the answer is no.
        """

    @abstractmethod
    def before_turn(self, session: Session, task_id: str, sandbox: str | None) -> Callable[[], Awaitable[None]]:
        """Start the preparations for a turn. The returned function waits for them before the agent gets the turn. Neither
        raises.

        `sandbox` is the sandbox of the session, as far as it is known.
        """

    @abstractmethod
    def after_turn(self, session: Session) -> None:
        """Run after the end of a turn."""

    @abstractmethod
    async def spent_by(self, session_id: str) -> Sequence[SpentTurn]:
        """Return the usage of each turn of a session and of its sub-agents, by the records on disk."""

    @abstractmethod
    def check_spending(self, session: Session) -> None:
        """Check the spending of a session: its turn may have to be stopped."""

    @abstractmethod
    def resume_job(self, task: Task) -> None:
        """Resume a job that an earlier hub left."""

    @abstractmethod
    def intercept_event(self, session: Session, event: Event) -> bool:
        """Return whether to withhold this event from the session: a person is asked first how to continue."""


class TurnRunner(Verbs, Hooks):
    """Runs turns of sessions in engines. `Steering` has the verbs."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        env: Mapping[str, str] | None = None,
        on_question: QuestionHandler | None = None,
        agents: Iterable[Agent] = (),
        shared: Shared | None = None,
        in_place_of: str | None = None,
        is_client: bool = True,
    ) -> None:
        """`in_place_of` is the environment fingerprint of a client that is not connected. Its requests run with the
        available engines.

        `is_client` is False for a second view of a client that has one already.
        """
        self.settings = settings if settings is not None else load_settings()
        self._in_place_of = in_place_of
        self._is_client = shared is not None and in_place_of is None and is_client
        self._env = env
        self._on_question = on_question
        self._caller = current().on_behalf_of(None)
        self._exit = AsyncExitStack()
        self._is_alone = shared is None
        self._shared = shared or Shared(
            self.settings.state_dir,
            agents,
            files=self.settings.files,
            retention_days=self.settings.retention_days,
            store=self.settings.store,
        )
        self.agents = self._shared.agents.seen_from(self.settings.files)
        self.agent_records = self._shared.agent_records
        self._indexes = self.agent_records.indexes_for(self.settings, self.environment)
        self._writer = self._shared.task_writer
        self.allowed_roots = self.settings.session_roots
        self.recovery = TurnRecovery(self._shared, self)
        self._loader = SessionLoader(self._shared, self, self.recovery)

    async def __aenter__(self) -> Self:
        if self._is_alone:
            await self._exit.enter_async_context(self._shared)
        _ = self.engines  # they are kept for as long as we are here
        if self._is_client:
            self._shared.clients.append(self)
            self.make_room()
        for note in self.settings.ignored:
            log.warning("%s", note)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        if not self._is_alone:
            self._shared.leave(self.__dict__.pop("engines"))
        if self._is_client:
            self._shared.clients.remove(self)
        await self._exit.aclose()

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables of the caller."""
        return self._caller.environment if self._env is None else self._env

    @verb(READS)
    async def capabilities(self, agent: str | None = None) -> Capabilities:
        """Return the capabilities of an agent (the default one), and the agents that have the others."""
        can = await self.agents[agent or self.settings.default_agent].capabilities(self.settings, self._env)
        return self.agents.explained(can)

    async def agents_here(self) -> list[Agent]:
        """Return the agents with an installed program. Does not check that the program works (`installed`)."""
        return await anyio.to_thread.run_sync(self.agents.here, self.settings, self._env)

    async def engine(self, *needed: Capability, agent: str | None = None) -> Engine:
        """Return the engine of an agent (the default one), opened if need be.

        Raises:
            Unsupported: It lacks a needed capability.
        """
        engine = await self.engines.get(agent or self.settings.default_agent)
        self.agents.require(engine, *needed)
        return engine

    @cached_property
    def engines(self) -> EngineHolder:
        is_away = self._in_place_of is not None and not is_of_hub(self._in_place_of)
        return self._shared.engines(self.settings, self._env, self.environment_fingerprint, is_away=is_away)

    @cached_property
    def environment_fingerprint(self) -> str:
        """Fingerprint of the environment and settings that engines depend on."""
        return self._in_place_of or fingerprint_of(self.settings, self._env)

    def under(self, policy: TurnPolicy) -> Self:
        """Return the same service with the policy of a turn instead of the settings."""
        settings = policy.settings(self.settings)
        return self if settings == self.settings else self._also(settings)

    def staying(self) -> Self:
        """Return a second view of the service, for work that continues after its client has left."""
        return self._also(self.settings)

    def _also(self, settings: Settings) -> Self:
        return type(self)(
            settings,
            env=self._env,
            on_question=self._on_question,
            shared=self._shared,
            in_place_of=self._in_place_of,
            is_client=False,
        )

    @property
    def task_writer(self) -> TaskWriter:
        """TaskWriter in which every turn is a task."""
        return self._writer

    def in_background(
        self,
        function: Callable[[], Coroutine[Any, Any, object]],
        failed: str = "something in the background has failed",
    ) -> None:
        """Run a function in the background while this Helmsman, or its hub, is open. An error is logged, as `failed`."""
        self._shared.tasks.start_soon(log_failure, failed, function)

    async def _open(
        self,
        open_session: SessionOpener,
        turn: TurnInput | None,
        task_id: str,
        limits: TurnLimits | None,
        engine: Engine,
    ) -> Session:
        """Open a session and begin its first turn. If that fails, the session is never published."""
        fresh = await open_session(engine)
        session = self._loader.fresh(fresh.opened.session_id, fresh.options, directory=fresh.directory, limits=limits)
        session.handle_questions(fresh.on_question)
        session.offer(fresh.tools)
        if fresh.worktree is not None:
            session.apply(WorktreeAssigned(session_id=session.id, worktree=fresh.worktree))
        if (client := asking_client()) is not None:
            session.apply(OwnerChanged(session_id=session.id, owner=client))
        begun, runs = Begun(session_id=session.id), False
        if fresh.history:
            session.apply(HistoryImported(session_id=session.id, turns=fresh.history))
        try:
            if turn is not None:
                self._request_turn(session, turn, task_id, is_message=turn.review is None)
                ready = self.before_turn(session, task_id, fresh.opened.sandbox)
                await self._prepare(session, engine, turn, ready)
                # The next hub finds by this where the turn runs, if this one dies while it is sent.
                self._writer.place(task_id, engine.id, session.id)
                if fresh.opened.is_named:
                    # Not for an agent that names the session only now: events would be logged under a name that
                    # does not last.
                    session.start_log(self._writer.log_event)
                run = partial(engine.run_turn, session.id, session.options, turn)
                begun = await self._send(task_id, session, engine, None, run)
                runs = True
                forget_copies(self._shared.state_dir, task_id, turn)
            note_opened(session, fresh.opened, begun)
            if session.worktree is not None:
                tree = await anyio.to_thread.run_sync(lifecycle.assign, session.worktree, session.id)
                session.apply(WorktreeAssigned(session_id=session.id, worktree=tree))
        except Exception as error:
            session.apply(failed_turn(session.id, self.as_known(error, session.options.agent)))
            if runs:  # it would run without a task
                with suppress(HelmsmanError):
                    await engine.interrupt(begun.session_id)
            if fresh.made is not None:
                await anyio.to_thread.run_sync(lifecycle.discard, fresh.made)
            raise
        if turn is not None:
            self._writer.begin(task_id, session, engine=engine.id, asked_at=session.state.created_at)
        self._loader.add(session)
        self.attach(session, engine)
        # Stored before the client gets the session: the next hub must know its owner.
        if session.opened_by is not None:
            await self._writer.write()
        if turn is not None:
            self.watch(session)
            self.check_spending(session)
        return session

    async def run_turn(
        self,
        session: Session,
        request: TurnRequest,
        queued_as: str | None = None,
        on_task: Callable[[str], None] | None = None,
        begin: TurnBeginner | None = None,
    ) -> Session:
        """Start the next turn of an idle session. It is requested before anything else can happen. See `say` for
        messages.

        Its options and limits replace those of the session, unless the turn does not begin.
        """
        turn = request.turn
        # No wait lies between this check and the request below, so of two callers one is refused.
        if session.state.has_turn:
            raise busy(session.id)
        session.refuse_reserved()
        self._check_room(session)
        _ = self.agents[session.options.agent]  # or it is refused before anything is registered
        is_message = begin is None and turn.review is None
        before = OptionsChanged(session_id=session.id, options=session.options, limits=session.state.limits)
        wanted = OptionsChanged(
            session_id=session.id,
            options=request.options,
            limits=session.state.limits if request.limits is None else request.limits,
        )
        if wanted != before:
            session.apply(wanted)
        policy = self.policy(session.state.limits, is_message=is_message)
        task_id, draft = draft_task(request, session_id=session.id, policy=policy)
        task_id = queued_as or task_id
        self._request_turn(session, turn, task_id, is_message=is_message)
        self.watch(session)
        session.is_beginning()
        begin_turn = partial(self._begin_turn, session, turn, task_id, begin)
        # The preparations begin while the engine starts.
        ready = self.before_turn(session, task_id, session.state.sandbox)
        begins = False
        try:
            if queued_as is None:
                spec = None if begin else await self._spec(task_id, request, session.engine)
                await self._writer.enter(replace(draft, spec=spec), soon=self._enters_soon(session.options, on_task))
            if on_task is not None:
                on_task(task_id)
            if session.lacks_history:
                await self._import_history(session)
            is_deferred = await self.defer_turn(session, task_id, begin_turn)
            if is_deferred:
                await self._writer.write()
            if not is_deferred:
                begins = True
                await begin_turn(ready)
        except Exception as error:
            if not begins:
                self._did_not_begin(session, task_id, error)
            if wanted != before:
                session.apply(before)  # options that no turn has taken do not hold for the next
            raise
        session.begun.set()
        return session

    async def known_turns(self, session_id: str) -> tuple[PastTurn, ...]:
        """Return the turns of a session, or none if its agent cannot report them."""
        try:
            return await self.history(session_id)
        except HelmsmanError as error:
            log.info("the turns of session %s are not known: %s", session_id, error)
            return ()

    @verb(READS)
    async def history(self, session_id: str) -> tuple[PastTurn, ...]:
        """Return all turns of a session, oldest first.

        The agent's own files are read only for turns that are not in the log.
        """
        session = await self.session(session_id)
        await self._writer.write()
        events = (await self._loader.log_of(session.id)).events
        turns = turns_of(session.id, events)
        if any(isinstance(event, TurnAdopted) for event in events):
            turns = completed(turns, events, await self.agent_records.history(session.id))
        if turns and not session.lacks_history:
            return turns
        engine = await self.engine(Capability.HISTORY, agent=session.options.agent)
        return (*turns, *unknown_turns(await engine.history(session.id), turns))

    async def _import_history(self, session: Session) -> None:
        """Append the turns that another program ran in a session to its log, before the first one that is run here."""
        session.mark_history(lacks=False)
        recorded = await self.agent_records.history(session.id)
        logged = turns_of(session.id, (await self._loader.log_of(session.id)).events)
        new = unknown_turns(recorded, [turn for turn in logged if turn.status != "inProgress"])
        if new:
            session.apply(HistoryImported(session_id=session.id, turns=new))

    async def continue_work(
        self, session: Session, ended: TurnEnded, turn: TurnInput, task_id: str | None = None
    ) -> None:
        """End a turn and run the next one of the same work. No client sees the session idle between them."""
        session.apply(ended.changed(continues=True))
        try:
            await self.run_turn(session, session.request(turn), task_id)
        except Exception as error:
            if session.state.between_turns is not None:
                session.apply(failed_turn(session.id, self.as_known(error, session.options.agent)))
            raise

    async def _begin_turn(
        self, session: Session, turn: TurnInput, task_id: str, begin: TurnBeginner | None, ready: Ready | None = None
    ) -> None:
        """Begin a requested turn in an engine. A turn that was held prepares again."""
        running: str | None = None
        try:
            with self._caller.entered():  # not the context of the client that answered
                ready = ready or self.before_turn(session, task_id, session.state.sandbox)
                engine = await self.engine(*self._needed(session.options, turn, task_id), agent=session.options.agent)
                engine, running = await self._load(session, engine)
                refuse_if_running(session.id, running)
                await self._prepare(session, engine, None if begin else turn, ready)
                self._writer.begin(task_id, session, engine=engine.id)
                run = partial(begin, engine) if begin else partial(engine.run_turn, session.id, session.options, turn)
                begun = await self._send(task_id, session, engine, None if begin else turn, run)
            forget_copies(self._shared.state_dir, task_id, turn)
            session.remark(*begun.notes)
            session.warn(begun.notes)
            if begun.turn_id is not None:
                session.apply(TurnStarted(session_id=session.id, turn_id=begun.turn_id))
        except Exception as error:
            self._did_not_begin(session, task_id, error, running)
            raise
        finally:
            session.begun.set()
        self.check_spending(session)

    async def _prepare(self, session: Session, engine: Engine, turn: TurnInput | None, ready: Ready) -> None:
        """Wait until everything is ready for a turn. Until the intent to send it is written, the next hub can begin it."""
        await ready()
        # Again after each wait: a running session could replace the directory in between.
        await self._refuse_moved(session)
        await self._compare_place(session)
        if turn is not None:
            await engine.get_ready(session.id, session.options, turn)
            await self._refuse_moved(session)

    async def _send(
        self,
        task_id: str,
        session: Session,
        engine: Engine,
        turn: TurnInput | None,
        run: Callable[[], Awaitable[Begun]],
    ) -> Begun:
        """Record the intent to send a task to an agent, and send it. The `turn` of a message is kept until the agent has it.

        Raises:
            RegistryUnavailable: See `TaskWriter.write_intent`.
        """
        position = None if self._shared.fence is None else engine.input_position(session.id)
        if position is None:
            # Whether the agent gets it could not be told afterwards, so no later hub may send it.
            self._writer.update(task_id, {"spec": None}, urgent=False)
        else:
            self._writer.update(task_id, {"input_position": position}, urgent=False)
            if turn is not None and not turn.images and session.worktree is None:  # as far as it is simple
                spec = await self._spec(task_id, session.request(turn), engine)
                self._writer.update(task_id, {"spec": spec}, urgent=False)
        # Nothing is sent before the intent is on disk.
        await self._writer.write_intent(task_id)
        begun = await run()
        if position is not None:  # it may have ended by now, and wait for its next turn
            sent = RECEIVED if self._writer.goes_on(task_id) else SENT
            self._writer.update(task_id, sent, urgent=False)
        return begun

    def _did_not_begin(self, session: Session, task_id: str, error: Exception, running: str | None = None) -> None:
        """Record that a requested turn did not begin. `running` is a turn of another process, found in the session."""
        known = self.as_known(error, session.options.agent)
        self._writer.fail(task_id, known)
        # Else the session follows the other turn, and has the end of its own already.
        if running is None:
            session.apply(failed_turn(session.id, known))
        session.begun.set()
        self.make_room()

    def remember_writable(self, options: SessionOptions, directory: Path | str | None) -> None:
        """Record the writable directories of a session, before its engine is found: programs there are not
        used from now on.
        """
        if options.writes == "nothing":
            return
        roots = [root for root in (directory, *options.writable_roots) if root is not None]
        state_dir = ensure_state_dir(self.settings.state_dir)
        fresh = remember_writable(state_dir, roots)
        for place in installation_places():
            if any(Path(place).is_relative_to(root) for root in fresh):
                log.warning(
                    "Helmsman runs code in %s, where this session may write. Changed code would run outside the sandbox: "
                    "install Helmsman elsewhere (pipx install codex-helmsman).",
                    place,
                )

    async def load(self, session_id: str, *needed: Capability) -> tuple[Session, Engine]:
        """Return an idle session and the engine that has loaded it.

        Raises:
            Unsupported: The engine lacks a needed capability.
            SessionBusy: A turn is running in it.
        """
        session = await self.session(session_id)
        if session.state.is_running:
            raise busy(session.id)
        engine = await self.engine(*needed, agent=session.options.agent)
        engine, running = await self._load(session, engine)
        refuse_if_running(session.id, running)
        return session, engine

    async def _load(self, session: Session, engine: Engine) -> tuple[Engine, str | None]:
        """Load a session into the engine. Return the engine that has it, and the turn that was found running in it, if any.

        The session follows that turn from now on. The requested turn ends before the other one's start is published.
        Otherwise its task would get the end of the other.
        """
        if session.engine is engine or (session.engine is not None and self.engines.is_ending(session.engine)):
            return session.engine, None  # from one that is ending, no other can take it over
        self.agents.require(engine, Capability.RESUME)
        await self._refuse_moved(session)
        self.remember_writable(session.options, session.directory)
        engine, opened = await self.engines.resume(engine, session.id, session.options)
        note_opened(session, opened)
        if opened.turn_id is not None and session.state.is_running:
            session.apply(failed_turn(session.id, busy(session.id)))
        if opened.turn_id is not None:  # before its questions, which are delivered on attach
            session.apply(TurnStarted(session_id=session.id, turn_id=opened.turn_id))
        self.attach(session, engine)
        return engine, opened.turn_id

    async def _refuse_moved(self, session: Session) -> None:
        """Compare the directories that a session may write with what they were. As late as can be: they may be replaced.

        Raises:
            InvalidInput: One leads elsewhere now.
        """
        await anyio.to_thread.run_sync(refuse_moved, f"session {session.id}", writable_places(session.options))

    async def _compare_place(self, session: Session) -> None:
        """Warn if the session's directory was replaced since its last turn, and record the present one."""
        if (place := session.options.cwd) is None:
            return
        if session.state.place is not None and (warning := session.state.place.replaced_at(place)) is not None:
            session.remark(warning)
            session.warn((warning,))
        now = await anyio.to_thread.run_sync(DirectoryIdentity.at, place)
        if now != session.state.place:
            session.apply(PlaceRecorded(session_id=session.id, place=now))

    def as_known(self, error: Exception, agent: str) -> HelmsmanError:
        """Convert an error of an agent to a HelmsmanError. Unknown errors of a plugged-in agent are blamed on its engine."""
        if isinstance(error, HelmsmanError) or agent == DEFAULT_AGENT:
            return known_error(error)
        title = self.agents.title(agent)
        return HelmsmanError(
            f"The engine of {title} failed: {error!r}. Report it to the maker of that agent, and try again or use another."
        )

    def _enters_soon(self, options: SessionOptions, on_task: Callable[[str], None] | None) -> bool:
        """Return whether a task can be written just before its agent gets it: it is new, and no engine starts for it."""
        return on_task is None and not is_repeated() and self.engines.is_open(options.agent)

    def forget(self, session_id: str) -> None:
        """Forget a session that the engine has unloaded. The next request loads it from disk."""
        self._loader.forget(session_id)

    def _needed(self, options: SessionOptions, turn: TurnInput | None, task_id: str) -> Iterator[Capability]:
        yield from needed_for(options, turn, self.allowed_roots)
        if task_id in self._writer.max_costs:  # without usage reports the cost limit would have no effect
            yield Capability.USAGE

    def make_room(self) -> None:
        """Start waiting turns after a turn did not begin."""
        if self._shared.is_open:
            if any(session.queue for session in self._shared.session_registry.at_work.values()):
                self._shared.tasks.start_soon(run_next, self._shared.session_registry)
            self._shared.make_room()

    def _request_turn(self, session: Session, turn: TurnInput, task_id: str, *, is_message: bool) -> None:
        session.serve_by(self)
        session.runs_here()
        kind: RequestedTurn | None = "plan" if turn.plan else None if is_message else "other"
        session.apply(
            TurnRequested(
                session_id=session.id, text=turn.text, task_id=task_id, kind=kind, output_schema=turn.output_schema
            )
        )

    def watch(self, session: Session) -> None:
        """Watch the running turn for silence."""
        if session.state.limits.on_silence:
            self._shared.tasks.start_soon(watch_turn, session, session.state.limits)

    @verb(READS)
    async def session(self, session_id: str) -> Session:
        """Return a session by its id, known or found on disk.

        Raises:
            SessionNotFound: It does not exist.
        """
        return await self._loader.get(session_id)

    def policy(self, limits: TurnLimits | None = None, *, is_message: bool = True) -> dict[str, Any]:
        """Return the policy of a turn that begins here, for the registry."""
        held = TurnLimits.of(self.settings) if limits is None else limits
        return dict(pack(TurnPolicy.of(self.settings, held, self.environment_fingerprint, goes_on=is_message)))

    async def _spec(self, task_id: str, request: TurnRequest, engine: Engine | None = None) -> dict[str, Any] | None:
        """In a hub, return the request that the next hub needs to run a turn; see `helmsman.model.request`. Else None."""
        if self._shared.fence is None:
            return None
        agent = request.options.agent
        known = engine.id if engine is not None and engine.lost is None else self.engines.known(agent)
        spec = replace(request, engine=known)
        if not request.turn.images:
            return spec.packed()
        return await anyio.to_thread.run_sync(packed_with_copies, spec, self._shared.state_dir, task_id)

    async def reaches(self, agent: str, engine_id: str) -> bool:
        """Return whether a detached engine of an agent can be reached and used here."""
        return await self.engines.reach(agent, engine_id) is not None

    async def run_waiting(self, task: Task) -> None:
        """Start the session of a task that an earlier hub acknowledged, unless another process does.

        Raises:
            TooManySessions: As many turns are running as are allowed.
        """
        spec = TurnRequest.unpacked(task.spec)
        if spec is None:
            return
        self._check_room()
        policy = TurnPolicy.stored_with(task)
        if await self._writer.take(task):
            with self._caller.on_behalf_of(None if policy is None else policy.client).entered():
                await self.start_waiting(task, spec)

    @abstractmethod
    async def start_waiting(self, task: Task, spec: TurnRequest) -> None:
        """Start the session of a registered task. Its outcome is recorded in the task.

        Raises:
            TooManySessions: As many turns are running as are allowed; it waits again.
        """

    async def run_queued(self, session: Session, task_id: str, queued: QueuedTurn) -> Session:
        """Run a message of a session that waited for its turn."""
        with self._caller.entered():
            self.engines.require(session.options.agent)  # or the turn would have failed, and not wait
            if all(one.task_id != task_id for one in session.queue):
                return session  # it was taken back in the meantime
            return await self.run_turn(session, queued.request, task_id)

    def run_later(self, session: Session, task_id: str) -> None:
        """Send a queued message of a session at its earliest time."""
        self._shared.run_later(session, task_id, self.make_room)

    def apply_policy(self, session: Session, task: Task) -> None:
        """Apply the stored policy of a turn that this service now follows."""
        policy = TurnPolicy.stored_with(task)
        if policy is not None:
            session.fold(OptionsChanged(session_id=session.id, limits=policy.limits))
        session.serve_by(self if policy is None else self.under(policy))

    def listen(self, listener: Callable[[Session, Event], None]) -> Callable[[], None]:
        """Call a listener for every event of every session. The returned function ends it. A listener must not block or
        raise.
        """

        def filtered(session: Session, event: Event) -> None:
            if self._loader.is_inside(session):
                listener(session, event)

        stop = self._shared.session_registry.listen(filtered if self.allowed_roots else listener)
        if not self._is_alone:
            self._exit.callback(stop)  # a closed client gets no more events
        return stop

    @property
    def sessions(self) -> Mapping[str, Session]:
        """Sessions that were started or looked up here."""
        known = self._shared.session_registry.by_id
        if not self.allowed_roots:
            return known
        return {session_id: session for session_id, session in known.items() if self._loader.is_inside(session)}

    def attach(self, session: Session, engine: Engine) -> None:
        """Receive the events of a session from an engine."""
        if session.engine is not None and session.engine is not engine:
            session.engine.detach(session.id)  # or each would tell of the same things
        session.attach_to(engine)
        try:
            engine.attach(session.id, lambda event: session.verbs.on_event(session, event))
            if engine.lost is not None:
                raise engine.lost.again()
        except HelmsmanError as error:  # it died just now: no other event will end the turn
            if session.state.is_running:
                session.apply(failed_turn(session.id, error))
            self.make_room()
        if self._shared.fence is not None:
            self._shared.need_engines()

    def on_event(self, session: Session, event: Event) -> None:
        """Handle an engine's event for a session with a turn that began here."""
        if not (isinstance(event, EngineGone) and self.recovery.looks_up_end(session, event)):
            self.handle_event(session, event)

    def handle_event(self, session: Session, event: Event) -> None:
        """Apply an event of an engine to its session, and do what follows from it."""
        with self._caller.entered():  # not the context of the client that opened the engine
            if type(event) is ItemDelta:  # by far the most frequent, and only published
                session.apply(event)
                return
            if isinstance(event, QuestionAsked):
                if is_theirs(session, self._writer):
                    session.apply(event)  # no rules or deadlines apply
                    return
                self._shared.tasks.start_soon(self.broker.receive(session, event))
                return
            if isinstance(event, ToolCalled):
                self._shared.tasks.start_soon(answer_call, session, event)
                return
            if session.is_repeated(event) or self.intercept_event(session, event):
                return
            session.apply(event)
            if isinstance(event, TurnEnded | EngineGone) and event.agent_id is None:
                self.after_turn(session)
                self.make_room()
            elif isinstance(event, UsageReported | SettingsApplied):
                self.check_spending(session)
            elif isinstance(event, ItemStarted | TurnStarted) and event.agent_id is None:
                self._note_unrequested(session, event)

    # --- turns that no client of Helmsman requested ------------------------------------------------------------------

    def _note_unrequested(self, session: Session, event: ItemStarted | TurnStarted) -> None:
        """Register a task for a turn that Helmsman did not request.

        It is an agent's own, towards a goal, or a person begins it in the agent's program. In a person's own engine Helmsman
        only follows it.
        """
        text = None
        if isinstance(event, TurnStarted):
            text = None if session.state.goal is None else towards(session.state.goal)
        elif isinstance(event.item, UserMessage) and session.state.is_running and not is_theirs(session, self._writer):
            text = event.item.text
        if text is None or self._writer.running_task(session.id) is not None or session.id in self._shared.registering:
            return
        self._shared.registering.add(session.id)
        self._shared.tasks.start_soon(self._register, session, text)

    async def _register(self, session: Session, text: str) -> None:
        try:
            request = session.request(TurnInput(text=text))
            task_id, draft = draft_task(request, session_id=session.id, policy=self.policy(session.state.limits))
            await self._writer.enter(draft)
        finally:
            self._shared.registering.discard(session.id)
        if self._writer.running_task(session.id) is not None:  # the next turn has begun, and has a task
            self._writer.cancel(task_id, "The turn was over before it was registered.")
            return
        session.apply(TaskLinked(session_id=session.id, task_id=task_id))
        self._writer.begin(task_id, session, engine=None if session.engine is None else session.engine.id)
        if not session.state.is_running:  # so quick that its end came before
            self._writer.on_event(session, TurnEnded(session_id=session.id, outcome="completed"))

    # --- questions ---------------------------------------------------------------------------------------------------

    @cached_property
    def rules(self) -> RuleBook:
        """All rules."""
        return RuleBook(self.settings.files, self.settings.state_dir)

    @cached_property
    def broker(self) -> QuestionBroker:
        """Broker for the open questions."""
        return QuestionBroker(
            self.rules,
            self._shared.audit,
            timeout=self.settings.approval_timeout,
            handler=self._on_question,
            allowed_roots=self.allowed_roots,
            write_intent=self._writer.write_intents,
            can_wait=self._shared.fence is not None,
        )

    def ask_first(
        self, session: Session, question: Question, answered: OwnAnswer, timeout: float | None = None
    ) -> None:
        """Ask Helmsman's own question about how to continue, before the session receives the end of its
        turn (`intercept_event`).
        """
        session.ask_own(question.id, answered)
        asked = QuestionAsked(session_id=session.id, turn_id=question.turn_id, question=question)
        self._shared.tasks.start_soon(self.broker.receive(session, asked, timeout))

    async def give_answer(
        self, session: Session, question_id: str, answers: Sequence[str], by: AnsweredBy, *, roots: Sequence[Path]
    ) -> None:
        """Answer a question of a turn that was begun here. `roots`: the allowed ones of who answers.

        Raises:
            AnswerInvalid: It is a person's own turn, and an agent would answer it.
        """
        if by.who == "agent" and is_theirs(session, self._writer):
            raise AnswerInvalid("A person began this turn in the agent's own program: only a person can answer it.")
        await self.broker.answer(session, question_id, answers, by, roots=roots, call=call_name())

    # --- the limit on concurrent turns -------------------------------------------------------------------------------

    def turns_at_work(self) -> int:
        """Return how many turns run or are starting, of all clients and agents: what `MAX_SESSIONS` limits."""
        return len(self._running()) + self._shared.starting

    def _running(self) -> list[Session]:
        at_work = self._shared.session_registry.at_work.values()
        return [session for session in at_work if session.state.is_running and session.elsewhere is None]

    def _check_room(self, beside: Session | None = None) -> None:
        """Check that one more turn may begin, for any client.

        Raises:
            TooManySessions: As many turns are running as are allowed.
        """
        running = [session for session in self._running() if session is not beside]
        count, most = len(running) + self._shared.starting, self.settings.max_sessions
        if count < most:
            return
        shown = [session for session in running if self._loader.is_inside(session)]
        listed = [f"{session.id} ({one_line(session.state.about or 'no prompt')[:_ABOUT_CHARS]})" for session in shown]
        more = [f"and {len(listed) - _LISTED} more"] if len(listed) > _LISTED else []
        lines = "".join(f"\n- {line}" for line in (*listed[:_LISTED], *more))
        raise TooManySessions(
            f"{count} turns are running and MAX_SESSIONS is {most}. Wait for one to end, "
            f"interrupt one, or raise the limit.{' Running:' + lines if lines else ''}",
            running=[session.id for session in shown],
        )


def is_theirs(session: Session, writer: TaskWriter) -> bool:
    """Return whether a person began the running turn of a session in their own engine."""
    engine = session.engine
    return engine is not None and engine.is_of_a_person and writer.running_task(session.id) is None


def towards(goal: str) -> str:
    """Return the title of a turn towards a goal."""
    return f"Work towards the goal: {goal}"
