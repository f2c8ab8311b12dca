"""The scripted cloud backend with the real `codex cloud`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.testing import CodexHome, HomeTemplates, ScriptedCloud, git
from helmsman.testing.binaries import VersionNumbers

RunCloud = Callable[..., Coroutine[Any, Any, subprocess.CompletedProcess[str]]]

pytestmark = [pytest.mark.anyio, pytest.mark.matrix(changed_in=["0.152.0"])]

DIFF = """\
diff --git a/README.md b/README.md
--- a/README.md
+++ b/README.md
@@ -1 +1,2 @@
 # A repository
+one more line
"""
OTHER_DIFF = DIFF.replace("one more", "another")


@pytest.fixture
async def cloud() -> AsyncIterator[ScriptedCloud]:
    async with ScriptedCloud() as cloud:
        cloud.add_environment("env_1", "My project")
        yield cloud


@pytest.fixture
def home(tmp_path: Path, codex_binary: Path, codex_home_templates: HomeTemplates) -> CodexHome:
    return codex_home_templates.new_home(codex_binary, tmp_path / "home")


@pytest.fixture
def codex_cloud(
    tmp_path: Path, codex_binary: Path, codex_version: VersionNumbers, cloud: ScriptedCloud, home: CodexHome
) -> RunCloud:
    """Runs `codex cloud …` and gives what it printed."""
    if codex_version >= (0, 155, 0):
        pytest.skip("This Codex takes no backend but OpenAI's.")
    scratch = tmp_path / "scratch"  # every call leaves an error.log where it runs
    scratch.mkdir()
    cloud.log_in(home)

    async def run(*arguments: str, cwd: Path = scratch, reachable: bool = True) -> subprocess.CompletedProcess[str]:
        with anyio.fail_after(30):
            done = await anyio.run_process(
                [codex_binary, "cloud", *arguments],
                cwd=cwd,
                env=cloud.env(home, reachable=reachable),
                stdin=subprocess.DEVNULL,
                check=False,
            )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


async def test_a_task_is_submitted_with_what_was_asked_for(cloud: ScriptedCloud, codex_cloud: RunCloud) -> None:
    done = await codex_cloud("exec", "--env", "my PROJECT", "--branch", "dev", "--attempts", "2", "Fix it")

    with anyio.fail_after(5):
        task = await cloud.wait_for_task()
    assert (task.title, task.environment, task.branch, len(task.attempts)) == ("Fix it", "env_1", "dev", 2)
    assert done.stdout.strip().endswith(f"/codex/tasks/{task.id}")
    sent = cloud.requests[-1]
    assert (sent.method, sent.path) == ("POST", "/backend-api/wham/tasks")
    assert sent.headers["authorization"].startswith("Bearer ")
    assert sent.body["new_task"]["environment_id"] == "env_1"


async def test_a_test_can_wait_for_a_task_that_is_yet_to_come(cloud: ScriptedCloud, codex_cloud: RunCloud) -> None:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(codex_cloud, "exec", "--env", "env_1", "Later")
            assert (await cloud.wait_for_task()).title == "Later"


async def test_the_status_follows_the_state_that_the_test_gives(cloud: ScriptedCloud, codex_cloud: RunCloud) -> None:
    task = cloud.add_task("Fix it", environment="env_1")

    async def status() -> tuple[str, int]:
        done = await codex_cloud("status", task.id)
        return done.stdout.partition("]")[0].lstrip("["), done.returncode

    assert await status() == ("PENDING", 1)
    task.begin()
    assert await status() == ("PENDING", 1)
    task.complete(DIFF, message="Done")
    assert await status() == ("READY", 0)
    task.mark_applied()
    assert await status() == ("APPLIED", 1)
    task.fail()
    task.applied = False
    assert await status() == ("ERROR", 1)


async def test_each_attempt_has_its_own_diff(cloud: ScriptedCloud, codex_cloud: RunCloud) -> None:
    task = cloud.add_task("Fix it", environment="env_1")
    assert "No diff available" in (await codex_cloud("diff", task.id)).stderr

    task.complete(DIFF)
    task.complete(OTHER_DIFF, attempt=2)

    assert (await codex_cloud("diff", task.id)).stdout == DIFF
    assert (await codex_cloud("diff", task.id, "--attempt", "2")).stdout == OTHER_DIFF
    assert "only 2 attempt(s) found" in (await codex_cloud("diff", task.id, "--attempt", "3")).stderr


@pytest.mark.needs_git
async def test_a_change_is_applied_to_the_repository(
    cloud: ScriptedCloud, codex_cloud: RunCloud, git_repo: Path
) -> None:
    task = cloud.add_task("Fix it", environment="env_1")
    task.complete(DIFF)

    done = await codex_cloud("apply", task.id, cwd=git_repo)

    assert done.returncode == 0, done.stderr
    assert "+one more line" in git(git_repo, "diff", "--cached")


async def test_tasks_are_listed_in_pages_and_by_environment(cloud: ScriptedCloud, codex_cloud: RunCloud) -> None:
    cloud.add_environment("env_2", "Other")
    for number, environment in enumerate(["env_1", "env_2", "env_1"]):
        cloud.add_task(f"Task {number}", environment=environment).complete(DIFF)

    first = json.loads((await codex_cloud("list", "--json", "--limit", "2")).stdout)
    rest = json.loads((await codex_cloud("list", "--json", "--cursor", first["cursor"])).stdout)
    chosen = json.loads((await codex_cloud("list", "--json", "--env", "Other")).stdout)

    assert [task["title"] for task in first["tasks"] + rest["tasks"]] == ["Task 2", "Task 1", "Task 0"]
    assert first["tasks"][0]["summary"] == {"files_changed": 1, "lines_added": 1, "lines_removed": 0}
    assert [(task["title"], task["environment_label"]) for task in chosen["tasks"]] == [("Task 1", "Other")]
    assert rest["cursor"] is None


async def test_failures_are_reported(cloud: ScriptedCloud, codex_cloud: RunCloud, home: CodexHome) -> None:
    assert "404" in (await codex_cloud("status", "task_e_unknown")).stderr
    assert "error sending request" in (await codex_cloud("list", reachable=False)).stderr
    cloud.rejects_login = True
    assert "401" in (await codex_cloud("list")).stderr
    (home.path / "auth.json").unlink()
    assert "Not signed in" in (await codex_cloud("list")).stderr


async def test_newer_versions_refuse_a_backend_of_ones_own(
    codex_binary: Path, codex_version: VersionNumbers, cloud: ScriptedCloud, home: CodexHome, tmp_path: Path
) -> None:
    if codex_version < (0, 155, 0):
        pytest.skip("This Codex takes any backend.")
    cloud.log_in(home)

    with anyio.fail_after(30):
        done = await anyio.run_process(
            [codex_binary, "cloud", "list"],
            cwd=tmp_path,
            env=cloud.env(home),
            stdin=subprocess.DEVNULL,
            check=False,
        )

    assert done.returncode == 1
    assert b"trusted HTTPS origin" in done.stderr
    assert cloud.requests == []
