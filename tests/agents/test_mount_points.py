"""Tests that mount points of a sandbox in a user's repository are removed with it, and nothing else is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from helmsman import load_settings
from helmsman.agents.sandbox import Confined, Sandbox, clear_up, find_sandbox
from helmsman.base.mount_points import MountPoints
from helmsman.base.processes import running_process
from helmsman.testing import CodexHome

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="only bubblewrap mounts")]


@pytest.fixture
async def sandbox(codex_home: CodexHome, tmp_path: Path) -> Sandbox:
    settings = load_settings({"state_dir": str(tmp_path / "state")}, codex_home.env, tmp_path)
    found = await find_sandbox(settings, codex_home.env)
    assert {".git", ".codex", ".agents"} <= {*found.guarded}
    return found


@contextmanager
def running(sandbox: Sandbox, name: str, repo: Path) -> Iterator[None]:
    """Run a program in a sandbox, and kill both."""
    confined = Confined(writable=(repo,), own_home=repo, scratch=f"{name}-{os.getpid()}")
    argv, env = sandbox.around(["/bin/sh", "-c", "echo up; exec sleep 60"], dict(os.environ), confined)
    child = subprocess.Popen(argv, env=env, cwd=repo, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        yield
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        assert child.stdout is not None
        child.stdout.read()  # until its descendants are gone too
        child.stdout.close()
        child.wait(30)


def end(sandbox: Sandbox, name: str) -> None:
    clear_up(sandbox.home.parent, f"{name}-{os.getpid()}")


def abandon(sandbox: Sandbox, name: str) -> Path:
    """Pretend that the starter is gone."""
    (noted,) = (path for path in (sandbox.home.parent / "mount-points").iterdir() if path.name.startswith(name))
    noted.write_text(noted.read_text(encoding="utf-8").replace(f"[{os.getpid()},", "[1,"), encoding="utf-8")
    return noted


async def test_of_a_sandbox_that_was_killed_nothing_is_left_but_what_was_there_before(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    repo = tmp_path / "a repo"
    (repo / ".agents").mkdir(parents=True)  # the user's own empty directory
    with running(sandbox, "one", repo):
        assert (repo / ".codex").is_dir()
    (repo / ".git").mkdir(exist_ok=True)
    (repo / ".git" / "config").write_text("", encoding="utf-8")  # now a repository
    end(sandbox, "one")
    assert sorted(path.name for path in repo.iterdir()) == [".agents", ".git"]


async def test_a_mount_of_two_sandboxes_stays_until_both_have_ended(sandbox: Sandbox, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    with running(sandbox, "one", repo):
        with running(sandbox, "two", repo):
            pass
        end(sandbox, "two")
        assert (repo / ".codex").is_dir()
        MountPoints(tmp_path / "another state").clear()
        end(sandbox, "one")  # said too early: it runs
        assert (repo / ".codex").is_dir()
    end(sandbox, "one")
    assert not [*repo.iterdir()]


async def test_mounts_of_a_killed_helmsman_are_removed_at_the_next_chance(sandbox: Sandbox, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    with running(sandbox, "one", repo):
        noted = abandon(sandbox, "one")
        MountPoints(sandbox.home.parent).clear()
        assert (repo / ".codex").is_dir()  # it outlives who started it
    MountPoints(sandbox.home.parent).clear()
    assert not [*repo.iterdir()]
    assert not noted.exists()


async def test_a_sandbox_that_keeps_running_blocks_no_caller(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helmsman.base.mount_points._GONE_SECONDS", 20.0)
    repo, other = tmp_path / "repo", tmp_path / "other"
    repo.mkdir()
    other.mkdir()
    with running(sandbox, "one", repo):
        abandon(sandbox, "one")
        with running(sandbox, "two", other):
            pass
        began = time.monotonic()
        end(sandbox, "two")
        assert time.monotonic() - began < 15
        assert not [*other.iterdir()]


async def test_others_can_be_started_while_one_is_waited_for_and_it_goes_when_it_can(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helmsman.base.mount_points._GONE_SECONDS", 5.0)
    monkeypatch.setattr("helmsman.base.mount_points._LOCK_SECONDS", 3.0)
    repo = tmp_path / "repo"
    repo.mkdir()
    with running(sandbox, "one", repo):
        waiting = threading.Thread(target=end, args=(sandbox, "one"))  # said too early
        waiting.start()
        await anyio.sleep(0.5)
        MountPoints(sandbox.home.parent).expect("two", [tmp_path / "elsewhere"])
        assert waiting.is_alive()
        waiting.join(30)
    MountPoints(sandbox.home.parent).clear()  # by whomever
    assert not [*repo.iterdir()]


async def test_a_mount_is_known_by_every_name_of_its_place(sandbox: Sandbox, tmp_path: Path) -> None:
    repo, link = tmp_path / "repo", tmp_path / "link"
    repo.mkdir()
    link.symlink_to(repo)
    with running(sandbox, "one", link):
        abandon(sandbox, "one")
        MountPoints(sandbox.home.parent).clear()
        assert (repo / ".codex").is_dir()  # it runs, and must keep its mounts
    MountPoints(sandbox.home.parent).clear()
    assert not [*repo.iterdir()]


async def test_a_hub_leaves_the_mount_points_of_the_next_hubs_session(
    tmp_path: Path,
) -> None:
    repo, state, points = tmp_path / "repo", tmp_path / "state", MountPoints(tmp_path / "state")
    repo.mkdir()
    state.mkdir()
    points.expect("one", [repo / ".codex"])
    noted = state / "mount-points" / "one"
    _, paths = json.loads(noted.read_text(encoding="utf-8"))
    noted.write_text(json.dumps([running_process(os.getppid()), paths]), encoding="utf-8")
    (repo / ".codex").mkdir()  # and is about to be mounted on
    points.clear("one")
    assert noted.exists()
    assert (repo / ".codex").is_dir()
