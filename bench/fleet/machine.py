"""Machine of a fleet without agents: it carries out a task at once, and adds the time to its messages.

    python -m bench.fleet.machine URL NAME DIRECTORY LEASE CAPACITY

Queue, lease, claims, events, questions and cancels are those of a real worker.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from helmsman import load_settings
from helmsman.base.concurrency import sleep_until
from helmsman.fleet.lease import DeclaredDead
from helmsman.fleet.owned_task import NotOwner, OwnedTask
from helmsman.fleet.pump import EventPump
from helmsman.fleet.worker import DECLARED_DEAD, Worker, WorkerOptions
from helmsman.model.questions import Prompt, Question
from helmsman.service import HelmsmanService
from helmsman.steering.shared import Shared

if TYPE_CHECKING:
    from helmsman.tasks.model import TaskStatus


class QuickRun:
    """Stand-in for a running task in notifications."""

    def __init__(self) -> None:
        self.woken = anyio.Event()

    def wake(self) -> None:
        self.woken.set()
        self.woken = anyio.Event()

    async def hand_over(self) -> None:
        """Do nothing: no task runs."""


class QuickWorker(Worker):
    async def _look_at_agents(self) -> tuple[dict[str, str], tuple[str, ...]]:
        return {"codex": ""}, ()

    async def _run(self, owned: OwnedTask) -> None:
        run = QuickRun()
        self._running[owned.id] = run  # type: ignore[assignment]
        pump = EventPump(owned)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pump.run)
                status = await self._do(owned, pump, run)
                await pump.close()
            await self._database.keep_trying(lambda: owned.finish({"status": status}), "a result")
        except* NotOwner:
            pass
        finally:
            self._running.pop(owned.id, None)
            self._wake()

    async def _do(self, owned: OwnedTask, pump: EventPump, run: QuickRun) -> TaskStatus:
        spec: dict[str, Any] = dict(owned.task.spec or {})
        pump.note("begun")
        for _ in range(spec.get("events", 0)):
            await anyio.sleep(spec["pause"])
            pump.note("beat")
        talks_until, position = time.monotonic() + spec.get("talks", 0), 0
        while (
            left := talks_until - time.monotonic()
        ) > 0:  # like an agent that types: its text, its progress, its file
            for _ in range(20):
                pump.note("beat")
                await anyio.sleep(0.05)
            await owned.update(progress={"left": left})
            await owned.add_rollout("s-" + owned.id, "file", position, b"x" * 2000)
            position += 2000
        if spec.get("asks"):
            question = Question(
                asker="Codex",
                id="q",
                type="user_input",
                session_id="s",
                turn_id=None,
                prompts=(Prompt(text="?", options=("yes", "no")),),
            )
            await owned.ask(question, 60)
            while True:
                woken = run.woken  # taken before the look: an answer in between wakes it
                if orders := (await owned.orders())["orders"]:
                    break
                await sleep_until(woken, 5)
            pump.note("answered")
            await owned.end_order(orders[0]["id"])
        until = time.monotonic() + spec.get("seconds", 0)
        while (left := until - time.monotonic()) > 0:
            await sleep_until(run.woken, min(left, 5))
            if (await owned.orders())["cancel_asked"]:
                pump.note("stopping")
                return "canceled"
        return "completed"


async def main(url: str, name: str, directory: str, lease: str, capacity: str) -> int:
    options = WorkerOptions(url=url, name=name, agents=("codex",), capacity=int(capacity), lease=float(lease))
    try:
        async with QuickWorker(options, Path(directory)) as worker, anyio.create_task_group() as tasks:

            async def announce() -> None:
                await worker.ready.wait()
                print("ready", flush=True)

            tasks.start_soon(announce)
            env = {**os.environ, "HELMSMAN_STATE_DIR": str(Path(directory) / "service"), "HELMSMAN_DETACH": "0"}
            shared = Shared(Path(directory) / "service")
            async with shared, HelmsmanService(load_settings({}, env, Path(directory)), env=env, shared=shared) as helm:
                await worker.serve(helm, helm)
    except* DeclaredDead:
        os._exit(DECLARED_DEAD)
    return 0


if __name__ == "__main__":
    url, name, directory, lease, capacity = sys.argv[1:]
    code = anyio.run(main, url, name, directory, lease, capacity)
    os._exit(code)
