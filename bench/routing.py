"""How long it takes to understand a request and find the task it means.

Every labelled request of the tests is parsed and routed, many times over, against a hundred tasks, and so is a request of
20 MB. A 99th percentile under a millisecond is the goal. Processor time is what counts: on a busy machine the clock
also shows what others took.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time

from tests.router.shelf import NOW, SHELF, ShelfTask, labelled_requests, shelf_task

from helmsman.router.intent import parse
from helmsman.router.route import Place, route

GOAL_MS = 1.0
ROUNDS = 20
TASKS = 100
HUGE = "Fix the tests. " * (20 * 1024 * 1024 // 15)


async def measure(rounds: int = ROUNDS) -> bool:
    """Print the times; whether the goal was met."""
    return _measure(rounds)


def _measure(rounds: int) -> bool:
    older = [
        shelf_task(f"T-local-{n:012x}", f"older-{n}", "completed", minutes=100 + n) for n in range(TASKS - len(SHELF))
    ]
    shelf = [*SHELF, *older]
    requests = [entry.request for entry in labelled_requests()]
    gc.collect()
    gc.disable()  # what is measured is the routing, not when a collection happens to fall
    try:
        times = [_time(request, shelf) for _ in range(rounds) for request in requests]
        huge = statistics.median(_time(HUGE, shelf)[0] for _ in range(rounds))
    finally:
        gc.enable()
    processor, clock = (sorted(column) for column in zip(*times, strict=True))
    worst = int(len(times) * 0.99)
    print(f"{len(requests)} requests, {TASKS} tasks, {rounds} rounds")
    print(f"processor: median {statistics.median(processor):.3f} ms, 99th percentile {processor[worst]:.3f} ms")
    print(f"clock:     median {statistics.median(clock):.3f} ms, 99th percentile {clock[worst]:.3f} ms")
    print(f"a request of 20 MB: {huge:.3f} ms")
    met = processor[worst] < GOAL_MS and huge < GOAL_MS
    print(f"goal: under {GOAL_MS:g} ms; {'met' if met else 'NOT met'}")
    return met


def _time(request: str, shelf: list[ShelfTask]) -> tuple[float, float]:
    """Milliseconds of the processor and of the clock."""
    clock, processor = time.perf_counter(), time.thread_time()
    route(parse(request), shelf, NOW, Place())
    return (time.thread_time() - processor) * 1000, (time.perf_counter() - clock) * 1000


def main() -> None:
    sys.exit(int(not _measure(ROUNDS)))


if __name__ == "__main__":
    main()
