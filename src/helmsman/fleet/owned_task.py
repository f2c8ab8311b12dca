"""Writes of a worker to a task that it has claimed. Every statement checks the claim.

Each claim of a task raises its epoch. Writes of an earlier owner are refused (`NotOwner`), regardless of the state of its
queue, lease and clock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, LiteralString, NamedTuple, Self, Unpack

from psycopg.types.json import Json

from helmsman.base.redaction import redact_value
from helmsman.base.structs import pack
from helmsman.fleet.values import CLIENTS, KEPT, clean_text, jsonb
from helmsman.model.events import Failure, TurnEnded, Usage
from helmsman.store.log import NewEvent
from helmsman.tasks.outcome import to_keep
from helmsman.tasks.rows import changed_columns, clean, task_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg.rows import DictRow

    from helmsman.fleet.database import FleetDatabase
    from helmsman.model.events import TurnOutcome
    from helmsman.model.questions import Question
    from helmsman.tasks.model import Task, TaskChanges
    from helmsman.tasks.outcome import TaskOutcome


class NotOwner(Exception):
    """Worker has lost its claim to the task and must stop working on it."""


class MachineOffer(NamedTuple):
    """Tasks that a worker may run: those for its machine, and those of its agents whose labels it has."""

    worker: str
    name: str
    agents: list[str]
    labels: list[str]


# # The lock keeps other workers from claiming the task before the statement is over. It is the one that an update of the row
# # takes: two writers that share a weaker one and then update the row would wait for each other.
# # A task that was put back is no longer this worker's, even before another one claims it.
_OWNED: Final = """
    with owned as (
        select id, session_id from helmsman_store.tasks
        where id = %(task)s and epoch = %(epoch)s and status = 'working' for no key update
    )
"""
_TOLD: Final = ", told as (select pg_notify('helmsman_fleet', %(task)s) from owned)"
"""Notification inside the statement. Frequent writes notify afterwards instead (`FleetDatabase.notify`)."""


def _logged(source: LiteralString) -> LiteralString:
    """Return the part of a statement that appends events to the log of a session (`helmsman.store.log`).

    Nothing is appended if the log does not end where this worker knows it to end.
    """
    return f"""logged as (
        insert into helmsman_store.sessions as log (id, last_seq, changed_at)
        select session_id, %(count)s, %(changed_at)s from {source}
        on conflict (id) do update set last_seq = log.last_seq + excluded.last_seq, changed_at = excluded.changed_at
        where log.last_seq = %(logged)s
        returning number
    ),
    added as (
        insert into helmsman_store.events (session, seq, at, kind, body)
        select number, %(logged)s + event.place, event.at, event.kind, event.body
        from logged, unnest(%(times)s::bigint[], %(kinds)s::text[], %(bodies)s::text[]) with ordinality
            event (at, kind, body, place)
    )"""  # noqa: S608 - of constants


# # In `returning`, a subquery still sees the row as it was: `worker_before`.
_CLAIMED: Final[LiteralString] = """
    ), claimed as (
        update helmsman_store.tasks mine set
            epoch = epoch + 1, worker = %(worker)s, status = 'working',
            body = helmsman.with_facts(body, '{"inputRequired": null}'),
            agents_session = coalesce(agents_session, (
                select before.agents_session from helmsman_store.tasks before
                where before.session_id = mine.session_id and before.agents_session is not null
                order by before.number desc limit 1
            )),
            log_from = coalesce(log_from, (
                select last_seq from helmsman_store.sessions where id = mine.session_id
            ), 0),
            updated_at = helmsman.now(), revision = revision + 1
        where id in (select id from picked)
        returning *, extract(epoch from deadline - clock_timestamp())::float as seconds_left,
            (select was.worker from helmsman_store.tasks was where was.id = mine.id) as worker_before,
            coalesce((
                select last_seq from helmsman_store.sessions where id = mine.session_id
            ), 0) as logged
    ),
    closed as (
        update helmsman.questions set closed_at = clock_timestamp()
        from claimed where task = claimed.id and closed_at is null
    ),
    told as (select pg_notify('helmsman_fleet', id) from claimed)
    select claimed.*, (select count(*) from told) as told, (
        select extract(epoch from min(not_before) - now())::float from helmsman_store.tasks
        where status = 'pending' and not_before > now()
    ) as due
    from (select) one left join claimed on true order by priority, number
"""
"""Claim the picked tasks: raise their epochs. There is always a row, for the seconds until the next delayed task is due."""
# # With `skip locked`, workers that claim at the same time do not wait for each other.
_NEXT: Final[LiteralString] = """
    with picked as (
        select id from helmsman_store.tasks task
        where status = 'pending' and (not_before is null or not_before <= now())
            and exists (select from helmsman.workers where id = %(worker)s)
            and case when host is not null then host = %(name)s
                else agent = any(%(agents)s) and labels <@ %(labels)s and (
                    queue not like 'host:%%' or queue = 'host:' || %(name)s
                    or updated_at < helmsman.now() - %(patience)s * 1000000
                    or not exists (select from helmsman.workers where 'host:' || name = task.queue and not draining)
                ) end
            and not exists (
                select from helmsman_store.tasks other
                where other.session_id = task.session_id and other.id <> task.id
                    and (other.status = 'working' or (other.status = 'pending' and other.number < task.number))
            )
        order by priority, number limit %(most)s for update skip locked
"""
"""Pick pending tasks that a living worker may run: the first of each session, by priority and age.

A task that follows another on the same machine waits some seconds for that machine, because its files are there.
"""
_AGAIN: Final[LiteralString] = """
    with picked as (
        select id from helmsman_store.tasks
        where id = %(task)s and epoch = %(epoch)s and status = 'working' and worker = %(worker)s for update
"""
_PATIENCE_SECONDS: Final = 15

_FINISH: Final[LiteralString] = f"""
    with ended as (
        update helmsman_store.tasks set
            status = %(status)s, turn_id = coalesce(%(turn_id)s, turn_id), usage = coalesce(%(usage)s, usage),
            model = coalesce(%(model)s, model),
            body = helmsman.with_facts(body, %(body)s), expiring = helmsman.with_facts(expiring, %(expiring)s),
            completed_at = helmsman.now(), updated_at = helmsman.now(), expires_at = helmsman.now() + %(kept)s,
            revision = revision + 1
        where id = %(task)s and epoch = %(epoch)s and status = 'working'
        returning id, session_id
    ),
    outcome as (
        insert into helmsman_store.outcomes (task_id, content) select id, %(outcome)s from ended
        on conflict (task_id) do update set content = excluded.content
    ),
    closed as (
        update helmsman.questions set closed_at = clock_timestamp() from ended where task = ended.id and closed_at is null
    ),
    {_logged("ended")},
    told as (
        select pg_notify('helmsman_fleet', id) from ended
        union all
        select pg_notify('helmsman_workers', waiting.queue) from ended, lateral (
            select queue from helmsman_store.tasks
            where session_id = ended.session_id and status = 'pending' order by number limit 1
        ) waiting
    )
    select (select count(*) from ended) as ended, (select count(*) from told) as told,
        exists (
            select from helmsman_store.tasks where id = %(task)s and epoch = %(epoch)s and status = %(status)s
        ) as had_ended
"""  # noqa: S608 - of constants


@dataclass(slots=True)
class OwnedTask:
    """Task that this worker has claimed under an epoch. `row` is its row at the time of the claim."""

    database: FleetDatabase
    row: DictRow
    logged: int = 0
    """Number of the last event in the log of the session."""

    @property
    def id(self) -> str:
        return str(self.row["id"])

    @property
    def session_id(self) -> str:
        """Session that clients know, to which the task belongs."""
        return str(self.row["session_id"])

    @property
    def task(self) -> Task:
        """Return the task as it was at the time of the claim."""
        return task_of(self.row)

    @property
    def used_before(self) -> Usage:
        """Return the usage of earlier attempts."""
        return self.task.usage or Usage()

    @property
    def epoch(self) -> int:
        return int(self.row["epoch"])

    @classmethod
    async def claim(cls, database: FleetDatabase, offer: MachineOffer, most: int) -> tuple[list[Self], float | None]:
        """Claim waiting tasks for a worker. Also return the seconds until the next delayed task is due, if there is one."""
        values = {**offer._asdict(), "patience": _PATIENCE_SECONDS, "most": most}
        rows = await database.all(_NEXT + _CLAIMED, values)
        claimed = [cls(database, row, row["logged"]) for row in rows if row["id"] is not None]
        return claimed, rows[0]["due"]

    async def claim_again(self) -> Self | None:
        """Begin the task again on this worker, under a new epoch. Return None if this worker has lost it."""
        values = {"task": self.id, "epoch": self.epoch, "worker": self.row["worker"]}
        row = await self.database.one(_AGAIN + _CLAIMED, values)
        return None if row is None or row["id"] is None else type(self)(self.database, row, row["logged"])

    async def _write(
        self, parts: LiteralString, *, often: bool = False, found: LiteralString = "", **values: Any
    ) -> DictRow:
        """Run a statement of these parts if the claim holds, and return what it has `found`. Clients are notified."""
        # A notification inside the statement makes transactions wait for each other.
        told, counted = ("", "") if often else (_TOLD, ", (select count(*) from told) as told")
        sql = f"{_OWNED}{told}{parts} select (select count(*) from owned) as owned{counted}{found}"  # noqa: S608
        row = await self.database.one(sql, {"task": self.id, "epoch": self.epoch, **values})
        # It was put back, or another worker has claimed it: stop here.
        if row is None or not row["owned"]:
            raise NotOwner(self.id)
        if often:
            await self.database.notify((CLIENTS, self.id))
        return row

    async def update(
        self, *, agents_session: str | None = None, label: str | None = None, **changes: Unpack[TaskChanges]
    ) -> None:
        """Change the task. `label` adds a label that the task requires."""
        # Every client can read the stored text.
        columns, body, expiring = changed_columns(clean({"last_event_at": datetime.now(UTC), **changes}))
        values: dict[str, Any] = {"turn_id": None, "model": None, "usage": None, "used_before": None, **columns}
        sql = """,
            changed as (
                update helmsman_store.tasks task set
                    agents_session = coalesce(%(agents_session)s, agents_session),
                    turn_id = coalesce(%(turn_id)s, turn_id), model = coalesce(%(model)s, model),
                    usage = coalesce(%(usage)s, usage), used_before = coalesce(%(used_before)s, used_before),
                    body = helmsman.with_facts(body, %(body)s), expiring = helmsman.with_facts(expiring, %(expiring)s),
                    labels = case when %(label)s::text is null or %(label)s = any (labels) then labels
                        else labels || %(label)s::text end,
                    updated_at = helmsman.now(), revision = revision + 1
                from owned where task.id = owned.id
            )
        """
        values |= {"agents_session": agents_session, "label": label, "body": jsonb(body), "expiring": jsonb(expiring)}
        await self._write(sql, often=True, **values)

    async def add_events(self, events: Sequence[NewEvent]) -> None:
        """Append events to the log of the session. A repeated call appends them once."""
        found: LiteralString = """, (select count(*) from logged) as logged, (
            select last_seq from helmsman_store.sessions log, owned where log.id = owned.session_id
        ) as before"""
        while True:
            row = await self._write(f", {_logged('owned')}", often=True, found=found, **self._to_log(events))
            # A repeated statement finds its own events in the log already.
            if row["logged"] or row["before"] == self.logged + len(events):
                self.logged += len(events)
                return
            self.logged = row["before"] or 0

    def _to_log(self, events: Sequence[NewEvent]) -> dict[str, Any]:
        new = [event.redacted() for event in events]
        return {
            "count": len(new),
            "changed_at": new[-1].at,
            "logged": self.logged,
            "times": [event.at for event in new],
            "kinds": [event.kind for event in new],
            # Postgres cannot store NUL characters.
            "bodies": [clean_text(event.body) for event in new],
        }

    async def add_rollout(self, session_id: str, file: str, start: int, data: bytes) -> None:
        """Store a part of what its session has written, in place of all that is stored of that file from there on."""
        sql = """,
            after as (
                delete from helmsman.rollouts using owned
                where rollouts.session_id = %(session)s and file = %(file)s and start > %(start)s
            ),
            added as (
                insert into helmsman.rollouts (session_id, file, start, task, epoch, data)
                select %(session)s, %(file)s, %(start)s, id, %(epoch)s, %(data)s from owned
                on conflict (session_id, file, start)
                do update set task = excluded.task, epoch = excluded.epoch, at = clock_timestamp(), data = excluded.data
            )
        """
        await self._write(sql, session=session_id, file=file, start=start, data=data)

    async def cut_rollouts(self, session_id: str, sizes: Mapping[str, int]) -> None:
        """Delete what the session wrote beyond these file sizes. The entry `name` is not a file and stays."""
        sql = """,
            cut as (
                delete from helmsman.rollouts using owned
                where rollouts.session_id = %(session)s and file <> 'name'
                    and start >= coalesce((%(sizes)s::jsonb ->> file)::bigint, 0)
            )
        """
        await self._write(sql, session=session_id, sizes=jsonb(sizes))

    async def put_piece(self, kind: str, part: int, data: bytes) -> None:
        """Store a piece of what became of its tree. It counts once `put_result` says so."""
        sql = """,
            put as (
                insert into helmsman.bundles (task, kind, part, epoch, data)
                select id, %(kind)s, %(part)s, %(epoch)s, %(data)s from owned on conflict do nothing
            )
        """
        await self._write(sql, kind=kind, part=part, data=data)

    async def put_result(self, kind: str, about: Mapping[str, Any]) -> None:
        """Record that the pieces of this kind hold the changed tree, and delete all other pieces of the session."""
        sql = """,
            put as (
                insert into helmsman.bundles (task, kind, part, epoch, about, data)
                select id, 'result', 0, %(epoch)s, %(about)s, '' from owned
                on conflict (task, kind, part) do update
                set epoch = excluded.epoch, about = excluded.about, at = clock_timestamp()
            ),
            gone as (
                delete from helmsman.bundles old using owned, helmsman_store.tasks mine, helmsman_store.tasks other
                where mine.id = owned.id and other.session_id = mine.session_id and old.task = other.id
                    and starts_with(old.kind, 'result') and not (old.task = mine.id and old.kind in ('result', %(kind)s))
            )
        """
        await self._write(sql, kind=kind, about=jsonb(about))

    async def move_result(self, rollouts: Mapping[str, int]) -> None:
        """Record that the stored tree still holds and belongs to more of the transcript."""
        sql = """,
            moved as (
                update helmsman.bundles set about = about || %(about)s, at = clock_timestamp(), epoch = %(epoch)s
                from owned where task = owned.id and kind = 'result'
            )
        """
        await self._write(sql, about=jsonb({"rollouts": dict(rollouts)}))

    # --- questions ---------------------------------------------------------------------------------------------------

    async def ask(self, question: Question, seconds: float | None) -> None:
        """Publish a question to all clients. It ends with this epoch."""
        sql = """,
            asked as (
                insert into helmsman.questions (task, id, epoch, content, expires_at)
                select id, %(question)s, %(epoch)s, %(content)s, clock_timestamp() + make_interval(secs => %(seconds)s)
                from owned on conflict do nothing
            ),
            waiting as (
                update helmsman_store.tasks task set
                    body = helmsman.with_facts(body, '{"inputRequired": true}'), updated_at = helmsman.now(),
                    revision = revision + 1
                from owned where task.id = owned.id
            )
        """
        # A question may quote a command with a secret.
        await self._write(sql, question=question.id, content=Json(redact_value(pack(question))), seconds=seconds)

    async def close_question(self, question_id: str) -> None:
        """Close a question, answered or not."""
        sql = """,
            closed as (
                update helmsman.questions set closed_at = coalesce(closed_at, clock_timestamp())
                from owned where task = owned.id and epoch = %(epoch)s and helmsman.questions.id = %(question)s
            ),
            waiting as (
                update helmsman_store.tasks task set
                    body = helmsman.with_facts(body, jsonb_build_object('inputRequired', exists (
                        select from helmsman.questions
                        where task = %(task)s and epoch = %(epoch)s and closed_at is null and id <> %(question)s
                    ))), updated_at = helmsman.now(), revision = revision + 1
                from owned where task.id = owned.id
            )
        """
        await self._write(sql, question=question_id)

    # --- orders of clients -------------------------------------------------------------------------------------------

    async def orders(self) -> DictRow:
        """Return the cancellation, and the orders that wait for this task."""
        row = await self.database.one(
            """
            select cancel_asked, body::jsonb ->> 'cancelReason' as cancel_reason, deadline < clock_timestamp() as is_late, (
                select coalesce(
                    jsonb_agg(jsonb_build_object('id', id, 'verb', verb, 'content', content) order by number), '[]'
                ) from helmsman.orders where task = %(task)s and epoch = %(epoch)s and taken_at is null
            ) as orders
            from helmsman_store.tasks where id = %(task)s and epoch = %(epoch)s and status = 'working'
            """,
            {"task": self.id, "epoch": self.epoch},
        )
        # Cancelled and ended elsewhere, or claimed by another worker.
        if row is None:
            raise NotOwner(self.id)
        return row

    async def take_order(self, order_id: str) -> bool:
        """Claim an order. Return True once per order, even if it then fails."""
        sql = """,
            taken as (
                update helmsman.orders set taken_at = clock_timestamp()
                from owned where helmsman.orders.id = %(order)s and task = owned.id and taken_at is null
                returning task
            )
        """
        found: LiteralString = ", (select count(*) from taken) as taken"
        return bool((await self._write(sql, found=found, order=order_id))["taken"])

    async def end_order(self, order_id: str, refused: Mapping[str, Any] | None = None) -> None:
        """Record that an order was carried out, or why not."""
        sql = """,
            ended as (
                update helmsman.orders
                set taken_at = coalesce(taken_at, clock_timestamp()), ended_at = clock_timestamp(), refused = %(refused)s
                from owned where helmsman.orders.id = %(order)s and task = owned.id
            )
        """
        await self._write(sql, order=order_id, refused=jsonb(refused))

    # --- its end -----------------------------------------------------------------------------------------------------

    async def finish(self, end: TaskChanges, outcome: TaskOutcome | None = None) -> None:
        """Write how it has ended (`end_of`), when all of it has stopped. Asked again for the same, nothing changes."""
        ended_at = {"last_event_at": datetime.now(UTC), "input_required": False}
        known = clean({**dict.fromkeys(_UNSAID), **ended_at, **end})
        # The end in the log and the columns are written in one statement, so they cannot disagree.
        ended = ended_turn(self.session_id, known)
        columns, body, expiring = changed_columns(known)
        row = await self.database.one(
            _FINISH,
            {
                **columns,
                "body": jsonb(body),
                "expiring": jsonb(expiring),
                "task": self.id,
                "epoch": self.epoch,
                "kept": KEPT,
                **self._to_log([NewEvent.of(ended)]),
                "outcome": clean_text(json.dumps({} if outcome is None else to_keep(outcome))),
            },
        )
        # A retry after a lost answer finds its own result.
        if row is None or not (row["ended"] or row["had_ended"]):
            raise NotOwner(self.id)


_UNSAID: Final = (
    "note",
    "turn_id",
    "result",
    "error",
    "usage",
    "model",
    "progress",
    "spec",
    "waiting_for",
    "resumes_at",
)
"""Fields that an end sets to None, unless it has them."""


def ended_turn(session_id: str, end: Mapping[str, Any]) -> TurnEnded:
    """Return the end of a turn for the log and for clients, from the columns that record it."""
    outcomes: Mapping[str, TurnOutcome] = {"completed": "completed", "canceled": "interrupted"}
    outcome, error = outcomes.get(end["status"], "failed"), end["error"] or {}
    failure = Failure(
        code=str(error.get("code", "unknown")),
        message=str(error.get("message") or end["note"] or "Its outcome is unknown."),
        retryable=bool(error.get("retryable")),
    )
    return TurnEnded(
        session_id=session_id,
        turn_id=end["turn_id"],
        outcome=outcome,
        failure=failure if outcome == "failed" else None,
        final_message=end["result"],
    )


def end_of(task: Task) -> TaskChanges:
    """Return the changes that record the end of a task."""
    return {
        "status": task.status,
        "note": task.note,
        "turn_id": task.turn_id,
        "result": task.result,
        "error": task.error,
        "usage": task.usage,
        "model": task.model,
    }
