"""How long it takes to sum up what ten thousand sessions have spent, the first time and every time after.

The sessions are made up: files of the size and shape that Codex writes, 40 kB each, with three turns. Of sessions that
another program ran the files are read: under two seconds the first time is the goal, and under half a second for a later
process, which finds what the first one kept. Of those that Helmsman ran the store tells, and half a second is the goal from
the first time on. The files have been written just before, so it is not the disk that is measured.
"""

from __future__ import annotations

import json
import tempfile
import time
import uuid
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.figures import Row
from helmsman.agents.registry import Agents, Spendings
from helmsman.base.structs import replace
from helmsman.capabilities.usage_report import report, spendings_now
from helmsman.model.events import TurnEnded, Usage
from helmsman.settings import load_settings
from helmsman.store.log import NewEvent
from helmsman.tasks.model import TaskDraft
from helmsman.tasks.prices import Prices
from helmsman.tasks.registry import REGISTRY_NAME, Batch, Registry

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
        with closing(Registry(Path(folder) / "own" / REGISTRY_NAME)) as registry:
            enter(registry, sessions)
            own = _time(home, Path(folder) / "own", sessions, registry)
    return [
        Row(
            what=f"what {sessions:,} sessions have spent, cold and warm, processor time",
            goal=f"under {COLD_SECONDS:g} s and {WARM_SECONDS:g} s",
            helmsman=f"{cold:.2f} s, {warm:.2f} s",
            beside=f"{size / 1_000_000:.0f} MB of files",
            met=cold < COLD_SECONDS and warm < WARM_SECONDS,
        ),
        Row(
            what=f"what {sessions:,} sessions that Helmsman ran have spent, cold, processor time",
            goal=f"under {WARM_SECONDS:g} s",
            helmsman=f"{own:.2f} s",
            beside=f"{sessions * TURNS:,} tasks",
            met=own < WARM_SECONDS,
        ),
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
        turn_id = _turn_id(number, turn)
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


def _turn_id(number: int, turn: int) -> str:
    return f"0199a0f2-7c11-7d20-9f0a-{number * TURNS + turn:012x}"


def enter(registry: Registry, count: int) -> None:
    """Enter the turns of these sessions as tasks, each with an event of its session."""
    now = datetime.now(UTC)
    for first in range(0, count, 100):
        batch = Batch()
        for number in range(first, min(count, first + 100)):
            session_id = str(uuid.UUID(int=number + 1))
            ended = TurnEnded(session_id=session_id, outcome="completed").with_time(now)
            batch.events[session_id] = [NewEvent.of(ended, 1)]
            for turn in range(TURNS):
                task_id = f"T-local-{number * TURNS + turn:012x}"
                batch.drafts[task_id] = TaskDraft(
                    id=task_id,
                    instruction="Fix the failing test",
                    directory=f"/src/project-{number % 20}",
                    session_id=session_id,
                    turn_id=_turn_id(number, turn),
                    model="gpt-5.5",
                )
                batch.changes[task_id] = {"status": "completed", "usage": Usage(2000, 1000, 200)}
        registry.commit(batch)


def _time(home: Path, state: Path, sessions: int, registry: Registry | None = None) -> float:
    """Return processor seconds: on a busy machine the clock includes the time of other programs."""
    settings = replace(load_settings({}, {}), codex_home=home, state_dir=state)
    began = time.process_time()
    stored = ((), {}) if registry is None else (registry.turn_usages(), registry.only_in_tasks())
    spendings = Spendings(Agents(), settings, {"HOME": str(home)})
    told = report(spendings_now(spendings, stored), "day", Prices())
    assert told.total.usage.input_tokens == sessions * TURNS * 2000
    return time.process_time() - began
