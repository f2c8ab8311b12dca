"""The schema of the registry and how it came to be: one step per version, applied in order.

`PRAGMA user_version` says which steps a file has had. A step is never changed once it was released: a new one is added,
and `tests/tasks/schemas` gets a dump of the version before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.errors import RegistryTooNew

if TYPE_CHECKING:
    import sqlite3

_FIRST: Final = (
    """
    CREATE TABLE tasks (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        origin TEXT NOT NULL,
        alias TEXT NOT NULL,
        status TEXT NOT NULL,
        note TEXT,
        instruction TEXT NOT NULL,
        directory TEXT,
        session_id TEXT,
        turn_id TEXT,
        external_id TEXT,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        completed_at INTEGER,
        last_event_at INTEGER,
        progress TEXT,
        input_required INTEGER NOT NULL DEFAULT 0,
        poll_ms INTEGER NOT NULL,
        expires_at INTEGER,
        idempotency_key TEXT UNIQUE,
        owner_pid INTEGER,
        owner_started TEXT,
        result TEXT,
        error TEXT,
        metadata TEXT NOT NULL DEFAULT '{}',
        result_compacted INTEGER NOT NULL DEFAULT 0
    )
    """,
    "CREATE INDEX tasks_by_alias ON tasks (alias)",
    "CREATE INDEX tasks_by_status ON tasks (status)",
    "CREATE INDEX tasks_by_session ON tasks (session_id, turn_id)",
    "CREATE INDEX tasks_by_creation ON tasks (created_at)",
)

_ENGINES_AND_USAGE: Final = (
    "ALTER TABLE tasks ADD COLUMN engine TEXT",
    "ALTER TABLE tasks ADD COLUMN model TEXT",
    "ALTER TABLE tasks ADD COLUMN input_tokens INTEGER",
    "ALTER TABLE tasks ADD COLUMN cached_input_tokens INTEGER",
    "ALTER TABLE tasks ADD COLUMN output_tokens INTEGER",
    "ALTER TABLE tasks ADD COLUMN reasoning_output_tokens INTEGER",
)

_REVISIONS: Final = (
    "ALTER TABLE tasks ADD COLUMN revision INTEGER NOT NULL DEFAULT 0",
    "CREATE INDEX tasks_by_expiry ON tasks (expires_at) WHERE expires_at IS NOT NULL",
)

_AGENTS: Final = ("ALTER TABLE tasks ADD COLUMN agent TEXT NOT NULL DEFAULT 'codex'",)

_CALLS: Final = (
    """
    CREATE TABLE calls (
        pipe TEXT NOT NULL,
        seq INTEGER NOT NULL,
        pid INTEGER NOT NULL,
        started TEXT NOT NULL,
        begun_at INTEGER NOT NULL,
        answer TEXT,
        PRIMARY KEY (pipe, seq)
    )
    """,
)

_SPECS_AND_EPOCHS: Final = (
    "ALTER TABLE tasks ADD COLUMN spec TEXT",
    "CREATE TABLE hub (epoch INTEGER NOT NULL)",
    "INSERT INTO hub VALUES (0)",
)

_OUTCOMES: Final = ("CREATE TABLE outcomes (task_id TEXT PRIMARY KEY, content TEXT NOT NULL)",)
"""Apart from the tasks, since these are listed, and what a task did may be large."""

_SCHEDULES: Final = (
    """
    CREATE TABLE schedules (
        id TEXT PRIMARY KEY,
        directory TEXT NOT NULL,
        content TEXT NOT NULL,
        next_at INTEGER,
        is_paused INTEGER NOT NULL DEFAULT 0,
        created_at INTEGER NOT NULL
    )
    """,
    """
    CREATE TABLE schedule_runs (
        schedule TEXT NOT NULL REFERENCES schedules (id),
        due_at INTEGER NOT NULL,
        entered_at INTEGER NOT NULL,
        task_id TEXT,
        note TEXT,
        PRIMARY KEY (schedule, due_at)
    )
    """,
)

_NOTICES: Final = (
    """
    CREATE TABLE notices (
        id TEXT PRIMARY KEY,
        about TEXT NOT NULL UNIQUE,
        content TEXT NOT NULL,
        created_at INTEGER NOT NULL
    )
    """,
    """
    CREATE TABLE notice_deliveries (
        notice TEXT NOT NULL REFERENCES notices (id),
        recipient TEXT NOT NULL,
        status TEXT NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0,
        is_doubtful INTEGER NOT NULL DEFAULT 0,
        next_at INTEGER NOT NULL,
        changed_at INTEGER NOT NULL,
        note TEXT,
        PRIMARY KEY (notice, recipient)
    )
    """,
    "CREATE INDEX notice_deliveries_by_recipient ON notice_deliveries (recipient, status, next_at)",
    """
    CREATE TABLE notice_codes (
        digest TEXT PRIMARY KEY,
        notice TEXT NOT NULL REFERENCES notices (id),
        recipient TEXT NOT NULL,
        choice TEXT NOT NULL,
        made_at INTEGER NOT NULL
    )
    """,
    # What has ended, or was left out, and has not been looked at yet: written with that itself, so that no crash comes
    # between the two. Where no hub ever looks it is forgotten after a week.
    "CREATE TABLE notices_due (about TEXT PRIMARY KEY, owner_pid INTEGER, engine TEXT, at INTEGER NOT NULL)",
    """
    CREATE TRIGGER notice_of_task AFTER UPDATE OF status ON tasks
    WHEN NEW.status IN ('completed', 'failed', 'unknown') AND OLD.status IN ('pending', 'working')
        AND NEW.origin = 'local'
    BEGIN
        INSERT OR IGNORE INTO notices_due VALUES ('task ' || NEW.id, OLD.owner_pid, OLD.engine, NEW.updated_at);
        DELETE FROM notices_due WHERE at < NEW.updated_at - 604800000000;
    END
    """,
    """
    CREATE TRIGGER notice_of_limit AFTER UPDATE OF metadata ON tasks
    WHEN json_extract(NEW.metadata, '$.waitingFor') = 'quota'
        AND json_extract(OLD.metadata, '$.waitingFor') IS NOT 'quota'
    BEGIN
        INSERT OR IGNORE INTO notices_due VALUES (
            'limit ' || NEW.id || ' ' || json_extract(NEW.metadata, '$.resumesAt'), NEW.owner_pid, NEW.engine, NEW.updated_at
        );
    END
    """,
    """
    CREATE TRIGGER notice_of_run AFTER INSERT ON schedule_runs WHEN NEW.task_id IS NULL
    BEGIN
        INSERT OR IGNORE INTO notices_due
        VALUES ('run ' || NEW.schedule || ' ' || NEW.due_at, NULL, NULL, NEW.entered_at);
    END
    """,
)

_COSTS: Final = ("ALTER TABLE tasks ADD COLUMN cost_usd REAL",)
"""What the agent itself says that a task has cost."""

_STEPS: Final = (
    "CREATE TABLE steps (task_id TEXT NOT NULL, name TEXT NOT NULL, content TEXT NOT NULL, PRIMARY KEY (task_id, name))",
)
"""What a job has found out so far, so that the next hub goes on from there."""

_OWNERS: Final = (
    "CREATE TABLE session_owners (session_id TEXT NOT NULL PRIMARY KEY, client TEXT NOT NULL)",
    "ALTER TABLE schedules ADD COLUMN proposed_by TEXT",
    """
    CREATE TRIGGER notice_of_proposal AFTER INSERT ON schedules WHEN NEW.proposed_by IS NOT NULL
    BEGIN
        INSERT OR IGNORE INTO notices_due VALUES ('proposal ' || NEW.id, NULL, NULL, NEW.created_at);
    END
    """,
)
"""The MCP client that opened a session, or was handed it; a session without a row is a person's. A schedule that a client
has proposed begins nothing until a person confirms it."""

MIGRATIONS: Final = (
    *(_FIRST, _ENGINES_AND_USAGE, _REVISIONS, _AGENTS, _CALLS),
    *(_SPECS_AND_EPOCHS, _OUTCOMES, (*_SCHEDULES, *_NOTICES), (*_COSTS, *_STEPS, *_OWNERS)),
)
"""The statements that make version N of version N - 1, beginning with version 1 of an empty file."""

CURRENT: Final = len(MIGRATIONS)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the file to the current version. Several processes may do this at once: one does, the others find it done.

    Raises:
        RegistryTooNew: A newer Helmsman has made this file.
    """
    if _version(connection) == CURRENT:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statements in MIGRATIONS[_version(connection) :]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {CURRENT}")
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def _version(connection: sqlite3.Connection) -> int:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > CURRENT:
        raise RegistryTooNew(
            f"The task registry was made by a newer Helmsman (its version is {version}, this one knows {CURRENT}). "
            "Upgrade this Helmsman, or give it a state directory of its own with HELMSMAN_STATE_DIR."
        )
    return version
