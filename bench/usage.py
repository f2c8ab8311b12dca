"""How long it takes to sum up what ten thousand sessions have spent, the first time and every time after.

The sessions are made up: files of the size and shape that Codex writes, 40 kB each, with three turns. Under two seconds
the first time is the goal, and under half a second for a later process, which finds what the first one kept. The files
have been written just before, so it is not the disk that is measured.
"""

from __future__ import annotations

import json
import tempfile
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.figures import Row
from helmsman.agents.codex.rollout_turns import CodexSessions
from helmsman.agents.spending import SpendingIndex
from helmsman.capabilities.usage_report import all_spendings, report
from helmsman.tasks.prices import Prices

SESSIONS = 10_000
TURNS = 3
COLD_SECONDS = 2.0
WARM_SECONDS = 0.5
BEGIN = datetime(2026, 1, 1, 9, tzinfo=UTC)
INSTRUCTIONS = "You are Codex, based on GPT-5. You are running as a coding agent in the Codex CLI.\n" * 200
OUTPUT = "tests/test_parser.py::test_a_case PASSED\n" * 100


async def measure(sessions: int = SESSIONS) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="helmsman-bench-") as folder:
        home, state = Path(folder) / "codex", Path(folder) / "state"
        write_sessions(home, sessions)
        size = sum(file.stat().st_size for file in home.rglob("*.jsonl"))
        cold, warm = (_time(home, state, sessions) for _ in range(2))
    return [
        Row(
            what=f"what {sessions:,} sessions have spent, cold and warm, processor time",
            goal=f"under {COLD_SECONDS:g} s and {WARM_SECONDS:g} s",
            helmsman=f"{cold:.2f} s, {warm:.2f} s",
            beside=f"{size / 1_000_000:.0f} MB of files",
            met=cold < COLD_SECONDS and warm < WARM_SECONDS,
        )
    ]


def write_sessions(home: Path, count: int) -> None:
    """Write artificial sessions, one every hour, in Codex's format."""
    for number in range(count):
        begin = BEGIN + timedelta(hours=number)
        session_id = str(uuid.UUID(int=number + 1))
        folder = home / "sessions" / begin.strftime("%Y/%m/%d")
        folder.mkdir(parents=True, exist_ok=True)
        name = f"rollout-{begin:%Y-%m-%dT%H-%M-%S}-{session_id}.jsonl"
        (folder / name).write_text("".join(_lines(session_id, number, begin)), encoding="utf-8")


def _lines(session_id: str, number: int, begin: datetime) -> list[str]:
    stamp = begin.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def line(kind: str, payload: dict[str, Any]) -> str:
        return json.dumps({"timestamp": stamp, "type": kind, "payload": payload}, separators=(",", ":")) + "\n"

    head = {
        "session_id": session_id,
        "id": session_id,
        "timestamp": stamp,
        "cwd": f"/src/project-{number % 20}",
        "originator": "bench",
        "cli_version": "0.163.0",
        "source": "vscode",
        "model_provider": "scripted",
        "base_instructions": {"text": INSTRUCTIONS},
    }
    lines = [line("session_meta", head)]
    for turn in range(TURNS):
        turn_id = f"{session_id}-{turn}"
        lines.append(line("event_msg", {"type": "task_started", "turn_id": turn_id}))
        lines.append(line("turn_context", {"turn_id": turn_id, "cwd": head["cwd"], "model": "gpt-5.5"}))
        lines.append(line("event_msg", {"type": "user_message", "message": "Fix the failing test"}))
        for response in range(2):
            lines.append(line("response_item", {"type": "function_call", "arguments": '{"cmd":"pytest"}'}))
            lines.append(line("response_item", {"type": "function_call_output", "output": OUTPUT}))
            spent = (turn * 2 + response + 1) * 1000
            total = {"input_tokens": spent, "cached_input_tokens": spent // 2, "output_tokens": spent // 10}
            last = {"input_tokens": 1000, "cached_input_tokens": 500, "output_tokens": 100}
            info = {"total_token_usage": total, "last_token_usage": last, "model_context_window": 258400}
            lines.append(line("event_msg", {"type": "token_count", "info": info, "rate_limits": None}))
        lines.append(line("event_msg", {"type": "task_complete", "turn_id": turn_id}))
    return lines


def _time(home: Path, state: Path, sessions: int) -> float:
    """Return processor seconds: on a busy machine the clock includes the time of other programs."""
    began = time.process_time()
    index = SpendingIndex(CodexSessions(home), state)
    spendings = all_spendings(index.sessions(), (), names_turn=lambda _agent, turn_id: index.names(turn_id))
    told = report(spendings, "day", Prices())
    assert told.total.usage.input_tokens == sessions * TURNS * 2000
    return time.process_time() - began
