"""One of the many processes of test_registry_many_processes: works on the registry and tells what it did, as JSON.

    python -m tests.tasks.hammer_worker REGISTRY NUMBER SHARED_TASK ROUNDS

It begins when its standard input is closed, so that all begin at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from helmsman.tasks.model import TaskDraft
from helmsman.tasks.registry import Registry


def main() -> None:
    path, number, shared, rounds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    sys.stdin.read()
    registry = Registry(Path(path))
    own: list[str] = []
    keys: dict[str, str] = {}
    for turn in range(rounds):
        task, _ = registry.add(TaskDraft(instruction=f"Fix the login test {turn}", session_id=number))
        own.append(task.id)
        registry.update(task.id, status="working", progress={"done": turn})
        registry.update(shared, metadata={f"{number}-{turn}": turn})
        registry.update(task.id, status="completed", result=f"{number}-{turn}")
        registry.update(task.id, status="working")  # too late
        keys[f"key-{turn}"] = registry.add(TaskDraft(instruction="Once", idempotency_key=f"key-{turn}"))[0].id
        registry.list(limit=5)
        if turn % 3 == 2:
            registry.close()  # opening and closing are where SQLite is strictest about locks
    registry.close()
    print(json.dumps({"own": own, "keys": keys}))


if __name__ == "__main__":
    main()
