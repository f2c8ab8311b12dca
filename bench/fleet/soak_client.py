"""Client of a machine that runs none of a fleet's work, in a process of its own, for the soak to kill.

    python -m bench.fleet.soak_client DIRECTORY

Reads numbers of tasks, a line each; tells of each, as a line of JSON, which task it is once that is accepted, and how it
ended.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from helmsman import Helmsman, HelmsmanError, Placement, load_settings

FULL: Any = {"sandbox": "danger-full-access", "approval_policy": "never"}


def prompt_of(number: int) -> str:
    return f"task {number} "


async def main(directory: Path) -> None:
    env = dict(os.environ)
    async with Helmsman(load_settings({}, env, directory), env=env) as helm, anyio.create_task_group() as tasks:

        async def do(number: int) -> None:
            try:
                session = await helm.start(
                    prompt_of(number),
                    cwd=directory,
                    idempotency_key=f"task-{number}",
                    placement=Placement(on_machine_loss="continue"),
                    on_task=lambda task: _say(number, task=task),
                    **FULL,
                )
                await session.wait(until="end")
                _say(number, status=session.status, result=session.result, failure=str(session.error))
            except HelmsmanError as error:
                _say(number, error=error.code)

        while line := await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            tasks.start_soon(do, int(line))
        tasks.cancel_scope.cancel()


def _say(number: int, **what: object) -> None:
    print(json.dumps({"number": number, **what}), flush=True)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
