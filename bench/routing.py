"""How long it takes to understand a request and find the task it means.

Every labelled request of the tests is parsed and routed, many times over, against a hundred tasks, and so is a request of
20 MB. A 99th percentile under a millisecond is the goal. Processor time is what counts: on a busy machine the clock
also shows what others took.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

from tests.router.shelf import NOW, SHELF, labelled_requests, shelf_task

from bench.figures import Row, Sample
from helmsman.router.intent import parse
from helmsman.router.route import Place, route

if TYPE_CHECKING:
    from helmsman.tasks.model import Task

GOAL_SECONDS = 0.001
ROUNDS = 20
TASKS = 100
HUGE = "Fix the tests. " * (20 * 1024 * 1024 // 15)


async def measure(rounds: int = ROUNDS) -> list[Row]:
    older = [
        shelf_task(f"T-local-{n:012x}", f"older-{n}", "completed", minutes=100 + n) for n in range(TASKS - len(SHELF))
    ]
    shelf = [*SHELF, *older]
    requests = [entry.request for entry in labelled_requests()]
    gc.collect()
    gc.disable()  # measure routing, not garbage collections
    try:
        times = Sample(tuple(_time(request, shelf) for _ in range(rounds) for request in requests))
        huge = Sample(tuple(_time(HUGE, shelf) for _ in range(rounds))).median
    finally:
        gc.enable()
    slowest = times.percentile(99)
    return [
        Row(
            what=f"understanding a request and finding its task among {TASKS}, 99th percentile of processor time",
            goal=f"under {GOAL_SECONDS * 1000:g} ms",
            helmsman=f"{slowest * 1000:.3f} ms",
            beside=f"median {times.median * 1000:.3f} ms of {len(times.values)}; a request of 20 MB {huge * 1000:.3f} ms",
            met=max(slowest, huge) < GOAL_SECONDS,
        )
    ]


def _time(request: str, shelf: list[Task]) -> float:
    """Return processor seconds."""
    began = time.thread_time()
    route(parse(request), shelf, NOW, Place())
    return time.thread_time() - began
