"""Tests of `helmsman tasks` as a process, on tasks of other processes, here and in the cloud."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import Helmsman
from helmsman.base.structs import replace
from helmsman.settings import Settings
from helmsman.tasks.model import TaskDraft
from helmsman.tasks.registry import REGISTRY_NAME, Registry
from helmsman.testing import (
    CodexHome,
    Gate,
    HomeTemplates,
    ScriptedCloud,
    ScriptedModel,
    add,
    codex_versions,
    git,
    patch,
    run,
    say,
)
from helmsman.testing.binaries import parse_version
from helmsman.testing.cloud import CloudTask
from tests.cli.conftest import Cli

pytestmark = pytest.mark.anyio

DIFF = """\
diff --git a/README.md b/README.md
--- a/README.md
+++ b/README.md
@@ -1 +1,2 @@
 # A repository
+one more line
"""


@pytest.fixture
async def tasks(cli: Cli, model: ScriptedModel, tmp_path: Path) -> list[str]:
    """Two tasks, oldest first: one that completed here, one that failed elsewhere."""
    model.on("parser", say("The parser\nis mended."))
    model.on("poem", say("FAILED: no muse"))
    (tmp_path / "elsewhere").mkdir()
    await cli.run("run", "Mend the parser")
    await cli.run("run", "-C", str(tmp_path / "elsewhere"), "Write a \x1b[2Jpoem")
    (listed,) = (await cli.run("tasks", "--json")).json
    return [task["taskId"] for task in reversed(listed["tasks"])]


@asynccontextmanager
async def working(cli: Cli, model: ScriptedModel, gate: Gate) -> AsyncIterator[str]:
    """A task that another process runs, until the gate is released."""
    model.on("slow", say(gate, "At last."))
    async with cli.started("run", "A slow job"):
        with anyio.fail_after(30):
            await gate.reached()
        try:
            with anyio.fail_after(30):  # outside of a hub it is stored a moment later
                while not (tasks := (await cli.run("tasks", "--json", "--status", "working")).json[0]["tasks"]):
                    await anyio.sleep(0.05)
            yield tasks[0]["taskId"]
        finally:
            gate.release()


# --- the list --------------------------------------------------------------------------------------------------------


async def test_tasks_are_listed_newest_first_in_columns_for_programs(cli: Cli, tasks: list[str]) -> None:
    for arguments in (["tasks"], ["tasks", "list"]):
        done = await cli.run(*arguments)
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        assert [row[0] for row in rows] == tasks[::-1]
        assert [row[1] for row in rows] == ["write-2jpoem", "mend-parser"]
        assert [row[2] for row in rows] == ["completed", "completed"]
        assert [row[4] for row in rows] == [str(cli.directory.parent / "elsewhere"), str(cli.directory)]
        assert [row[5:] for row in rows] == [["Write a \\x1b[2Jpoem", "codex"], ["Mend the parser", "codex"]]


async def test_a_terminal_gets_a_table(cli: Cli, tasks: list[str]) -> None:
    async with cli.on_terminal("tasks") as program:
        assert await program.exit_code() == 0
        await program.shows("Mend the")
    lines = [line.rstrip() for line in program.screen.splitlines()]
    assert lines[0].split() == ["ID", "STATUS", "WHEN", "ALIAS", "WHAT"]
    assert lines[1].startswith(f"{tasks[1]}  completed  just now")
    assert all(len(line) <= 80 for line in lines)
    async with cli.on_terminal("tasks", "--limit", "1") as program:
        assert await program.exit_code() == 0
        await program.shows("--limit shows more")


async def test_tasks_can_be_narrowed_down(cli: Cli, tasks: list[str]) -> None:
    for arguments, expected in (
        (["--directory", "."], tasks[:1]),
        (["--limit", "1"], tasks[1:]),
        (["--status", "completed", "--status", "working"], tasks[::-1]),
        (["--origin", "local"], tasks[::-1]),
        (["--origin", "cloud"], []),
        (["--status", "failed"], []),
    ):
        shown = (await cli.run("tasks", "list", *arguments)).stdout.splitlines()
        assert [line.split("\t")[0] for line in shown] == expected, arguments


async def test_json_has_the_tasks_and_the_next_page(cli: Cli, tasks: list[str]) -> None:
    (page,) = (await cli.run("tasks", "--json", "--limit", "1")).json
    assert [task["taskId"] for task in page["tasks"]] == tasks[1:]
    assert page["nextCursor"]
    (rest,) = (await cli.run("tasks", "list", "--json")).json
    assert [task["instruction"] for task in rest["tasks"]] == ["Write a \x1b[2Jpoem", "Mend the parser"]
    assert "nextCursor" not in rest


async def test_the_agent_is_shown_where_there_is_another_than_codex(bare_cli: Cli) -> None:
    registry = Registry(Path(bare_cli.env["HELMSMAN_STATE_DIR"]) / REGISTRY_NAME)
    registry.add(TaskDraft(instruction="Fix the parser", origin="cloud"))
    async with bare_cli.on_terminal("tasks") as program:
        await program.shows("fix-parser")
        assert "AGENT" not in program.screen
    registry.add(TaskDraft(instruction="Write a poem", origin="cloud", agent="poet"))
    registry.close()
    async with bare_cli.on_terminal("tasks") as program:
        await program.shows("fix-parser")
        lines = program.screen.splitlines()
    assert lines[0].split() == ["ID", "STATUS", "WHEN", "AGENT", "ALIAS", "WHAT"]
    assert [line.split()[4:6] for line in lines[1:3]] == [["poet", "write-poem"], ["codex", "fix-parser"]]
    for agent, aliases in (("poet", ["write-poem"]), ("codex", ["fix-parser"]), ("nobody", [])):
        (listed,) = (await bare_cli.run("tasks", "--agent", agent, "--json")).json
        assert [(task["alias"], task["agent"]) for task in listed["tasks"]] == [(alias, agent) for alias in aliases]


async def test_an_empty_list_says_what_to_do(bare_cli: Cli) -> None:
    done = await bare_cli.run("tasks")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "helmsman run" in done.stderr
    assert "Leave out --status" in (await bare_cli.run("tasks", "--status", "failed")).stderr
    assert (await bare_cli.run("tasks", "--json")).json == [{"tasks": []}]


async def test_bad_input_exits_with_2(bare_cli: Cli) -> None:
    for arguments in (
        ["--limit", "0"],
        ["--status", "asleep"],
        ["--status", "working", "show", "x"],
        ["show"],
        ["show", "T-local-000000000000"],
        ["wait", "nobody"],
        ["wait", "nobody", "--timeout", "-1"],
        ["cancel", "nobody"],
        ["results", "nobody"],
        ["results", "nobody", "--attempt", "9"],
    ):
        done = await bare_cli.run("tasks", *arguments)
        assert (done.exit_code, done.stdout) == (2, ""), arguments
        assert done.stderr
    (answer,) = (await bare_cli.run("tasks", "show", "nobody", "--json")).json
    assert (answer["error"]["code"], answer["exitCode"]) == ("task_not_found", 2)


@pytest.mark.parametrize("name", ["list", "show", "wait", "cancel", "results"])
async def test_each_command_explains_itself_with_an_example(bare_cli: Cli, name: str) -> None:
    done = await bare_cli.run("tasks", name, "--help")
    assert done.exit_code == 0
    assert f"helmsman tasks {name}" in done.stdout.partition("Example")[2]
    assert "--json" in done.stdout


# --- one task --------------------------------------------------------------------------------------------------------


async def test_a_task_is_shown_by_id_or_alias(cli: Cli, tasks: list[str]) -> None:
    for reference in (tasks[0], "mend-parser"):
        done = await cli.run("tasks", "show", reference)
        shown = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
        assert (done.exit_code, shown["task"]) == (0, f"{tasks[0]} (mend-parser)")
        assert (shown["status"], shown["directory"]) == ("completed", str(cli.directory))
        assert done.stdout.endswith("result     The parser\n           is mended.\n")
    assert "\x1b" not in (await cli.run("tasks", "show", tasks[1])).stdout
    for arguments in (["show", "mend-parser", "--json"], ["--json", "show", "mend-parser"]):
        (task,) = (await cli.run("tasks", *arguments)).json
        assert (task["taskId"], task["result"]) == (tasks[0], "The parser\nis mended.")
        assert task["usage"]["inputTokens"] > 0


async def test_results_are_the_message_to_the_letter(cli: Cli, tasks: list[str]) -> None:
    done = await cli.run("tasks", "results", "mend-parser")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "The parser\nis mended.\n", "")
    (shown,) = (await cli.run("tasks", "results", tasks[0], "--json")).json
    assert (shown["result"], shown["status"]) == ("The parser\nis mended.", "completed")
    assert shown["costUsd"] > 0
    diff = await cli.run("tasks", "results", "mend-parser", "--diff")
    assert (diff.exit_code, diff.stdout) == (1, "")
    assert f"helmsman diff {shown['sessionId']}" in diff.stderr


async def test_changes_of_a_local_task_are_here_already(cli: Cli, tasks: list[str]) -> None:
    done = await cli.run("apply", tasks[0])
    assert done.exit_code == 2
    assert "it worked in its directory itself" in done.stderr


async def test_a_task_of_a_running_process_is_followed_to_its_end(cli: Cli, model: ScriptedModel) -> None:
    gate = Gate()
    async with working(cli, model, gate) as task_id:
        assert "status     working" in (await cli.run("tasks", "show", task_id)).stdout
        early = await cli.run("tasks", "results", task_id)
        assert (early.exit_code, early.stdout) == (1, "")
        assert f"helmsman tasks wait {task_id}" in early.stderr
        short = await cli.run("tasks", "wait", task_id, "--timeout", "0.1")
        assert short.exit_code == 4
        assert "The time is up" in short.stderr
        (said,) = (await cli.run("tasks", "wait", task_id, "--timeout", "0", "--json")).json
        assert (said["status"], said["timedOut"]) == ("working", True)
        refused = await cli.run("tasks", "cancel", task_id)
        assert refused.exit_code == 1
        assert "Stop it there" in refused.stderr
        async with cli.started("tasks", "wait", task_id, "--json") as waiting:
            gate.release()
            with anyio.fail_after(30):
                assert await waiting.wait() == 0
    assert (await cli.run("tasks", "results", task_id)).stdout == "At last.\n"


async def test_a_task_whose_process_was_killed_is_not_said_to_be_working(cli: Cli, model: ScriptedModel) -> None:
    gate = Gate()
    model.on("slow", say(gate, "never"))
    async with cli.started("run", "A slow job") as process:
        with anyio.fail_after(30):
            await gate.reached()
        process.kill()
        await process.wait()
        done = await cli.run("tasks", "wait", "slow-job", "--timeout", "40")
    assert done.exit_code == 1
    (listed,) = (await cli.run("tasks", "--json")).json
    assert listed["tasks"][0]["status"] in ("failed", "canceled", "unknown")


# --- tasks that outlive their process --------------------------------------------------------------------------------


@pytest.fixture
async def left_alone(
    settings: Settings, codex_home: CodexHome, detached_engines: Path, model: ScriptedModel, git_repo: Path
) -> str:
    """Yield a task with an open question, in an engine whose process is gone."""
    if os.name != "posix":
        pytest.skip("There are no detached engines here.")
    model.on("touch", run("touch made.txt", escalate="please"), say("Made."))
    async with Helmsman(replace(settings, detach=True), env=codex_home.env) as helm:
        if not await helm.goes_on_alone():
            pytest.skip("This Codex cannot run without its process.")
        session = await helm.start(
            "touch a file", cwd=git_repo, sandbox="workspace-write", approval_policy="on-request"
        )
        with anyio.fail_after(30):
            await session.wait(until="attention")
        return session.task_ids[0]


async def test_a_task_with_a_question_says_so_and_keeps_it_open(
    cli: Cli, left_alone: str, settings: Settings, codex_home: CodexHome, git_repo: Path
) -> None:
    for _ in range(2):
        waited = await cli.run("tasks", "wait", left_alone)
        assert waited.exit_code == 5
        assert "waiting for you" in waited.stdout
        assert "helmsman dashboard" in waited.stderr
    assert (await cli.run("tasks")).stdout.split("\t")[2] == "working (waiting for you)"
    async with Helmsman(replace(settings, detach=True), env=codex_home.env) as helm:
        session = await helm.tasks.local.follow(await helm.tasks.find(left_alone))
        assert session is not None
        with anyio.fail_after(30):
            await session.wait(until="attention")
            await helm.respond(session.id, session.questions[0].id, ["approve"])
    assert (await cli.run("tasks", "wait", left_alone, "--timeout", "40")).exit_code == 0
    assert (git_repo / "made.txt").exists()


async def test_a_task_left_alone_is_stopped(detached_cli: Cli, left_alone: str) -> None:
    done = await detached_cli.run("tasks", "cancel", left_alone, "--reason", "takes too long")
    assert done.exit_code == 0
    assert "Stopped Codex's turn" in done.stderr
    assert f"{left_alone} is cancelled" in done.stderr
    (task,) = (await detached_cli.run("tasks", "show", left_alone, "--json")).json
    assert (task["status"], task["note"]) == ("canceled", "It was cancelled: takes too long")
    assert task["cancelReason"] == "takes too long"
    (again,) = (await detached_cli.run("tasks", "cancel", left_alone, "--json")).json
    assert again["message"] == "Stopped nothing: it was no longer running."


# --- the cloud -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def cloud() -> AsyncIterator[ScriptedCloud]:
    async with ScriptedCloud() as cloud:
        cloud.add_environment("env_1", "My project")
        yield cloud


@pytest.fixture
def cloud_cli(tmp_path: Path, cloud: ScriptedCloud, codex_home_templates: HomeTemplates, git_repo: Path) -> Cli:
    """The command with the newest Codex that takes a backend of one's own, logged in to the scripted cloud."""
    takes_one = [binary for version, binary in codex_versions().items() if parse_version(version) < (0, 151, 0)]
    if not takes_one:
        pytest.skip("There is no Codex that takes a scripted cloud: scripts/fetch_codex.py fetches some.")
    home = codex_home_templates.new_home(takes_one[-1], tmp_path / "home")
    cloud.log_in(home)
    return Cli(cloud.env(home) | {"CODEX_CLI_PATH": str(takes_one[-1])}, git_repo)


@pytest.fixture
def in_cloud(cloud: ScriptedCloud, cloud_cli: Cli) -> CloudTask:
    """A task in the cloud, and in the registry with the alias `fix-parser`."""
    task = cloud.add_task("Fix the parser", environment="env_1", attempts=2)
    registry = Registry(Path(cloud_cli.env["HELMSMAN_STATE_DIR"]) / REGISTRY_NAME)
    added, _ = registry.add(
        TaskDraft(origin="cloud", instruction="Fix the parser", status="working", external_id=task.id)
    )
    registry.update(added.id, url=f"{cloud.base_url}/codex/tasks/{task.id}")
    registry.close()
    return task


@pytest.mark.matrix
async def test_a_task_is_handed_to_the_cloud(cloud_cli: Cli, cloud: ScriptedCloud) -> None:
    words = ("tasks", "submit", "-", "--environment", "My project", "--attempts", "2", "--branch", "main")
    done = await cloud_cli.run(*words, "--json", stdin=b"Fix the lexer")
    assert done.exit_code == 0, done.stderr
    (shown,) = done.json
    assert (shown["mode"], shown["status"], shown["instruction"]) == ("cloud", "working", "Fix the lexer")
    assert shown["externalId"] in shown["url"]
    assert (await cloud_cli.run("tasks", "--origin", "cloud")).stdout.split("\t")[0] == shown["taskId"]
    nowhere = await cloud_cli.run("tasks", "submit", "Fix it")
    assert "needs an environment" in nowhere.stderr
    outside = await cloud_cli.run(
        "tasks", "submit", "Fix it", "-C", "/", HELMSMAN_ALLOWED_ROOTS=str(cloud_cli.directory)
    )
    assert outside.exit_code == 2
    assert "allowed roots" in outside.stderr
    cloud.rejects_login = True
    failed = await cloud_cli.run(*words, stdin=b"Fix the lexer again")
    assert failed.exit_code == 1


@pytest.mark.matrix
async def test_a_cloud_task_is_asked_about_and_cannot_be_stopped(cloud_cli: Cli, in_cloud: CloudTask) -> None:
    shown = await cloud_cli.run("tasks", "show", "fix-parser")
    assert in_cloud.id in shown.stdout
    assert (await cloud_cli.run("tasks", "wait", "fix-parser", "--timeout", "0.5")).exit_code == 4
    cancelled = await cloud_cli.run("tasks", "cancel", "fix-parser", "--reason", "not needed")
    assert cancelled.exit_code == 1
    assert "not needed" in (await cloud_cli.run("tasks", "show", "fix-parser")).stdout
    assert "cannot cancel" in cancelled.stderr
    assert in_cloud.id in cancelled.stderr
    in_cloud.complete(DIFF)
    assert (await cloud_cli.run("tasks", "wait", "fix-parser")).exit_code == 0
    assert (await cloud_cli.run("tasks", "--origin", "cloud")).stdout.split("\t")[2] == "completed"


@pytest.mark.matrix
@pytest.mark.needs_git
async def test_the_change_of_a_cloud_task_is_shown_and_applied(
    cloud_cli: Cli, in_cloud: CloudTask, git_repo: Path
) -> None:
    in_cloud.complete(DIFF)
    in_cloud.complete(DIFF.replace("one more", "another"), attempt=2)
    message = await cloud_cli.run("tasks", "results", "fix-parser")
    assert (message.exit_code, message.stdout) == (0, "")
    assert "--diff" in message.stderr
    diff = await cloud_cli.run("tasks", "results", "fix-parser", "--diff")
    assert (diff.exit_code, diff.stdout) == (0, DIFF)
    (said,) = (await cloud_cli.run("tasks", "results", "fix-parser", "--json", "--attempt", "2")).json
    assert (said["attempt"], said["attempts"], "another" in said["diff"]) == (2, 2, True)
    (git_repo / "mine.txt").write_text("mine", encoding="utf-8")
    (listed,) = (await cloud_cli.run("tasks", "--json")).json
    task_id = listed["tasks"][0]["taskId"]
    dirty = await cloud_cli.run("apply", "--yes", task_id)
    assert dirty.exit_code == 1
    assert "mine.txt" in dirty.stderr
    applied = await cloud_cli.run("apply", "-y", task_id, "--attempt", "2", "--allow-dirty")
    assert (applied.exit_code, applied.stdout) == (0, "README.md\n")
    assert git(git_repo, "diff", "--name-only") == "README.md\n"
    assert "another line" in (git_repo / "README.md").read_text(encoding="utf-8")


@pytest.mark.matrix
async def test_a_cloud_that_cannot_be_asked_is_an_error(
    cloud_cli: Cli, in_cloud: CloudTask, cloud: ScriptedCloud
) -> None:
    cloud.rejects_login = True
    done = await cloud_cli.run("tasks", "show", "fix-parser", "--json")
    answer: dict[str, Any] = done.json[0]
    assert (done.exit_code, answer["error"]["code"]) == (1, "cloud_not_logged_in")
    assert in_cloud.id not in cloud.requests[0].path
    assert (await cloud_cli.run("tasks")).exit_code == 0


async def test_results_say_what_was_done_beside_what_was_said(cli: Cli, model: ScriptedModel) -> None:
    model.otherwise(patch(add("a.txt", "one\n")), run("exit 3"), say("Made it."))
    await cli.run("run", "--json", "-s", "workspace-write", "-a", "never", "make it")
    (listed,) = (await cli.run("tasks", "--json")).json
    task_id = listed["tasks"][0]["taskId"]
    done = await cli.run("tasks", "results", task_id)
    assert done.stdout == "Made it.\n"
    assert done.stderr == "  added a.txt +1 -0\n  ran exit 3 (exit 3)\n"
    (shown,) = (await cli.run("tasks", "results", task_id, "--json")).json
    assert shown["filesChanged"] == [{"path": "a.txt", "kind": "added", "added": 1, "removed": 0}]
    assert shown["commands"] == [{"command": "exit 3", "exitCode": 3, "declined": False}]
