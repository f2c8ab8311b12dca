"""One shape of a session in a list, of which every client shows what it has room for."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from helmsman.agents.protocol import SessionInfo
from helmsman.agents.registry import Agents
from helmsman.base.processes import Process
from helmsman.base.structs import replace
from helmsman.sessions.feed import Feed
from helmsman.sessions.session import Session, Verbs
from helmsman.sessions.state import SessionState
from helmsman.shapes.contract import ListedSession
from helmsman.shapes.listed_sessions import listed_session
from helmsman.tasks.agent_records import AgentRecords
from helmsman.tasks.model import Task
from helmsman.tasks.writer import TaskWriter

LEDGER = TaskWriter(Path("nowhere"), AgentRecords(Agents()))
NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
INFO = SessionInfo(session_id="s", updated_at=NOW, first_prompt="Do\nit")
TASK = Task(
    id="T-local-1",
    alias="do-it",
    origin="local",
    instruction="Do\nit",
    status="completed",
    session_id="s",
    created_at=NOW,
    updated_at=NOW,
)


def test_a_session_is_listed_with_what_is_known_of_it() -> None:
    listed = {"sessionId": "s", "agent": "codex", "summary": "Do\nit", "timestamp": "2026-01-02T03:04:05+00:00"}
    assert listed_session(LEDGER.is_elsewhere, INFO, None, ()) == listed | {"archived": False, "isActive": False}
    assert listed_session(LEDGER.is_elsewhere, None, None, [TASK]) == listed | {
        "isActive": False,
        "taskIds": ["T-local-1"],
    }
    ended = listed_session(LEDGER.is_elsewhere, INFO, None, [TASK], "error")
    assert (ended["status"], ended["isActive"], ended["taskIds"]) == ("error", False, ["T-local-1"])


def test_a_turn_that_another_process_runs_goes_before_how_the_last_one_ended() -> None:
    running = replace(TASK, status="working", owner=Process(1, "2"))
    listed = listed_session(LEDGER.is_elsewhere, INFO, None, [running], "done")
    assert (listed["status"], listed["isActive"]) == ("active", True)
    assert (
        listed_session(LEDGER.is_elsewhere, INFO, None, [replace(running, input_required=True)])["status"]
        == "awaiting_approval"
    )


def test_a_turn_that_the_hub_runs_in_a_session_known_here_is_active() -> None:
    session = Session(SessionState("s"), Feed(10), cast("Verbs", None), [])
    running = replace(TASK, status="working")
    listed = listed_session(LEDGER.is_elsewhere, INFO, session, [running])
    assert (listed["status"], listed["isActive"]) == ("active", True)


def test_a_turn_whose_process_has_died_is_as_the_session_here_says() -> None:
    session = Session(SessionState("s"), Feed(10), cast("Verbs", None), [])
    listed = listed_session(LEDGER.is_elsewhere, INFO, session, [replace(TASK, status="working", owner=Process(0, ""))])
    assert listed["status"] == session.status


def test_codex_list_says_less_of_the_same() -> None:
    listed = listed_session(LEDGER.is_elsewhere, INFO, None, [TASK], "done")
    told = ListedSession.of(listed).as_dict()
    assert told["activeStatus"] == listed["status"]
    assert told["summary"] == "Do it"
    assert {name: listed[name] for name in told.keys() - {"activeStatus", "summary"}} == {
        name: told[name] for name in told.keys() - {"activeStatus", "summary"}
    }
