"""The many processes of test_registry_many_processes: each works on the registry and tells what it did, as JSON.

    python -m tests.tasks.hammer_worker REGISTRY PROCESSES SHARED_TASK ROUNDS

All are forks of this one, which opens no registry itself: they begin at once, and importing everything fifty times would
take longer than what they do. They tell it a line each, and it ends with 1 if one of them did not end well.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

from helmsman.tasks.model import TaskDraft
from helmsman.tasks.registry import Registry


def main() -> None:
    path, processes, shared, rounds = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    begin, all_are_there = os.pipe()
    workers: list[int] = []
    for number in range(processes):
        if (pid := os.fork()) == 0:
            os.close(all_are_there)
            os.read(begin, 1)
            code = 1
            try:
                work(path, str(number), shared, rounds)
                code = 0
            except BaseException:  # noqa: BLE001 -- whatever it is, the parent's code is not to be run here
                traceback.print_exc()
            os._exit(code)
        workers.append(pid)
    os.close(all_are_there)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers]
    sys.exit(any(codes))


def work(path: Path, number: str, shared: str, rounds: int) -> None:
    registry = Registry(path)
    own: list[str] = []
    keys: dict[str, str] = {}
    for turn in range(rounds):
        task, _ = registry.add(TaskDraft(instruction=f"Fix the login test {turn}", session_id=number))
        own.append(task.id)
        registry.update(task.id, status="working", progress={"done": turn})
        registry.update(shared, granted={f"{number}-{turn}": turn})
        registry.update(task.id, status="completed", result=f"{number}-{turn}")
        registry.update(task.id, status="working")  # too late
        keys[f"key-{turn}"] = registry.add(TaskDraft(instruction="Once", idempotency_key=f"key-{turn}"))[0].id
        registry.list(limit=5)
        if turn % 3 == 2:
            registry.close()  # opening and closing are where SQLite is strictest about locks
    registry.close()
    # One write, so that lines of several processes do not mix.
    os.write(1, json.dumps({"number": int(number), "own": own, "keys": keys}).encode() + b"\n")


if __name__ == "__main__":
    main()
