"""Schema of the store, and its migrations.

It is written for SQLite; the Postgres store replaces the names of types. A released step never changes: a later version
adds another one.
"""

from __future__ import annotations

from typing import Final

from helmsman.errors import RegistryTooNew

_SESSIONS: Final = (
    """
    CREATE TABLE sessions (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        last_seq INTEGER NOT NULL DEFAULT 0,
        compacted_seq INTEGER NOT NULL DEFAULT 0,
        changed_at INTEGER NOT NULL DEFAULT 0,
        client TEXT,
        source TEXT,
        source_offset INTEGER NOT NULL DEFAULT 0,
        spent_besides INTEGER NOT NULL DEFAULT 0
    )
    """,
    # `client` is the MCP client that opened the session, or was handed it; NULL means that the session is the user's.
    # Events up to `compacted_seq` were deleted when they expired. `source` is the supervised process whose output the
    # newest events come from, and `source_offset` the last of its lines whose events are in the log. `spent_besides` is 1 if
    # more was spent in it than its tasks say: by sub-agents, or in turns of another program.
    """
    CREATE TABLE events (
        number INTEGER PRIMARY KEY,
        session INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        at INTEGER NOT NULL,
        kind TEXT NOT NULL,
        body TEXT NOT NULL,
        UNIQUE (session, seq)
    )
    """,
    # Given by the user, also to sessions of which only the agent has a log.
    "CREATE TABLE session_labels (session_id TEXT NOT NULL, label TEXT NOT NULL, PRIMARY KEY (session_id, label))",
    # Who may write (`helmsman.store.leases`). `writes` counts transactions on Postgres, where no pragma does.
    """
    CREATE TABLE leases (
        name TEXT PRIMARY KEY,
        owner TEXT NOT NULL DEFAULT '',
        epoch INTEGER NOT NULL DEFAULT 0,
        until INTEGER,
        writes INTEGER NOT NULL DEFAULT 0
    )
    """,
    "INSERT INTO leases (name) VALUES ('hub')",
)

_TASKS: Final = (
    # All other fields of a task are JSON: in `expiring` those that are deleted with its result, in `body` the others.
    """
    CREATE TABLE tasks (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        origin TEXT NOT NULL,
        agent TEXT NOT NULL DEFAULT 'codex',
        alias TEXT NOT NULL,
        status TEXT NOT NULL,
        directory TEXT,
        session_id TEXT,
        turn_id TEXT,
        opened_session TEXT,
        model TEXT,
        job TEXT,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        completed_at INTEGER,
        expires_at INTEGER,
        idempotency_key TEXT UNIQUE,
        usage TEXT,
        used_before TEXT,
        body TEXT,
        expiring TEXT,
        result_compacted INTEGER NOT NULL DEFAULT 0,
        revision INTEGER NOT NULL DEFAULT 0
    )
    """,
    "CREATE INDEX tasks_by_alias ON tasks (alias)",
    "CREATE INDEX tasks_by_status ON tasks (status)",
    "CREATE INDEX tasks_by_session ON tasks (session_id, turn_id)",
    "CREATE INDEX tasks_by_creation ON tasks (created_at)",
    "CREATE INDEX tasks_by_change ON tasks (updated_at)",
    "CREATE INDEX tasks_by_job ON tasks (job, number) WHERE job IS NOT NULL",
    "CREATE INDEX tasks_by_expiry ON tasks (expires_at) WHERE expires_at IS NOT NULL",
    # Separate from the tasks: those are listed, and an outcome may be large.
    "CREATE TABLE outcomes (task_id TEXT PRIMARY KEY, content TEXT NOT NULL)",
    # Intermediate results of a job, for the next hub.
    "CREATE TABLE steps (task_id TEXT NOT NULL, name TEXT NOT NULL, content TEXT NOT NULL, PRIMARY KEY (task_id, name))",
    """
    CREATE TABLE calls (
        pipe TEXT NOT NULL,
        seq INTEGER NOT NULL,
        pid INTEGER NOT NULL,
        started TEXT NOT NULL,
        begun_at INTEGER NOT NULL,
        request TEXT NOT NULL DEFAULT '',
        answer TEXT,
        PRIMARY KEY (pipe, seq)
    )
    """,
    # `request` is the digest of a call whose key the client chose, and might use for another one.
)

_SCHEDULES: Final = (
    """
    CREATE TABLE schedules (
        id TEXT PRIMARY KEY,
        content TEXT NOT NULL,
        next_at INTEGER,
        is_paused INTEGER NOT NULL DEFAULT 0,
        created_at INTEGER NOT NULL,
        proposed_by TEXT
    )
    """,
    """
    CREATE TABLE schedule_runs (
        schedule TEXT NOT NULL,
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
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        about TEXT NOT NULL UNIQUE,
        content TEXT NOT NULL,
        created_at INTEGER NOT NULL
    )
    """,
    """
    CREATE TABLE notice_deliveries (
        number INTEGER PRIMARY KEY,
        notice TEXT NOT NULL,
        recipient TEXT NOT NULL,
        status TEXT NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0,
        is_doubtful INTEGER NOT NULL DEFAULT 0,
        next_at INTEGER NOT NULL,
        changed_at INTEGER NOT NULL,
        note TEXT,
        lease_until INTEGER,
        UNIQUE (notice, recipient)
    )
    """,
    "CREATE INDEX notice_deliveries_by_recipient ON notice_deliveries (recipient, status, next_at)",
    """
    CREATE TABLE notice_codes (
        digest TEXT PRIMARY KEY,
        notice TEXT NOT NULL,
        recipient TEXT NOT NULL,
        choice TEXT NOT NULL,
        made_at INTEGER NOT NULL
    )
    """,
    # The outbox: ends and skipped runs that the notifier has yet to look at (`helmsman.store.outbox`).
    "CREATE TABLE notices_due (about TEXT PRIMARY KEY, owner_pid INTEGER, engine TEXT, at INTEGER NOT NULL)",
)

VERSIONS: Final = ((*_SESSIONS, *_TASKS, *_SCHEDULES, *_NOTICES),)
"""Statements that create version N from version N - 1, starting with version 1 of an empty file."""

CURRENT: Final = len(VERSIONS)
OLDEST: Final = 1
"""Oldest version whose code works with these tables: machines of a fleet are upgraded one by one."""


def missing_versions(version: int, oldest: int | None = None) -> tuple[tuple[str, ...], ...]:
    """Return the statements that bring a store of a version to the current one, for each version between.

    `oldest` is the oldest version that works with a newer store; None if only its own version does.

    Raises:
        RegistryTooNew: A newer Helmsman has made this store.
    """
    if version > CURRENT and (oldest is None or oldest > CURRENT):
        raise RegistryTooNew(
            f"The store was made by a newer Helmsman (its version is {version}, this one knows {CURRENT}). "
            "Upgrade this Helmsman, or set another state directory with HELMSMAN_STATE_DIR."
        )
    return VERSIONS[version:]
