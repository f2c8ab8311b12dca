"""A job outlives its hubs: killed at every turn of it, it goes on in the next, and nothing is done twice."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from helmsman import Helmsman, Question, Session, Settings, Wanted
from helmsman.base.structs import replace
from helmsman.tasks.model import Task
from helmsman.testing import CodexHome, Gate, ScriptedModel, say
from helmsman.testing.hubs import hub_pid
from helmsman.testing.repository import git
from tests.capabilities.outcomes.played_jobs import BROKEN, CAUSE, CHECK, FIX, FIXED, TESTS, fenced, repository, wanted

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.rare,
    pytest.mark.needs_git,
    pytest.mark.timeout(400),
    pytest.mark.skipif(sys.platform == "win32", reason="There are no hubs here."),
]

SECONDS = 120


async def asked(helm: Helmsman, task: Task, before: str | None = None) -> tuple[Session, Question]:
    """What a job asks, once it asks something other than before."""
    while True:
        task = await helm.tasks.get(task.id)
        assert task.is_running, task
        for session_id in task.job_sessions:
            session = await helm.session(session_id)
            for question in session.questions:
                if question.id != before:
                    return session, question
        await anyio.sleep(0.05)


async def kill(state_dir: Path) -> None:
    pid = hub_pid(state_dir)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while hub_pid(state_dir) == pid:
        await anyio.sleep(0.01)


async def held_up(state_dir: Path) -> None:
    """Wait until a check is held up in a clean room."""
    while True:
        with suppress(FileNotFoundError):  # rooms come and go
            if any(state_dir.glob("temporary-*-room-*/*/held")):
                return
        await anyio.sleep(0.05)


async def test_a_job_whose_hubs_are_killed_continues_and_does_nothing_twice(
    settings: Settings, detached_engines: Path, codex_home: CodexHome, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", {"calc.py": BROKEN, "test_calc.py": TESTS})
    in_hub = replace(settings, detach=True, state_dir=detached_engines)
    gate, hold = Gate(), root / ".git" / "hold"  # a check sees the repository, and nothing else of /tmp
    check = f"while [ -e {hold} ]; do touch held; sleep 0.1; done; {CHECK}"
    model.on("test_add fails", FIX, say(gate, fenced(CAUSE)))
    with anyio.fail_after(SECONDS):
        async with Helmsman(in_hub, env=codex_home.env) as helm:
            task = await helm.extras.outcomes.start(wanted("debug", root, check=check))
            session, question = await asked(helm, task)
            assert question.details["command"] == check
            await kill(detached_engines)  # while somebody is asked: no turn has begun, so another session asks
            session, question = await asked(helm, task, question.id)
            assert question.details["command"] == check
            await session.respond(question.id, "approve")
            await gate.reached()
            await kill(detached_engines)  # in the middle of the turn, which goes on
            await helm.session(session.id)
            hold.touch()
            gate.release()
            await held_up(detached_engines)
            await kill(detached_engines)  # while its change is verified in a clean room
            hold.unlink()
            session, question = await asked(helm, task, question.id)
            assert "Apply this verified change" in question.prompts[0].text
            await kill(detached_engines)  # while somebody is asked about what was verified: it is asked again
            session, question = await asked(helm, task, question.id)
            assert "Apply this verified change" in question.prompts[0].text
            await session.respond(question.id, "approve")
            while (task := await helm.tasks.get(task.id)).is_running:
                await anyio.sleep(0.05)
            report = (await helm.tasks.results(task)).report
    assert report is not None, task
    assert (task.status, report["applied"], report["attempts"]) == ("completed", "applied", 1), report
    assert (root / "calc.py").read_text(encoding="utf-8") == FIXED
    assert len(model.requests) == 2, "one turn, of two requests"
    assert "-room-" not in git(root, "worktree", "list")


async def test_a_loop_whose_hub_is_killed_continues_at_its_step(
    settings: Settings, detached_engines: Path, codex_home: CodexHome, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", {"calc.py": BROKEN, "test_calc.py": TESTS})
    in_hub = replace(settings, detach=True, state_dir=detached_engines)
    gate = Gate()
    model.on("Do step 1 of the plan now", FIX, say("done"))
    model.on("Do step 2 of the plan now", say(gate, "done"))
    steps = [{"name": name, "prompt": f"Do {name}."} for name in ("implement", "review")]
    loop = Wanted(
        kind="loop", request="Get it right", directory=str(root), check=CHECK, apply="never", more={"steps": steps}
    )
    with anyio.fail_after(SECONDS):
        async with Helmsman(in_hub, env=codex_home.env) as helm:
            task = await helm.extras.outcomes.start(loop)
            session, question = await asked(helm, task)
            await session.respond(question.id, "approve")
            await gate.reached()
            await kill(detached_engines)
            await helm.session(session.id)
            gate.release()
            while (task := await helm.tasks.get(task.id)).is_running:
                await anyio.sleep(0.05)
            report = (await helm.tasks.results(task)).report
    assert report is not None, task
    assert (task.status, [one["status"] for one in report["steps"]]) == ("completed", ["done", "done"]), report
    assert len(model.requests) == 3, "each step was asked for once"
