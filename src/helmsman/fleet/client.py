"""Client of a fleet: enqueue tasks, read and follow them, answer their questions, and cancel them.

Each process that uses a fleet has one client. It holds few connections, one of which listens for notifications that wake
waiting callers. Callers also poll, because a notification is lost when its connection breaks.
"""

from __future__ import annotations

import math
import uuid
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, LiteralString, Self

import anyio
import psycopg
from psycopg.types.json import Jsonb

from helmsman.agents.protocol import SessionInfo
from helmsman.base.concurrency import background_tasks, sleep_until
from helmsman.base.redaction import redact
from helmsman.base.structs import pack, unpack
from helmsman.errors import (
    AnswerInvalid,
    FleetRefused,
    FleetUnavailable,
    InvalidInput,
    QuestionNotOpen,
    SessionIdle,
    TaskNotFound,
    Unsupported,
)
from helmsman.fleet.database import FleetDatabase
from helmsman.fleet.queue import entering
from helmsman.fleet.schema import require_schema
from helmsman.fleet.values import (
    ANSWER,
    CLIENTS,
    KEPT,
    STEER,
    WORKERS,
    AskedInFleet,
    FleetDraft,
    Machine,
    clean_text,
    machine_of,
    refuse_secrets,
    serves,
)
from helmsman.model.codec import decode
from helmsman.model.events import ItemDelta
from helmsman.model.questions import Question, read_answers
from helmsman.store.database import from_microseconds
from helmsman.tasks.model import new_task_id, of_agents
from helmsman.tasks.outcome import TaskOutcome
from helmsman.tasks.rows import task_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from psycopg.rows import DictRow

    from helmsman.model.answered_by import AnsweredBy
    from helmsman.model.events import Event
    from helmsman.store.log import StoredEvents
    from helmsman.tasks.model import Task


_LOOK_SECONDS: Final = 5.0
"""Polling interval of waiting callers, in case a notification is lost."""
_CANCEL_SECONDS: Final = 60.0
_LATE_TASKS: Final = 1000
_LATE_SECONDS: Final = 10.0
"""Time for which a task may be stored, and not be visible to others yet."""
_MACHINES_SECONDS: Final = 1.0
"""Time for which the list of machines is cached."""


class FleetClient:
    """Use it as an async context manager."""

    def __init__(self, url: str) -> None:
        self.database = FleetDatabase(url, name="helmsman client")
        self._changed: dict[str, anyio.Event] = {}
        self._any_changed = anyio.Event()
        self._exit = AsyncExitStack()
        self._machines_seen: tuple[Sequence[Machine], float] = (), -math.inf
        self._listening = anyio.Event()
        self.on_text: Callable[[str, Event], None] = lambda _task_id, _event: None
        """Called with text that the agent of a task is writing."""

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
            InvalidInput: A value is invalid; nothing was accepted.
            FleetRefused: No machine can ever run it; nothing was accepted.
            FleetUnavailable: The outcome is unknown; probably nothing was accepted. Retry with an idempotency key.
        """
        draft.check()
        # Asked before the check of machines: a repeated call must succeed even if they are gone now.
        if (known := await self.with_key(draft)) is not None:
            return known
        await self._refuse_impossible(draft)
        work, agent = entering(self.database.registry, draft, new_task_id("fleet")), draft.task.agent
        task, is_new = await self.database.tasks(lambda tasks: tasks.database.write(work))
        task = of_agents(task, agent)
        if is_new:
            # After the commit, so that a listener finds the task.
            await self.database.notify((CLIENTS, task.id), (WORKERS, task.placement["queue"]))
        return task

    async def with_key(self, draft: FleetDraft) -> Task | None:
        """Return the task that was accepted with the key of a draft, if any."""
        if (key := draft.task.idempotency_key) is None:
            return None
        known = await self.database.tasks(lambda tasks: tasks.with_key(key))
        return None if known is None else of_agents(known, draft.task.agent)

    async def _refuse_impossible(self, draft: FleetDraft) -> None:
        agent, placement = draft.task.agent, draft.placement
        machines, at = self._machines_seen
        # Many tasks may be accepted in a row, and machines change rarely.
        if anyio.current_time() - at > _MACHINES_SECONDS:
            machines = await self.machines()
            self._machines_seen = machines, anyio.current_time()
        if placement.machine is not None:
            host = next((machine for machine in machines if machine.name == placement.machine), None)
            names = ", ".join(machine.name for machine in machines) or "none"
            if host is None:
                raise FleetRefused(
                    f"There is no machine {placement.machine} in the fleet. Those there are: {names}.", parameter="host"
                )
            if agent not in host.agents:
                raise FleetRefused(f"{host.name} does not run {agent}. Leave the host out.", parameter="host")
            return
        if machines and not any(
            serves(draft.queue, name=machine.name, agents=machine.agents, labels=machine.labels) for machine in machines
        ):
            labels = f" and the labels {', '.join(placement.labels)}" if placement.labels else ""
            raise FleetRefused(
                f"No machine of the fleet has {agent}{labels}. `helmsman fleet status` shows what they have."
            )

    # --- look --------------------------------------------------------------------------------------------------------

    async def get(self, reference: str) -> Task:
        """Return a task by its id or alias.

        Raises:
            TaskNotFound: No such task.
        """
        task = await self.find(reference)
        if task is None:
            raise TaskNotFound(f"There is no task {reference} in the fleet. List the tasks to see which there are.")
        return task

    async def find(self, reference: str) -> Task | None:
        """Return a task by its id or alias."""
        return await self.database.tasks(lambda tasks: tasks.find(reference))

    async def of_session(self, session_id: str) -> tuple[Task, ...]:
        """Return the tasks of a session, oldest first."""
        return (await self.database.tasks(lambda tasks: tasks.tasks_of_session(session_id)))[::-1]

    async def outcome(self, reference: str) -> TaskOutcome:
        """Return the outcome of a task. It is empty until the task has ended."""
        task = await self.get(reference)
        return await self.database.tasks(lambda tasks: tasks.outcome(task.id)) or TaskOutcome()

    async def sessions(
        self, *, query: str | None, agent: str | None, directory: str | None, limit: int, cursor: str | None
    ) -> tuple[list[SessionInfo], str | None]:
        """Sessions, the one first that was last asked for something, and the cursor of the next page."""
        rows = await self._all(
            """
            select last.number, last.session_id, last.agent, last.model, last.updated_at, first.created_at, first.directory,
                first.body::jsonb ->> 'instruction' as instruction
            from helmsman_store.tasks last join helmsman_store.tasks first on first.id = 'T-' || last.session_id
            where not exists (
                    select from helmsman_store.tasks later
                    where later.session_id = last.session_id and later.number > last.number
                )
                and (%(agent)s::text is null or last.agent = %(agent)s)
                and (%(directory)s::text is null or first.directory = %(directory)s)
                and (%(query)s::text is null
                    or position(lower(%(query)s) in lower(first.body::jsonb ->> 'instruction')) > 0)
                and (%(before)s::bigint is null or last.number < %(before)s)
            order by last.number desc limit %(limit)s
            """,
            {"agent": agent, "directory": directory, "query": query, "before": _number(cursor), "limit": limit + 1},
        )
        # One row more than asked for tells that there is a next page.
        following = str(rows[limit - 1]["number"]) if len(rows) > limit else None
        return [
            SessionInfo(
                session_id=row["session_id"],
                agent=row["agent"],
                updated_at=from_microseconds(row["updated_at"]),
                created_at=from_microseconds(row["created_at"]),
                directory=row["directory"],
                first_prompt=row["instruction"],
                model=row["model"],
                source="fleet",
            )
            for row in rows[:limit]
        ], following

    async def session_of_agents(self, session_id: str) -> str | None:
        """Return the session of the fleet with an agent's id."""
        row = await self.one(
            "select session_id from helmsman_store.tasks where agents_session = %s order by number limit 1",
            (session_id,),
        )
        return None if row is None else str(row["session_id"])

    async def news(self, number: int | None) -> tuple[int, set[str], set[str]]:
        """Return the number of the newest task, the sessions with an open question, and those of tasks after a number.

        Tasks created within the last seconds count too: one may become visible after another with a higher number.
        """
        rows = await self._all(
            """
            select number, session_id, false as asks from helmsman_store.tasks
            where number > %(number)s::bigint - %(late)s
                and (number > %(number)s::bigint or created_at > helmsman.now() - %(seconds)s * 1000000)
            union all select 0, session_id, true from helmsman_store.tasks task
            where status = 'working' and exists (
                select from helmsman.questions where task = task.id and epoch = task.epoch and closed_at is null
            )
            union all select coalesce(max(number), 0), null, false from helmsman_store.tasks
            """,
            {"number": number, "late": _LATE_TASKS, "seconds": _LATE_SECONDS},
        )
        newest = max(int(row["number"]) for row in rows)
        asking = {str(row["session_id"]) for row in rows if row["asks"]}
        # None at the first call, which only asks for the newest number: earlier tasks are no news.
        newer = {str(row["session_id"]) for row in rows if row["session_id"] is not None and not row["asks"]}
        return newest, asking, newer

    async def at_work(self, limit: int) -> list[Task]:
        """Return running tasks, then pending tasks in the order in which they will start."""
        sql = (
            "SELECT * FROM tasks WHERE status IN ('pending', 'working') "
            "ORDER BY status = 'pending', priority, number LIMIT ?"
        )
        return await self.database.tasks(
            lambda tasks: tasks.database.read(lambda one: [task_of(row) for row in one.execute(sql, (limit,))])
        )

    async def machines(self) -> Sequence[Machine]:
        """Return all machines with a lease, by name."""
        rows = await self._all(
            """
            select *, extract(epoch from clock_timestamp() - seen)::float as age,
                (select count(*) from helmsman_store.tasks where status = 'working' and worker = workers.id) as at_work
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
            "select queue, count(*) as waiting from helmsman_store.tasks where status = 'pending' "
            "group by queue order by queue"
        )
        return {row["queue"]: row["waiting"] for row in rows}

    async def stranded(self) -> dict[str, int]:
        """Return the number of pending tasks per queue that no machine may run: its host, agent or a label is missing."""
        rows = await self._all(
            """
            select queue, count(*) as waiting from helmsman_store.tasks task
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

    async def log(self, session_id: str, cursor: int = 0) -> StoredEvents:
        """Return the events of a session after a cursor."""
        return await self.database.tasks(lambda tasks: tasks.events(session_id, cursor))

    async def last_begun(self, session_id: str) -> tuple[str | None, int]:
        """Return the last task of a session that has begun and ended, and the cursor before its events."""
        sql = """
            select id, log_from from helmsman_store.tasks
            where session_id = %s and log_from is not null and status not in ('pending', 'working')
            order by number desc limit 1
        """
        row = await self.one(sql, (session_id,))
        return (None, 0) if row is None else (row["id"], row["log_from"])

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
        # Waiting callers wake, look, and wait again.
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
                async with self.database.listening(CLIENTS) as payloads:
                    # Notifications sent while the connection was down are lost.
                    self._wake_all()  # wake callers for notifications sent before this connection listened
                    self._listening.set()
                    async for payload in payloads:
                        task_id, _, text = payload.partition(" ")
                        # Text in progress is sent in the notification itself; it is never stored.
                        if text:
                            self.on_text(task_id, decode(ItemDelta.event_type(), text))
                            continue
                        if (changed := self._changed.pop(task_id, None)) is not None:
                            changed.set()
                        self._any_changed.set()
                        # Events cannot be cleared, so later callers get a new one.
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
            select question.*, task.agents_session, task.worker from helmsman.questions question
            join helmsman_store.tasks task on task.id = question.task and task.epoch = question.epoch
            where question.closed_at is null and task.status = 'working'
                and (%(task)s::text is null or question.task = %(task)s)
            order by question.number
            """,
            {"task": task_id},
        )
        return [
            AskedInFleet(
                task=row["task"],
                session_id=row["agents_session"],
                machine=machine_of(row["worker"]),
                epoch=row["epoch"],
                asked_at=row["asked_at"],
                expires_at=row["expires_at"],
                question=unpack(row["content"], Question),
            )
            for row in rows
        ]

    async def answer(self, task_id: str, question_id: str, answers: Sequence[str], by: AnsweredBy) -> None:
        """Answer a question. Only the first answer counts, on any machine. Returns when the machine that asks has it.

        Raises:
            QuestionNotOpen: There is no such question, or it was answered already, or its engine is gone.
            AnswerInvalid: The answer does not fit.
            InvalidInput: The answer holds a secret, which would be stored; nothing was sent.
            FleetUnavailable: Its machine did not say within half a minute what became of it.
        """
        # Only an early check: the machine that asks decides who answers first.
        asked = next((one for one in await self.questions(task_id) if one.question.id == question_id), None)
        if asked is not None:
            read_answers(asked.question, answers)
            # Postgres cannot store NUL characters.
            if any(clean_text(answer) != answer for answer in answers):
                raise AnswerInvalid("The answer has characters that are no valid text. Remove them.")
            content = {"question": question_id, "answers": list(answers), "by": pack(by)}
            # A later attempt may ask something else by the same id.
            if await self._order(task_id, ANSWER, content, epoch=asked.epoch):
                return
        raise QuestionNotOpen(
            f"Question {question_id} of task {task_id} is not open: it was answered, or its agent is gone."
        )

    async def steer(self, task_id: str, text: str) -> None:
        """Put a message into the turn of a task. Returns when its agent has it.

        Raises:
            SessionIdle: No turn runs, or it ended before the message came; it was not sent.
            FleetUnavailable: Its machine did not say within half a minute what became of it.
            InvalidInput: It holds a secret, which would be stored; it was not sent.
        """
        if not await self._order(task_id, STEER, {"text": clean_text(text)}):
            raise SessionIdle(f"No turn of task {task_id} runs now. Send it as a new message instead.")

    async def _order(self, task_id: str, verb: str, content: Mapping[str, Any], *, epoch: int | None = None) -> bool:
        """Have the machine of a running task do something, in this attempt if one is given. Return False if the task is not
        at work; nothing was done.

        Raises:
            HelmsmanError: The machine refuses, or does not answer.
        """
        refuse_secrets(content)
        # The id makes a repeated statement harmless: the order is inserted once.
        order = {"id": uuid.uuid4().hex, "task": task_id, "verb": verb, "content": Jsonb(dict(content)), "epoch": epoch}
        sent = await self.one(_ORDER, order)
        if sent is None or not sent["is_sent"]:
            return False
        is_open = True
        with anyio.move_on_after(_ORDER_SECONDS):
            while is_open:
                changed = self.watch(task_id)
                row = await self.one(_ORDERED, order)
                if row is not None and row["ended_at"] is not None:
                    _raise_refusal(row["refused"])
                    return True
                # False once the turn has ended, or its machine was lost.
                is_open = row is not None and row["is_open"]
                if is_open:
                    await sleep_until(changed, 1.0)
        # Taken back only if no machine has claimed it: then it was certainly not carried out, and never will be.
        if await self.one(_WITHDRAW, order) is None:
            raise FleetUnavailable(f"It is unknown whether the agent of task {task_id} has it. Look at its status.")
        if is_open:
            raise FleetUnavailable(f"The machine of task {task_id} does not answer. Nothing was sent; try again.")
        return False

    # --- stop --------------------------------------------------------------------------------------------------------

    async def cancel(self, reference: str, reason: str | None = None) -> Task:
        """Stop a task; returns when all of it has really stopped, or the time is up. One that has ended stays as it is."""
        task_id = (await self.get(reference)).id
        # The reason is stored, and shown to all clients.
        reason = clean_text(None if reason is None else redact(reason))
        await self.one(_CANCEL, {"task": task_id, "reason": reason, "kept": KEPT})
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


_CANCEL: Final = """
    with before as (select status = 'pending' as waits from helmsman_store.tasks where id = %(task)s for update),
    asked as (
        update helmsman_store.tasks set
            cancel_asked = true, updated_at = helmsman.now(), revision = revision + 1,
            status = case when waits then 'canceled' else status end,
            body = helmsman.with_facts(body,
                jsonb_build_object('cancelReason', coalesce(body::jsonb ->> 'cancelReason', %(reason)s))
                || case when not waits then '{}' else jsonb_build_object('note',
                    coalesce('It was cancelled: ' || %(reason)s,
                        case when epoch = 0 then 'It was cancelled before it began.' else 'It was cancelled.' end)
                ) end),
            completed_at = case when waits then helmsman.now() end,
            expires_at = case when waits then helmsman.now() + %(kept)s end
        from before where id = %(task)s and status in ('pending', 'working')
        returning id, worker, session_id, status
    ),
    told as (
        select pg_notify('helmsman_workers', waiting.queue) from asked, lateral (
            select queue from helmsman_store.tasks
            where session_id = asked.session_id and status = 'pending' and id <> asked.id order by number limit 1
        ) waiting where asked.status = 'canceled'
    )
    select (select count(*) from told), pg_notify('helmsman_fleet', id),
        case when status = 'working' then helmsman.tell_worker(worker, id) end
    from asked
"""
"""Cancel a task that waits, or ask its worker to stop it. The next task of the session may be claimed now."""


def _number(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    # Larger numbers would overflow the column's type.
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise InvalidInput(f"{cursor!r:.100} is not a cursor of this list. Use that of the page before, or none.")
    return int(cursor)


# --- orders to the machine of a running task --------------------------------------------------------------------------

_ORDER_SECONDS: Final = 30.0
_ORDER: Final = """
    with sent as (
        insert into helmsman.orders (id, task, epoch, verb, content)
        select %(id)s, id, epoch, %(verb)s, %(content)s from helmsman_store.tasks
        where id = %(task)s and status = 'working' and epoch = coalesce(%(epoch)s, epoch)
        on conflict do nothing returning id
    ),
    told as (
        select helmsman.tell_worker(worker, id) from helmsman_store.tasks where id = %(task)s and status = 'working'
    )
    select (select count(*) from told) as told,
        exists (select from sent) or exists (select from helmsman.orders where id = %(id)s) as is_sent
"""
_ORDERED: Final = """
    select placed.taken_at, placed.ended_at, placed.refused,
        task.status = 'working' and task.epoch = placed.epoch as is_open
    from helmsman.orders placed join helmsman_store.tasks task on task.id = placed.task where placed.id = %(id)s
"""
_WITHDRAW: Final = """
    update helmsman.orders set taken_at = clock_timestamp() where id = %(id)s and taken_at is null returning id
"""


def _raise_refusal(refused: Mapping[str, Any] | None) -> None:
    """Raise the refusal of an order as the same error as on its machine."""
    if refused is not None:
        kinds = {kind.code: kind for kind in (SessionIdle, Unsupported, QuestionNotOpen, AnswerInvalid)}
        raise kinds.get(str(refused.get("code")), FleetRefused)(str(refused.get("message")))
