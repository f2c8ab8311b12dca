"""Tests of the audit log: its content, redaction, one line per entry, and that its errors never block work."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.approvals.audit import AuditLog
from helmsman.base.files import file_lock
from helmsman.model.answered_by import HANDLER, AnsweredBy
from helmsman.model.questions import Prompt, Question, QuestionType

PERSON = AnsweredBy("person", via="dashboard")


def ask(kind: QuestionType = "command_approval", **details: Any) -> Question:
    prompts = (Prompt(text="Which one?", options=("a", "b")),)
    return Question(asker="Codex", id="q_1", type=kind, session_id="T1", turn_id="U1", prompts=prompts, details=details)


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines() if line]


@pytest.fixture
def audit(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path / "state")


def test_a_decision_is_one_line_that_tells_all(audit: AuditLog) -> None:
    question = ask(command="/bin/bash -lc 'git push'", directory="/src/repo")
    audit.record(question, decision="deny", by=PERSON, reason="not today")
    (entry,) = entries(audit.path)
    assert datetime.fromisoformat(entry.pop("time")).utcoffset() is not None
    assert entry == {
        "session": "T1",
        "question": "q_1",
        "type": "command_approval",
        "what": {"command": "/bin/bash -lc 'git push'"},
        "directory": "/src/repo",
        "decision": "deny",
        "by": "person",
        "via": "dashboard",
        "reason": "not today",
    }


@pytest.mark.parametrize(
    ("question", "what"),
    [
        (ask(command="ls", networkContext={"host": "x"}), {"command": "ls", "networkContext": {"host": "x"}}),
        (ask("patch_approval", diff="…", paths=["/a", "/b"]), {"paths": ["/a", "/b"]}),
        (ask("patch_approval", paths=["/a"], grantRoot="/"), {"paths": ["/a"], "grantRoot": "/"}),
        (
            ask("permission_approval", permissions={"network": {"enabled": True}}),
            {"permissions": {"network": {"enabled": True}}},
        ),
        (ask("mcp_elicitation", server="lab", tool="write", toolParams={"x": 1}), {"server": "lab", "tool": "write"}),
        (ask("user_input"), {"questions": ["Which one?"]}),
        (ask("command_approval"), {"questions": ["Which one?"]}),
    ],
)
def test_every_kind_of_question_says_what_it_was_about(
    audit: AuditLog, question: Question, what: dict[str, Any]
) -> None:
    audit.record(question, decision="approve", by=HANDLER)
    assert entries(audit.path)[0]["what"] == what


def test_secrets_are_redacted_everywhere(audit: AuditLog) -> None:
    secret = "sk-proj-abcdefghijklmnop0123456789"
    audit.record(
        ask(command=f"curl -H 'Authorization: Bearer {secret}' x", directory=f"/{secret}"),
        decision=secret,
        by=AnsweredBy("rule", f"allow curl {secret}"),
        reason=f"OPENAI_API_KEY={secret}",
    )
    assert secret not in audit.path.read_text(encoding="utf-8")
    assert entries(audit.path)[0]["what"]["command"].startswith("curl -H")


def test_the_log_is_for_the_user_alone(audit: AuditLog) -> None:
    audit.record(ask(command="ls"), decision="approve", by=PERSON)
    assert stat.S_IMODE(audit.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(audit.path.parent.stat().st_mode) == 0o700


def test_very_long_values_are_cut(audit: AuditLog) -> None:
    audit.record(ask(command="x" * 1_000_000), decision="deny", by=PERSON)
    audit.record(ask("patch_approval", paths=[f"/{number}" for number in range(10_000)]), decision="deny", by=PERSON)
    assert audit.path.stat().st_size < 20_000
    assert [entry["decision"] for entry in entries(audit.path)] == ["deny", "deny"]


def test_a_half_written_line_spoils_no_other(audit: AuditLog) -> None:
    audit.record(ask(command="first"), decision="approve", by=PERSON)
    with audit.path.open("ab") as file:
        file.write(b'{"cut off')
    audit.record(ask(command="second"), decision="approve", by=PERSON)
    first, cut, second = audit.path.read_text(encoding="ascii").splitlines()
    assert (json.loads(first)["what"], cut, json.loads(second)["what"]) == (
        {"command": "first"},
        '{"cut off',
        {"command": "second"},
    )


def test_a_decision_that_a_killed_hub_recorded_is_not_recorded_again_by_the_next_one(audit: AuditLog) -> None:
    question = ask(command="ls")
    for writer in (audit, AuditLog(audit.state_dir)):
        writer.record(question, decision="approve", by=PERSON)
    audit.record(question, decision="deny", by=PERSON)
    assert [entry["decision"] for entry in entries(audit.path)] == ["approve", "deny"]


# --- size ------------------------------------------------------------------------------------------------------------


def test_a_log_that_has_grown_too_large_is_put_aside_and_the_oldest_is_dropped(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "state", max_bytes=1000, files_kept=3)
    for number in range(100):
        audit.record(ask(command=str(number)), decision="approve", by=PERSON)
    files = [audit.path, audit.path.with_name("audit.jsonl.1"), audit.path.with_name("audit.jsonl.2")]
    assert sorted(audit.path.parent.glob("audit.jsonl*")) == files
    assert all(file.stat().st_size < 1500 for file in files)
    kept = [int(entry["what"]["command"]) for file in reversed(files) for entry in entries(file)]
    assert kept == list(range(100 - len(kept), 100))


def test_while_another_process_puts_the_log_aside_lines_are_still_written(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "state", max_bytes=1)
    audit.record(ask(command="first"), decision="approve", by=PERSON)
    with file_lock(tmp_path / "state" / "audit.lock", timeout=1):
        audit.record(ask(command="second"), decision="approve", by=PERSON)
    assert [entry["what"]["command"] for entry in entries(audit.path)] == ["first", "second"]


RECORD_MANY = """
import sys
from pathlib import Path
from helmsman.model.answered_by import PERSON_AT_TERMINAL
from helmsman.model.questions import Prompt, Question
from helmsman.approvals.audit import AuditLog

audit = AuditLog(Path(sys.argv[1]), max_bytes=20_000, files_kept=100)
for number in range(200):
    details = {"command": f"{sys.argv[2]} {number} {'x' * 100}"}
    prompts = (Prompt(text="May I?"),)
    question = Question(
        asker="Codex", id="q_1", type="command_approval", session_id="T1", turn_id=None, prompts=prompts, details=details
    )
    audit.record(question, decision="approve", by=PERSON_AT_TERMINAL)
"""


def test_lines_of_several_processes_never_mix_and_none_is_lost(tmp_path: Path) -> None:
    state = tmp_path / "state"
    names = ("p0", "p1", "p2")
    started = [subprocess.Popen([sys.executable, "-c", RECORD_MANY, state, name]) for name in names]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    assert len(list(state.glob("audit.jsonl.*"))) > 1
    found = [entry["what"]["command"].split() for file in state.glob("audit.jsonl*") for entry in entries(file)]
    assert sorted((name, int(number)) for name, number, _ in found) == [
        (name, count) for name in names for count in range(200)
    ]


# --- trouble ---------------------------------------------------------------------------------------------------------


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_full_disk_is_logged_and_not_raised(
    audit: AuditLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        audit.record(ask(command="ls"), decision="approve", by=PERSON)
    assert "No space left on device" in warnings(caplog)[0]


def test_a_write_that_stops_half_way_is_logged(
    audit: AuditLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:10]))
        audit.record(ask(command="lost"), decision="approve", by=PERSON)
    assert "cut short" in warnings(caplog)[0]
    audit.record(ask(command="next"), decision="approve", by=PERSON)
    assert json.loads(audit.path.read_text(encoding="ascii").splitlines()[-1])["what"] == {"command": "next"}


@pytest.mark.parametrize("trouble", ["a file in its place", "others can write", "a directory in its place", "a link"])
def test_a_state_directory_that_cannot_be_used_is_logged_and_not_raised(
    tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "state"
    if trouble == "a file in its place":
        state.touch()
    else:
        state.mkdir(mode=0o700)
    if trouble == "others can write":
        state.chmod(0o777)
    if trouble == "a directory in its place":
        (state / "audit.jsonl").mkdir()
    if trouble == "a link":
        (state / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
    AuditLog(state).record(ask(command="ls"), decision="approve", by=PERSON)
    assert len(warnings(caplog)) == 1
    assert not (tmp_path / "elsewhere").exists()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@given(command=VALUES, paths=VALUES, text=st.text())
def test_any_question_is_written_as_one_line_of_json(
    tmp_path_factory: pytest.TempPathFactory, command: Any, paths: Any, text: str
) -> None:
    audit = AuditLog(tmp_path_factory.mktemp("audit") / "state")
    audit.record(ask(command=command, directory=paths), decision=text, by=AnsweredBy("rule", text), reason=text)
    audit.record(ask("patch_approval", paths=paths), decision=text, by=AnsweredBy("rule", text))
    assert len(entries(audit.path)) == 2


class _Untold:
    def __str__(self) -> str:
        raise RuntimeError("nobody can say what this is")


def test_a_failed_audit_entry_blocks_nothing(audit: AuditLog, caplog: pytest.LogCaptureFixture) -> None:
    audit.record(ask(command=_Untold()), decision="approve", by=PERSON)
    assert "could not be written to the audit log" in caplog.text
    audit.record(ask(command="ls"), decision="approve", by=PERSON)
    assert [entry["what"] for entry in entries(audit.path)] == [{"command": "ls"}]
