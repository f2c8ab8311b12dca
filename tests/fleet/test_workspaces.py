"""A session of a fleet works on the tree of the client that began it, wherever it runs, and its changes come back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from helmsman import Helmsman
from helmsman.errors import ApplyConflict, InvalidInput
from helmsman.fleet import workspaces
from helmsman.fleet.upkeep import drop_expired
from helmsman.model.options import Placement
from helmsman.sessions.session import Session
from helmsman.settings import load_settings
from helmsman.testing import ScriptedModel, add, patch, run, say
from tests.fleet.conftest import Fleet, WorkerProcess
from tests.fleet.test_clients import client_env, helmsman
from tests.fleet.test_faults import Journal, engine_pid, journal

pytestmark = [pytest.mark.anyio, pytest.mark.rare]
SECONDS = 90
WRITING: Any = {"sandbox": "workspace-write", "approval_policy": "never"}
FULL: Any = {"sandbox": "danger-full-access", "approval_policy": "never"}

__all__ = ["journal"]


def git(place: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(place), *arguments], capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


async def ended(session: Session, fleet: Fleet) -> str | None:
    with anyio.fail_after(SECONDS):
        assert await session.wait(until="end")
    assert session.status == "done", f"{session.error} {fleet.logs()}"
    return session.result


async def test_a_tree_is_brought_gone_on_with_elsewhere_and_applied_from_any_clone(
    fleet: Fleet, model: ScriptedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, clone = fleet.directory, tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(here), str(clone))
    (here / "unfinished").write_text("not committed\n", encoding="utf-8")
    before = git(here, "status", "--porcelain"), git(here, "for-each-ref")
    model.on("first", run("cat unfinished"), patch(add("made", "by the first\n")), say("one"))
    model.on("second", run("cat made; git status --short"), patch(add("more", "by the second\n")), say("two"))
    env = client_env(fleet)
    async with Helmsman(load_settings({}, env, here), env=env) as helm:
        with pytest.raises(InvalidInput, match="in_place"):
            await helm.start("x", cwd=tmp_path)
        session = await helm.start("first", cwd=here, **WRITING)
        assert (git(here, "status", "--porcelain"), git(here, "for-each-ref")) == before
        await fleet.worker("one")
        assert await ended(session, fleet) == "one"
        assert "not committed" in json.dumps(model.requests[-1].body)
        assert not (here / "made").exists()
        assert [file.path for file in (await helm.extras.changes.diff(session.id)).diff.files] == ["made"]

        await fleet.client.drain("one")
        assert await fleet.workers["one"].ended() == 0
        await fleet.worker("two")
        assert await ended(await helm.say(session.id, "second"), fleet) == "two"
        told = json.dumps(model.requests[-1].body)
        assert "another machine" in told
        assert "by the first" in told  # its files, and what was said
        assert "?? made" in told, "what was not committed is not committed there"

        other, aside = client_env(fleet, "desktop"), tmp_path / "aside"
        here.rename(aside)  # another machine does not have it
        shown = json.loads(await helmsman(other, "diff", session.id, "--json", cwd=clone))
        assert (shown["scope"], [file["path"] for file in shown["files"]]) == ("worktree", ["made", "more"]), shown
        await helmsman(other, "apply", session.id, "--yes", cwd=clone)
        assert sorted(git(clone, "status", "--porcelain").split()) == ["??", "??", "made", "more"]

        aside.rename(here)
        (here / "more").write_text("somebody else's\n", encoding="utf-8")
        with pytest.raises(ApplyConflict):
            await helm.extras.changes.apply(session.id)
        (here / "more").unlink()
        applied = await helm.extras.changes.apply(session.id)
        assert ([file.path for file in applied.files], applied.how) == (["made", "more"], "clean")
        assert (here / "more").read_text(encoding="utf-8") == "by the second\n"
        refs = git(here, "for-each-ref", "--format=%(refname)", "refs/helmsman")
        assert refs == f"refs/helmsman/fleet/{session.id.removeprefix('fleet-')}"

        # A machine keeps the worktrees of its own sessions; what a session has is kept until the last of it has expired.
        monkeypatch.setattr(workspaces, "_NEW", timedelta())
        for name, dropped in ("one", 1), ("two", 0):
            state_dir = Path(fleet.workers[name].home.env["HELMSMAN_STATE_DIR"]) / "fleet" / "service"
            assert await workspaces.drop_worktrees(fleet.client.database, state_dir, name) == dropped
        for task, bundles in (session.task_ids[0], 3), (session.task_ids[1], 0):
            expire = "update helmsman_store.tasks set expires_at = helmsman.now() - 1000000 where id = %s returning 1"
            await fleet.client.database.all(expire, (task,))
            await drop_expired(fleet.client.database)
            assert len(await fleet.client.database.all("select 1 from helmsman.bundles")) == bundles


async def test_after_a_machines_death_tree_and_transcript_continue_together(
    fleet: Fleet, model: ScriptedModel, journal: Journal
) -> None:
    """What was done before the last look is in both; what was done after it is in neither, and the model is told."""
    late = f"echo written-late > late; {journal.command('a', 60)}"
    model.on(
        "work",
        patch(add("early", "written early\n")),
        run("git add early; git commit -qm Early"),
        run(late),
        say("never"),
    )
    env = client_env(fleet)
    one = await fleet.worker("one", "--capacity", "1")
    async with Helmsman(load_settings({}, env, fleet.directory), env=env) as helm:
        session = await helm.start("work", cwd=fleet.directory, placement=Placement(on_machine_loss="continue"), **FULL)
        await journal.begun("a")
        await fleet.worker("two", "--capacity", "1")

        def has_commit() -> bool:
            return "early" in {file.path for file in changed.diff.files}

        with anyio.fail_after(SECONDS):
            while True:
                changed = await helm.extras.changes.diff(session.id)
                if has_commit():
                    break
                await anyio.sleep(0.2)
        model.on("lost in the middle", run("cat early late; git log --format=%s -1"), say("done"))
        one.kill()
        assert await ended(session, fleet) == "done"
        told = json.dumps(model.requests[-1].body)
        assert "this conversation: work after that is missing in both" in told
        assert "written early" in told
        diff = (await helm.extras.changes.diff(session.id)).diff
        assert "early" in {file.path for file in diff.files}
        assert not journal.overlap("a")


async def test_a_turn_whose_engine_is_killed_continues_in_the_same_tree_and_one_that_is_handed_over_in_a_like_one(
    fleet: Fleet, model: ScriptedModel, journal: Journal
) -> None:
    model.on("work", run(f"echo written > new; {journal.command('a', 60)}"), say("never"))
    env = client_env(fleet)
    one = await fleet.worker("one", lease=30)
    async with Helmsman(load_settings({}, env, fleet.directory), env=env) as helm:
        session = await helm.start("work", cwd=fleet.directory, placement=Placement(on_machine_loss="continue"), **FULL)
        await journal.begun("a")
        places = worktrees_of(one)
        model.on("lost in the middle", run(f"cat new; echo again > new; {journal.command('b', 60)}"), say("never"))
        os.kill(engine_pid(one), signal.SIGKILL)
        await journal.begun("b")
        assert worktrees_of(one) == places
        two = await fleet.worker("two", lease=30)
        model.on("stopped in order", run("cat new"), say("done"))
        one.kill(signal.SIGTERM)
        assert await ended(session, fleet) == "done"
        assert len(worktrees_of(two)) == 1
        told = json.dumps(model.requests[-1].body)
        assert "what git ignores is not there" in told
        patch = (await helm.extras.changes.diff(session.id)).diff.patch
        assert b"+again" in patch


def worktrees_of(worker: WorkerProcess) -> list[str]:
    state_dir = Path(worker.home.env["HELMSMAN_STATE_DIR"]) / "fleet" / "service"
    return sorted(path.name for path in (state_dir / "worktrees").iterdir())
