"""Tests of reading agents' files, in their observed formats, without starting the agents."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from helmsman.agents.acp.agent import KNOWN
from helmsman.agents.acp.dialect import AcpDialect
from helmsman.agents.acp.gemini import GeminiReader
from helmsman.agents.acp.kimi import Kimi
from helmsman.agents.process_engine import AgentSession, LaunchConfig
from helmsman.base.json_values import timestamp
from helmsman.errors import EngineStartFailed, InvalidInput
from helmsman.model.events import Usage
from helmsman.model.options import SessionOptions

CALL = Usage(100, 20, 10, 3)
PLACE = "/work/repo"
ID = "05258b9e-598f-469f-873c-b143f55a5aff"
AT = "2026-11-16T11:11:{:02}.000Z"


def gemini(home: Path) -> None:
    project = home / ".gemini" / "tmp" / "repo"
    tokens = {"input": 100, "output": 7, "cached": 20, "thoughts": 3, "total": 110}
    asked = {"id": "1", "timestamp": AT.format(1), "type": "user", "content": [{"text": "make it"}]}
    called = {"id": "c1", "name": "run_shell_command", "args": {"command": "touch x"}}
    answered = {"functionResponse": {"id": "c1", "name": "run_shell_command", "response": {"output": "done"}}}
    lines: list[Any] = [
        {"sessionId": ID, "startTime": AT.format(0), "kind": "main"},
        {"$set": {"messages": [{"id": "0", "type": "user", "content": [{"text": "<session_context>\nhi"}]}]}},
        asked,
        {"id": "2", "timestamp": AT.format(2), "type": "gemini", "content": "", "tokens": tokens, "model": "m"},
        {"id": "3", "timestamp": AT.format(2), "type": "gemini", "content": "", "toolCalls": [called]},
        {"id": "4", "timestamp": AT.format(3), "type": "user", "content": [answered]},
        {"id": "5", "timestamp": AT.format(4), "type": "gemini", "content": "made", "tokens": tokens, "model": "m"},
    ]
    _lines(project / "chats" / f"session-2026-11-16T11-11-{ID[:8]}.jsonl", lines)
    told = {**lines[-1], "content": [{"text": "hm", "thought": True}, {"text": "made"}]}
    again = [lines[0], {"$set": {"messages": [asked, {**lines[5], "id": "6"}, told]}}]  # after it was loaded
    _lines(project / "chats" / f"session-2026-11-16T11-13-{ID[:8]}.jsonl", [*again, asked])
    (project / ".project_root").write_text(PLACE)


def qwen(home: Path) -> None:
    def line(second: int, kind: str, *parts: Any, **more: Any) -> dict[str, Any]:
        about = {"sessionId": ID, "cwd": PLACE, "version": "0.24.4", "timestamp": AT.format(second), "type": kind}
        return {**about, "message": {"parts": list(parts)}, **more}

    counts = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 20,
        "candidatesTokenCount": 10,
        "thoughtsTokenCount": 3,
    }
    used = {"usageMetadata": counts, "model": "m"}
    call = {"functionCall": {"name": "run_shell_command", "args": {"command": "touch x"}}}
    lines = [
        line(1, "user", {"text": "make it"}),
        line(1, "system"),
        line(2, "assistant", {"text": "hm", "thought": True}, call, **used),
        line(3, "tool_result", {"functionResponse": {}}),
        line(4, "assistant", {"text": "made"}, **used),
    ]
    _lines(home / ".qwen" / "projects" / "-work-repo" / "chats" / f"{ID}.jsonl", lines)


def copilot(home: Path) -> None:
    state = home / ".copilot" / "session-state" / ID
    counts = {"inputTokens": 100, "outputTokens": 10, "cacheReadTokens": 20, "reasoningTokens": 3, "model": "m"}
    events: list[tuple[str, dict[str, Any]]] = [
        ("user.message", {"content": "make it"}),
        ("session.usage_record", {"usage": counts}),
        ("assistant.message", {"content": ""}),
        ("tool.execution_start", {"toolCallId": "c", "toolName": "bash", "arguments": {"command": "touch x"}}),
        ("tool.execution_complete", {"toolCallId": "c", "success": True, "shellExecution": {"exitCode": 0}}),
        ("session.usage_record", {"usage": counts}),
        ("assistant.message", {"content": "made"}),
    ]
    listed = [{"type": kind, "data": data, "timestamp": AT.format(1)} for kind, data in events]
    _lines(state / "events.jsonl", listed)
    head = f'id: {ID}\ncwd: {PLACE}\nclient_name: helmsman\nname: "make it"\nupdated_at: {AT.format(4)}\n'
    (state / "workspace.yaml").write_text(head)


def opencode(home: Path) -> None:
    path = home / ".local" / "share" / "opencode" / "opencode.db"
    path.parent.mkdir(parents=True)
    database = sqlite3.connect(path)
    times = "time_created, time_updated, time_archived"
    database.execute(f"create table session (id, title, directory, parent_id, version, {times})")
    database.execute("create table message (id, session_id, time_created, data)")
    database.execute("create table part (id, message_id, session_id, data)")
    database.execute(
        "insert into session values (?, 'Making it', ?, null, '1', 1794827528820, 1794827578738, null)", (ID, PLACE)
    )
    tokens = {"input": 80, "output": 7, "reasoning": 3, "cache": {"read": 20, "write": 0}}
    answer = {"role": "assistant", "tokens": tokens, "modelID": "m"}
    state = {"status": "completed", "input": {"command": "touch x"}, "output": "", "metadata": {"exit": 0}}
    rows: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("m1", {"role": "user"}, {"type": "text", "text": "make it"}),
        ("m2", answer, {"type": "tool", "tool": "bash", "state": state}),
        ("m3", answer, {"type": "text", "text": "made"}),
    ]
    at = timestamp(AT.format(1))
    assert at is not None
    for number, (name, message, part) in enumerate(rows):
        created = int(at.timestamp() * 1000) + number
        database.execute("insert into message values (?, ?, ?, ?)", (name, ID, created, json.dumps(message)))
        database.execute("insert into part values (?, ?, ?, ?)", (f"p{number}", name, ID, json.dumps(part)))
    database.commit()
    database.close()


@pytest.mark.parametrize("write", [gemini, opencode, qwen, copilot], ids=lambda write: write.__name__)
def test_a_session_on_disk_is_listed_and_read_and_counted_once(write: Callable[[Path], None], tmp_path: Path) -> None:
    name = write.__name__
    reader = next(profile for profile in KNOWN if profile.name == name).reader({"HOME": str(tmp_path)})
    assert reader is not None
    index = reader
    assert (index.list(), index.find(ID), reader.past_turns(ID)) == (([], None), None, None)
    write(tmp_path)
    (info,), cursor = index.list(directories=[PLACE])
    assert (info.session_id, info.agent, info.directory, cursor) == (ID, name, PLACE, None)
    assert index.find(ID) == info
    assert index.list(directories=["/elsewhere"]) == ([], None)
    assert index.list(query="MAK")[0] == [info]
    assert index.list(cursor=f"{AT.format(0)[:19]}")[0] == []
    (turn,) = index.turns(ID)
    assert (turn.outcome, turn.message, turn.usage, turn.model) == ("completed", "made", CALL + CALL, "m")
    assert turn.spent_before == Usage()
    since = timestamp(AT.format(0))
    assert (index.turn(ID, None, since=since) or turn).message == "made"
    assert index.turn(ID, None, since=timestamp(AT.format(50))) is None
    assert index.last_turn(info) == turn
    (past,) = reader.past_turns(ID) or ()
    assert [item.type for item in past.items] == ["user_message", "command_execution", "agent_message"]
    for wrong in ("../../etc/passwd", "*", "", "no-such-session"):
        assert index.find(wrong) is None
        assert reader.stored_turns(wrong) is None


def own_database(home: Path) -> Path:
    """Move what `opencode` has written into the place of a session of Helmsman, and return that place."""
    profile = next(profile for profile in KNOWN if profile.name == "opencode")
    place = profile.session_place("", {"HOME": str(home)}, enforced=True)
    assert place is not None
    (home / ".local" / "share" / "opencode" / "opencode.db").rename(place / "opencode.db")
    profile.was_begun(ID, place)
    return place


def test_a_session_of_opencode_with_its_own_database_is_listed_and_no_other_that_is_in_there(tmp_path: Path) -> None:
    opencode(tmp_path)
    place, env = own_database(tmp_path), {"HOME": str(tmp_path)}
    profile = next(profile for profile in KNOWN if profile.name == "opencode")
    with closing(sqlite3.connect(place / "opencode.db")) as database, database:
        database.execute(
            "insert into session select 'forged', title, directory, null, version, 1, 2, null from session"
        )
    reader = profile.reader(env)
    assert reader is not None
    assert [info.session_id for info in reader.sessions()] == [ID]
    assert reader.find("forged") is None
    assert [turn.message for turn in reader.stored_turns(ID) or ()] == ["made"]
    assert [key for key, _, _ in reader.files()] == [ID]
    assert profile.session_place(ID, env, enforced=True) == place
    assert profile.place_environment(place) == {"OPENCODE_DB": str(place / "opencode.db")}
    (place / "opencode.db").rename(tmp_path / "moved.db")
    (place / "opencode.db").symlink_to(tmp_path / "moved.db")
    assert list(profile.reader(env).sessions()) == []  # type: ignore[union-attr]


def test_a_session_that_was_begun_in_opencode_itself_needs_the_database_of_all(tmp_path: Path) -> None:
    opencode(tmp_path)
    env = {"HOME": str(tmp_path)}
    profile = next(profile for profile in KNOWN if profile.name == "opencode")
    assert profile.session_place(ID, env, enforced=False) is None
    with pytest.raises(InvalidInput, match="begun in OpenCode itself"):
        profile.session_place(ID, env, enforced=True)


def test_approvals_that_a_command_wrote_into_its_database_are_removed_before_the_next_start(tmp_path: Path) -> None:
    opencode(tmp_path)
    place, env = own_database(tmp_path), {"HOME": str(tmp_path)}
    profile = next(profile for profile in KNOWN if profile.name == "opencode")
    with closing(sqlite3.connect(place / "opencode.db")) as database, database:
        database.execute("alter table session add column permission")
        database.execute("update session set permission = 'allow'")
        database.execute("create table permission (id, action)")
        database.execute("insert into permission values ('1', 'bash')")
    profile.session_place(ID, env, enforced=True)
    with closing(sqlite3.connect(place / "opencode.db")) as database, database:
        assert database.execute("select permission from session").fetchall() == [(None,)]
        assert database.execute("select * from permission").fetchall() == []
        database.execute(
            "create trigger again after delete on permission begin insert into permission values (2, 3); end"
        )
    with pytest.raises(InvalidInput, match="triggers or views"):
        profile.session_place(ID, env, enforced=True)


def test_invalid_records_are_left_out(tmp_path: Path) -> None:
    _lines(tmp_path / ".qwen" / "projects" / "x" / "chats" / "a.jsonl", ["text", 3, {"type": "user", "message": 7}])
    _lines(tmp_path / ".gemini" / "tmp" / "x" / "chats" / "session-1-a.jsonl", [[], {"sessionId": 5}])
    _lines(tmp_path / ".copilot" / "session-state" / "a" / "workspace.yaml", ["id"])
    database = tmp_path / ".local" / "share" / "opencode" / "opencode.db"
    _lines(database, ["no database"])
    found = [profile.reader({"HOME": str(tmp_path)}) for profile in KNOWN]
    assert [len(list(reader.sessions())) for reader in found if reader is not None] == [0, 0, 1, 0, 0]


def test_records_nested_too_deeply_are_left_out(tmp_path: Path) -> None:
    deep = "[" * 10_000 + "]" * 10_000
    for write in (opencode, qwen):
        write(tmp_path)
    with closing(sqlite3.connect(tmp_path / ".local" / "share" / "opencode" / "opencode.db")) as database:
        database.execute("insert into part values ('p9', 'm3', ?, ?)", (ID, f'{{"type": "text", "text": {deep}}}'))
        database.commit()
    moved = tmp_path / ".qwen" / "projects" / "-work-repo" / "chats" / f"{ID}.runtime.json"
    moved.write_text(f'{{"work_dir": {deep}}}')
    for profile in KNOWN:
        reader = profile.reader({"HOME": str(tmp_path)})
        if profile.name in ("opencode", "qwen"):
            assert reader is not None
            assert [turn.message for turn in reader.stored_turns(ID) or ()] == ["made"]
            assert [info.directory for info in reader.sessions()] == [PLACE]


@pytest.mark.parametrize("given", ["[]", "{", "[" * 10_000])
def test_a_configuration_of_opencode_that_is_no_object_is_as_none(given: str, tmp_path: Path) -> None:
    profile = next(profile for profile in KNOWN if profile.name == "opencode")
    made = profile.environment({"OPENCODE_CONFIG_CONTENT": given}, SessionOptions(), tmp_path)
    assert (
        made["OPENCODE_CONFIG_CONTENT"]
        == profile.environment({}, SessionOptions(), tmp_path)["OPENCODE_CONFIG_CONTENT"]
    )


def _lines(path: Path, lines: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_usage_of_gemini_counts_whole_messages_once(tmp_path: Path) -> None:
    gemini(tmp_path)
    reader = GeminiReader(tmp_path / ".gemini" / "tmp")
    assert reader.spent(ID) == CALL + CALL
    (_, path) = sorted(tmp_path.glob(".gemini/tmp/repo/chats/*.jsonl"))
    said = {"id": "7", "type": "gemini", "timestamp": "2027-01-01T00:00:00Z", "content": "more"}
    line = json.dumps({**said, "tokens": {"input": 5, "output": 2}})
    with path.open("a") as file:
        file.write(line[:20])
        file.flush()
        assert reader.spent(ID) == CALL + CALL, "it is just being written"
        file.write(line[20:])
        file.flush()
        assert reader.spent(ID) == CALL + CALL + Usage(5, 0, 2, 0)
        file.write("\n" + line.replace('"input": 5', '"input": 6') + "\n")
    assert reader.spent(ID) == CALL + CALL + Usage(6, 0, 2, 0), "the message was written again"


def test_a_place_of_kimi_has_the_login_and_nothing_of_other_sessions_or_of_a_server(tmp_path: Path) -> None:
    env, kimi, home = {"HOME": str(tmp_path)}, Kimi(), tmp_path / ".kimi-code"
    usual = ("config.toml", "credentials/kimi.json")
    for name in (*usual, "server.token", "server/lock", "user-history/1.jsonl", "blobs/1"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("of the user", encoding="utf-8")
    (home / "gone").symlink_to(tmp_path / "gone")
    os.mkfifo(home / "fifo")
    os.mkfifo(home / "credentials" / "fifo")
    place = kimi.session_place("", env, enforced=True)
    assert place is not None
    kimi.was_begun(ID, place)
    files = {str(path.relative_to(place)): path.read_text(encoding="utf-8") for path in place.rglob("*.*")}
    assert files == dict.fromkeys(usual, "of the user")
    (place / "blobs").mkdir()
    (place / "blobs" / "1").write_text("of the session", encoding="utf-8")
    (place / "server.token").write_text("of a command", encoding="utf-8")
    os.mkfifo(place / "fifo")
    (place / "logs").symlink_to(tmp_path)
    assert kimi.session_place(ID, env, enforced=True) == place
    assert sorted(path.name for path in place.iterdir()) == ["blobs", "config.toml", "credentials"]
    assert (place / "blobs" / "1").read_text(encoding="utf-8") == "of the session"
    shown = kimi.home(env)
    assert {"server", "server.token", "user-history", "blobs"} <= {*shown.empty}


@pytest.mark.anyio
async def test_a_place_that_cannot_be_prepared_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / ".kimi-code").write_text("no directory", encoding="utf-8")
    config = LaunchConfig(argv=["kimi"], env={"HOME": str(tmp_path)}, state_dir=tmp_path / "state", sandbox=AsyncMock())
    options = SessionOptions(agent="kimi", cwd=tmp_path)
    session = AgentSession("", tmp_path, options)
    with pytest.raises(EngineStartFailed, match="home of Kimi Code cannot be prepared"):
        await AcpDialect(Kimi(), config.env).launch(config, session, options, None)
