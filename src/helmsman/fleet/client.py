"""Client of a fleet: enqueue tasks, read and follow them, answer their questions, and cancel them.

Each process that uses a fleet has one client. It holds few connections, one of which listens for notifications that wake
waiting callers. Callers also poll, because a notification is lost when its connection breaks.
"""

from __future__ import annotations

import json
import math
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, LiteralString, Self

import anyio
import psycopg
from psycopg.types.json import Jsonb

from helmsman.base.concurrency import background_tasks, sleep_until
from helmsman.base.redaction import redact
from helmsman.base.structs import pack, unpack
from helmsman.errors import AnswerInvalid, FleetRefused, InvalidInput, QuestionNotOpen, TaskNotFound
from helmsman.fleet.database import FleetDatabase
from helmsman.fleet.queue import enter_task
from helmsman.fleet.rows import DOORS, WORKERS, clean_text, machine_of, new_fleet_task, queue_of, serves, task_of
from helmsman.fleet.schema import require_schema
from helmsman.fleet.values import AskedInFleet, FleetDraft, FleetEvents, Machine, refuse_secrets
from helmsman.model.codec import decode
from helmsman.model.questions import Question, read_answers
from helmsman.tasks.model import of_agents
from helmsman.tasks.outcome import kept

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

    from psycopg.rows import DictRow

    from helmsman.model.answered_by import AnsweredBy
    from helmsman.tasks.model import Task, TaskStatus
    from helmsman.tasks.outcome import TaskOutcome

_LOOK_SECONDS: Final = 5.0
"""Polling interval of waiting callers, in case a notification is lost."""
_PAGE: Final = 200
_CANCEL_SECONDS: Final = 60.0
_MACHINES_SECONDS: Final = 1.0
"""Time for which the list of machines is cached."""


class FleetClient:
    """Use it as an async context manager."""

    def __init__(self, url: str) -> None:
        self.database = FleetDatabase(url, name="helmsman door")
        self._changed: dict[str, anyio.Event] = {}
        self._any_changed = anyio.Event()
        self._exit = AsyncExitStack()
        self._machines_seen: tuple[Sequence[Machine], float] = (), -math.inf
        self._listening = anyio.Event()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            await opening.enter_async_context(self.database)
            await self.database.soon(lambda: require_schema(self.database))
            tasks = await opening.enter_async_context(background_tasks())
            tasks.start_soon(self._listen)
            self._exit = opening.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._exit.aclose()

    # --- begin -------------------------------------------------------------------------------------------------------

    async def enqueue(self, draft: FleetDraft) -> Task:
        """Accept a task. The task and everything needed to run it are stored before this returns.

        The same idempotency key returns the same task, on every machine.

        Raises:
            InvalidInput: Something makes no sense; nothing was accepted.
            FleetRefused: No machine can ever run it; nothing was accepted.
            FleetUnavailable: The outcome is unknown; probably nothing was accepted. Retry with an idempotency key.
        """
        draft.check()
        if (known := await self.with_key(draft)) is not None:
            return known
        await self._refuse_impossible(draft)
        task_id, alias = new_fleet_task(draft.instruction)
        row = await self.database.soon(lambda: self._enter(draft, task_id, alias))
        if row is not None:
            await self.database.notify((DOORS, task_id), (WORKERS, row["queue"]))
            return task_of(row)
        return await self.with_key(draft) or await self.get(task_id)

    async def with_key(self, draft: FleetDraft) -> Task | None:
        """Return the task that was accepted with the key of a draft, if any."""
        if draft.idempotency_key is None:
            return None
        row = await self.one("select * from helmsman.tasks where key = %s", (draft.idempotency_key,))
        return None if row is None else of_agents(task_of(row), draft.agent)

    async def _refuse_impossible(self, draft: FleetDraft) -> None:
        queue = queue_of(draft.agent, draft.labels, draft.host)
        machines, at = self._machines_seen
        if anyio.current_time() - at > _MACHINES_SECONDS:
            machines = await self.machines()
            self._machines_seen = machines, anyio.current_time()
        if draft.host is not None:
            host = next((machine for machine in machines if machine.name == draft.host), None)
            names = ", ".join(machine.name for machine in machines) or "none"
            if host is None:
                raise FleetRefused(
                    f"There is no machine {draft.host} in the fleet. Those there are: {names}.", parameter="host"
                )
            if draft.agent not in host.agents:
                raise FleetRefused(f"{draft.host} does not run {draft.agent}. Leave the host out.", parameter="host")
            return
        if machines and not any(
            serves(queue, name=machine.name, agents=machine.agents, labels=machine.labels) for machine in machines
        ):
            labels = f" and the labels {', '.join(draft.labels)}" if draft.labels else ""
            raise FleetRefused(
                f"No machine of the fleet has {draft.agent}{labels}. `helmsman fleet status` shows what they have."
            )

    async def _enter(self, draft: FleetDraft, task_id: str, alias: str) -> DictRow | None:
        """Store a new task in one transaction. Return None if there is one with its key, or an earlier try stored it."""
        async with self.database.connection() as connection, connection.transaction():
            return await enter_task(connection, draft, task_id, alias)

    # --- look --------------------------------------------------------------------------------------------------------

    async def get(self, reference: str) -> Task:
        """Return a task by its id or alias.

        Raises:
            TaskNotFound: No such task.
        """
        return task_of(await self._row(reference))

    async def _row(self, reference: str) -> DictRow:
        row = await self.one(
            "select * from helmsman.tasks where id = %(ref)s or alias = %(ref)s order by number desc limit 1",
            {"ref": clean_text(reference)},
        )
        if row is None:
            raise TaskNotFound(f"There is no task {reference} in the fleet. List the tasks to see which there are.")
        return row

    async def list(
        self,
        *,
        status: Collection[TaskStatus] | None = None,
        agent: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[list[Task], str | None]:
        """Tasks, newest first, and the cursor of the next page."""
        if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
            raise InvalidInput(f"{cursor!r:.100} is not a cursor of this list. Use that of the page before, or none.")
        rows = await self._all(
            """
            select * from helmsman.tasks
            where (%(status)s::text[] is null or status = any(%(status)s)) and (%(agent)s::text is null or agent = %(agent)s)
                and (%(session)s::text is null or session_id = %(session)s)
                and (%(before)s::bigint is null or number < %(before)s)
            order by number desc limit %(limit)s
            """,
            {
                "status": None if status is None else list(status),
                "agent": agent,
                "session": session_id,
                "before": None if cursor is None else int(cursor),
                "limit": limit + 1,
            },
        )
        following = str(rows[limit - 1]["number"]) if len(rows) > limit else None
        return [task_of(row) for row in rows[:limit]], following

    async def outcome(self, reference: str) -> TaskOutcome:
        """Return the outcome of a task. It is empty until the task has ended."""
        row = await self._row(reference)
        found = await self.one("select content from helmsman.outcomes where task = %s", (row["id"],))
        return kept({} if found is None else found["content"])

    async def machines(self) -> Sequence[Machine]:
        """Return all machines with a lease, by name."""
        rows = await self._all(
            """
            select *, extract(epoch from clock_timestamp() - seen)::float as age,
                (select count(*) from helmsman.tasks where status = 'working' and worker = workers.id) as at_work
            from helmsman.workers order by name
            """
        )
        return [
            Machine(
                name=row["name"],
                labels=tuple(row["labels"]),
                agents=row["agents"],
                capacity=row["capacity"],
                running=row["at_work"],
                version=row["version"],
                is_draining=row["draining"],
                seen_seconds_ago=row["age"],
                is_alive=row["age"] < row["lease"],
            )
            for row in rows
        ]

    async def waiting(self) -> dict[str, int]:
        """Return the number of pending tasks per queue."""
        rows = await self._all(
            "select queue, count(*) as waiting from helmsman.tasks where status = 'pending' group by queue order by queue"
        )
        return {row["queue"]: row["waiting"] for row in rows}

    async def stranded(self) -> dict[str, int]:
        """Return the number of pending tasks per queue that no machine may run: its host, agent or a label is missing."""
        rows = await self._all(
            """
            select queue, count(*) as waiting from helmsman.tasks task
            where status = 'pending' and not exists (
                select from helmsman.workers
                where seen >= clock_timestamp() - make_interval(secs => lease) and (
                    task.host = name
                    or (task.host is null and jsonb_exists(agents, task.agent) and task.labels <@ workers.labels)
                )
            ) group by queue order by queue
            """
        )
        return {row["queue"]: row["waiting"] for row in rows}

    # --- follow ------------------------------------------------------------------------------------------------------

    async def events(self, task_id: str, offset: int = 0, limit: int = _PAGE) -> FleetEvents:
        """Return the stored events of a task from an offset on. `limit` counts batches, not events."""
        row = await self.one("select stopped_at, id from helmsman.tasks where id = %s", (task_id,))
        if row is None:
            raise TaskNotFound(f"There is no task {task_id} in the fleet.")
        rows = await self._all(
            "select first, count, epoch, data from helmsman.events where task = %s and first + count > %s "
            "order by first limit %s",
            (task_id, offset, limit),
        )
        events: list[Any] = []
        for batch in rows:
            skipped = max(0, offset - batch["first"])
            events += [_event(part) for part in batch["data"][skipped:]]
            offset = batch["first"] + batch["count"]
        return FleetEvents(
            events=tuple(events), offset=offset, is_over=row["stopped_at"] is not None and len(rows) < limit
        )

    async def follow(self, task_id: str, offset: int = 0) -> AsyncIterator[FleetEvents]:
        """Yield the events of a task as they are stored, until it has ended. A reader can resume at its last offset."""
        while True:
            changed = self.watch(task_id)
            page = await self.events(task_id, offset)
            if page.events or page.is_over:
                yield page
            if page.is_over:
                return
            if page.offset == offset:
                await sleep_until(changed, _LOOK_SECONDS)
            offset = page.offset

    async def until(
        self, task_id: str, is_it: Callable[[Task], bool], *, timeout: float | None = None
    ) -> tuple[Task, bool]:
        """Wait until a condition on a task is true, or the time is up. Return the task, and whether it is."""
        with anyio.move_on_after(timeout):
            while True:
                changed = self.watch(task_id)
                task = await self.get(task_id)
                if is_it(task):
                    return task, True
                await sleep_until(changed, _LOOK_SECONDS)
        return await self.get(task_id), False

    def watch(self, task_id: str) -> anyio.Event:
        """Set when something changes of a task. To be asked for before one looks."""
        if len(self._changed) > 10_000:  # drop the events of tasks that no caller waits for
            for event in self._changed.values():
                event.set()
            self._changed.clear()
        return self._changed.setdefault(task_id, anyio.Event())

    async def changes(self) -> None:
        """Wait until something changes of any task, or for some seconds."""
        await sleep_until(self._any_changed, _LOOK_SECONDS)

    async def _listen(self) -> None:
        while True:
            with suppress(psycopg.Error):
                async with self.database.listening(DOORS) as payloads:
                    self._wake_all()  # wake callers for notifications sent before this connection listened
                    self._listening.set()
                    async for task_id in payloads:
                        if (changed := self._changed.pop(task_id, None)) is not None:
                            changed.set()
                        self._any_changed.set()
                        self._any_changed = anyio.Event()
            await anyio.sleep(0.5)

    def _wake_all(self) -> None:
        changed, self._changed = self._changed, {}
        for event in (*changed.values(), self._any_changed):
            event.set()
        self._any_changed = anyio.Event()

    # --- answer ------------------------------------------------------------------------------------------------------

    async def questions(self, task_id: str | None = None) -> Sequence[AskedInFleet]:
        """Return the open questions, oldest first."""
        rows = await self._all(
            """
            select question.*, task.session_id, task.worker from helmsman.questions question
            join helmsman.tasks task on task.id = question.task and task.epoch = question.epoch
            where question.closed_at is null and question.answer is null and task.status = 'working'
                and (%(task)s::text is null or question.task = %(task)s)
            order by question.number
            """,
            {"task": task_id},
        )
        return [
            AskedInFleet(
                task=row["task"],
                session_id=row["session_id"],
                machine=machine_of(row["worker"]),
                asked_at=row["asked_at"],
                expires_at=row["expires_at"],
                question=unpack(row["content"], Question),
                refused=row["refused"],
            )
            for row in rows
        ]

    async def answer(self, task_id: str, question_id: str, answers: Sequence[str], by: AnsweredBy) -> None:
        """Answer a question. Only the first answer counts, on any machine. It is stored when this returns.

        Raises:
            QuestionNotOpen: There is no such question, or it was answered already, or its engine is gone.
            AnswerInvalid: The answer does not fit; nothing was sent.
            InvalidInput: The answer holds a secret, which would be stored; nothing was sent.
        """
        asked = next((one for one in await self.questions(task_id) if one.question.id == question_id), None)
        if asked is None:
            raise QuestionNotOpen(
                f"Question {question_id} of task {task_id} is not open: it was answered, or its agent is gone."
            )
        read_answers(asked.question, answers)
        if any(clean_text(answer) != answer for answer in answers):
            raise AnswerInvalid("The answer has characters that are no valid text. Remove them.")
        refuse_secrets(list(answers))
        values = {"task": task_id, "question": question_id, "answer": Jsonb(list(answers)), "by": Jsonb(pack(by))}
        row = await self.one(_ANSWER, values)
        if row is None:
            raise QuestionNotOpen(f"Question {question_id} of task {task_id} was just answered by another client.")

    # --- stop --------------------------------------------------------------------------------------------------------

    async def cancel(self, reference: str, reason: str | None = None) -> Task:
        """Stop a task; returns when all of it has really stopped, or the time is up. One that has ended stays as it is."""
        task_id = (await self._row(reference))["id"]
        await self.one(_CANCEL, {"task": task_id, "reason": clean_text(None if reason is None else redact(reason))})
        task, _ = await self.until(task_id, lambda task: not task.is_running, timeout=_CANCEL_SECONDS)
        return task

    async def drain(self, name: str) -> bool:
        """Drain a machine: it takes no new tasks and exits when idle. Return whether the machine exists."""
        sql = "update helmsman.workers set draining = true where name = %s returning helmsman.tell_worker(id, '')"
        return await self.one(sql, (name,)) is not None

    # --- the database ------------------------------------------------------------------------------------------------

    async def one(self, sql: LiteralString, values: Sequence[Any] | Mapping[str, Any] = ()) -> DictRow | None:
        return await self.database.soon(lambda: self.database.one(sql, values))

    async def _all(self, sql: LiteralString, values: Sequence[Any] | Mapping[str, Any] = ()) -> Sequence[DictRow]:
        return await self.database.soon(lambda: self.database.all(sql, values))


_ANSWER: Final = """
    with answered as (
        update helmsman.questions question
        set answer = %(answer)s, answered_by = %(by)s, answered_at = clock_timestamp(), refused = null
        from helmsman.tasks task
        where question.task = %(task)s and question.id = %(question)s and question.answer is null
            and question.closed_at is null and task.id = question.task and task.epoch = question.epoch
            and task.status = 'working'
        returning task.id, task.worker
    )
    select helmsman.tell_worker(worker, id), pg_notify('helmsman_fleet', id) from answered
"""
_CANCEL: Final = """
    with before as (select status = 'pending' as waits from helmsman.tasks where id = %(task)s for update),
    asked as (
        update helmsman.tasks set
            cancel_asked = true, cancel_reason = coalesce(cancel_reason, %(reason)s), updated_at = clock_timestamp(),
            revision = revision + 1,
            status = case when waits then 'canceled' else status end,
            note = case when waits then coalesce('It was cancelled: ' || %(reason)s,
                case when epoch = 0 then 'It was cancelled before it began.' else 'It was cancelled.' end) else note end,
            completed_at = case when waits then clock_timestamp() end,
            stopped_at = case when waits then clock_timestamp() end,
            expires_at = case when waits then clock_timestamp() + interval '30 days' end
        from before where id = %(task)s and status in ('pending', 'working')
        returning id, worker, lane, status
    ),
    told as (
        select pg_notify('helmsman_workers', waiting.queue) from asked, lateral (
            select queue from helmsman.tasks
            where lane = asked.lane and status = 'pending' and id <> asked.id order by number limit 1
        ) waiting where asked.status = 'canceled'
    )
    select (select count(*) from told), pg_notify('helmsman_fleet', id),
        case when status = 'working' then helmsman.tell_worker(worker, id) end
    from asked
"""
"""Cancel a task that waits, or ask its worker to stop it. The next task of the session may be claimed now."""


def _event(content: Any) -> Any:
    """Return an event, or a fact of the fleet's own."""
    return content if "fleet" in content else decode(str(content.get("type")), json.dumps(content))
