"""Tables of a fleet, in the schema `helmsman`, and their migrations: one step per version.

A task is a row of `queue`. The view `tasks` shows these rows as tasks of the store, which the store's own code reads.

A released step never changes. Steps only add, so that workers of the previous version continue while others are
upgraded; an incompatible step raises `_OLDEST`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, LiteralString

import psycopg

from helmsman.errors import FleetNotReady
from helmsman.fleet.database import not_ready
from helmsman.store.schema import CURRENT

if TYPE_CHECKING:
    from helmsman.fleet.database import DatabaseConnection, FleetDatabase

LOCK: Final = 0x48454C4D
"""Advisory locks of a fleet: this one for migrations, the next for the reaper."""

_FIRST: Final[tuple[LiteralString, ...]] = (
    """
    create table helmsman.workers (
        id text primary key,
        name text not null unique,
        place text not null,
        seen timestamptz not null default clock_timestamp(),
        lease real not null,
        labels text[] not null,
        agents jsonb not null,
        capacity int not null,
        version text not null,
        draining boolean not null default false
    )
    """,
    """
    create table helmsman.queue (
        number bigint generated always as identity unique,
        id text primary key,
        key text unique,
        alias text not null,
        lane text not null,
        status text not null default 'pending',
        note text,
        agent text not null,
        instruction text not null,
        directory text,
        session_id text,
        turn_id text,
        created_at timestamptz not null default clock_timestamp(),
        updated_at timestamptz not null default clock_timestamp(),
        begun_at timestamptz,
        completed_at timestamptz,
        last_event_at timestamptz,
        expires_at timestamptz,
        progress jsonb,
        input_required boolean not null default false,
        result text,
        error jsonb,
        usage jsonb,
        model text,
        metadata jsonb not null default '{}',
        spec jsonb not null,
        queue text not null,
        priority int not null,
        not_before timestamptz,
        deadline timestamptz,
        labels text[] not null default '{}',
        host text,
        epoch int not null default 0,
        worker text,
        is_handed_over boolean not null default false,
        log_from bigint,
        cancel_reason text,
        cancel_asked boolean not null default false,
        stopped_at timestamptz,
        revision int not null default 0
    )
    """,
    "create index tasks_by_alias on helmsman.queue (alias)",
    # Whatever statements workers run, a session has at most one turn at work.
    "create unique index one_turn_at_a_time on helmsman.queue (lane) where status = 'working'",
    "create index tasks_by_lane on helmsman.queue (lane, number)",
    "create index tasks_in_queue on helmsman.queue (priority, number) where status = 'pending'",
    "create index tasks_of_lane_at_work on helmsman.queue (lane, number) where status in ('pending', 'working')",
    "create index tasks_delayed on helmsman.queue (not_before) where status = 'pending' and not_before is not null",
    "create index tasks_by_worker on helmsman.queue (worker) where status = 'working'",
    "create index tasks_by_session on helmsman.queue (session_id) where session_id is not null",
    "create index tasks_at_work on helmsman.queue (status, number) where status in ('pending', 'working')",
    "create index tasks_by_expiry on helmsman.queue (expires_at) where expires_at is not null",
    """
    create table helmsman.questions (
        number bigint generated always as identity,
        task text not null references helmsman.queue on delete cascade,
        id text not null,
        epoch int not null,
        asked_at timestamptz not null default clock_timestamp(),
        content json not null,
        expires_at timestamptz,
        answer jsonb,
        answered_by jsonb,
        answered_at timestamptz,
        closed_at timestamptz,
        refused text,
        primary key (task, id, epoch)
    )
    """,
    "create index questions_open on helmsman.questions (task) where closed_at is null",
    """
    create table helmsman.rollouts (
        session_id text not null,
        file text not null,
        start bigint not null,
        task text not null,
        epoch int not null,
        at timestamptz not null default clock_timestamp(),
        data bytea not null,
        primary key (session_id, file, start)
    )
    """,
    """
    create function helmsman.tell_worker(worker text, task text) returns void language sql
    as $$ select pg_notify('helmsman_worker_' || split_part(worker, '~', 2), task) $$
    """,
    "create index rollouts_by_task on helmsman.rollouts (task)",
    """
    create table helmsman.bundles (
        task text not null references helmsman.queue on delete cascade,
        kind text not null,
        part int not null,
        epoch int not null,
        at timestamptz not null default clock_timestamp(),
        about jsonb not null default '{}',
        data bytea not null,
        primary key (task, kind, part)
    )
    """,
)

_MESSAGES: Final[tuple[LiteralString, ...]] = (
    """
    create table helmsman.messages (
        number bigint generated always as identity,
        id text primary key,
        task text not null references helmsman.queue on delete cascade,
        epoch int not null,
        text text not null,
        taken_at timestamptz,
        ended_at timestamptz,
        refused jsonb
    )
    """,
    "create index messages_by_task on helmsman.messages (task)",
)

_BUDGETS: Final[tuple[LiteralString, ...]] = (
    "create table helmsman.budget (key text primary key, amount double precision not null)",
    """
    create table helmsman.spendings (
        task text not null references helmsman.queue on delete cascade,
        epoch int not null,
        part int not null,
        day date not null default (clock_timestamp() at time zone 'UTC')::date,
        project text,
        usd double precision not null,
        tokens double precision not null,
        primary key (task, epoch, part)
    )
    """,
    "create index spendings_by_day on helmsman.spendings (day)",
    """
    create table helmsman.grants (
        key text not null,
        amount double precision not null,
        up_to double precision not null,
        day date not null default (clock_timestamp() at time zone 'UTC')::date,
        project text,
        task text not null references helmsman.queue on delete cascade
    )
    """,
    "create index grants_by_day on helmsman.grants (day)",
)
"""Days are those of UTC, by the database's clock: its machines may be anywhere."""

_NOTICES: Final[tuple[LiteralString, ...]] = (
    # Entries in the outbox of the store, written with the change that they tell of. Of an end some seconds later: it may be
    # seen. Questions may be answered.
    """
    create function helmsman.tell_of(subject text, seconds float) returns void language sql as $$
        insert into helmsman_store.notices_due (about, at)
        values (subject, ((extract(epoch from clock_timestamp()) + seconds) * 1000000)::bigint) on conflict do nothing
    $$
    """,
    """
    create function helmsman.tell_of_task() returns trigger language plpgsql as $$
    begin
        if new.status in ('completed', 'failed') then
            perform helmsman.tell_of('task ' || new.id, 5);
        else
            perform helmsman.tell_of('limit ' || new.id || ' ' || coalesce(new.metadata ->> 'resumesAt', ''), 0);
        end if;
        return null;
    end $$
    """,
    """
    create trigger tell_of_task after update of status, metadata on helmsman.queue for each row
    when (new.metadata ? 'notify' and old.status in ('pending', 'working') and (
        new.status in ('completed', 'failed')
        or (new.metadata ->> 'waitingFor' = 'quota' and old.metadata ->> 'waitingFor' is distinct from 'quota')
    )) execute function helmsman.tell_of_task()
    """,
    """
    create function helmsman.tell_of_question() returns trigger language plpgsql as $$
    begin
        perform helmsman.tell_of(
            'question ' || new.task || ' ' || new.epoch || ' ' || new.id,
            coalesce((metadata #>> '{notify,unanswered}')::float, 20)
        ) from helmsman.queue where id = new.task and metadata ? 'notify';
        return null;
    end $$
    """,
    """
    create trigger tell_of_question after insert on helmsman.questions
    for each row execute function helmsman.tell_of_question()
    """,
)

_VIEWED: Final[tuple[LiteralString, ...]] = (
    """
    create function helmsman.microseconds(moment timestamptz) returns bigint language sql stable as $$
        select (extract(epoch from moment) * 1000000)::bigint
    $$
    """,
    """
    create function helmsman.session_of(lane text) returns text language sql immutable as $$
        select 'fleet-' || case when starts_with(lane, 'T-fleet-') then substr(lane, 9) else lane end
    $$
    """,
    "create index queue_by_session on helmsman.queue (helmsman.session_of(lane))",
)

_TASKS: Final = {
    **{name: name for name in ("number", "id", "agent", "alias", "status", "turn_id", "model", "revision")},
    **{name: f"helmsman.microseconds({name})" for name in ("created_at", "updated_at", "completed_at", "expires_at")},
    "origin": "'fleet'",
    "directory": "coalesce(metadata ->> 'place', directory)",
    "session_id": "helmsman.session_of(lane)",
    "idempotency_key": "key",
    "usage": "usage::text",
    "result_compacted": "0::bigint",
    "expiring": """jsonb_strip_nulls(jsonb_build_object(
        'result', result, 'progress', progress, 'policy', metadata, 'storedOptions', metadata -> 'options'))::text""",
    "body": """jsonb_strip_nulls(jsonb_build_object(
        'note', note, 'instruction', instruction, 'error', error, 'cancelReason', cancel_reason,
        'lastEventAt', last_event_at, 'inputRequired', input_required,
        'maxCostUsd', metadata -> 'maxCostUsd', 'schedule', metadata -> 'schedule',
        'waitingFor', case when status in ('pending', 'working') then metadata -> 'waitingFor' end,
        'resumesAt', case when status in ('pending', 'working') then metadata -> 'resumesAt' end,
        'placement', jsonb_build_object(
            'machine', nullif(split_part(worker, '~', 1), ''), 'attempt', nullif(epoch, 0), 'queue', queue,
            'priority', priority, 'host', host, 'notBefore', not_before, 'deadline', deadline,
            'labels', nullif(array(select label from unnest(labels) label where position(':' in label) = 0), '{}'),
            'agentsSession', session_id)))::text""",
}
"""Columns of the store's tasks, from the queue. The others are not known of a fleet's tasks."""
_COLUMNS: Final = (
    "select column_name as name, data_type as type from information_schema.columns "
    "where table_schema = 'helmsman_store' and table_name = 'tasks' order by ordinal_position"
)

_STEPS: Final[tuple[tuple[LiteralString, ...], ...]] = ((*_FIRST, *_VIEWED, *_BUDGETS, *_NOTICES, *_MESSAGES),)
VERSION: Final = len(_STEPS)
_OLDEST: Final = 1
"""Oldest version with code that can work with these tables."""


async def migrate(connection: DatabaseConnection) -> int:
    """Migrate the tables to this version, safe against concurrent migrations. Return the previous version."""
    async with connection.transaction():
        # Several machines may be upgraded at the same time.
        await connection.execute("select pg_advisory_xact_lock(%s)", (LOCK,))
        await connection.execute("create schema if not exists helmsman")
        await connection.execute(
            "create table if not exists helmsman.fleet "
            "(one boolean primary key default true check (one), version int not null, oldest int not null)"
        )
        row = await (await connection.execute("select version from helmsman.fleet")).fetchone()
        before = 0 if row is None else int(row["version"])
        # Only the missing steps; a released step never changes.
        for statement in (statement for step in _STEPS[before:] for statement in step):
            await connection.execute(statement)
        # The store may have added columns since, so the view is made anew.
        columns = await (await connection.execute(_COLUMNS)).fetchall()
        shown = (f"{_TASKS.get(one['name'], 'null::' + one['type'])} as {one['name']}" for one in columns)
        view = f"create or replace view helmsman.tasks as select {', '.join(shown)} from helmsman.queue"  # noqa: S608
        await connection.execute(view.encode())
        if before < VERSION:
            await connection.execute(
                "insert into helmsman.fleet (version, oldest) values (%s, %s) "
                "on conflict (one) do update set version = excluded.version, oldest = excluded.oldest",
                (VERSION, _OLDEST),
            )
    return before


async def require_schema(database: FleetDatabase) -> None:
    """Check that this version can work with the tables.

    Raises:
        FleetNotReady: They do not exist, or are too old or too new.
    """
    try:
        tables = [(await database.one("select version, oldest from helmsman.fleet"), VERSION)]
        # The doctor tells of a role that may not read the store.
        with suppress(psycopg.errors.InsufficientPrivilege):
            tables.append((await database.one("select version, oldest from helmsman_store.schema_version"), CURRENT))
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        raise not_ready() from None
    for row, version in tables:
        if row is None:
            raise not_ready()
        if row["version"] < version:
            raise FleetNotReady(
                f"The fleet's tables are of version {row['version']}, and this Helmsman needs {version}. Upgrade them, "
                "while others go on working: helmsman fleet init postgresql://…"
            )
        if row["oldest"] > version:
            raise FleetNotReady(
                f"The fleet's tables are of version {row['version']}, which this Helmsman does not know. Upgrade it here."
            )
