from __future__ import annotations

import json
from pathlib import Path

from helmsman.agents.registry import Agents
from helmsman.base.processes import Process
from helmsman.base.structs import replace
from helmsman.model import events
from helmsman.model.events import (
    CommandExecution,
    Event,
    Failure,
    FileChange,
    ItemEnded,
    PathChange,
    QuestionAsked,
    TurnEnded,
    Unknown,
    Usage,
    UsageReported,
)
from helmsman.model.question_text import question_as_dict
from helmsman.model.questions import Prompt, Question
from helmsman.shapes.rendering import fields_as_dict, json_line, task_as_dict
from helmsman.store.database import Fence
from helmsman.tasks.agent_records import AgentRecords
from helmsman.tasks.writer import TaskWriter
from tests.shapes.test_listed_sessions import TASK


def test_an_event_has_its_type_and_its_fields_in_camel_case() -> None:
    item = CommandExecution(id="c", command="ls", exit_code=0, output="x\n", duration_ms=5)
    assert ItemEnded(session_id="s", turn_id="t", item=item).to_json() == {
        "type": "item_ended",
        "sessionId": "s",
        "turnId": "t",
        "item": {
            "type": "command_execution",
            "id": "c",
            "status": "completed",
            "command": "ls",
            "exitCode": 0,
            "output": "x\n",
            "announced": False,
            "declined": False,
            "durationMs": 5,
            "summary": "ls (exit 0): x",
        },
    }


def test_values_inside_an_event_are_plain_too() -> None:
    change = FileChange(id="f", changes=(PathChange(path="a", kind="add", added=1, removed=0),))
    assert ItemEnded(session_id="s", item=change).to_json()["item"]["changes"] == [
        {"path": "a", "kind": "add", "added": 1, "removed": 0}
    ]
    failed = TurnEnded(session_id="s", outcome="failed", failure=Failure(code="x", message="no", http_status=429))
    assert failed.to_json()["failure"] == {"code": "x", "message": "no", "retryable": False, "httpStatus": 429}
    spent = UsageReported(session_id="s", total=Usage(1, 2, 3, 4))
    assert spent.to_json()["total"] == fields_as_dict(Usage(1, 2, 3, 4))


def test_a_question_is_shown_as_pending_question_is() -> None:
    prompt = Prompt(text="Run?", options=("approve", "deny"))
    question = Question(
        asker="Codex",
        id="q",
        type="command_approval",
        session_id="s",
        turn_id="t",
        prompts=(prompt,),
        details={"command": "ls"},
    )
    assert QuestionAsked(session_id="s", question=question).to_json()["question"] == question_as_dict(question)


def test_a_task_that_only_another_process_can_stop_says_so(tmp_path: Path) -> None:
    own, hubs = (TaskWriter(tmp_path, AgentRecords(Agents()), fence) for fence in (None, Fence(1, lambda _: None)))
    running = replace(TASK, status="working")
    others = replace(running, owner=Process.me())
    for writer, task, is_elsewhere in [
        (hubs, running, False),
        (own, running, True),
        (hubs, others, True),
        (hubs, replace(others, origin="cloud"), False),
        (hubs, replace(others, status="completed"), False),
        (hubs, replace(others, owner=Process(0, "")), False),
        (None, others, False),
    ]:
        assert ("elsewhere" in task_as_dict(task, writer)) is is_elsewhere


def test_every_event_has_its_own_name() -> None:
    kinds = [
        kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event) and kind != Event
    ]
    names = {kind.event_type() for kind in kinds}
    assert len(names) == len(kinds) >= 15
    assert {"turn_requested", "engine_gone", "unknown"} <= names


def test_a_line_is_one_line_of_ascii_whatever_is_in_it() -> None:
    odd = {"text": "a\nb\x1b[2J\u202e\ud800", "path": Path("x")}
    line = json_line(Unknown(session_id="s", name="n", payload=odd).to_json())
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["payload"]["text"] == odd["text"]
