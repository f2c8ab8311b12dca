"""Everything that can break, broken: which fault is shown where.

After each of them no process and no file handle is left (`conftest.py`), whoever waited has an answer, the state is the
truth, and the next session works (`scene.py`). "Real" is a real Codex, "both" with a bound and a detached engine, and
"scripted" an app-server or a program of the test kit, for what a real one cannot be made to do. Files of other folders
are those under `tests/`.

| fault | shown by | on |
| --- | --- | --- |
| engine killed before, while starting, during, at a question, after a turn | `test_engine_lost.py` | real, both |
| engine killed: every waiter of the engine is told at once | `live/test_app_server_engine.py` | real |
| engine killed under a step | `live/test_step.py` | real |
| Helmsman killed (`kill -9`) two hundred times, at any stage | `live/test_tasks_after_kill.py` | real, both |
| Helmsman killed: turn and question go on in the detached engine | `live/test_detached.py` | real |
| engine hangs (SIGSTOP): in a turn, at an interrupt, at a start | `test_engine_lost.py` | real, both |
| detached engine hangs before it is opened; its supervisor is killed | `live/test_detached.py` | real |
| engine does not read, answers nothing, does not end | `test_wire.py`, `codex/test_app_server_faults.py` | scripted |
| engine exits, is slow, is cancelled at its start | `codex/test_app_server_faults.py`, `live/test_detached.py` | scripted |
| several at once on an empty CODEX_HOME | `test_starts.py` | real, both |
| endpoint down and back again, 429, 500, cut stream, failed response, endless silence | `test_model.py` | real |
| limits on silence | `test_inactivity.py`, `live/test_watchdog.py`, `live/test_step.py` | real, app-server and exec |
| a notification that is never sent | `test_wire.py` | scripted |
| garbage, half lines, a line of 64 MiB and one beyond | `test_wire.py`, `codex/test_app_server_faults.py` | scripted |
| stderr flooding | `test_wire.py`, `codex/test_app_server_faults.py` | scripted |
| `codex exec` says nothing, nonsense, too much, never ends, leaves children | `codex/test_exec_faults.py` | scripted |
| state directory full or read-only: registry, audit log, rules, engines, HTTP token | `test_storage.py` | real |
| registry damaged, removed, locked, of a later version | `store/test_database.py`, `store/test_contract.py` | – |
| wall clock set forward and back | `test_clock.py` | real |
| two Helmsmen with engines of their own on one session | `test_two_helmsmen.py` | real |
| two Helmsmen on one detached engine | `live/test_detached.py` | real |
| a client that stops reading its pipe | `test_deaf_client.py` | real |
| a client that closes its pipe or dies | `test_endings.py`, `mcp/test_stdio.py` | real |
| signals and closed input, before initialize, idle, starting, in a turn, at a question | `test_endings.py` | real, both |
| 100 sessions (500 in the matrix) stopped at random | `test_many_sessions.py` | real |
"""
