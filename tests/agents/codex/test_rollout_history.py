"""Tests of reading a session's transcript from the files of every supported Codex, without starting it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helmsman.agents.codex.storage import read_history
from helmsman.model.events import AgentMessage, CommandExecution, FileChange, PathChange, UserMessage
from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, say

SECONDS = 60
PATCH = "*** Add File: a.txt\n+x\n"
ENDS = Path(__file__).parent / "rollout_ends"


@pytest.mark.parametrize("file", sorted(ENDS.glob("*.jsonl")), ids=lambda file: file.stem)
def test_prompts_commands_and_messages_of_every_version(file: Path) -> None:
    turns = read_history(file, ENDS)
    asked = [item.text for turn in turns for item in turn.items if isinstance(item, UserMessage)]
    assert asked[:4] == ["first", "second", "third", "fourth"]
    first = [item for item in turns[0].items if not isinstance(item, UserMessage)]
    assert [item.command for item in first if isinstance(item, CommandExecution)] == ["echo hi"]
    assert [item.text for item in first if isinstance(item, AgentMessage)] == ["All good."]
    assert turns[0].status == "completed"


@pytest.mark.anyio
async def test_a_fork_of_a_session_that_was_taken_back_has_all_that_it_continues_from(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    for word in ("one", "two", "three", "four"):
        model.on(word, say(f"did {word}"))
    session = await helm.start("one", cwd=folder)
    for step in ("two", "back", "three"):
        assert await session.wait(until="end", timeout=SECONDS)
        await (helm.extras.upkeep.roll_back(session.id) if step == "back" else helm.say(session.id, step))
        session = await helm.session(session.id)
    assert await session.wait(until="end", timeout=SECONDS)
    fork = await helm.fork(session.id, "four")
    assert await fork.wait(until="end", timeout=SECONDS)
    for known, turns in ((session, 2), (fork, 3)):
        read, told = await helm.agent_records.history(known.id), await helm.history(known.id)
        assert [[getattr(item, "text", "") for item in turn.items] for turn in read] == [
            [getattr(item, "text", "") for item in turn.items] for turn in told
        ]
        assert [turn.id for turn in read] == [turn.id for turn in told]
        assert len(read) == turns


def test_unreadable_lines_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "rollout.jsonl"
    lines = (
        {"type": "session_meta", "payload": {"history_base": {"thread_id": "gone", "end_byte_offset": 9}}},
        {"type": "event_msg", "payload": {"type": "task_started", "turn_id": "1"}},
        {"type": "response_item", "payload": {"type": "custom_tool_call", "name": "apply_patch", "input": PATCH}},
        {"type": "response_item", "payload": {"type": "function_call", "name": "exec_command", "arguments": "{"}},
        {"type": "event_msg", "payload": {"type": "task_complete", "error": {"message": "no"}}},
    )
    text = "half a line\n" + "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    file.write_text(text, encoding="utf-8")
    (turn,) = read_history(file, tmp_path)
    assert (turn.status, turn.items) == (
        "failed",
        (FileChange(id="None", changes=(PathChange(path="a.txt", kind="add"),)),),
    )
    assert read_history(tmp_path / "none.jsonl", tmp_path) == ()
