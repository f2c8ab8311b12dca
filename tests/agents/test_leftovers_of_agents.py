"""Tests with real agents that processes of a turn are gone after it, in a sandbox and outside."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from helmsman.base.processes import all_pids, read_proc
from helmsman.testing import ScriptedModel, run, say
from tests.agents.test_agent_processes import DAEMON
from tests.agents.test_stories import Stage, ended, question_of, stage

__all__ = ["stage"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.rare,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("snapshots"),
    pytest.mark.skipif(sys.platform != "linux", reason="there is no subreaper"),
]


def running(path: Path) -> list[int]:
    """Return the processes whose command line names this file: in a sandbox pids differ."""
    found = []
    for pid in all_pids():
        try:
            if str(path).encode() in read_proc(f"/proc/{pid}/cmdline") and b"innocent" in read_proc(
                f"/proc/{pid}/cmdline"
            ):
                found.append(pid)
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    "policy", [{"sandbox": "workspace-write"}, {"unenforced": True}], ids=["sandbox", "unenforced"]
)
async def test_a_daemon_ends_with_the_turn(
    stage: Stage, model: ScriptedModel, git_repo: Path, policy: dict[str, Any]
) -> None:
    (git_repo / "daemon.py").write_text(DAEMON)
    pid_file = git_repo / "begun"
    wait = f"until test -e {pid_file}; do sleep 0.1; done"
    quiet = ">/dev/null 2>&1"  # OpenCode waits for all that have the output of a command
    model.on(
        "leave one",
        run(f"python3 daemon.py {pid_file} {quiet}; {wait}; (sleep 601 {quiet} &) ; echo left"),
        say("done"),
    )
    model.on("and now", say("still here"))
    async with stage.opened() as helm:
        session = await helm.start("leave one", cwd=git_repo, agent=stage.name, **policy)
        await session.respond((await question_of(session)).id, "approve")
        await ended(session)
        assert session.result == "done"
        assert pid_file.exists()
        assert running(pid_file) == []
        await session.say("and now")
        await ended(session)
        assert session.result == "still here"
