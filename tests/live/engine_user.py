"""A process of its own that uses a detached engine: what a test can kill.

    python engine_user.py '{"codex": …, "codex_home": …, "state_dir": …, "cwd": …, "prompt": …}'

Writes the name of its engine, then, with a prompt, that of its session and the name of each of its events: one JSON object
a line. Then it stays until it is ended. With a `lease` of so many seconds its engine is on that, and it renews it.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio

from helmsman.agents.codex.app_servers import EngineRequest, open_detached
from helmsman.agents.codex.binary import find_codex
from helmsman.agents.codex.engine import AppServerEngine
from helmsman.agents.supervisor.client import Owner
from helmsman.agents.supervisor.lease_watchdog import ProcessLease, lease_time
from helmsman.model.events import Event
from helmsman.model.options import WRITES, SessionOptions, TurnInput


def say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def report(event: Event) -> None:
    say(event=type(event).__name__)


async def main(order: dict[str, Any]) -> None:
    binary = await find_codex(explicit=Path(order["codex"]))
    home, state_dir = Path(order["codex_home"]), Path(order["state_dir"])
    lease = ProcessLease(float(order["lease"])) if "lease" in order else None
    opening = open_detached(await EngineRequest.of(binary, home, state_dir, dict(os.environ), owner=Owner(lease=lease)))
    async with anyio.create_task_group() as tasks:
        if lease is not None:
            tasks.start_soon(renew, lease)
        await use(opening, order)


async def renew(lease: ProcessLease) -> None:
    while True:
        lease.renew(lease_time())
        await anyio.sleep(lease.seconds / 5)


async def use(opening: AbstractAsyncContextManager[AppServerEngine], order: dict[str, Any]) -> None:
    async with opening as engine:
        say(engine=engine.id)
        if "prompt" in order:
            options = SessionOptions(
                cwd=Path(order["cwd"]), writes=WRITES[order.get("sandbox", "workspace-write")], asks="when_needed"
            )
            opened = await engine.open(options)
            begun = await engine.run_turn(opened.session_id, options, TurnInput(text=order["prompt"]))
            say(session=begun.session_id, turn=begun.turn_id)
            engine.attach(opened.session_id, report)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, json.loads(sys.argv[1]))
