"""Place for faults, and the check that work continues there afterwards."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, say
from helmsman.testing.leaks import MARKER_VARIABLE, marked_processes
from tests.hub_service import hub_service

SECONDS = 60

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="Codex's process is found in /proc.")
bound = pytest.mark.parametrize("scene", ["bound"], indirect=True)
"""For what does not depend on whether the engine ends with its Helmsman."""


def engines() -> list[int]:
    """Return the pids of the app-servers this test has started, without their reapers."""
    found = marked_processes(os.environ[MARKER_VARIABLE])
    return sorted(
        process.pid for process in found if " app-server" in process.command and "reaper.py" not in process.command
    )


@dataclass
class Scene:
    """Settings, home, model and repository of one test."""

    settings: Settings
    codex_home: CodexHome
    model: ScriptedModel
    repo: Path

    def helmsman(self) -> AbstractAsyncContextManager[HelmsmanService]:
        """With a service in this process: as in a hub, where engines outlive it, else as in any other process."""
        if self.settings.detach:
            return hub_service(self.settings, self.codex_home.env)
        return HelmsmanService(self.settings, env=self.codex_home.env)

    async def next_session_works(self, helm: HelmsmanService, *, after: Session | None = None) -> None:
        """A new session runs to its end, and so does the next turn of the one that had trouble."""
        self.model.on("Is all well?", say("All is well."))
        session = await helm.start("Is all well?", cwd=self.repo)
        assert await session.wait(until="end", timeout=SECONDS)
        assert (session.status, session.result) == ("done", "All is well."), session.error
        if after is not None:
            await after.say("Is all well?")
            assert await after.wait(until="end", timeout=SECONDS)
            assert (after.status, after.result) == ("done", "All is well."), after.error
