"""Helmsmen that a test can kill, in processes of their own that cost little: all are forks of this one.

    python killable_helmsman.py

Reads one order a line, `{"job": 1, "settings": {…}, "cwd": …, "prompts": […]}`, and forks a process for each, which runs
the prompts as turns of one session. It reports `{"job": 1, "stage": …}`: `forked` (with its pid), `entered` when its first
task is registered, `began` when Codex has begun the turn, the name of each event, `entered again` for a later turn, `ended`;
then it stays until it is killed.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio._backends._asyncio

import helmsman.agents.codex.app_servers
import helmsman.agents.codex.engine
import helmsman.agents.codex.processes
import helmsman.hub.client
import helmsman.hub.launch
import helmsman.sessions.copies
from helmsman import Helmsman, load_settings


class Job:
    """What one process does."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order

    def report(self, stage: str, **more: Any) -> None:
        line = json.dumps({"job": self._order["job"], "stage": stage, **more}) + "\n"
        os.write(1, line.encode())  # one write, so that lines of several processes do not mix

    async def run(self) -> None:
        cwd = Path(self._order["cwd"])
        settings = load_settings(self._order["settings"], dict(os.environ), cwd)
        first, *others = self._order["prompts"]
        async with Helmsman(settings, env=dict(os.environ)) as helm:
            session = await helm.start(
                first,
                cwd=cwd,
                sandbox="workspace-write",
                approval_policy="on-request",
                on_task=lambda task: self.report("entered"),
            )
            self.report("began")
            await self._follow(session)
            for prompt in others:
                await helm.say(session.id, prompt, on_task=lambda task: self.report("entered again"))
                await self._follow(session)
            self.report("ended")
            await anyio.sleep_forever()

    async def _follow(self, session: helmsman.Session) -> None:
        async for event in session.events(since=session.turn_cursor):
            self.report(type(event).__name__)


def main() -> None:
    gc.freeze()  # what is here already no fork has to look through, and to copy
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever was killed is gone at once
    for line in iter(sys.stdin.readline, ""):
        job = Job(json.loads(line))
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            job.report("forked", pid=os.getpid())
            anyio.run(job.run)


if __name__ == "__main__":
    main()
