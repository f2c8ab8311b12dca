"""What was said and done in a session, from the files of every supported Codex, without starting it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helmsman.agents.codex.storage.rollout_history import read_history
from helmsman.model.events import AgentMessage, CommandExecution, FileChange, PathChange, UserMessage

ENDS = Path(__file__).parent / "rollout_ends"


@pytest.mark.parametrize("file", sorted(ENDS.glob("*.jsonl")), ids=lambda file: file.stem)
def test_prompts_commands_and_messages_of_every_version(file: Path) -> None:
    turns = read_history(file, lambda _id: None)
    asked = [item.text for turn in turns for item in turn.items if isinstance(item, UserMessage)]
    assert asked[:4] == ["first", "second", "third", "fourth"]
    first = [item for item in turns[0].items if not isinstance(item, UserMessage)]
    assert [item.command for item in first if isinstance(item, CommandExecution)] == ["echo hi"]
    assert [item.text for item in first if isinstance(item, AgentMessage)] == ["All good."]
    assert turns[0].status == "completed"


def line(kind: str, **payload: object) -> str:
    return json.dumps({"timestamp": "t", "type": kind, "payload": payload}, separators=(",", ":")) + "\n"


def test_a_fork_goes_on_from_where_it_parted(tmp_path: Path) -> None:
    parent, fork = tmp_path / "parent.jsonl", tmp_path / "fork.jsonl"
    shared = (
        line("session_meta", id="p")
        + line("event_msg", type="task_started", turn_id="1")
        + line("event_msg", type="user_message", message="begin")
        + line(
            "response_item", type="custom_tool_call", name="apply_patch", input="*** Add File: a.txt\n+x\n", call_id="c"
        )
    )
    parent.write_text(shared + line("event_msg", type="task_started", turn_id="2"), encoding="utf-8")
    base = {"thread_id": "p", "end_byte_offset": len(shared.encode())}
    fork.write_text(
        line("session_meta", id="f", history_base=base)
        + line("event_msg", type="task_started", turn_id="3")
        + "half a line\n"
        + line("event_msg", type="user_message", message="other way")
        + line("event_msg", type="task_complete", turn_id="3", error={"message": "no"}),
        encoding="utf-8",
    )
    turns = read_history(fork, lambda session_id: parent if session_id == "p" else None)
    assert [(turn.id, turn.status) for turn in turns] == [("1", "interrupted"), ("3", "failed")]
    assert turns[0].items[1] == FileChange(id="c", changes=(PathChange(path="a.txt", kind="add"),))
    assert read_history(tmp_path / "none.jsonl", lambda _id: None) == ()
