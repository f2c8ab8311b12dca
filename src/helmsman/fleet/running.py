"""Claim one fleet task on this machine, run it with the machine's Helmsman, report its events, and store its end.

Every write for a task carries the epoch of its claim. If the machine loses the claim because the fleet considered it dead
and another machine took the task, the turn stops immediately and nothing more is written.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.approvals.deadline import LONGEST_SECONDS
from helmsman.base.concurrency import sleep_until
from helmsman.base.structs import replace, unpack_if_valid
from helmsman.capabilities.all_tasks import cancelled
from helmsman.capabilities.schedules import unanswered
from helmsman.capabilities.usage_report import tokens
from helmsman.errors import (
    CannotMove,
    EngineLost,
    EngineStartFailed,
    HelmsmanError,
    InvalidInput,
    QuestionNotOpen,
    SessionNotFound,
    Unsupported,
)
from helmsman.fleet.attempts import (
    CONTINUE,
    loss_failure,
    moved_words,
    on_loss,
    question_of,
    silence_of,
    was_cut,
    words_for,
)
from helmsman.fleet.owned_task import NotOwner, OwnedTask, end_of
from helmsman.fleet.pictures import place_images
from helmsman.fleet.pump import EventPump
from helmsman.fleet.transcripts import SharedTranscript
from helmsman.fleet.values import STEER, machine_of
from helmsman.fleet.workspaces import SharedTree
from helmsman.git import lifecycle
from helmsman.model.answered_by import DEADLINE, PROGRAM, TURN_ENDED, AnsweredBy
from helmsman.model.events import (
    EngineGone,
    ItemEnded,
    QuestionAsked,
    QuestionClosed,
    SessionFact,
    TurnEnded,
    TurnRequested,
    TurnStarted,
)
from helmsman.model.request import TurnRequest
from helmsman.steering.opening import Carried
from helmsman.tasks.images import IMAGES, forget_images

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from helmsman.fleet.budgets import FleetBudgets
    from helmsman.git.worktree import Worktree
    from helmsman.model.events import Event
    from helmsman.sessions.session import Session
    from helmsman.steering.core import Steering
    from helmsman.tasks.model import Task, TaskChanges
    from helmsman.tasks.outcome import TaskOutcome

log = logging.getLogger(__name__)

MOST_ATTEMPTS: Final = 20
"""Limit of claims per task. A task that lost this many machines is failed instead of retried."""
_LOOK_SECONDS: Final = 5.0
"""Interval at which a running task polls for answers and cancellation, in case a notification is lost."""
_PROGRESS_SECONDS: Final = 1.0
_TREE_SECONDS: Final = 0.5
_TOO_LARGE_SECONDS: Final = 60.0
"""Delay before storing a tree is retried after a failure. It is also retried when the turn ends."""
_SHIP_SECONDS: Final = 0.5
"""Interval at which new parts of the session's transcript are shipped."""

_SHOWN: Final = ("progress", "note", "waiting_for", "resumes_at")
"""Facts of a running task that clients see."""
LATE: Final = "Its deadline has passed."
AGAIN: Final = "again"
"""Result of a run that lost its agent and is to be retried."""
_MOST_ENGINES: Final = 4
"""Limit of agent starts per task. An agent that dies more often is not started again."""


class TaskRun:
    """Task that this machine has claimed."""

    def __init__(self, helm: Steering, owned: OwnedTask, budgets: FleetBudgets) -> None:
        self._helm = helm
        self._owned = owned
        self._task = owned.task
        self._budgets = budgets
        self._pump = EventPump(owned)
        self._session: Session | None = None
        self._has_session = anyio.Event()
        self._local: list[str] = []
        """Tasks of this machine's Helmsman that carry it out. A plan that was approved continues as another one."""
        self._asked: dict[str, float | None] = {}
        self._closed: list[str] = []
        self._news = anyio.Event()
        """Set when a question was asked or closed and must be stored."""
        self._wake = anyio.Event()
        """Set when the task may have been answered or cancelled."""
        self._stopping: str | None = None
        """Reason for stopping the task, or None."""
        self._own_question: str | None = None
        self._own_answer: str | None = None
        self._answered_by = TURN_ENDED
        self._own_answered = anyio.Event()
        """Set when the fleet's own question (whether to continue after a loss) is answered or the task is stopped."""
        self._is_unanswered = False
        """Set when a question of a schedule's run was not answered in time."""
        self._stop = anyio.Lock()
        """Held until the turn and all processes that it left running have stopped."""
        self._has_progress = False
        self._has_turn = anyio.Event()
        self._is_let_go = False
        self._handed_over = anyio.Event()
        self._transcript: SharedTranscript | None = None
        self._tree: SharedTree | None = None
        """None if the task works in a directory of this machine."""
        self._made: Worktree | None = None
        """Worktree that was created here for the session."""
        self._items = 0
        self._shipping = anyio.Lock()
        self._is_labelled = False
        self._goes_on_with: str | None = owned.row["agents_session"]
        self._is_moved = False
        """Another machine started or last resumed the session."""

    def wake(self) -> None:
        """Poll for answers and cancellation now."""
        self._wake.set()

    async def hand_over(self) -> None:
        """Stop the turn and store everything that another machine needs to resume it, before this machine shuts down."""
        self._is_let_go = True
        await self.stop_turn()
        await self._handed_over.wait()

    # --- its life ----------------------------------------------------------------------------------------------------

    async def run(self) -> str:
        """Run the task to its end and return its final status, or `fenced` if another machine has claimed it."""
        row = self._owned.row
        try:
            async with self._serving():
                # Readers see that the turn begins again, as the earlier attempt's events stay in the log.
                if self._owned.epoch > 1:
                    again = TurnRequested(
                        session_id=self._owned.session_id, text=self._task.instruction, task_id=self._owned.id
                    )
                    self._pump.put(again)
                    self._pump.note(f"The machine that ran it was lost. {machine_of(row['worker'])} continues it.")
                end, outcome = await self._work()
                # Before the end is written: another machine may claim the session's next task right after.
                await self._ship_the_rest()
                # Before the next attempt too: its events follow these in the log.
                await self._pump.close()
                if self._is_let_go or self._has_lost_engine(end):
                    await self._store_usage()
                if self._is_let_go:
                    self._handed_over.set()
                    # The process is about to end. Returning would report the task as ended here.
                    await anyio.sleep_forever()  # the process ends
                if self._has_lost_engine(end):
                    return AGAIN
                # Last of all: from here on the task is not this machine's.
                await self._keep(lambda: self._owned.finish(end, outcome), "a result")
                return str(end["status"])
        except NotOwner:
            log.warning("task %s is another machine's by now", self._owned.id)
            # Another machine works on it, so nothing here may continue.
            await self.stop_turn()
            return "fenced"

    def _has_lost_engine(self, end: TaskChanges) -> bool:
        """Return whether the task lost only its agent. Such a task is retried as after the loss of a machine."""
        code = (end.get("error") or {}).get("code") if end["status"] == "failed" else None
        lost = code in (EngineLost.code, EngineStartFailed.code)
        return lost and self._stopping is None and self._owned.epoch < _MOST_ENGINES

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """Ship events, store questions and handle orders while the block runs.

        Raises:
            NotOwner: Another machine has claimed the task. It is raised without a group.
        """
        is_lost = False
        try:
            async with anyio.create_task_group() as tasks:
                told = (self._pump.run, self._store_questions, self._store_turn, self._store_progress)
                for serve in (*told, self._take_orders, self._ship_transcript, self._keep_tree):
                    tasks.start_soon(serve)
                try:
                    yield
                finally:
                    tasks.cancel_scope.cancel()
        except* NotOwner:
            is_lost = True
        if is_lost:
            raise NotOwner(self._owned.id)

    async def _work(self) -> tuple[TaskChanges, TaskOutcome | None]:
        """Run the turn. Return how it ended and its outcome."""
        task = self._task
        # Cancelled while it waited, or while its earlier machine was lost.
        if self._owned.row["cancel_asked"]:
            return {"status": "canceled", "note": cancelled(task.cancel_reason)}, None
        if self._owned.epoch > MOST_ATTEMPTS:
            text = f"It was begun {MOST_ATTEMPTS} times, and each time its machine was lost. Look at what it does."
            error = {"code": "machine_lost", "message": text, "retryable": False}
            return {"status": "failed", "error": error}, None
        try:
            spec = TurnRequest.unpacked(task.spec)
            if spec is None:
                raise InvalidInput("Its machine does not understand the request. Upgrade that machine.")
            await self._bring_session(spec)
            # Only the report of its end was lost with the machine.
            if (ended := await self._ended_before(spec)) is not None:
                return ended, None
            if was_cut(task) and not await self._may_go_on(spec):
                return (loss_failure(task) if self._stopping is None else self._stopped()), None
            session = await self._begin(spec)
            tasks = await self._until_ended(session)
            await self._store_files()
        except HelmsmanError as error:
            if self._stopping is not None:
                return self._stopped(), None
            return {"status": "failed", "error": error.as_dict()}, None
        finally:
            # The worktree belongs to a session only once that has started.
            if self._made is not None and self._session is None:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(lifecycle.discard, self._made)
        last = tasks[-1]
        outcome = await self._helm.task_writer.registry(lambda registry: registry.outcome(last.id))
        usages = [part.usage for part in tasks if part.usage is not None]
        end = end_of(replace(last, usage=sum(usages, self._owned.used_before) if usages else None))
        # The outcome is unknown, so the user must look.
        if end["status"] not in ("completed", "failed", "canceled"):
            end |= {"status": "failed", "error": {"code": "unknown_outcome", "message": last.note, "retryable": False}}
        if self._stopping is not None and end["status"] == "canceled":
            end["note"] = self._stopping
        elif self._is_unanswered:
            end |= {"status": "failed", "error": unanswered(session).as_dict()}
        return end, outcome

    async def _store_files(self) -> None:
        """Store the tree that the task changed. A failure is reported as an event; the files stay in the worktree."""
        try:
            await self._ship()
            await self._keep_files(at_once=True)
        except HelmsmanError as error:
            self._pump.note(f"What it made of its files is not stored, and cannot be applied: {error.message}")

    async def _keep_files(self, *, at_once: bool = False) -> None:
        shared, session = self._tree, self._session
        if shared is None or session is None or session.worktree is None:
            return
        sizes = {} if self._transcript is None else self._transcript.sizes
        # Without a shipped transcript, the tree cannot be matched to a point in the session. At the end of the turn the tree
        # is stored in any case, since its agent may write the transcript a moment later (`_ship_the_rest`).
        if self._transcript is None or sizes or at_once:
            await shared.keep(session.worktree, session.id, sizes, (sizes, self._items), at_once=at_once)

    async def _keep_tree(self) -> None:
        """Store the tree whenever something has happened in the turn."""
        await self._has_session.wait()
        while self._tree is not None:
            await anyio.sleep(_TREE_SECONDS)
            try:
                await self._keep_files()
            except HelmsmanError as error:
                log.warning("the tree of task %s is not stored just now: %s", self._owned.id, error)
                await anyio.sleep(_TOO_LARGE_SECONDS)

    async def _ship_the_rest(self) -> None:
        """Ship the transcript that the agent wrote after its turn ended, and record that it belongs to the stored tree."""
        await self._ship()
        if self._transcript is not None and self._tree is not None:
            await self._tree.belongs_to(self._transcript.sizes)

    def _stopped(self) -> TaskChanges:
        return {"status": "canceled", "note": self._stopping}

    async def _may_go_on(self, spec: TurnRequest) -> bool:
        """Return whether a turn that was lost with its machine may resume here. Ask the user if the policy requires it."""
        handed_over = self._owned.row["is_handed_over"]
        wanted = "continue" if handed_over else on_loss(self._task, spec, self._helm.agents)
        if wanted != "ask":
            return wanted == "continue"
        question, seconds = question_of(self._owned), self._helm.settings.approval_timeout or LONGEST_SECONDS
        self._own_question = question.id
        await self._keep(partial(self._owned.ask, question, seconds), "a question")
        self._pump.put(QuestionAsked(session_id=question.session_id, question=question))
        with anyio.move_on_after(seconds):
            await self._own_answered.wait()
        self._own_answered.set()  # a later answer is refused
        await self._keep(partial(self._owned.close_question, question.id), "a question")
        closed = QuestionClosed(
            session_id=question.session_id,
            question_id=question.id,
            answer=self._own_answer,
            by=str(self._answered_by),
            via=self._answered_by.through,
        )
        self._pump.put(closed)
        return self._own_answer == CONTINUE and self._stopping is None

    async def _bring_session(self, spec: TurnRequest) -> None:
        """Fetch the session to resume from the fleet. After a loss, start a new session if it cannot be moved."""
        row, session_id, options = self._owned.row, self._goes_on_with, spec.options
        tree = self._tree = await SharedTree.of(self._helm, self._owned)
        if session_id is None or options.cwd is None:
            return
        limits: Mapping[str, int] | None = None
        if tree is not None and tree.kept is not None and was_cut(self._task) and row["worker_before"] != row["worker"]:
            # The transcript after this point describes file changes that the stored tree does not contain.
            # A tree of an earlier session says nothing about this transcript.
            limits = tree.kept.rollouts if tree.kept.session_id == session_id else None
        try:
            transcript = self._transcript = await SharedTranscript.of(
                self._helm, self._owned, options.agent, session_id
            )
            if transcript is None:
                return
            self._is_moved = await transcript.is_elsewhere(limits)
            if tree is not None and not self._is_moved:
                # The transcript is current, but the worktree was removed here.
                self._is_moved = not await anyio.to_thread.run_sync(tree.is_here, session_id)
            if self._is_moved:
                self._made = None if tree is None else await tree.make()
                await transcript.bring(options.cwd if self._made is None else self._made.directory)
                if tree is not None and self._made is not None:
                    await tree.drop_others(session_id, self._made)
        except (CannotMove, Unsupported) as error:
            if not was_cut(self._task):
                raise
            # After a loss, a new session with the old files is better than no work at all.
            self._transcript, self._goes_on_with, self._is_moved = None, None, False
            self._pump.note(f"It continues in a new session of its agent: {error.message}")

    async def _ended_before(self, spec: TurnRequest) -> TaskChanges | None:
        """Return how the turn ended before its machine was lost, if only the report of its end is missing."""
        turn_id, session_id = self._task.turn_id, self._goes_on_with
        # Without an id it is not known which recorded turn it is. A plan that was made is not yet approved.
        if not was_cut(self._task) or session_id is None or turn_id is None or spec.turn.kind == "plan":
            return None
        index = self._helm.agents[spec.options.agent].sessions(self._helm.settings, self._helm.environment)
        turn = None if index is None else await anyio.to_thread.run_sync(index.turn, session_id, turn_id)
        # A turn that failed or was interrupted is run again.
        if turn is None or turn.outcome != "completed":
            return None
        known: TaskChanges = {"turn_id": turn_id, "result": turn.message, "model": turn.model}
        if turn.usage is not None:  # its record knows neither earlier attempts nor sub-agents
            known["usage"] = max(self._owned.used_before, self._task.used_before + turn.usage, key=tokens)
        return {"status": "completed", **known}

    async def _ship_transcript(self) -> None:
        await self._has_session.wait()
        # Polled, as another program writes the files.
        while await self._ship():  # noqa: ASYNC110 - files of another program
            await anyio.sleep(_SHIP_SECONDS)

    async def _ship(self) -> bool:
        """Ship new parts of the transcript, and once the requirements of its session.

        Return False if the session cannot move.
        """
        # The end of the turn ships as well, and parts must be stored in order.
        async with self._shipping:
            if self._transcript is None and self._session is not None:
                agent = self._session.options.agent
                self._transcript = await SharedTranscript.of(self._helm, self._owned, agent, self._session.id)
            if self._transcript is None:
                return False
            await self._transcript.ship()
            if not self._is_labelled and (label := await self._transcript.needs()) is not None:
                await self._keep(partial(self._owned.update, label=label), "what its session needs")
                self._is_labelled = True
            return True

    async def _begin(self, spec: TurnRequest) -> Session:
        """Start the turn in a new session or in the session to resume."""
        owned, turn, options = self._owned, spec.turn, spec.options
        asked: Any = {
            "images": await self._images(),
            "limits": silence_of(self._task),
            "on_task": self._entered,
            # Also after a loss: a plan stays a plan until it is approved.
            "kind": turn.kind,
        }
        # Repeat the client's request on this machine, because its rules, roots and agents may differ.
        text, session_id, tree = turn.text, self._goes_on_with, self._tree
        kept_at = None if tree is None or tree.kept is None else tree.kept.at
        if was_cut(self._task):
            since = kept_at if self._is_moved or session_id is None else None
            text = words_for(owned, turn.text, same_session=session_id is not None, kept_at=since)
        elif self._made is not None:
            text = moved_words(turn.text)
        # Stored before the request: after a loss it tells that the agent may have begun.
        begun: TaskChanges = {"asked_at": datetime.now(UTC), "note": None, "used_before": owned.used_before}
        await self._keep(partial(owned.update, **begun), "its beginning")
        session: Session | None = None
        if session_id is not None and not self._is_moved:
            try:
                # The machine's own rules and limits apply, as for a request made here.
                session = await self._helm.say(session_id, text, **asked, **spec.words())
            except SessionNotFound as error:
                if not was_cut(self._task):
                    raise CannotMove(
                        f"Its session is on a machine that is gone, and sessions of {options.agent} stay where they are. "
                        "Have that machine back, or start a new session on the files."
                    ) from error
                text = words_for(owned, turn.text, same_session=False, kept_at=kept_at)
                self._pump.note(
                    "It continues in a new session of its agent: its session is on the machine that was lost"
                )
        if session is None:
            if tree is not None and self._made is None:
                self._made = await tree.make()
            made = self._made
            cwd, worktree = (options.cwd, spec.worktree or False) if made is None else (made.repository, True)
            where: Any = {"cwd": cwd, "worktree": worktree}
            carried = Carried(session_id if self._is_moved else None, made)
            session = await self._helm.start(text, **where, **asked, **spec.words(), carried=carried)
        self._attach(session)
        known: TaskChanges = {"model": session.model, "turn_id": session.state.turn_id}
        await self._keep(partial(owned.update, agents_session=session.id, **known), "a session")
        # The cancellation came while the session was starting.
        if self._stopping is not None:
            await self.stop_turn()
        return session

    async def _images(self) -> list[Path]:
        """Return the images of the task. They are deleted when it ends."""
        folder = self._helm.settings.state_dir / IMAGES / self._owned.id
        return await self._owned.database.keep_trying(partial(place_images, self._owned, folder), "its images")

    def _entered(self, local_id: str) -> None:
        if local_id not in self._local:
            self._local.append(local_id)
            self._budgets.entered(local_id, self._owned)

    def _attach(self, session: Session) -> None:
        """Report the events of the turn so far, and listen for new ones."""
        self._session = session
        self._has_session.set()
        # Events may have come before anything listened.
        for event in session.feed.since(session.turn_cursor).events:
            self._on_event(session, event)
        self._stop_listening = self._helm.listen(self._on_event)

    async def _until_ended(self, session: Session) -> list[Task]:
        """Return the tasks that have carried it out, once all of it has ended."""
        try:
            while True:
                await session.wait(until="end")
                await self._helm.task_writer.write()
                tasks = await self._local_tasks()
                if not tasks[-1].is_running:
                    # An interrupt may still be ending processes.
                    async with self._stop:
                        return tasks
                with anyio.move_on_after(_PROGRESS_SECONDS):  # the task resumes later, or its end is being written
                    await session.feed.changed()
        finally:
            self._stop_listening()

    async def _local_tasks(self) -> list[Task]:
        found = await self._helm.task_writer.registry(lambda registry: [registry.get(one) for one in self._local])
        return [task for task in found if task is not None]

    async def stop_turn(self) -> None:
        if self._session is None:
            return
        async with self._stop:
            try:
                await self._helm.interrupt(self._session.id)
            except HelmsmanError as error:
                log.warning("the turn of task %s could not be stopped in order: %s", self._owned.id, error)

    async def _keep(self, do: Callable[[], Awaitable[None]], what: str) -> None:
        await self._owned.database.keep_trying(do, what)

    # --- what happens in it ------------------------------------------------------------------------------------------

    def _on_event(self, session: Session, event: Event) -> None:
        if self._session is None or session.id != self._session.id or isinstance(event, SessionFact):
            return
        if isinstance(event, TurnRequested):
            if event.task_id is not None:
                self._entered(event.task_id)
            event = event.changed(task_id=self._owned.id)
        # The end is written with the result, in one statement.
        if not isinstance(event, TurnEnded | EngineGone) or event.agent_id is not None:
            self._pump.put(event)  # the end of the task is logged when all of it has stopped
        self._has_progress = True
        self._items += isinstance(event, ItemEnded)
        if isinstance(event, QuestionAsked):
            deadline = session.deadlines.get(event.question.id)
            # Clients show the same deadline as this machine.
            self._asked[event.question.id] = None if deadline is None or not deadline.has_end else deadline.seconds
            self._news.set()
        elif isinstance(event, QuestionClosed):
            self._closed.append(event.question_id)
            # Users do not watch runs of schedules, so an expired question ends it.
            self._is_unanswered |= event.by == str(DEADLINE) and self._task.schedule is not None
            self._news.set()
        elif isinstance(event, EngineGone):
            self._news.set()
        elif isinstance(event, TurnStarted) and event.agent_id is None:
            self._has_turn.set()

    async def _store_questions(self) -> None:
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            asked, self._asked = self._asked, {}
            closed, self._closed = self._closed, []
            for question_id, seconds in asked.items():
                session = self._session
                question = session.state.questions.get(question_id) if session is not None else None
                if question is not None:
                    await self._keep(partial(self._owned.ask, question, seconds), "a question")
            for question_id in closed:
                await self._keep(partial(self._owned.close_question, question_id), "a question")
            if self._is_unanswered:
                # The refusal has reached the agent; nothing more is expected of it.
                await self.stop_turn()

    async def _store_turn(self) -> None:
        """Store the turn id immediately. After a loss, the next machine uses it to check whether the turn had ended."""
        await self._has_turn.wait()
        if self._session is not None:
            await self._keep(partial(self._owned.update, turn_id=self._session.state.turn_id), "a turn")

    async def _store_progress(self) -> None:
        while True:
            await anyio.sleep(_PROGRESS_SECONDS)
            if not self._has_progress or self._session is None:
                continue
            self._has_progress = False
            tasks = await self._store_usage()
            # A task that was entered just now may not be stored yet.
            if tasks and (task := tasks[-1]).is_running:
                known: TaskChanges = {name: getattr(task, name) for name in _SHOWN}  # type: ignore[assignment]
                known["turn_id"] = self._session.state.turn_id
                await self._keep(partial(self._owned.update, **known), "progress")

    async def _store_usage(self) -> list[Task]:
        """Store what the tasks here have used, and return them. Budgets miss what is reported last before a turn ends."""
        await self._helm.task_writer.write()
        tasks = await self._local_tasks()
        for task in tasks:
            if task.usage is not None:
                await self._budgets.spent(task.id, task.model, task.usage)
        return tasks

    # --- orders from the fleet -------------------------------------------------------------------------------------------

    async def _take_orders(self) -> None:
        """Handle orders, cancellation and the deadline."""
        left = self._owned.row["seconds_left"]
        until = None if left is None else anyio.current_time() + left
        while True:
            look = _LOOK_SECONDS if until is None else max(0.01, min(_LOOK_SECONDS, until - anyio.current_time()))
            await sleep_until(self._wake, look)
            self._wake = anyio.Event()
            orders = await self._owned.database.keep_trying(self._owned.orders, "an order")
            for order in orders["orders"]:
                await self._carry_out(order)
            if self._stopping is None and (orders["cancel_asked"] or orders["is_late"]):
                # Set before stopping, so that the end is reported with this reason.
                self._stopping = cancelled(orders["cancel_reason"]) if orders["cancel_asked"] else LATE
                self._own_answered.set()
                if self._session is not None:
                    self._helm.task_writer.explain(self._session.id, if_stopped=self._stopping)
                await self.stop_turn()
            if orders["is_late"]:
                # Otherwise the passed deadline would make this loop spin.
                until = None

    async def _carry_out(self, order: dict[str, Any]) -> None:
        """Steer the turn or answer a question, or record why that failed.

        An order is claimed first, so it reaches the agent at most once.
        """
        content, refused = order["content"], None
        is_own = self._own_question is not None and content.get("question") == self._own_question
        if (self._session is None and not is_own) or not await self._owned.database.keep_trying(
            partial(self._owned.take_order, order["id"]), "an order"
        ):
            return
        try:
            if order["verb"] == STEER:
                await self._helm.steer(self._session_id, content["text"])
            else:
                by = unpack_if_valid(content["by"], AnsweredBy) or PROGRAM
                await self._answer(content["question"], content["answers"], by, is_own=is_own)
        except HelmsmanError as error:
            refused = error.as_dict()
        await self._keep(partial(self._owned.end_order, order["id"], refused), "an order")

    async def _answer(self, question_id: str, answers: Sequence[str], by: AnsweredBy, *, is_own: bool) -> None:
        if not is_own:
            await self._helm.respond(self._session_id, question_id, answers, by=by)
        elif self._own_answered.is_set():
            raise QuestionNotOpen(f"Question {question_id} was just answered.")
        else:
            self._own_answer, self._answered_by = str(answers[0]).partition(":")[0].strip(), by
            self._own_answered.set()

    @property
    def _session_id(self) -> str:
        assert self._session is not None  # orders wait for it
        return self._session.id


async def run_task(
    helms: tuple[Steering, Steering], owned: OwnedTask, running: dict[str, TaskRun], budgets: FleetBudgets
) -> None:
    """Run a claimed task until it has ended or is another machine's. The second of `helms` runs tasks of schedules."""
    helm = helms[owned.task.schedule is not None]
    claimed: OwnedTask | None = owned
    while claimed is not None:
        run = running[owned.id] = TaskRun(helm, claimed, budgets)
        try:
            if await run.run() != AGAIN:
                return
        finally:
            budgets.left(claimed)
            running.pop(owned.id, None)
            await anyio.to_thread.run_sync(forget_images, helms[0].settings.state_dir, [owned.id])
        # A new epoch fences late writes of the lost attempt.
        claimed = await owned.database.keep_trying(claimed.claim_again, "a task")
