CREATE TABLE calls (
        pipe TEXT NOT NULL,
        seq INTEGER NOT NULL,
        pid INTEGER NOT NULL,
        started TEXT NOT NULL,
        begun_at INTEGER NOT NULL,
        answer TEXT,
        PRIMARY KEY (pipe, seq)
    );
CREATE TABLE hub (epoch INTEGER NOT NULL);
INSERT INTO "hub" VALUES(0);
CREATE TABLE notice_codes (
        digest TEXT PRIMARY KEY,
        notice TEXT NOT NULL REFERENCES notices (id),
        recipient TEXT NOT NULL,
        choice TEXT NOT NULL,
        made_at INTEGER NOT NULL
    );
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
    );
CREATE TABLE notices (
        id TEXT PRIMARY KEY,
        about TEXT NOT NULL UNIQUE,
        content TEXT NOT NULL,
        created_at INTEGER NOT NULL
    );
CREATE TABLE notices_due (about TEXT PRIMARY KEY, owner_pid INTEGER, engine TEXT, at INTEGER NOT NULL);
CREATE TABLE outcomes (task_id TEXT PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE schedule_runs (
        schedule TEXT NOT NULL REFERENCES schedules (id),
        due_at INTEGER NOT NULL,
        entered_at INTEGER NOT NULL,
        task_id TEXT,
        note TEXT,
        PRIMARY KEY (schedule, due_at)
    );
CREATE TABLE schedules (
        id TEXT PRIMARY KEY,
        directory TEXT NOT NULL,
        content TEXT NOT NULL,
        next_at INTEGER,
        is_paused INTEGER NOT NULL DEFAULT 0,
        created_at INTEGER NOT NULL
    );
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
    , engine TEXT, model TEXT, input_tokens INTEGER, cached_input_tokens INTEGER, output_tokens INTEGER, reasoning_output_tokens INTEGER, revision INTEGER NOT NULL DEFAULT 0, agent TEXT NOT NULL DEFAULT 'codex', spec TEXT);
INSERT INTO "tasks" VALUES(1,'T-local-0123456789ab','local','fix-login-test','working',NULL,'Fix the login test','/src/repo','s-1','t-1',NULL,1794700000000000,1794700060000000,NULL,NULL,'{"done": 1, "total": 3}',0,2000,NULL,'key-1',4711,'boot:42',NULL,NULL,'{"options": {"sandbox": "read-only"}}',0,'engine-1',NULL,NULL,NULL,NULL,NULL,0,'codex',NULL);
INSERT INTO "tasks" VALUES(2,'T-cloud-ba9876543210','cloud','write-docs','completed',NULL,'Write the docs','/src/repo',NULL,NULL,'task_e_1',1794700000000000,1794700060000000,1794700060000000,NULL,NULL,0,2000,1894700060000000,NULL,NULL,NULL,'Written.',NULL,'{"options": {"sandbox": "read-only"}}',0,NULL,'gpt-5.5',100,20,10,3,0,'codex',NULL);
CREATE INDEX tasks_by_alias ON tasks (alias);
CREATE INDEX tasks_by_status ON tasks (status);
CREATE INDEX tasks_by_session ON tasks (session_id, turn_id);
CREATE INDEX tasks_by_creation ON tasks (created_at);
CREATE INDEX tasks_by_expiry ON tasks (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX notice_deliveries_by_recipient ON notice_deliveries (recipient, status, next_at);
CREATE TRIGGER notice_of_task AFTER UPDATE OF status ON tasks
    WHEN NEW.status IN ('completed', 'failed', 'unknown') AND OLD.status IN ('pending', 'working')
        AND NEW.origin = 'local'
    BEGIN
        INSERT OR IGNORE INTO notices_due VALUES ('task ' || NEW.id, OLD.owner_pid, OLD.engine, NEW.updated_at);
        DELETE FROM notices_due WHERE at < NEW.updated_at - 604800000000;
    END;
CREATE TRIGGER notice_of_limit AFTER UPDATE OF metadata ON tasks
    WHEN json_extract(NEW.metadata, '$.waitingFor') = 'quota'
        AND json_extract(OLD.metadata, '$.waitingFor') IS NOT 'quota'
    BEGIN
        INSERT OR IGNORE INTO notices_due VALUES (
            'limit ' || NEW.id || ' ' || json_extract(NEW.metadata, '$.resumesAt'), NEW.owner_pid, NEW.engine, NEW.updated_at
        );
    END;
CREATE TRIGGER notice_of_run AFTER INSERT ON schedule_runs WHEN NEW.task_id IS NULL
    BEGIN
        INSERT OR IGNORE INTO notices_due
        VALUES ('run ' || NEW.schedule || ' ' || NEW.due_at, NULL, NULL, NEW.entered_at);
    END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('tasks',2);
PRAGMA user_version = 8;
