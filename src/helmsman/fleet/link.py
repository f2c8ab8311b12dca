"""Copies of a fleet's sessions for the clients of one hub, updated from the events that the fleet's machines store.

There is one link for each hub and fleet. A session is its tasks, in order; its id is known before a machine starts it. A
session is loaded when a client asks for it, and then follows the stored events while it runs. Sessions with open questions
are loaded without a request, so that every client sees the questions.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import anyio

from helmsman.approvals.deadline import LONGEST_SECONDS, Deadline, TimeLeft
from helmsman.base.clients import McpClient
from helmsman.base.concurrency import OnceEach, sleep_until
from helmsman.base.structs import unpack_if_valid
from helmsman.errors import (
    FleetUnavailable,
    HelmsmanError,
    QuestionNotOpen,
    RegistryUnavailable,
    SessionIdle,
    SessionNotFound,
    Unsupported,
)
from helmsman.fleet.client import FleetClient
from helmsman.fleet.owned_task import ended_turn
from helmsman.fleet.values import CLIENT
from helmsman.model.answered_by import PROGRAM, TURN_ENDED
from helmsman.model.events import (
    Event,
    Notice,
    QuestionClosed,
    TaskLinked,
    TurnEnded,
    TurnRequested,
)
from helmsman.model.options import SessionOptions
from helmsman.notices.store import NoticeStore
from helmsman.sessions.feed import Feed
from helmsman.sessions.handlers import ask_handler
from helmsman.sessions.session import Session
from helmsman.sessions.state import SessionState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup

    from helmsman.model.answered_by import AnsweredBy
    from helmsman.model.options import PathLike
    from helmsman.model.questions import Question
    from helmsman.sessions.session import WhenBusy
    from helmsman.settings import Settings
    from helmsman.tasks.model import Task

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.5
"""Minimum interval between polls for questions and messages of sessions that no client here has loaded."""
_POLL_SECONDS: Final = 5.0
"""Polling interval of a follower, in case a notification is lost."""
_AWAY_SECONDS: Final = 1.0
_TOLD_SECONDS: Final = 10.0
"""Limit of the wait for the effect of an answer or a cancellation to arrive on this machine."""
_AWAY: Final = (
    "The fleet's database cannot be reached just now. Running work continues, and is reported when it is back."
)


class _Followed:
    """Session, and the position up to which its log has been delivered here."""

    def __init__(self, session: Session, cursor: int) -> None:
        self.session = session
        self.cursor = cursor
        self.task_id: str | None = None
        """Task whose request was delivered last."""
        self.is_followed = False
        self.is_away = False
        """The database cannot be reached, which its readers were told."""
        self.reading = anyio.Lock()
        """Held while stored events are delivered. Other callers that load the session wait for it."""
        self.asking: dict[str, anyio.CancelScope] = {}


class FleetLink:
    """Run it in a task (`run`); `opened` is set once it is of use, or has failed."""

    def __init__(self, url: str, settings: Settings, tasks: TaskGroup) -> None:
        self.client = FleetClient(url)
        self.client.on_text = self._deliver_text
        self.sessions: dict[str, Session] = {}
        self.listeners: list[Callable[[Session, Event], None]] = []
        self.opened = anyio.Event()
        self.failed: HelmsmanError | None = None
        self._settings = settings
        self._tasks = tasks
        self._known: dict[str, _Followed] = {}
        self._loading = OnceEach[_Followed]()
        self._newest: int | None = None

    async def run(self) -> None:
        """Be connected, for as long as the hub lives."""
        try:
            async with self.client:
                # Clients may ask from here on; events follow.
                self.opened.set()
                await self._watch()
        except HelmsmanError as error:
            self.failed = error
        finally:
            self.opened.set()
            for session in self.sessions.values():
                session.feed.close()

    async def _watch(self) -> None:
        """Load sessions with open questions, and follow sessions that other machines have continued."""
        while True:
            try:
                self._newest, asking, newer = await self.client.news(self._newest)
                # Other machines may have continued a session that is loaded here. First, since the next call may fail.
                for session_id in newer:
                    if (known := self._known.get(session_id)) is not None:
                        self._follow_soon(known)
                # Sessions that no client here has loaded, with questions that every client should see.
                for session_id in asking:
                    await self.session(session_id)
            except HelmsmanError as error:
                log.info("the fleet is not watched just now: %s", error)
                await anyio.sleep(_AWAY_SECONDS)
            await anyio.sleep(_LOOK_SECONDS)
            await self.client.changes()

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def session(self, session_id: str) -> Session:
        """Return a session, up to date, by the id that clients know.

        Raises:
            SessionNotFound: No such session.
            FleetUnavailable: The database cannot be reached.
        """
        # Concurrent callers share one load.
        known = await self._loading.get(session_id, lambda: self._load(session_id))
        await self.catch_up(known.session)
        return known.session

    async def catch_up(self, session: Session) -> None:
        """Deliver the events that other machines have stored for a session since."""
        known = self._known[session.id]
        async with known.reading:
            # The follower delivers events itself, and may not have seen a task that was accepted just now.
            if known.is_followed and session.state.is_running:
                return
            if not await self._deliver_stored(known):
                self._follow_soon(known)

    async def _load(self, session_id: str) -> _Followed:
        tasks = await self.client.of_session(session_id)
        if not tasks:
            raise SessionNotFound(f"There is no session {session_id} in the fleet. List the sessions.")
        options = tasks[-1].options or SessionOptions(agent=tasks[-1].agent)
        # The last ended task is delivered again, so that the session shows its result.
        last, cursor = await self.client.last_begun(session_id)
        before = next((place for place, task in enumerate(tasks) if task.id == last), 0)
        state = SessionState(
            session_id,
            directory=tasks[0].directory,
            model=tasks[-1].model,
            turn_count=before,
            options=options,
            opened_by=unpack_if_valid((tasks[0].policy or {}).get(CLIENT), McpClient),
            created_at=tasks[0].created_at,
            changed_at=tasks[0].created_at,
        )
        session = Session(state, Feed(self._settings.event_buffer_size), self, self.listeners)
        # The engine is on another machine, so this copy never talks to an agent.
        session.become_copy()
        known = _Followed(session, cursor)
        known.task_id = tasks[before - 1].id if before else None
        self._known[session_id] = known
        self.sessions[session_id] = session
        return known

    def _follow_soon(self, known: _Followed) -> None:
        if not known.is_followed:
            known.is_followed = True
            self._tasks.start_soon(self._follow, known)

    async def _follow(self, known: _Followed) -> None:
        """Deliver what happens in a session, until nothing is left to do in it."""
        try:
            while True:
                task_id = known.task_id
                changed = self.client.watch(task_id or "")
                try:
                    async with known.reading:
                        # Under the lock: a caller that loads the session afterwards follows it again.
                        known.is_followed = not await self._deliver_stored(known)
                    if not known.is_followed:
                        return
                except FleetUnavailable:
                    if not known.is_away:
                        known.is_away = True
                        self._apply(known, Notice(session_id=known.session.id, kind="engine", message=_AWAY))
                    await anyio.sleep(_AWAY_SECONDS)
                else:
                    # A notification of another task was not waited for.
                    if task_id == known.task_id:
                        await sleep_until(changed, _POLL_SECONDS)
        except Exception:
            log.exception("session %s is not followed any more", known.session.id)
            known.is_followed = False

    # --- events ------------------------------------------------------------------------------------------------------

    async def _deliver_stored(self, known: _Followed) -> bool:
        """Deliver everything that is stored. Return whether all tasks of the session have ended."""
        session, has_news = known.session, False
        while True:
            if await self._read_log(known):
                has_news = True
                continue
            # The log tells of a turn that has begun; only where it has nothing new, its task may have ended otherwise.
            if has_news and session.state.is_running and session.state.turn_id is not None:
                break
            tasks = await self.client.of_session(session.id)
            # What has happened in the meantime comes first.
            if not await self._read_log(known):
                self._complete(known, tasks)
                break
        if session.state.is_running:
            await self._set_clocks(known)
        return not session.state.is_running

    async def _read_log(self, known: _Followed) -> bool:
        stored = await self.client.log(known.session.id, known.cursor)
        # Saved before delivering: a failing listener must not cause the same events again.
        known.cursor = max(known.cursor, stored.cursor)
        known.is_away = False
        for event in stored.events:
            await self._deliver(known, event)
        return bool(stored.events)

    async def _deliver(self, known: _Followed, event: Event) -> None:
        session = known.session
        if isinstance(event, TurnRequested) and event.agent_id is None:
            is_shown = event.task_id == known.task_id and session.state.is_running and session.state.turn_id is None
            known.task_id = event.task_id or known.task_id
            # A new request means that an earlier attempt is gone, and its questions with it.
            for question_id in list(session.state.questions):
                by = str(TURN_ENDED)
                self._apply(known, QuestionClosed(session_id=session.id, question_id=question_id, answer=None, by=by))
            if is_shown:
                return  # delivered when the task was accepted
        elif isinstance(event, TurnEnded) and event.agent_id is None:
            if not session.state.is_running:
                return  # of a task that had failed before its turn was requested
            await self._forget_notice(known)
            event = event.changed(turn_id=session.state.turn_id)
        self._apply(known, event)

    async def _forget_notice(self, known: _Followed) -> None:
        """Drop the notice of an end that a client sees as it comes."""
        if known.session.is_watched:
            with suppress(RegistryUnavailable):
                await NoticeStore(self.client.database.store).forget_due(f"task {known.task_id}")

    def _complete(self, known: _Followed, tasks: Sequence[Task]) -> None:
        """Deliver what the log does not have: requests of tasks that wait, and ends of those that never began."""
        session = known.session
        for task in tasks:
            known.session.fold(TaskLinked(session_id=session.id, task_id=task.id))
        ids = [task.id for task in tasks]
        at = -1 if known.task_id is None else ids.index(known.task_id)
        for task in tasks[max(at, 0) :]:
            if task.id != known.task_id:
                if session.state.is_running:
                    return
                known.task_id = task.id
                request = TurnRequested(session_id=session.id, text=task.instruction, task_id=task.id)
                self._apply(known, request)
            if session.state.is_running and not task.is_running:
                end = {"status": task.status, "error": task.error, "note": task.note, "result": task.result}
                self._apply(known, ended_turn(session.id, {**end, "turn_id": session.state.turn_id}))

    def _deliver_text(self, task_id: str, event: Event) -> None:
        """Deliver text that an agent is writing, which is not in the log."""
        session = self.sessions.get(event.session_id)
        is_running = session is not None and session.state.is_running
        if session is not None and is_running and self._known[session.id].task_id == task_id:
            session.apply(event)

    def _apply(self, known: _Followed, event: Event) -> None:
        known.session.apply(event)
        self.offer_questions(known.session)

    # --- questions ---------------------------------------------------------------------------------------------------

    async def _set_clocks(self, known: _Followed) -> None:
        """Set the deadlines of open questions to those of the machine that asks."""
        session = known.session
        if not session.state.questions:
            return
        now, clock = datetime.now(UTC), time.monotonic()
        for asked in await self.client.questions(known.task_id):
            deadline = session.deadlines.get(asked.question.id)
            if deadline is not None and asked.expires_at is not None:
                # The deadline is in the database's time; convert the rest of it to the local clock.
                left = max(0.0, (asked.expires_at - now).total_seconds())
                timeout = (asked.expires_at - asked.asked_at).total_seconds()
                deadline.change(TimeLeft(left=left, at=clock, end=clock + LONGEST_SECONDS, leases={}, timeout=timeout))

    def offer_questions(self, session: Session) -> None:
        """Pass open questions to the session's handler, and cancel the handler if another client has answered."""
        known, opened = self._known[session.id], session.state.questions
        # Closed elsewhere: the handler's answer would come too late.
        for question_id in session.deadlines.keys() - opened.keys():
            session.set_deadline(question_id, None)
            if (scope := known.asking.pop(question_id, None)) is not None:
                scope.cancel()
        for question in opened.values():
            if question.id not in session.deadlines:
                left = TimeLeft.new(self._settings.approval_timeout or LONGEST_SECONDS, time.monotonic())
                session.set_deadline(question.id, Deadline(left))
            if session.on_question is not None and question.id not in known.asking:
                known.asking[question.id] = anyio.CancelScope()
                self._tasks.start_soon(self._ask_handler, known, question)

    async def _ask_handler(self, known: _Followed, question: Question) -> None:
        session, scope = known.session, known.asking.get(question.id)
        if session.on_question is None or scope is None:
            return

        async def answer(words: Sequence[str], by: AnsweredBy) -> None:
            await self.respond(session.id, question.id, words, by=by)

        async def give_up() -> None:
            log.warning("question %s waits for another answer", question.id)

        with scope:
            await ask_handler(session.on_question, session, question, answer, give_up)

    # --- verbs of a session ------------------------------------------------------------------------------------------

    async def respond(
        self, session_id: str, question_id: str, answers: Sequence[str], *, by: AnsweredBy = PROGRAM
    ) -> Session:
        """Answer a question. Only the first answer counts, across all machines.

        Raises:
            QuestionNotOpen: No such question, or it was answered already.
            AnswerInvalid: The answer does not fit.
        """
        session = await self.session(session_id)
        known = self._known[session_id]
        if known.task_id is None or not session.state.is_running:
            raise QuestionNotOpen(f"Session {session_id} asks nothing. Look at its status.")
        await self.client.answer(known.task_id, question_id, answers, by)
        # Its machine has the answer; wait a moment until its events are here.
        with anyio.move_on_after(_TOLD_SECONDS):
            while question_id in session.state.questions:
                await session.feed.changed()
        return session

    async def interrupt(self, session_id: str) -> Session:
        """Cancel the running and the waiting tasks of a session. Return when they have stopped."""
        session = await self.session(session_id)
        tasks = await self.client.of_session(session_id)
        # Waiting tasks first, or the next one would start when the running one ends.
        for task in reversed(tasks):
            if task.is_running:
                await self.client.cancel(task.id)
        await self._until_delivered(session, {task.id for task in tasks[:-1]})
        return session

    async def _until_delivered(self, session: Session, earlier: Collection[str]) -> None:
        """Wait until the end of the session's tasks is delivered here. Waiting tasks end after the running turn."""
        await self.catch_up(session)
        known = self._known[session.id]
        with anyio.move_on_after(_TOLD_SECONDS):
            while session.state.is_running or known.task_id in earlier:
                await session.feed.changed()

    async def say(
        self, session_id: str, message: str, *, images: Sequence[PathLike] = (), when_busy: WhenBusy = "error"
    ) -> Session:
        raise Unsupported(f"Say it to session {session_id} through a Helmsman: `helm.say`.")

    async def steer(self, session_id: str, text: str) -> None:
        """Put a message into the running turn. Returns when the agent has it."""
        session = await self.session(session_id)
        known = self._known[session_id]
        if known.task_id is None or not session.state.is_running:
            raise SessionIdle(f"No turn is running in session {session_id}. Send it as a new message instead.")
        await self.client.steer(known.task_id, text)

    def on_event(self, session: Session, event: Event) -> None:
        raise AssertionError(f"no engine here runs {session.id}, of which {event} is told")

    async def give_answer(
        self, session: Session, question_id: str, answers: Sequence[str], by: AnsweredBy, *, roots: Sequence[Path]
    ) -> None:
        await self.respond(session.id, question_id, answers, by=by)
