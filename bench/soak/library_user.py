"""Program that uses the library, in a separate process that the soak may kill.

python -m bench.soak.library_user '{"prompt": …, "cwd": …, "as_step": false}'

Prints `session ID` as soon as there is one, and `status STATUS` at the end.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from helmsman import Helmsman, HelmsmanError, load_settings, run_step

if TYPE_CHECKING:
    from helmsman import Session
    from helmsman.model.events import Event


async def main(prompt: str, cwd: Path, as_step: bool) -> None:
    if as_step:
        await _step(prompt, cwd)
    else:
        await _session(prompt, cwd)


async def _session(prompt: str, cwd: Path) -> None:
    async with Helmsman(load_settings({}, dict(os.environ), cwd)) as helm:
        session = await helm.start(prompt, cwd=cwd, sandbox="workspace-write", approval_policy="on-request")
        _say("session", session.id)
        async for _ in session.events(since=session.turn_cursor):
            pass
        _say("status", session.status)


async def _step(prompt: str, cwd: Path) -> None:
    known: list[str] = []

    def on_event(session: Session, event: Event) -> None:
        if not known:
            known.append(session.id)
            _say("session", session.id)

    try:
        await run_step(prompt, cwd=cwd, on_event=on_event, inactivity_timeout=10, attempts=1, sandbox="workspace-write")
    except HelmsmanError as error:
        _say("status", error.code)
    else:
        _say("status", "done")


def _say(what: str, value: str) -> None:
    print(what, value, flush=True)


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    anyio.run(main, order["prompt"], Path(order["cwd"]), order["as_step"])
