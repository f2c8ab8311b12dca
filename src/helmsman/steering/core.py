"""Verbs for sessions: start, say, steer, answer, interrupt, list.

The base class runs turns (`helmsman.steering.turn_runner`). Capabilities (`helmsman.capabilities`) build on these verbs;
`helmsman.service.HelmsmanService` combines both.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Unpack

import anyio
import anyio.to_thread

from helmsman.agents.protocol import Capability
from helmsman.agents.registry import usable
from helmsman.base.caller_context import asking_client
from helmsman.base.clients import HANDED, McpClient
from helmsman.base.concurrency import run_to_completion
from helmsman.base.files import is_inside
from helmsman.base.structs import replace
from helmsman.errors import (
    HelmsmanError,
    InvalidInput,
    NotYours,
    OutcomeUnknown,
    QuestionNotOpen,
    RegistryUnavailable,
    TooManySessions,
)
from helmsman.git.worktree import directories_of, places
from helmsman.model.answered_by import PROGRAM, AnsweredBy
from helmsman.model.client_tools import definitions_of
from helmsman.model.events import (
    AnswerGiven,
    HandedOver,
    InterruptFailed,
    InterruptRequested,
    MessageQueued,
    MessageUnqueued,
    OptionsChanged,
    OwnerChanged,
    QuestionAsked,
    SteerFailed,
    SteerRequested,
    WorktreeAssigned,
)
from helmsman.model.inputs import (
    changed_options,
    require_place,
    searched_directory,
    session_options,
    session_words,
    takes_start_options,
    takes_turn_options,
    turn_input,
    turn_request,
    worktree_options,
)
from helmsman.model.nature import ACTS, ANSWERS, BEGINS, INTERRUPTS, READS, STARTS, verb
from helmsman.model.options import LIST_LIMIT
from helmsman.model.questions import read_answers
from helmsman.sessions.question_broker import answer_text
from helmsman.sessions.session import QueuedTurn, Session
from helmsman.sessions.tool_calls import runners_of
from helmsman.steering.handing_over import hand_over
from helmsman.steering.listing import first_shown, page_of_all
from helmsman.steering.opening import fork_session, image_roots, start_session
from helmsman.steering.ownership import refuse_before_person, refuse_foreign, refuse_unasked
from helmsman.steering.turn_errors import busy
from helmsman.steering.turn_policy import TurnPolicy
from helmsman.steering.turn_runner import TurnRunner
from helmsman.tasks.call_key import call_name, done_before, is_repeated
from helmsman.tasks.drafts import draft_task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from helmsman.agents.found_programs import Installed
    from helmsman.agents.protocol import Engine, SessionInfo
    from helmsman.model.client_tools import ClientTool, ToolDefinition
    from helmsman.model.options import (
        PathLike,
        SessionOptions,
        StartOptions,
        TurnInput,
        TurnLimits,
        TurnOptions,
        WorktreeOptions,
    )
    from helmsman.model.request import TurnRequest
    from helmsman.notices.store import NoticeStore
    from helmsman.schedules.store import ScheduleStore
    from helmsman.sessions.session import QuestionHandler, ToolRunner, WhenBusy
    from helmsman.sessions.state import SessionStatus
    from helmsman.steering.opening import Carried, SessionOpener
    from helmsman.steering.turn_runner import TurnBeginner
    from helmsman.store.labels import LabelStore
    from helmsman.tasks.model import Task

log = logging.getLogger(__name__)

_RECOVERY_SECONDS: Final = 60.0
"""Seconds that a new hub may take to recover the work of an earlier one."""


class Steering(TurnRunner):
    """Core that front ends and capabilities share. Use `helmsman.Helmsman`."""

    # --- the engine --------------------------------------------------------------------------------------------------

    @verb(READS)
    async def installed(self, agent: str) -> Installed | None:
        """Return the installed program of an agent, or None for an agent without a program.

        Raises:
            CodexNotFound: Codex is not installed.
            AgentNotFound: Another agent is not installed.
            EngineLost: It is on another machine that does not respond.
        """
        return await self.agents[agent].installed(self.settings, self._env)

    @property
    def schedules(self) -> ScheduleStore:
        """Store of the schedules."""
        return self._shared.schedules

    @property
    def notices(self) -> NoticeStore:
        """Store of the notices."""
        return self._shared.notices

    @property
    def labels(self) -> LabelStore:
        """Labels of sessions."""
        return self._shared.labels

    # --- verbs -------------------------------------------------------------------------------------------------------

    @verb(STARTS)
    @takes_turn_options
    async def start(
        self,
        prompt: str,
        *,
        cwd: PathLike | None = None,
        on_question: QuestionHandler | None = None,
        worktree: bool | WorktreeOptions = False,
        bring: PathLike | None = None,
        min_remaining_percent: float | None = None,
        idempotency_key: str | None = None,
        on_task: Callable[[str], None] | None = None,
        tools: Sequence[ClientTool | ToolDefinition] = (),
        carried: Carried | None = None,
        **options: Unpack[TurnOptions],
    ) -> Session:
        """Start a new session and its first turn. Return when the turn is under way.

        `on_question` answers this session's questions, instead of the handler of the whole Helmsman. `worktree` creates a
        git worktree for it, or several (`WorktreeOptions`). `bring`, with `Helmsman(host=…)`, creates one there of the
        repository around this directory here: `Helmsman.workspaces` brings its changes back. With `min_remaining_percent`
        it starts only while that much of the account's rate limit is left. The same `idempotency_key` again returns the
        same session. `on_task` is called with the id of the task as soon as it is registered. `tools` are functions of this
        program that the agent may call.
        `carried` is for fleets. `helmsman.model.options.TurnOptions` lists the other options.

        Raises:
            InvalidInput: An argument is wrong; nothing was started.
            RateLimitLow: Less is left of the account's rate limit than was asked for; nothing was started.
            TooManySessions: As many turns are running as are allowed.
            HelmsmanError: Codex is not there, or refuses.
        """
        if bring is not None:
            raise InvalidInput("`bring` is for another machine: use it with Helmsman(host=…).", parameter="bring")
        roots, agent, place = self.allowed_roots, self.settings.default_agent, "." if cwd is None else cwd
        checked = session_options(place, session_words(options), roots, default_agent=agent, defaults=self.settings)
        runners: dict[str, ToolRunner] = {}
        if tools:
            checked, runners = replace(checked, tools=definitions_of(tools)), runners_of(tools)
        _ = self.agents[checked.agent]  # or it is refused before anything is registered
        trees = worktree_options(worktree, roots)
        request = replace(self._request(prompt, checked, options), worktree=trees)
        opener = start_session(
            checked, on_question, worktree=trees, settings=self.settings, tools=runners, carried=carried
        )

        async def begin() -> Session:
            least = min_remaining_percent
            note = () if least is None else await self.check_remaining(least, checked.agent)
            is_repeatable = carried is None
            session = await self._new_session(
                checked, request, opener, key=idempotency_key, on_task=on_task, is_repeatable=is_repeatable
            )
            session.handle_questions(on_question)
            session.remark(*note)
            return session

        if idempotency_key is None:
            return await self._begin_shielded(begin)
        return await self._start_once(idempotency_key, checked.agent, begin, on_task)

    async def _start_once(
        self, key: str, agent: str, begin: Callable[[], Awaitable[Session]], on_task: Callable[[str], None] | None
    ) -> Session:
        """Return the session of an idempotency key, and start it if it does not exist.

        Sessions in the registry are not cached here.
        """

        async def once() -> Session:
            task = await self._writer.with_key(key, agent)
            if task is None or task.session_id is None:
                return await self._begin_shielded(begin)
            if on_task is not None:
                on_task(task.id)
            return await self.session(task.session_id)

        session = await self._shared.keys.get(key, once)
        # From now on the registry has it, also for the next hub.
        if await self._writer.with_key(key, agent) is not None:
            self._shared.keys.forget(key)
        self._loader.refuse_outside(session)  # another client may have used the key first
        return session

    def _request(
        self, text: str, session: SessionOptions, options: TurnOptions, limits: TurnLimits | None = None
    ) -> TurnRequest:
        pictures = image_roots(self.settings)
        return turn_request(text, session, options, self.settings, limits=limits, image_roots=pictures)

    async def _new_session(
        self,
        options: SessionOptions,
        request: TurnRequest | None,
        open_session: SessionOpener,
        *,
        key: str | None = None,
        on_task: Callable[[str], None] | None = None,
        is_repeatable: bool = False,
        waited_as: str | None = None,
    ) -> Session:
        """Open a session, and run its first turn if one is requested.

        `is_repeatable` says whether another hub can start it again, `waited_as` is its task if that is registered already.
        """
        self._check_room()
        self._shared.starting += 1
        task_id = waited_as or ""
        try:
            if request is not None and waited_as is None:
                task_id, draft = draft_task(request, idempotency_key=key, policy=self.policy(request.limits))
                spec = await self._spec(task_id, request) if is_repeatable else None
                # A key must be in the store before anything happens: another client may use it at this moment.
                soon = key is None and self._enters_soon(options, on_task)
                task_id, known = await self._writer.enter(replace(draft, spec=spec), soon=soon)
                if on_task is not None:
                    on_task(task_id)
                if known is not None and known.session_id is not None:
                    return await self.session(known.session_id)
            # Before the engine is found: its program must not come from a place where this session may write.
            self.remember_writable(options, options.cwd)
            turn = None if request is None else request.turn
            engine = await self.engine(*self._needed(options, turn, task_id), agent=options.agent)
            waits = request is not None and await self._waits(options, engine, task_id, request.worktree)
            limits = None if request is None else request.limits
            opening = partial(self._open, open_session, None if waits else turn, task_id, limits)
            session = await self.engines.try_in(engine, opening)
        except Exception as error:
            if request is not None:
                self._writer.fail(task_id, self.as_known(error, options.agent))
            # The place that it took while it started is free again.
            self.make_room()
            raise
        finally:
            self._shared.starting -= 1
        if turn is None or not waits:
            return session
        self._writer.update(task_id, {"session_id": session.id, "opened_session": session.id})
        return await self.run_turn(session, session.request(turn), task_id)  # which asks first

    async def _waits(
        self, options: SessionOptions, engine: Engine, task_id: str, worktree: WorktreeOptions | None
    ) -> bool:
        """Return whether a new session has no turn yet: a person is asked first, or its worktree is set up.

        Raises:
            BudgetExceeded: No person can be asked: with this engine there is no session before that turn.
        """
        used_up = await self.used_up(None if options.cwd is None else str(options.cwd), task_id)
        if Capability.ASK in engine.capabilities.lacking:
            if used_up is not None:
                raise used_up
            return False
        if used_up is not None or worktree is None or options.cwd is None:
            return used_up is not None
        return await self.needs_session_first(task_id, (options.cwd, *worktree.add_dirs))

    async def start_waiting(self, task: Task, spec: TurnRequest) -> None:
        options, policy = spec.options, TurnPolicy.stored_with(task)
        try:
            require_place("of this task", task.directory)
            # Time has passed since the request, and another directory may have this name now.
            replaced = spec.place and options.cwd and spec.place.replaced_at(options.cwd)
            opener = start_session(options, None, worktree=spec.worktree, settings=self.settings)
            request = spec if policy is None else replace(spec, limits=policy.limits)
            session = await self._begin_shielded(lambda: self._new_session(options, request, opener, waited_as=task.id))
            if task.handed_over_from is not None:
                session.apply(HandedOver(session_id=session.id, from_session=task.handed_over_from))
            if replaced:
                session.remark(replaced)
                session.warn((replaced,))
        except TooManySessions as error:
            self._writer.give_back(task.id, error.message)
            raise
        except Exception as error:  # noqa: BLE001 - an error in one task must not affect others
            log.warning("task %s could not be started: %s", task.id, error)
            self._writer.fail(task.id, self.as_known(error, options.agent))

    async def _begin_shielded(self, begin: Callable[[], Awaitable[Session]]) -> Session:
        """Begin a turn to the end, even if the caller is cancelled. A turn without a waiting caller is interrupted.

        Codex cannot take a request back: a requested turn may run even if its answer was not awaited.
        """

        async def begun() -> Session:
            engines = self.engines
            engines.users += 1  # the client may leave in between
            try:
                return await begin()
            finally:
                self._shared.leave(engines)

        return await run_to_completion(self._shared.tasks, begun, self._abandon)

    async def _abandon(self, session: Session) -> None:
        try:
            await self.interrupt(session.id)
        except HelmsmanError as error:
            log.warning("a turn without a caller could not be stopped: %s", error)

    @verb(STARTS)
    @takes_turn_options
    async def say(
        self,
        session_id: str,
        message: str,
        *,
        when_busy: WhenBusy = "error",
        on_question: QuestionHandler | None = None,
        on_task: Callable[[str], None] | None = None,
        tools: Sequence[ClientTool | ToolDefinition] = (),
        **options: Unpack[TurnOptions],
    ) -> Session:
        """Send the next message of a session: ours, an earlier process's, or one that a person made in the terminal.

        Options of the session and limits replace those of the session, from this turn on. So does `on_question` its
        handler, and `tools` the functions that it was started with: Codex continues to call those. `on_task` is as for
        `start`.

        With another `agent` than the session's, the session is handed over (`helmsman.steering.handing_over`). The result is
        a new session of that agent, which continues in the same place with a summary of the earlier turns.
        """
        before = done_before()
        if before is not None and before.session_id is not None:
            session_id = before.session_id  # of one that was handed over, the new one
        session = await self.session(session_id)
        known, agent = session.options, options.pop("agent", None)
        agent = None if agent == known.agent else agent  # another one gets a new session, which is the caller's own
        words = session_words(options)
        changes = bool(words) and agent is None
        refuse_unasked(session, self.settings, "send it a message", changes_options=changes)
        narrowed = self._loader.narrowed(known)
        if agent is not None:
            start = partial(self.start, on_question=on_question, tools=tools)
            return await hand_over(self, session, message, agent, narrowed, options, when_busy, on_task, start)
        session.handle_questions(on_question)
        if tools:
            session.offer(runners_of(tools))
        if before is not None:
            return session  # an earlier hub, of which the same was asked, has sent it or queued it
        if when_busy == "steer" and await self._may_have_steered(session):  # also in a turn that has ended since
            raise OutcomeUnknown(
                f"A hub that has died was to put this into the turn of session {session.id}, and it is not known whether "
                "it did. Look at the session before you send it again."
            )
        request = self._request(message, narrowed, options, session.state.limits)
        require_place(session.id, session.directory)
        if session.engine is None:
            await self.agent_records.refuse_archived(session.id)
        changed = changed_options(narrowed, words)
        wanted = session_options(known.cwd, changed, self.allowed_roots) if words else narrowed
        kept = replace(wanted, tools=known.tools, environment=known.environment)
        request = replace(request, options=kept)
        if session.state.is_running:
            return await self._say_to_busy(session, request, when_busy)
        try:
            return await self._begin_shielded(partial(self.run_turn, session, request, on_task=on_task))
        except TooManySessions:
            if when_busy != "queue":
                raise
            return await self._enqueue(session, request)

    async def _say_to_busy(self, session: Session, request: TurnRequest, when_busy: WhenBusy) -> Session:
        match when_busy:
            case "queue":
                return await self._enqueue(session, request)
            case "steer" if request.turn.images or request.options != session.options:
                raise InvalidInput(
                    "A message into a running turn takes no options and no images. Leave them out, or queue the message."
                )
            case "steer":
                await self.steer(session.id, request.turn.text)
                if request.limits != session.state.limits:
                    session.apply(OptionsChanged(session_id=session.id, limits=request.limits))
            case "error":
                raise busy(session.id)
        return session

    async def _enqueue(self, session: Session, request: TurnRequest) -> Session:
        policy = self.policy(session.state.limits if request.limits is None else request.limits)
        task_id, draft = draft_task(request, session_id=session.id, policy=policy)
        # Stored before the client gets its answer, so that the next hub sends the message as well.
        spec = await self._spec(task_id, request, session.engine)
        await self._writer.enter(replace(draft, spec=spec))
        session.attach_queued(task_id, QueuedTurn(request, self.run_queued))
        session.apply(MessageQueued(session_id=session.id, task_id=task_id, text=request.turn.text))
        self.make_room()  # the turn that it waits for may have ended by now
        return session

    async def run_other_turn(
        self,
        session_id: str,
        turn: TurnInput,
        begin: TurnBeginner | None = None,
        *,
        on_task: Callable[[str], None] | None = None,
    ) -> Session:
        """Run a turn that is not a message, such as a review or a compaction. It is a task like any other.

        `begin` starts it in the loaded, idle session, if that needs more than running the turn.
        """
        session = await self.session(session_id)
        refuse_unasked(session, self.settings, "have it work")
        return await self._begin_shielded(
            lambda: self.run_turn(session, session.request(turn), on_task=on_task, begin=begin)
        )

    @verb(ACTS)
    async def steer(self, session_id: str, text: str) -> None:
        """Put a message into the running turn.

        Raises:
            SessionIdle: No turn is running.
        """
        session = await self.session(session_id)
        turn = turn_input(text)
        await session.until_begun()  # a turn that Codex has not begun yet takes no message
        engine = session.running_in()
        refuse_unasked(session, self.settings, "steer it")
        self._refuse_wider(session)
        self.agents.require(engine, Capability.STEER)
        await self._refuse_moved(session)
        # The intent is in the log before the agent gets the message. A repeated call finds it there.
        session.apply(SteerRequested(session_id=session.id, text=turn.text, call=call_name()))
        await self._writer.write_intents()
        try:
            await engine.steer(session.id, turn.text)
        except HelmsmanError:
            session.apply(SteerFailed(session_id=session.id, text=turn.text))
            raise

    async def _may_have_steered(self, session: Session) -> bool:
        """Return whether a hub that is gone was about to steer for this repeated call."""
        if not is_repeated():
            return False
        logged = (await self._loader.log_of(session.id)).events
        return any(isinstance(event, SteerRequested) and event.call == call_name() for event in logged)

    async def _has_answered(self, session: Session, question_id: str, answers: Sequence[str], by: AnsweredBy) -> bool:
        """Return whether a hub that is gone gave exactly this answer, for this repeated call."""
        if not is_repeated():
            return False
        logged = (await self._loader.log_of(session.id)).events
        asked = (event.question for event in logged if isinstance(event, QuestionAsked))
        question = next((one for one in asked if one.id == question_id), None)
        return question is not None and any(
            isinstance(event, AnswerGiven)
            and (event.question_id, event.call) == (question_id, call_name())
            and (event.by, event.via) == (str(by), by.through)
            and event.answer == answer_text(question, read_answers(question, answers), by)
            for event in logged
        )

    def _refuse_wider(self, session: Session) -> None:
        """Refuse if the running turn may write where this client may not: the message would act with the
        turn's permissions.
        """
        # No roots at all means that the turn may write anywhere.
        begun_by = session.verbs.allowed_roots if isinstance(session.verbs, TurnRunner) else ()
        is_wider = not begun_by or not all(is_inside(root, self.allowed_roots) for root in begun_by)
        if self.allowed_roots and is_wider:
            raise InvalidInput(
                f"The turn of session {session.id} was begun by a client that may write outside the allowed roots. Wait for "
                "its end, or interrupt it.",
                parameter="session_id",
            )

    async def session_with_queue(self, session_id: str) -> Session:
        """Return a session with its whole queue. A new hub may still be reading the messages that an earlier one
        queued.

        Raises:
            SessionNotFound: It does not exist.
        """
        session = await self.session(session_id)
        if not self._shared.is_recovered.is_set():
            tasks = await self._writer.registry(lambda registry: registry.tasks_of_session(session.id))
            here = {queued.task_id for queued in session.queue if session.queued_turn(queued.task_id) is not None}
            # A message that is not loaded yet would otherwise be sent after the interruption.
            if any(task.is_waiting and task.id not in here for task in tasks):
                with anyio.move_on_after(_RECOVERY_SECONDS):
                    await self._shared.is_recovered.wait()
        return session

    @verb(INTERRUPTS)
    async def interrupt(self, session_id: str) -> Session:
        """Stop the running turn, its sub-agents and the commands it left running; in an idle session, only those."""
        session = await self.session_with_queue(session_id)
        # Before the turn ends, which would send the first of them.
        for queued in session.queue:
            self._writer.cancel(queued.task_id, "Its session was interrupted before it began.")
            session.apply(MessageUnqueued(session_id=session.id, task_id=queued.task_id))
        if session.state.is_running:
            await session.until_begun()  # a turn that Codex has not begun yet cannot be stopped yet
        session.stop_asking()
        session.require_here()
        if session.engine is not None and usable(session.engine):
            if session.state.has_turn and not session.state.is_interrupting:
                # Logged first: if this hub dies now, the next one finishes the interruption.
                session.apply(InterruptRequested(session_id=session.id))
                await self._writer.write_intents()
            try:
                await session.engine.interrupt(session.id)
            except HelmsmanError:
                session.apply(InterruptFailed(session_id=session.id))
                raise
        return session

    async def end_leftovers(self, session_id: str) -> None:
        """End every process that an idle session has left, before its files are checked, applied, taken back or removed.

        Agents that run their commands themselves are ended with them.

        Raises:
            SessionBusy: A turn is running in it.
        """
        session = await self.interrupt(session_id)
        if session.engine is not None and usable(session.engine):
            await session.engine.end_leftovers(session.id)

    @verb(ANSWERS)
    async def respond(
        self, session_id: str, question_id: str, answers: Sequence[str], *, by: AnsweredBy = PROGRAM
    ) -> Session:
        """Answer a question. `by` is recorded as the author of the answer.

        Raises:
            QuestionNotOpen: No such question, or it was answered already.
            AnswerInvalid: The answer does not fit; nothing was sent.
            NotYours: The answer is a model's, and its client did not open the session, or a person has the question in a
                form.
        """
        session = await self.session(session_id)
        if by.who == "agent":
            refuse_foreign(session.id, session.opened_by, self.settings, "answer its questions")
            refuse_before_person(session, question_id, self.settings)
        try:
            await session.verbs.give_answer(session, question_id, answers, by, roots=self.allowed_roots)
        except QuestionNotOpen:
            if not await self._has_answered(session, question_id, answers, by):
                raise
        return session

    async def require_own(self, session_id: str, doing: str) -> None:
        """Make sure that a client's model acts on a session that its client owns. People and programs may act on any.

        Raises:
            NotYours: Another client or a person opened it.
        """
        if asking_client() is None:
            return
        known = self._shared.session_registry.by_id.get(session_id)
        owner = known.opened_by if known is not None else await self._owner_of(session_id)
        refuse_foreign(session_id, owner, self.settings, doing)

    async def _owner_of(self, session_id: str) -> McpClient | None:
        return await self._writer.registry(lambda registry: registry.owner_of(session_id))

    @verb(ACTS)
    async def hand(self, session_id: str, to: str | None) -> Session:
        """Hand a session to the MCP clients with this name, so that their models answer its questions. None takes it back.

        Raises:
            NotYours: A client asks for it. Only a person hands sessions over.
        """
        if asking_client() is not None:
            raise NotYours("Only a person hands sessions over.")
        session = await self.session(session_id)
        name = None if to is None else to.strip()
        if name == "" or (name is not None and not name.isprintable()):
            raise InvalidInput("A client is named by one line. Use the name that it gives itself.", parameter="to")
        owner = None if name is None else McpClient(HANDED, name)
        before = session.opened_by
        session.apply(OwnerChanged(session_id=session.id, owner=owner))
        try:
            # Waits until the new owner is stored. Otherwise the next hub would not know it.
            await self._writer.write(lambda _: None)
        except RegistryUnavailable:
            session.apply(OwnerChanged(session_id=session.id, owner=before))
            raise
        return session

    @verb(ACTS)
    async def give_up(self, session_id: str, question_id: str) -> None:
        """Refuse a question after its handler failed in another process."""
        session = await self.session(session_id)
        question = session.state.questions.get(question_id)
        if question is not None:
            await self.broker.give_up(session, question)

    @verb(BEGINS)
    @takes_start_options
    async def fork(
        self,
        session_id: str,
        message: str | None = None,
        *,
        from_turn: int | str | None = None,
        on_question: QuestionHandler | None = None,
        **options: Unpack[StartOptions],
    ) -> Session:
        """Create a session that shares the history of another, and send it `message` if given.

        `from_turn` is the last turn it shares: its number, counted from 1, or its id.
        """
        source = await self.session(session_id)
        refuse_unasked(source, self.settings, "fork it")
        require_place(source.id, source.directory)
        await self.agent_records.refuse_archived(source.id)
        narrowed = self._loader.narrowed(source.options)
        changed = changed_options(narrowed, options)
        checked = session_options(narrowed.cwd, changed, self.allowed_roots) if options else narrowed
        checked = replace(checked, environment=narrowed.environment)

        # Fails here if the agent cannot fork, before a task is registered.
        await self.engine(Capability.FORK if from_turn is None else Capability.FORK_AT_TURN, agent=checked.agent)
        opener = fork_session(
            source, checked, from_turn, on_question or source.on_question, await self.known_turns(source.id)
        )

        async def begin() -> Session:
            request = None if message is None else self._request(message, checked, {})
            forked = await self._new_session(checked, request, opener)
            if source.worktree is not None:  # both work in it
                forked.apply(WorktreeAssigned(session_id=forked.id, worktree=source.worktree))
            return forked

        return await self._begin_shielded(begin)

    @verb(READS)
    async def list(
        self,
        *,
        directory: PathLike | None = None,
        query: str | None = None,
        limit: int = LIST_LIMIT,
        cursor: str | None = None,
        include_archived: bool = False,
        include_sub_agents: bool = False,
        agent: str | None = None,
    ) -> tuple[list[SessionInfo], str | None]:
        """Return the sessions on disk, of an agent or of all, newest first, and the cursor of the next page.

        A session in a worktree of Helmsman counts for the directory of the repository that the worktree was made for.
        With allowed roots, only those inside: a page may have fewer than `limit` then. Sub-agents are sessions that
        another session started.
        """
        if limit < 1:
            raise InvalidInput(f"limit cannot be {limit}. Use a number from 1 on.", parameter="limit")
        names = list(self._indexes) if agent is None else [self.agents[agent].name]
        indexes = {name: self._indexes[name] for name in names if name in self._indexes}
        if not indexes:
            return [], None
        page = partial(
            page_of_all,
            indexes,
            directories=await self._directories(directory),
            query=query,
            limit=limit,
            include_archived=include_archived,
            include_sub_agents=include_sub_agents,
        )
        if not self.allowed_roots:
            return await anyio.to_thread.run_sync(page, cursor)
        place = await anyio.to_thread.run_sync(places, self.settings.state_dir)
        is_shown = self._loader.is_place_inside
        return await anyio.to_thread.run_sync(first_shown, page, cursor, lambda info: is_shown(place(info.directory)))

    async def _directories(self, directory: PathLike | None) -> frozenset[str] | None:
        if directory is None:
            return None
        return await anyio.to_thread.run_sync(directories_of, searched_directory(directory), self.settings.state_dir)

    @verb(READS)
    async def last_statuses(self, sessions: Sequence[tuple[SessionInfo, Sequence[Task]]]) -> dict[str, SessionStatus]:
        """Return the status of listed sessions, of those that are not loaded here the outcome of the last turn. Each is
        given with its tasks.
        """
        known = self.sessions
        others = [one for one in sessions if one[0].session_id not in known]
        here = {info.session_id: known[info.session_id].status for info, _ in sessions if info.session_id in known}
        return here | await self._loader.statuses(others, self._indexes)
