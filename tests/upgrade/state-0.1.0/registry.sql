BEGIN TRANSACTION;
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
    , engine TEXT, model TEXT, input_tokens INTEGER, cached_input_tokens INTEGER, output_tokens INTEGER, reasoning_output_tokens INTEGER, revision INTEGER NOT NULL DEFAULT 0);
INSERT INTO "tasks" VALUES(1,'T-local-01e9bc8e77a5','local','fix-login-test','completed',NULL,'Fix the login test','/src/site','01a1e132-c84b-7993-b4e5-f7734759eed6','01a1e132-c86d-7262-9050-ab4c9b4ce8ea',NULL,1794779563830323,1794779564474907,1794779564474356,1794779564474355,NULL,0,2000,1797371564474907,'fix-issue-17',16374,'4a077db6-b8ef-4144-a949-6801249d62cf:1262138','The test passes.',NULL,'{"options": {"model": "my-model", "approval_policy": "untrusted", "sandbox": "workspace-write"}}',0,NULL,'my-model',200,40,20,6,4);
INSERT INTO "tasks" VALUES(2,'T-local-582059a3ca89','local','document-task','completed',NULL,'Now document it','/src/site','01a1e132-c84b-7993-b4e5-f7734759eed6','01a1e132-c9bf-7772-a569-8b7c76e51088',NULL,1794779564476933,1794779564565444,1794779564562045,1794779564562044,NULL,0,2000,1797371564565444,NULL,16374,'4a077db6-b8ef-4144-a949-6801249d62cf:1262138','Documented.',NULL,'{"options": {"model": "my-model", "approval_policy": "untrusted", "sandbox": "workspace-write"}}',0,NULL,'my-model',100,20,10,3,2);
INSERT INTO "tasks" VALUES(3,'T-local-433e33caa4ab','local','break-task','failed',NULL,'Break','/src/site','01a1e132-ca18-7db1-9e34-b9a2c2440a27','01a1e132-ca38-7091-903f-6be13a5845dc',NULL,1794779564564130,1794779564709541,1794779564673531,1794779564673530,NULL,0,2000,1797371564709541,NULL,16374,'4a077db6-b8ef-4144-a949-6801249d62cf:1262138',NULL,'{"code": "other", "message": "{\"error\":{\"message\":\"The script says so.\"}}", "retryable": false}','{"options": {"model": "my-model", "approval_policy": "untrusted", "sandbox": "workspace-write"}}',0,NULL,'my-model',0,0,0,0,2);
INSERT INTO "tasks" VALUES(4,'T-cloud-e5e9ad78137a','cloud','write-docs','working',NULL,'Write the docs',NULL,NULL,NULL,'task_e_1',1794779564819549,1794779564819549,NULL,NULL,NULL,0,2000,NULL,NULL,NULL,NULL,NULL,NULL,'{"url": "https://chatgpt.com/codex/tasks/task_e_1"}',0,NULL,NULL,NULL,NULL,NULL,NULL,0);
INSERT INTO "tasks" VALUES(5,'T-local-c595b087e0bb','local','never-ended','working',NULL,'Never ended','/src/site',NULL,NULL,NULL,1794779564823809,1794779564823809,NULL,NULL,NULL,0,2000,NULL,NULL,16374,'4a077db6-b8ef-4144-a949-6801249d62cf:1262138',NULL,NULL,'{}',0,NULL,NULL,NULL,NULL,NULL,NULL,0);
CREATE INDEX tasks_by_alias ON tasks (alias);
CREATE INDEX tasks_by_status ON tasks (status);
CREATE INDEX tasks_by_session ON tasks (session_id, turn_id);
CREATE INDEX tasks_by_creation ON tasks (created_at);
CREATE INDEX tasks_by_expiry ON tasks (expires_at) WHERE expires_at IS NOT NULL;
COMMIT;
PRAGMA user_version = 3;
