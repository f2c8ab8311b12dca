"""Many real processes at work on one registry: nothing is lost, nothing is there twice, and nobody is turned away."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helmsman.tasks.model import TaskDraft
from helmsman.tasks.registry import Registry

pytestmark = pytest.mark.long

PROCESSES = 25
ROUNDS = 8
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(180)
def test_many_processes_share_a_registry(path: Path) -> None:
    registry = Registry(path)
    shared, _ = registry.add(TaskDraft(instruction="Shared by all"))
    registry.close()
    command = [sys.executable, "-m", "tests.tasks.hammer_worker", str(path), str(PROCESSES), shared.id, str(ROUNDS)]
    worked = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert (worked.returncode, worked.stderr) == (0, "")
    told = {worker["number"]: worker for worker in map(json.loads, worked.stdout.splitlines())}
    assert set(told) == set(range(PROCESSES))

    tasks = {task.id: task for task in registry.list(limit=10_000)[0]}
    assert len(tasks) == 1 + PROCESSES * ROUNDS + ROUNDS
    for number, worker in told.items():
        results = [(tasks[own].status, tasks[own].result, tasks[own].revision) for own in worker["own"]]
        assert results == [("completed", f"{number}-{turn}", 2) for turn in range(ROUNDS)]
    for turn in range(ROUNDS):
        assert len({worker["keys"][f"key-{turn}"] for worker in told.values()}) == 1
    expected = {f"{number}-{turn}": turn for number in range(PROCESSES) for turn in range(ROUNDS)}
    assert tasks[shared.id].granted == expected, "no update is lost"
    aliases = [task.alias for task in tasks.values()]
    assert len(set(aliases)) == len(aliases)
    assert registry.database.read(lambda file: file.execute("PRAGMA integrity_check").fetchone()[0]) == "ok"
    registry.close()
