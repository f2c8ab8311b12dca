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
CREATE TABLE outcomes (task_id TEXT PRIMARY KEY, content TEXT NOT NULL);
PRAGMA user_version = 7;
