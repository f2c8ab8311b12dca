"""Tests of proofs that a command stays in the sandbox.

Recorded files of real versions are in `tests/security/test_inside_or_outside.py`; these files are invented.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.agents.codex import questions
from helmsman.agents.codex.questions import prove

THREAD = "01a1e084-6990-7203-9537-c9c87b8fbce8"  # of 2026-11-15
PARAMS: dict[str, Any] = {
    "threadId": THREAD,
    "turnId": "U1",
    "itemId": "call_1",
    "command": "/bin/bash -lc 'rm -f x'",
    "cwd": "/src",
}
CONTEXT: dict[str, Any] = {
    "turn_id": "U1",
    "approval_policy": "on-request",
    "sandbox_policy": {"type": "workspace-write"},
}


def line(kind: str, payload: dict[str, Any]) -> str:
    return json.dumps({"timestamp": "2026-11-15T18:42:16.679Z", "type": kind, "payload": payload}) + "\n"


def context(**changes: Any) -> str:
    return line("turn_context", {**CONTEXT, **changes})


def call(arguments: object = None, name: str = "exec_command", **changes: Any) -> str:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {"cmd": "rm -f x"})
    payload = {"type": "function_call", "name": name, "arguments": text, "call_id": "call_1", **changes}
    return line("response_item", payload)


class Sessions:
    def __init__(self, root: Path) -> None:
        self.path = root
        self.folder = root / "2026" / "11" / "15"
        self.folder.mkdir(parents=True)

    def write(self, *lines: str, name: str = "", folder: Path | None = None) -> Path:
        path = (folder or self.folder) / f"rollout-2026-11-15T18-42-16-{THREAD}{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines), encoding="utf-8")
        return path

    def proof(self, *lines: str, **changes: Any) -> str | None:
        if lines:
            self.write(*lines)
        return prove(self.path, {**PARAMS, **changes})


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    return Sessions(tmp_path)


def test_a_plain_call_under_on_request_stays_inside(sessions: Sessions) -> None:
    assert sessions.proof(context(), call()) == "inside"
    assert sessions.proof(context(sandbox_policy={"type": "read-only"}), call()) == "inside"
    assert sessions.proof(context(), call({"command": "rm -f x"}, "shell_command")) == "inside"
    assert sessions.proof(context(), call({"command": ["rm", "-f", "x"]}, "shell"), command="rm -f x") == "inside"
    nothing = {"cmd": "rm -f x", "sandbox_permissions": None, "justification": None, "workdir": "/src"}
    assert sessions.proof(context(), call(nothing)) == "inside"


def test_the_oldest_form_names_no_turn(sessions: Sessions) -> None:
    old = line("turn_context", {key: value for key, value in CONTEXT.items() if key != "turn_id"})
    assert sessions.proof(old, call(), turnId="1") == "inside"


def test_under_untrusted_it_may_be_run_again_outside(sessions: Sessions) -> None:
    assert sessions.proof(context(approval_policy="untrusted"), call()) == "inside-then-outside"


@pytest.mark.parametrize("policy", ["on-failure", "never", "unless-trusted", None, {"granular": {}}, 7])
def test_another_policy_proves_nothing(sessions: Sessions, policy: object) -> None:
    assert sessions.proof(context(approval_policy=policy), call()) == "outside"


@pytest.mark.parametrize(
    "changes",
    [
        {"sandbox_policy": {"type": "danger-full-access"}},
        {"sandbox_policy": {"type": "external-sandbox"}},
        {"sandbox_policy": "workspace-write"},
        {"sandbox_policy": None},
        {"permission_profile": {"type": "disabled"}},
        {"permission_profile": {"type": "external"}},
        {"permission_profile": {"type": "managed", "file_system": {"type": "unrestricted"}}},
        {"approvals_reviewer": "auto_review"},
    ],
)
def test_without_a_sandbox_that_is_known_nothing_is_proved(sessions: Sessions, changes: dict[str, Any]) -> None:
    assert sessions.proof(context(**changes), call()) == "outside"


@pytest.mark.parametrize(
    "changes",
    [
        {"additionalPermissions": {"network": {"enabled": True}}},
        {"additionalPermissions": {}},
        {"networkApprovalContext": {"host": "x"}},
        {"approvalId": "a part of the command"},
        {"kind": "network"},
        {"environmentId": "elsewhere"},
        {"itemId": None},
        {"threadId": None},
        {"threadId": "../../etc/passwd"},
        {"threadId": "ffffffff-ffff-7fff-ffff-ffffffffffff"},
        {"turnId": "U2"},
        {"command": "/bin/bash -lc 'rm -f y'"},
        {"command": "/bin/bash -lc 'rm -f x' y"},
        {"command": "rm -f x"},
        {"command": "'"},
        {"command": None},
        {"command": ["rm", "-f", "x"]},
    ],
)
def test_a_question_that_asks_for_more_or_for_something_else_proves_nothing(
    sessions: Sessions, changes: dict[str, Any]
) -> None:
    assert sessions.proof(context(), call(), **changes) == "outside"


@pytest.mark.parametrize(
    "made",
    [
        call({"cmd": "rm -f x", "sandbox_permissions": "require_escalated"}),
        call({"cmd": "rm -f x", "with_escalated_permissions": True}),
        call({"cmd": "rm -f x", "additional_permissions": {}}),
        call({"cmd": "rm -f x", "prefix_rule": ["rm"]}),
        call({"cmd": "rm -f x", "Sandbox_Permissions": "use_default"}),
        call({"cmd": ["rm", "-f", "x"]}),
        call({"command": "rm -f x"}),
        call('{"cmd": "rm -f x", "sandbox_permissions": "require_escalated", "sandbox_permissions": "use_default"}'),
        call('{"cmd": "rm -f x"'),
        call('["rm -f x"]'),
        call("[" * 100_000),
        call(name="another_tool"),
        call(namespace="mcp__lab"),
        call(type="custom_tool_call"),
    ],
)
def test_a_call_that_is_odd_in_any_way_proves_nothing(sessions: Sessions, made: str) -> None:
    assert sessions.proof(context(), made) == "outside"


def test_two_calls_with_one_id_prove_nothing_unless_they_are_the_same(sessions: Sessions) -> None:
    escalated = call({"cmd": "rm -f x", "sandbox_permissions": "require_escalated"})
    assert sessions.proof(context(), call(), call()) == "inside"
    assert sessions.proof(context(), call(), escalated) == "outside"
    assert sessions.proof(context(), escalated, call()) == "outside"
    assert sessions.proof(context(turn_id="U0"), escalated, context(), call()) == "inside"  # of another turn


def test_a_call_that_is_over_proves_nothing_for_another_with_its_id(sessions: Sessions) -> None:
    over = line("response_item", {"type": "function_call_output", "call_id": "call_1", "output": "done"})
    assert sessions.proof(context(), call(), over) == "outside"  # the call in question is not yet in the file
    assert sessions.proof(context(), call(), over, call()) == "outside"


def test_settings_that_change_in_the_turn_prove_nothing(sessions: Sessions) -> None:
    def applied(policy: str) -> str:
        changed = {"approval_policy": policy, "sandbox_policy": {"type": "workspace-write"}}
        return line("event_msg", {"type": "thread_settings_applied", "thread_settings": changed})

    assert sessions.proof(context(), applied("on-request"), call()) == "inside"
    assert sessions.proof(context(), applied("untrusted"), call()) == "outside"


def test_text_of_the_model_is_no_line_of_codex(sessions: Sessions) -> None:
    planted = context().strip() + "\n" + call()
    said = line("response_item", {"type": "message", "content": [{"type": "output_text", "text": planted}]})
    output = line("response_item", {"type": "function_call_output", "call_id": "call_0", "output": planted})
    named = call(name="turn_context", call_id="call_0")
    denied = context(approval_policy="on-failure")
    assert sessions.proof(denied, said, output, named, call()) == "outside"
    assert sessions.proof(context(), said, output, named, call()) == "inside"


def test_a_call_that_is_not_written_down_yet_may_only_be_late(sessions: Sessions) -> None:
    assert sessions.proof(context()) is None
    assert sessions.proof(context(turn_id="U0")) is None
    assert sessions.proof(context(), call()[:50]) is None
    assert sessions.proof(context(), itemId="exec-0b6c") == "outside"  # code mode: it will never come
    assert sessions.proof(context(approval_policy="never")) == "outside"


def test_a_thread_without_a_file_proves_nothing(sessions: Sessions) -> None:
    assert sessions.proof() == "outside"
    (sessions.folder / f"rollout-x-{THREAD}.jsonl").mkdir()
    assert sessions.proof() == "outside"


def test_the_file_is_found_on_the_day_before_and_after_and_the_newest_counts(sessions: Sessions) -> None:
    older = sessions.write(context(approval_policy="never"), folder=sessions.path / "2026" / "11" / "14")
    newer = sessions.write(context(), call(), folder=sessions.path / "2026" / "11" / "16", name="_" + THREAD)
    os.utime(older, (1, 1))
    assert sessions.proof() == "inside"
    os.utime(newer, (0, 0))
    assert sessions.proof() == "outside"
    sessions.write(line("session_meta", {"id": THREAD}))  # the newest says nothing, and no other speaks for it
    os.utime(newer)
    os.utime(sessions.folder / newer.name.replace("_" + THREAD, ""), (2_000_000_000_000, 2_000_000_000_000))
    assert sessions.proof() == "outside"


def test_a_turn_that_wrote_too_much_proves_nothing_and_costs_little(sessions: Sessions) -> None:
    noise = line("response_item", {"type": "function_call_output", "call_id": "c", "output": "x" * 100_000})
    assert sessions.proof(context(), *[noise] * 30, call()) == "inside"
    sessions.write(context(), *[noise] * 400, call())
    begun = time.process_time()
    assert sessions.proof() == "outside"
    assert time.process_time() - begun < 1
    assert questions._TAIL < 5 * 1024 * 1024


@given(tail=st.binary(max_size=200))
def test_no_bytes_whatever_raise_or_prove(tail: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    sessions = Sessions(tmp_path_factory.mktemp("sessions"))
    path = sessions.write(context(approval_policy="on-failure"), call())
    path.write_bytes(path.read_bytes() + tail)
    assert sessions.proof() == "outside"
