"""Tables of a fleet, in the schema `helmsman`, and their migrations: one step per version.

A task is one of the store's, with further columns for its place in the queue. Its `placement` shows them.

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
    alter table helmsman_store.tasks
        add column queue text,
        add column priority int not null default 100,
        add column host text,
        add column labels text[] not null default '{}',
        add column not_before timestamptz,
        add column deadline timestamptz,
        add column epoch int not null default 0,
        add column worker text,
        add column agents_session text,
        add column is_handed_over boolean not null default false,
        add column log_from bigint,
        add column cancel_asked boolean not null default false,
        add column project text
    """,
    # Whatever statements workers run, a session has at most one turn at work.
    "create unique index one_turn_at_a_time on helmsman_store.tasks (session_id) where status = 'working'",
    "create index tasks_in_order on helmsman_store.tasks (session_id, number)",
    "create index tasks_in_queue on helmsman_store.tasks (priority, number) where status = 'pending'",
    "create index tasks_of_session_at_work on helmsman_store.tasks (session_id, number) "
    "where status in ('pending', 'working')",
    "create index tasks_delayed on helmsman_store.tasks (not_before) where status = 'pending' and not_before is not null",
    "create index tasks_by_worker on helmsman_store.tasks (worker) where status = 'working'",
    "create index tasks_by_agents_session on helmsman_store.tasks (agents_session) where agents_session is not null",
    "create index tasks_at_work on helmsman_store.tasks (status, number) where status in ('pending', 'working')",
    # Times of the store are microseconds.
    """
    create function helmsman.now() returns bigint language sql as $$
        select (extract(epoch from clock_timestamp()) * 1000000)::bigint
    $$
    """,
    """
    create function helmsman.with_facts(stored text, facts jsonb) returns text language sql immutable as $$
        select ((coalesce(stored, '{}')::jsonb || facts)
            - array(select key from jsonb_each(facts) where value = 'null'::jsonb))::text
    $$
    """,
    """
    create function helmsman.show_place() returns trigger language plpgsql as $$
    begin
        new.body := helmsman.with_facts(new.body, jsonb_build_object('placement', jsonb_strip_nulls(jsonb_build_object(
            'machine', nullif(split_part(new.worker, '~', 1), ''), 'attempt', nullif(new.epoch, 0), 'queue', new.queue,
            'priority', new.priority, 'host', new.host, 'notBefore', new.not_before, 'deadline', new.deadline,
            'labels', nullif(array(select label from unnest(new.labels) label where position(':' in label) = 0), '{}'),
            'agentsSession', new.agents_session
        ))));
        return new;
    end $$
    """,
    """
    create trigger show_place before update on helmsman_store.tasks for each row
    when (new.queue is not null and (new.queue, new.epoch, new.worker, new.labels, new.agents_session)
        is distinct from (old.queue, old.epoch, old.worker, old.labels, old.agents_session))
    execute function helmsman.show_place()
    """,
    """
    create table helmsman.questions (
        number bigint generated always as identity,
        task text not null references helmsman_store.tasks (id) on delete cascade,
        id text not null,
        epoch int not null,
        asked_at timestamptz not null default clock_timestamp(),
        content json not null,
        expires_at timestamptz,
        closed_at timestamptz,
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
        task text not null references helmsman_store.tasks (id) on delete cascade,
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

_ORDERS: Final[tuple[LiteralString, ...]] = (
    """
    create table helmsman.orders (
        number bigint generated always as identity,
        id text primary key,
        task text not null references helmsman_store.tasks (id) on delete cascade,
        epoch int not null,
        verb text not null,
        content jsonb not null,
        taken_at timestamptz,
        ended_at timestamptz,
        refused jsonb
    )
    """,
    "create index orders_by_task on helmsman.orders (task)",
)

_BUDGETS: Final[tuple[LiteralString, ...]] = (
    "create table helmsman.budget (key text primary key, amount double precision not null)",
    """
    create table helmsman.grants (
        key text not null,
        amount double precision not null,
        up_to double precision not null,
        day date not null default (clock_timestamp() at time zone 'UTC')::date,
        project text,
        task text not null references helmsman_store.tasks (id) on delete cascade
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
        values (subject, helmsman.now() + (seconds * 1000000)::bigint) on conflict do nothing
    $$
    """,
    """
    create function helmsman.notices_of(task helmsman_store.tasks) returns jsonb language sql immutable as $$
        select task.expiring::jsonb #> '{policy,notify}'
    $$
    """,
    """
    create function helmsman.tell_of_task() returns trigger language plpgsql as $$
    begin
        if helmsman.notices_of(old) is null then
            return null;
        elsif new.status in ('completed', 'failed') then
            perform helmsman.tell_of('task ' || new.id, 5);
        else
            perform helmsman.tell_of('limit ' || new.id || ' ' || coalesce(new.body::jsonb ->> 'resumesAt', ''), 0);
        end if;
        return null;
    end $$
    """,
    """
    create trigger tell_of_task after update on helmsman_store.tasks for each row
    when (old.status in ('pending', 'working') and (
        new.status in ('completed', 'failed')
        or (position('"waitingFor": "quota"' in new.body) > 0 and position('"waitingFor": "quota"' in old.body) = 0)
    )) execute function helmsman.tell_of_task()
    """,
    """
    create function helmsman.tell_of_question() returns trigger language plpgsql as $$
    begin
        perform helmsman.tell_of(
            'question ' || new.task || ' ' || new.epoch || ' ' || new.id,
            coalesce((helmsman.notices_of(task) ->> 'unanswered')::float, 20)
        ) from helmsman_store.tasks task where id = new.task and helmsman.notices_of(task) is not null;
        return null;
    end $$
    """,
    """
    create trigger tell_of_question after insert on helmsman.questions
    for each row execute function helmsman.tell_of_question()
    """,
)

_STEPS: Final[tuple[tuple[LiteralString, ...], ...]] = ((*_FIRST, *_BUDGETS, *_NOTICES, *_ORDERS),)
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
