"""A hub is killed in the middle of a change: asked again, it is done once and as a whole, or nobody claims to know."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import mcp_types as types
import pytest

from helmsman.base.structs import replace
from helmsman.hub.launch import HubConnector
from helmsman.tasks.registry import REGISTRY_NAME
from helmsman.testing import ScriptedModel, git, run, say
from mcp import Client
from tests.git.test_patches import KILLED
from tests.hub.conftest import Place
from tests.mcp.caller import Caller, error_of

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git]

SECONDS = 60
MANY = 200


class Moment:
    """A moment at which whoever runs git is killed: before the git that is to do this, for the so manieth time."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._armed = directory / "armed"
        found = shutil.which("git")
        script = directory / "git"
        script.write_text(
            f"""#!/bin/sh
if [ -e "{self._armed}" ] && read -r verb count < "{self._armed}" && [ "$1" = "$verb" ]; then
    if [ "$count" = 1 ]; then rm "{self._armed}"; kill -9 "$PPID"; else echo "$verb $((count - 1))" > "{self._armed}"; fi
fi
exec "{found}" "$@"
""",
            encoding="utf-8",
        )
        script.chmod(0o755)
        self.path = str(directory)

    def arm(self, verb: str, count: int = 1) -> None:
        self._armed.write_text(f"{verb} {count}\n", encoding="utf-8")

    @property
    def has_come(self) -> bool:
        return not self._armed.exists()


@pytest.fixture
def moment(tmp_path: Path) -> Moment:
    return Moment(tmp_path / "moment")


@pytest.fixture
def killable(place: Place, moment: Moment) -> Place:
    return replace(place, env={**place.env, "PATH": f"{moment.path}{os.pathsep}{place.env['PATH']}"})


async def worked(codex: Caller, repo: Path, prompt: str = "write") -> str:
    """A session that has made its changes in a worktree."""
    arguments = {"workingDirectory": str(repo), "sandbox": "workspace-write", "approvalPolicy": "never"}
    session_id: str = (await codex("codex_start", prompt=prompt, worktree=True, **arguments))["sessionId"]
    assert (await codex.until_settled(session_id))["status"] == "done"
    return session_id


class Stuck:
    """A registry in which one hub never comes to write down the answer to a call: what it was to do is done."""

    def __init__(self, place: Place) -> None:
        self._path = place.state_dir / REGISTRY_NAME
        with closing(sqlite3.connect(self._path)) as registry, registry:
            registry.execute("CREATE TABLE many (number)")
            registry.executemany("INSERT INTO many VALUES (?)", [(number,) for number in range(1000)])

    def arm(self) -> None:
        with closing(sqlite3.connect(self._path)) as registry, registry:
            (epoch,) = registry.execute("SELECT epoch FROM leases").fetchone()
            registry.execute("DROP TRIGGER IF EXISTS stuck")
            registry.execute(
                f"CREATE TRIGGER stuck AFTER UPDATE OF answer ON calls WHEN (SELECT epoch FROM leases) = {epoch} "
                "BEGIN SELECT COUNT(*) FROM many a, many b, many c, many d; END"
            )

    async def reached(self) -> None:
        refused = 0
        with anyio.fail_after(SECONDS):
            while refused < 10:
                refused = refused + 1 if await anyio.to_thread.run_sync(self._is_locked) else 0
                await anyio.sleep(0.02)

    def _is_locked(self) -> bool:
        with closing(sqlite3.connect(self._path, timeout=0, isolation_level=None)) as registry:
            try:
                registry.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            return False


async def killed(place: Place, stuck: Stuck, client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """What a call gives whose hub is killed when it has done it, and has not written that down."""
    given: dict[str, Any] = {}

    async def call() -> None:
        result = await client.call_tool(tool, arguments)
        assert isinstance(result, types.CallToolResult)
        given.update(error_of(result) if result.is_error else result.structured_content or {})

    stuck.arm()
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await stuck.reached()
            await place.kill_hub()
    return given


@pytest.mark.rare
async def test_changes_of_a_session_are_applied_once_whenever_the_hub_is_killed(
    killable: Place, model: ScriptedModel, git_repo: Path, moment: Moment
) -> None:
    model.on(
        "write", run(f"for i in $(seq {MANY}); do echo $i > made$i.txt; done; echo more >> README.md"), say("done")
    )
    async with Client(killable.on_stdio("--tools", "sessions,extras")) as client:
        codex = Caller(client)
        session_id = await worked(codex, git_repo)
        (git_repo / "other.txt").write_text("The main tree moves on.\n", encoding="utf-8")
        git(git_repo, "add", "--all")
        git(git_repo, "commit", "--quiet", "--message=On")
        shown = {"digest": (await codex("codex_diff", sessionId=session_id))["digest"]}
        whole = await codex("codex_apply", sessionId=session_id, **shown)
        changed = git(git_repo, "status", "--porcelain")
        assert len(changed.splitlines()) == MANY + 1

        for verb, count in (("write-tree", 1), ("checkout-index", 1), ("diff-tree", 4)):
            clean(git_repo)
            moment.arm(verb, count)
            hub = killable.hub
            assert await codex("codex_apply", sessionId=session_id, **shown) == whole
            assert moment.has_come
            assert killable.hub != hub
            assert git(git_repo, "status", "--porcelain") == changed

        clean(git_repo)
        applied: dict[str, Any] = {}

        async def apply() -> None:
            applied.update(await codex("codex_apply", sessionId=session_id, **shown))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(apply)
            with anyio.fail_after(SECONDS):
                while not list(git_repo.glob("made*.txt")):
                    await anyio.lowlevel.checkpoint()
            await killable.kill_hub()
        assert applied == whole
        assert git(git_repo, "status", "--porcelain") == changed


def clean(repo: Path) -> None:
    git(repo, "reset", "--quiet", "--hard")
    git(repo, "clean", "--quiet", "--force", "-d")


async def test_a_half_written_tree_is_restored_without_another_request(
    bare_place: Place, git_repo: Path, tmp_path: Path
) -> None:
    before = git(git_repo, "status", "--porcelain")
    for number in range(4):
        (git_repo / f"made{number}.txt").write_text("made\n", encoding="utf-8")
    git(git_repo, "add", "--all")
    (tmp_path / "diff").write_text(git(git_repo, "diff", "--cached"), encoding="utf-8")
    clean(git_repo)
    state_dir = str(bare_place.state_dir)
    words = [sys.executable, "-c", KILLED, str(git_repo), str(tmp_path / "diff"), state_dir, "5"]
    assert (await anyio.run_process(words, check=False)).returncode == -signal.SIGKILL
    assert git(git_repo, "status", "--porcelain") != before
    connection = await anyio.to_thread.run_sync(HubConnector(state_dir).connection)
    with anyio.fail_after(SECONDS):
        while git(git_repo, "status", "--porcelain") != before:
            await anyio.sleep(0.02)
    connection.close()


@pytest.mark.long
async def test_a_worktree_is_dropped_once_whenever_the_hub_is_killed(
    killable: Place, model: ScriptedModel, git_repo: Path, moment: Moment
) -> None:
    model.otherwise(run("echo new > made.txt"), say("done"))
    async with Client(killable.on_stdio("--tools", "sessions,extras")) as client:
        codex = Caller(client)
        for verb, count in (("log", 1), ("branch", 1)):
            session_id = await worked(codex, git_repo, f"write {verb}")
            moment.arm(verb, count)
            dropped = await codex("codex_discard", sessionId=session_id)
            assert moment.has_come
            assert dropped["sessionId"] == session_id
            assert "helmsman/" not in git(git_repo, "branch", "--list")
            assert (await codex.error("codex_discard", sessionId=session_id))["code"] == "invalid_input"
        session_id = await worked(codex, git_repo, "write once more")
        told = await killed(killable, Stuck(killable), client, "codex_discard", sessionId=session_id)
        assert told["code"] == "unknown_outcome"
        assert "There is nothing left to do." in told["message"]
        assert "helmsman/" not in git(git_repo, "branch", "--list")


@pytest.mark.long
async def test_a_turn_begins_once_though_the_hub_is_killed_while_files_are_kept_before_it(
    killable: Place, model: ScriptedModel, git_repo: Path, moment: Moment
) -> None:
    model.on("first", say("one"))
    model.on("second", say("two"))
    place = replace(killable, env={**killable.env, "HELMSMAN_SNAPSHOTS": "1"})
    async with Client(place.on_stdio()) as client:
        codex = Caller(client)
        writing = {"workingDirectory": str(git_repo), "sandbox": "workspace-write", "approvalPolicy": "never"}
        moment.arm("write-tree")
        started = await codex("codex_start", prompt="first", **writing)
        assert moment.has_come
        assert (await codex.until_settled(started["sessionId"]))["result"] == "one"
        (git_repo / "README.md").write_text("A person has changed it.\n", encoding="utf-8")
        moment.arm("write-tree")
        await codex("codex_say", sessionId=started["sessionId"], message="second")
        assert moment.has_come
        assert (await codex.until_settled(started["sessionId"]))["result"] == "two"
    assert [request.last_user_text for request in model.requests] == ["first", "second"]


@pytest.mark.long
async def test_a_call_is_not_repeated_if_its_answer_was_not_stored(
    place: Place, model: ScriptedModel, folder: Path
) -> None:
    """A message, an answer, an interrupt and a schedule."""
    model.on("first", run("touch made.txt", escalate="please"), say("done"))
    gate = model.gate()
    model.on("second", say(gate, "never"))
    async with Client(place.on_stdio("--tools", "sessions,extras")) as client:
        codex = Caller(client)
        asking = {"sandbox": "read-only", "approvalPolicy": "on-request", "workingDirectory": str(folder)}
        session_id = (await codex("codex_start", prompt="first", **asking))["sessionId"]
        asked = await codex("codex_wait", sessionId=session_id)
        stuck = Stuck(place)
        answer = {"sessionId": session_id, "id": asked["pendingQuestion"]["id"], "answers": ["approve"]}
        assert (await killed(place, stuck, client, "codex_respond", **answer))["sessionId"] == session_id
        assert (await codex.until_settled(session_id))["result"] == "done"
        assert (folder / "made.txt").exists()
        sent = await killed(place, stuck, client, "codex_say", sessionId=session_id, message="second")
        assert sent["taskId"] is not None
        stopped = await killed(place, stuck, client, "codex_interrupt", sessionId=session_id)
        assert stopped["status"] == "interrupted"
        assert (await codex.until_settled(session_id))["turnCount"] == 2
        assert [request.last_user_text for request in model.requests].count("second") == 1
        work = {"prompt": "work", "every": "1d"}
        added = await killed(place, stuck, client, "codex_schedule", action="add", **work)
        assert added["code"] == "unknown_outcome"
        assert "the list of" in added["message"]
        (schedule,) = (await codex("codex_schedule", action="list"))["schedules"]
        assert schedule["prompt"] == "work"
