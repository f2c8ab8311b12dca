"""Cloud tasks through the tool `codex` and the primitives: the real `codex cloud` against the scripted backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import load_settings
from helmsman.base.structs import replace
from helmsman.errors import Unsupported
from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.settings import ConfigFile, Settings
from helmsman.tasks.registry import REGISTRY_NAME
from helmsman.testing import CodexHome, HomeTemplates, ScriptedCloud, codex_versions, git
from helmsman.testing.binaries import parse_version
from helmsman.testing.cloud import CloudTask
from mcp import Client
from tests.mcp.caller import Caller

pytestmark = [pytest.mark.anyio, pytest.mark.matrix]

TOO_NEW = (0, 151, 0)
"""From this version on Codex takes no backend but OpenAI's."""

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
def cloud_codex() -> Path:
    """The newest Codex that takes a backend of one's own."""
    takes_one = [binary for version, binary in codex_versions().items() if parse_version(version) < TOO_NEW]
    if not takes_one:
        pytest.skip("There is no Codex that takes a scripted cloud: scripts/fetch_codex.py fetches some.")
    return takes_one[-1]


@pytest.fixture
async def cloud() -> AsyncIterator[ScriptedCloud]:
    async with ScriptedCloud() as cloud:
        cloud.add_environment("env_1", "My project")
        yield cloud


@pytest.fixture
def home(tmp_path: Path, cloud_codex: Path, codex_home_templates: HomeTemplates, cloud: ScriptedCloud) -> CodexHome:
    """A home that is logged in to the scripted cloud."""
    home = codex_home_templates.new_home(cloud_codex, tmp_path / "home")
    cloud.log_in(home)
    return home


@pytest.fixture
def settings(cloud_codex: Path, home: CodexHome, tmp_path: Path) -> Settings:
    """Both clients open, and one environment configured."""
    flags = {"codex_path": str(cloud_codex), "detach": False, "tools": "router", "expose_primitives": True}
    known = {"cloud": {"default_environment": "site", "environments": {"site": "env_1"}}}
    settings = load_settings(flags, home.env, tmp_path)
    return replace(settings, files=(ConfigFile(tmp_path / "helmsman.toml", known, trusted=True),))


@pytest.fixture
async def codex(settings: Settings, home: CodexHome, cloud: ScriptedCloud) -> AsyncIterator[Caller]:
    async with HelmsmanService(settings, env=cloud.env(home)) as helm, Client(build_server(helm)) as client:
        yield Caller(client)


@pytest.fixture
async def offline(settings: Settings, home: CodexHome, cloud: ScriptedCloud) -> AsyncIterator[Caller]:
    """The same, as if the network were down."""
    env = cloud.env(home, reachable=False)
    async with HelmsmanService(settings, env=env) as helm, Client(build_server(helm)) as client:
        yield Caller(client)


async def submitted(codex: Caller, cloud: ScriptedCloud, **options: Any) -> tuple[str, CloudTask]:
    """A task that has come to the cloud."""
    begun = await codex("_codex_cloud_submit", task="Add rate limiting", **options)
    with anyio.fail_after(30):
        task = await cloud.wait_for_task()
        while "url" not in await codex("_codex_cloud_status", task_id=begun["task_id"]):
            await anyio.sleep(0.05)
    return begun["task_id"], task


# --- in plain words --------------------------------------------------------------------------------------------------


async def test_a_task_is_run_checked_awaited_and_read_in_plain_words(
    codex: Caller, cloud: ScriptedCloud, git_repo: Path
) -> None:
    request = "run this in the cloud: add rate limiting to the API"
    begun = await codex("codex", request=request, context={"working_dir": str(git_repo)})
    assert (begun["acknowledged"], begun["action"], begun["nextAction"]) == (True, "run", "await")
    assert begun["task"]["id"].startswith("T-cloud-")
    assert (begun["task"]["mode"], begun["task"]["status"]) == ("cloud", "pending")
    with anyio.fail_after(30):
        task = await cloud.wait_for_task()
    assert (task.title, task.environment, task.branch) == ("add rate limiting to the API", "env_1", "main")
    checked = await codex("codex", request="how is the cloud task going?")
    assert (checked["action"], checked["task"]["id"]) == ("check", begun["task"]["id"])
    assert checked["task"]["status"] in ("pending", "working")
    task.complete(DIFF, message="Done")
    done = await codex("codex", request="wait for it")
    assert (done["action"], done["task"]["status"], done["nextAction"]) == ("wait", "completed", "none")
    assert done["resultSummary"]["diff"] == DIFF
    results = await codex("codex", request=f"show me the results of {begun['task']['id']}")
    assert results["resultSummary"]["diff"] == DIFF
    assert results["resultSummary"]["url"].endswith(f"/codex/tasks/{task.id}")
    assert "message is only on" in results["userMessage"]
    assert "Earlier tasks" not in begun["userMessage"]
    again = await codex(
        "codex", request="run this in the cloud: add a changelog", context={"working_dir": str(git_repo)}
    )
    assert "Earlier tasks there took about" in again["userMessage"]


async def test_a_cancel_says_that_the_cloud_has_none_and_where_a_person_can(
    codex: Caller, cloud: ScriptedCloud
) -> None:
    task_id, task = await submitted(codex, cloud)
    answer = await codex("codex", request=f"cancel {task_id}")
    told = await codex("_codex_cloud_cancel", task_id=task_id, reason="no longer needed")
    for message in (answer["userMessage"], told["message"]):
        assert "cannot cancel" in message
        assert f"/codex/tasks/{task.id}" in message
    assert (answer["task"]["status"], told["status"]) == ("working", "working")
    assert told["cancel_reason"] == "no longer needed"
    assert (await codex("_codex_cloud_status", task_id=task_id))["cancel_reason"] == "no longer needed"
    task.complete(DIFF)
    await codex("_codex_cloud_wait", task_id=task_id)
    over = await codex("_codex_cloud_cancel", task_id=task_id)
    assert (over["status"], over["message"]) == ("completed", "There is nothing to cancel: it is completed.")


async def test_no_answer_about_a_cloud_task_offers_a_cancel(codex: Caller, cloud: ScriptedCloud) -> None:
    task_id, _ = await submitted(codex, cloud)
    for answer in (
        await codex("_codex_cloud_status", task_id=task_id),
        await codex("_codex_cloud_wait", task_id=task_id, timeout_sec=0),
        await codex("codex", request=f"check {task_id}"),
    ):
        assert answer["next_actions"], "there is something to do"
        assert "cancel" not in " ".join(answer["next_actions"])


async def test_a_wait_for_a_task_at_work_ends_with_its_time(codex: Caller, cloud: ScriptedCloud) -> None:
    task_id, _ = await submitted(codex, cloud)
    waited = await codex("_codex_cloud_wait", task_id=task_id, timeout_sec=0.2)
    assert (waited["status"], waited["timed_out"]) == ("working", True)
    answer = await codex("codex", request=f"wait for {task_id}", hints={"timeoutMs": 200})
    assert (answer["task"]["status"], answer["nextAction"]) == ("working", "await")
    assert "resultSummary" not in answer


async def test_a_cost_limit_that_cannot_be_enforced_is_refused(codex: Caller, cloud: ScriptedCloud) -> None:
    answer = await codex.error("codex", request="in the cloud: fix it", safety={"max_cost_usd": 1})
    assert answer["error"]["code"] == "invalid_input"
    assert "max_cost_usd" in answer["userMessage"]
    assert cloud.requests == []


async def test_plain_words_reach_all_that_the_cloud_has(
    settings: Settings, home: CodexHome, cloud: ScriptedCloud, git_repo: Path
) -> None:
    careful = replace(settings, require_confirmation=True)
    here = {"context": {"working_dir": str(git_repo)}}
    async with HelmsmanService(careful, env=cloud.env(home)) as helm, Client(build_server(helm)) as client:
        codex = Caller(client)
        known = await codex("codex", request="list cloud environments")
        assert [(one["name"], one["reference"]) for one in known["environments"]] == [("site", "env_1")]
        cloud.add_task("Somebody else's", environment="env_1")
        listed = await codex("codex", request="list cloud tasks")
        assert (listed["tasks"], "Somebody else's" in listed["userMessage"]) == ([], True)

        hints = {"mode": "cloud", "environment": "My project", "attempts": 2, "branch": "dev"}
        long = "run the full integration tests across all databases"
        begun = await codex("codex", request=long, hints=hints, idempotencyKey="nightly", **here)
        again = await codex("codex", request=long, hints=hints, idempotencyKey="nightly", **here)
        task_id = begun["task"]["id"]
        assert again["task"]["id"] == task_id
        with anyio.fail_after(30):
            while "url" not in (await codex("codex", request=f"check {task_id}"))["task"]:
                await anyio.sleep(0.05)
        task = next(one for one in cloud.tasks.values() if one.title == long)
        assert (task.environment, task.branch, len(task.attempts)) == ("env_1", "dev", 2)
        listed = await codex("codex", request="list cloud tasks")
        assert [(one["id"], one["url"].endswith(task.id)) for one in listed["tasks"]] == [(task_id, True)]
        refused = await codex.error("codex", request="in the cloud: x", safety={"sandbox": "read-only"})
        assert "own permissions" in refused["message"]
        chosen = await codex.error("codex", request="in the cloud: x", context={"model": "o3"})
        assert chosen["error"]["code"] == "unsupported"

        task.complete(DIFF)
        unseen = await codex("codex", request=f"apply {task_id}", **here)
        assert ("Nothing was applied" in unseen["userMessage"], "+one more line" in unseen["userMessage"]) == (
            True,
            True,
        )
        (git_repo / "other.txt").write_text("mine", encoding="utf-8")
        dirty = await codex.error("codex", request=f"apply {task_id}", **here)
        assert dirty["error"]["code"] == "dirty_tree"
        over = {"allow_dirty": True}
        asked = await codex("codex", request=f"apply {task_id}", safety=over, **here)
        assert (asked["nextAction"], "over uncommitted changes" in asked["confirmation"]["wouldDo"]) == (
            "confirm",
            True,
        )
        assert "one more" not in (git_repo / "README.md").read_text(encoding="utf-8")
        over["confirmation_token"] = asked["confirmation"]["token"]
        done = await codex("codex", request=f"apply {task_id}", safety=over, **here)
        assert done["appliedFiles"] == ["README.md"]
        assert "one more" in (git_repo / "README.md").read_text(encoding="utf-8")


async def test_long_work_is_begun_here_and_the_cloud_offered(codex: Caller, git_repo: Path) -> None:
    long = "run the full integration tests across all databases"
    here = {"context": {"working_dir": str(git_repo)}}
    begun = await codex("codex", request=long, **here)
    assert begun["task"]["mode"] == "local"
    assert begun["next_actions"][-1] == f"in the cloud: {long}"
    await codex("codex", request=f"cancel {begun['task']['id']}")
    short = await codex("codex", request="run the parser's tests", dryRun=True, **here)
    assert "cloud" not in str(short)


# --- the primitives --------------------------------------------------------------------------------------------------


async def test_a_task_is_submitted_with_what_was_asked_for(codex: Caller, cloud: ScriptedCloud) -> None:
    task_id, task = await submitted(codex, cloud, env_id="My project", attempts=3, branch="dev")
    assert (task.title, task.environment, task.branch) == ("Add rate limiting", "env_1", "dev")
    assert len(task.attempts) == 3
    status = await codex("_codex_cloud_status", task_id=task_id)
    assert (status["status"], status["external_id"]) == ("working", task.id)
    assert status["url"].endswith(task.id)
    assert status["poll_frequency_ms"] == 5000


async def test_the_same_key_submits_once(codex: Caller, cloud: ScriptedCloud) -> None:
    task_id, _ = await submitted(codex, cloud, idempotency_key="issue-17")
    again = await codex("_codex_cloud_submit", task="Add rate limiting", idempotency_key="issue-17")
    assert again["task_id"] == task_id
    assert len(cloud.tasks) == 1


async def test_a_failed_submit_frees_its_key(codex: Caller, cloud: ScriptedCloud) -> None:
    first = await codex("_codex_cloud_submit", task="Fix it", env_id="nowhere", idempotency_key="k")
    failed = await codex("_codex_cloud_wait", task_id=first["task_id"])
    assert (failed["status"], failed["error"]["code"]) == ("failed", "cloud_environment_missing")
    second = await codex("_codex_cloud_submit", task="Fix it", idempotency_key="k")
    assert second["task_id"] != first["task_id"]
    with anyio.fail_after(30):
        await cloud.wait_for_task()


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"task": " "}, "invalid_input"),
        ({"attempts": 0}, "invalid_input"),
        ({"attempts": 5}, "invalid_input"),
        ({"model": "gpt-5.5"}, "unsupported"),
        ({"working_dir": "/no/such/directory"}, "invalid_input"),
    ],
)
async def test_a_submit_that_makes_no_sense_is_refused(
    codex: Caller, cloud: ScriptedCloud, wrong: dict[str, Any], code: str
) -> None:
    assert (await codex.error("_codex_cloud_submit", **{"task": "Fix it", **wrong}))["code"] == code
    assert (await codex.error("codex", request="check my task"))["error"]["code"] == "task_not_found"
    assert cloud.requests == []


async def test_tools_are_distinguished_by_where_their_task_runs(codex: Caller, cloud: ScriptedCloud) -> None:
    task_id, _ = await submitted(codex, cloud)
    for tool in ("status", "wait", "cancel", "results"):
        error = await codex.error(f"_codex_local_{tool}", task_id=task_id)
        assert (error["code"], error["parameter"]) == ("invalid_input", "task_id")
        assert "_codex_cloud_" in error["message"]


@pytest.mark.parametrize("seconds", [-1, 3601])
async def test_a_wait_that_makes_no_sense_is_refused(codex: Caller, seconds: float) -> None:
    error = await codex.error("_codex_cloud_wait", task_id="T-cloud-000000000000", timeout_sec=seconds)
    assert (error["code"], error["parameter"]) == ("invalid_input", "timeout_sec")


async def test_results_are_those_of_one_attempt(codex: Caller, cloud: ScriptedCloud) -> None:
    task_id, task = await submitted(codex, cloud, attempts=2)
    unfinished = await codex("_codex_cloud_results", task_id=task_id)
    task.complete(DIFF)
    task.complete(OTHER_DIFF, attempt=2)
    first = await codex("_codex_cloud_results", task_id=task_id)
    second = await codex("_codex_cloud_results", task_id=task_id, attempt=2)
    third = await codex("_codex_cloud_results", task_id=task_id, attempt=3)
    assert (unfinished["status"], "diff" in unfinished) == ("working", False)
    assert "not finished" in unfinished["note"]
    assert (first["status"], first["diff"], first["attempt"], first["attempts"]) == ("completed", DIFF, 1, 2)
    assert (second["diff"], second["attempt"]) == (OTHER_DIFF, 2)
    assert "diff" not in third
    assert "There is no attempt 3" in third["note"]


@pytest.mark.needs_git
async def test_a_change_is_applied_to_a_clean_tree_only(codex: Caller, cloud: ScriptedCloud, git_repo: Path) -> None:
    task_id, task = await submitted(codex, cloud)
    task.complete(DIFF)
    (git_repo / "mine.txt").write_text("mine", encoding="utf-8")
    there = {"task_id": task_id, "apply_to": str(git_repo)}
    for digest in ({}, {"digest": f"10-{'0' * 32}"}):
        unseen = await codex.error("_codex_cloud_results", **there, **digest, allow_dirty=True)
        assert unseen["code"] == "confirmation_needed"
    assert git(git_repo, "status", "--porcelain") == "?? mine.txt\n"
    assert (await codex("_codex_cloud_results", task_id=task_id))["diff"] == DIFF
    dirty = await codex.error("_codex_cloud_results", **there)
    assert (dirty["code"], dirty["files"]) == ("dirty_tree", ["mine.txt"])
    assert git(git_repo, "status", "--porcelain") == "?? mine.txt\n"
    (git_repo / "mine.txt").unlink()
    applied = await codex("_codex_cloud_results", **there)
    assert (applied["applied_files"], applied["diff"]) == (["README.md"], DIFF)
    assert git(git_repo, "status", "--porcelain") == " M README.md\n"
    await codex("_codex_cloud_results", **there)  # it is there already: repeated, it changes nothing
    assert git(git_repo, "status", "--porcelain") == " M README.md\n"
    assert (git_repo / "README.md").read_text(encoding="utf-8") == "# A repository\none more line\n"


@pytest.mark.needs_git
async def test_nothing_is_applied_outside_the_allowed_roots(
    codex: Caller, settings: Settings, home: CodexHome, cloud: ScriptedCloud, git_repo: Path, tmp_path: Path
) -> None:
    """Neither where the directory is outside, nor where it is inside and its repository, all of which may change, is not."""
    task_id, task = await submitted(codex, cloud)
    task.complete(DIFF)
    (git_repo / "sub").mkdir()
    asked_from = Path.cwd()
    for allowed, place, parameter in (
        ((tmp_path / "home", asked_from), git_repo, "apply_to"),
        ((git_repo / "sub", asked_from), git_repo / "sub", "apply_to"),
        ((git_repo,), git_repo, "task_id"),  # nor is it looked at
    ):
        narrow = replace(settings, allowed_roots=tuple(root.resolve() for root in allowed))
        async with HelmsmanService(narrow, env=cloud.env(home)) as helm, Client(build_server(helm)) as client:
            refused = await Caller(client).error(
                "_codex_cloud_results", task_id=task_id, apply_to=str(place), digest="0" * 64
            )
        assert (refused["code"], refused["parameter"]) == ("invalid_input", parameter)
        assert "outside the allowed roots" in refused["message"]
    assert git(git_repo, "status", "--porcelain") == ""


@pytest.mark.needs_git
async def test_nothing_is_applied_that_is_not_there(
    codex: Caller, cloud: ScriptedCloud, git_repo: Path, tmp_path: Path
) -> None:
    task_id, task = await submitted(codex, cloud)
    early = await codex.error("_codex_cloud_results", task_id=task_id, apply_to=str(git_repo))
    assert early["code"] == "cloud_no_diff"
    task.complete(DIFF)
    nowhere = await codex.error("_codex_cloud_results", task_id=task_id, apply_to=str(tmp_path / "missing"))
    assert (nowhere["code"], nowhere["parameter"]) == ("invalid_input", "apply_to")
    never = await codex("_codex_cloud_submit", task="Fix it", env_id="nowhere")
    await codex("_codex_cloud_wait", task_id=never["task_id"])
    error = await codex.error("_codex_cloud_results", task_id=never["task_id"], apply_to=str(git_repo))
    assert error["code"] == "cloud_task_not_found"
    assert git(git_repo, "status", "--porcelain") == ""


async def test_the_tasks_of_the_account_are_listed_and_ours_are_known_again(
    codex: Caller, cloud: ScriptedCloud, settings: Settings, home: CodexHome, git_repo: Path, tmp_path: Path
) -> None:
    cloud.add_environment("env_2", "Other")
    task_id, ours = await submitted(codex, cloud, working_dir=str(git_repo))
    cloud.add_task("Of somebody else", environment="env_2").complete(DIFF)
    listed = await codex("_codex_cloud_list_tasks")
    assert [one["title"] for one in listed["tasks"]] == ["Of somebody else", "Add rate limiting"]
    theirs, mine = listed["tasks"]
    assert (theirs["status"], theirs["environment"], theirs["files"]) == ("completed", "Other", 1)
    assert "task_id" not in theirs
    assert (mine["task_id"], mine["external_id"], mine["status"]) == (task_id, ours.id, "working")
    of_one = await codex("_codex_cloud_list_tasks", env_id="site")  # its name in helmsman.toml
    assert [one["title"] for one in of_one["tasks"]] == ["Add rate limiting"]
    narrow = replace(settings, allowed_roots=(tmp_path / "home",))
    async with HelmsmanService(narrow, env=cloud.env(home)) as helm, Client(build_server(helm)) as client:
        seen = await Caller(client)("_codex_cloud_list_tasks")  # what was submitted from outside the roots is not shown
    assert [one["title"] for one in seen["tasks"]] == ["Of somebody else"]


async def test_environments_are_those_configured_and_those_seen(codex: Caller, cloud: ScriptedCloud) -> None:
    cloud.add_environment("env_2", "Other")
    cloud.add_task("Something", environment="env_2")
    answer = await codex("_codex_cloud_list_environments")
    assert [(one["name"], one["reference"], one["is_default"]) for one in answer["environments"]] == [
        ("site", "env_1", True),
        ("Other", "Other", False),
    ]
    assert "cannot list" in answer["note"]


async def test_the_guide_is_made_for_the_repository_it_is_asked_for(codex: Caller, git_repo: Path) -> None:
    guide = await codex("_codex_cloud_github_setup", working_dir=str(git_repo))
    assert "GitHub" in guide["guide"]
    assert guide["steps"]
    assert all(step in guide["guide"] for step in guide["steps"])
    error = await codex.error("_codex_cloud_github_setup", working_dir=str(git_repo / "missing"))
    assert (error["code"], error["parameter"]) == ("invalid_input", "working_dir")


async def test_another_server_follows_the_task(
    codex: Caller, cloud: ScriptedCloud, settings: Settings, home: CodexHome
) -> None:
    task_id, task = await submitted(codex, cloud)
    task.complete(DIFF)
    async with HelmsmanService(settings, env=cloud.env(home)) as helm, Client(build_server(helm)) as client:
        answer = await Caller(client)("codex", request="show the results")
    assert (answer["task"]["id"], answer["task"]["status"]) == (task_id, "completed")
    assert answer["resultSummary"]["diff"] == DIFF


# --- what goes wrong -------------------------------------------------------------------------------------------------


async def test_a_codex_that_is_not_logged_in_is_told_to_log_in(codex: Caller, home: CodexHome) -> None:
    (home.path / "auth.json").unlink()
    begun = await codex("codex", request="in the cloud: fix it")
    assert begun["task"]["status"] == "pending"
    answers = [await codex("codex", request=request) for request in ("wait for it", "check it", "show the results")]
    for answer in answers:
        assert answer["task"]["status"] == "failed"
        assert "helmsman agents login" in answer["userMessage"]
    assert answers[-1]["resultSummary"]["error"]["code"] == "cloud_not_logged_in"
    results = await codex("_codex_cloud_results", task_id=begun["task"]["id"])
    assert (results["status"], results["error"]["code"]) == ("failed", "cloud_not_logged_in")


async def test_without_an_environment_nothing_is_submitted(
    settings: Settings, home: CodexHome, cloud: ScriptedCloud
) -> None:
    settings = replace(settings, files=())
    async with HelmsmanService(settings, env=cloud.env(home)) as helm, Client(build_server(helm)) as client:
        codex = Caller(client)
        answer = await codex.error("codex", request="in the cloud: fix it")
        error = await codex.error("_codex_cloud_submit", task="fix it")
    assert answer["error"]["code"] == error["code"] == "cloud_environment_missing"
    assert "default_environment" in answer["userMessage"]
    assert "task" not in answer
    assert cloud.requests == []


async def test_a_submit_without_a_network_has_failed_and_may_be_tried_again(offline: Caller) -> None:
    begun = await offline("_codex_cloud_submit", task="Fix it")
    failed = await offline("_codex_cloud_wait", task_id=begun["task_id"])
    assert (failed["status"], failed["error"]["code"]) == ("failed", "cloud_unreachable")
    assert failed["error"]["retryable"] is True


async def test_without_a_network_the_last_known_state_is_shown(
    codex: Caller, offline: Caller, cloud: ScriptedCloud
) -> None:
    task_id, _ = await submitted(codex, cloud)
    answer = await offline.error("codex", request=f"check {task_id}")
    assert answer["error"]["code"] == "cloud_unreachable"
    assert answer["error"]["retryAfterMs"] > 0
    assert "It was working when last seen" in answer["userMessage"]
    for tool in ("status", "wait", "results"):
        error = await offline.error(f"_codex_cloud_{tool}", task_id=task_id)
        assert (error["code"], error["retryable"]) == ("cloud_unreachable", True)
    assert (await offline("_codex_cloud_cancel", task_id=task_id))["status"] == "working"
    assert (await codex("_codex_cloud_status", task_id=task_id))["status"] == "working"


async def test_a_submit_that_broke_off_is_unknown_and_not_tried_again(codex: Caller, cloud: ScriptedCloud) -> None:
    cloud.fault = lambda request: 502 if request.method == "POST" else None
    begun = await codex("_codex_cloud_submit", task="Fix it", idempotency_key="k")
    waited = await codex("_codex_cloud_wait", task_id=begun["task_id"])
    assert (waited["status"], waited["timed_out"]) == ("unknown", False)
    assert "before you submit" in waited["note"]
    again = await codex("_codex_cloud_submit", task="Fix it", idempotency_key="k")
    assert again["task_id"] == begun["task_id"]
    assert sum(request.method == "POST" for request in cloud.requests) == 1


async def test_a_task_that_vanished_is_unknown_until_it_is_back(codex: Caller, cloud: ScriptedCloud) -> None:
    task_id, task = await submitted(codex, cloud)
    del cloud.tasks[task.id]
    for request in ("check", "wait for", "show the results of"):
        answer = await codex("codex", request=f"{request} {task_id}")
        assert answer["task"]["status"] == "unknown"
        assert "no task" in answer["userMessage"]
    for tool in ("status", "wait", "results"):
        told = await codex(f"_codex_cloud_{tool}", task_id=task_id)
        assert told["status"] == "unknown"
        assert task.id in told["note"]
    cloud.tasks[task.id] = task
    assert (await codex("_codex_cloud_status", task_id=task_id))["status"] == "working"


async def test_results_that_vanished_after_the_end_are_an_error(codex: Caller, cloud: ScriptedCloud) -> None:
    task_id, task = await submitted(codex, cloud)
    task.complete(DIFF)
    assert (await codex("_codex_cloud_wait", task_id=task_id))["status"] == "completed"
    del cloud.tasks[task.id]
    assert (await codex.error("_codex_cloud_results", task_id=task_id))["code"] == "cloud_task_not_found"


async def test_a_task_whose_listing_disagrees_is_unknown_with_both(codex: Caller, cloud: ScriptedCloud) -> None:
    task_id, task = await submitted(codex, cloud)
    task.complete(DIFF)
    task.listed_as = "failed"
    answer = await codex("codex", request=f"check {task_id}")
    told = await codex("_codex_cloud_status", task_id=task_id)
    assert (answer["task"]["status"], told["status"]) == ("unknown", "unknown")
    for text in (answer["userMessage"], told["note"]):
        assert "READY" in text
        assert "ERROR" in text
        assert task.id in text


async def test_a_task_that_failed_there_has_failed_here(codex: Caller, cloud: ScriptedCloud) -> None:
    task_id, task = await submitted(codex, cloud)
    task.fail()
    answer = await codex("codex", request=f"wait for {task_id}")
    assert answer["task"]["status"] == "failed"
    assert answer["resultSummary"]["error"]["code"] == "cloud_task_failed"
    assert task.id in answer["userMessage"]


# --- when it cannot be written down ----------------------------------------------------------------------------------


async def test_a_submit_that_could_not_be_written_down_at_once_is_written_down_later(
    codex: Caller, cloud: ScriptedCloud, settings: Settings
) -> None:
    begun = await codex("_codex_cloud_submit", task="Add rate limiting")
    registry, aside = settings.state_dir / REGISTRY_NAME, settings.state_dir / "aside"
    registry.rename(aside)
    registry.mkdir()
    with anyio.fail_after(30):
        await cloud.wait_for_task()
        while (await codex("_codex_cloud_list_environments"))["environments"] == []:
            await anyio.sleep(0.05)
    registry.rmdir()
    aside.rename(registry)
    with anyio.fail_after(30):
        while "url" not in (await codex("_codex_cloud_status", task_id=begun["task_id"])):
            await anyio.sleep(0.05)


async def test_a_submit_that_was_broken_off_by_the_end_of_its_helmsman_is_unknown(
    settings: Settings, home: CodexHome, cloud: ScriptedCloud
) -> None:
    async with HelmsmanService(settings, env=cloud.env(home)) as helm:
        task_id = await helm.tasks.cloud.submit("Add rate limiting")
    async with HelmsmanService(settings, env=cloud.env(home)) as later:
        task = await later.tasks.get(task_id)
    assert task.status == "unknown"
    assert task.note is not None
    assert "it may be in the cloud or not" in task.note


async def test_a_model_for_the_cloud_is_refused_before_anything_is_registered(
    settings: Settings, home: CodexHome, cloud: ScriptedCloud
) -> None:
    async with HelmsmanService(settings, env=cloud.env(home)) as helm:
        with pytest.raises(Unsupported, match="chooses the model itself"):
            await helm.tasks.cloud.submit("Add rate limiting", model="gpt-5.5")
        assert await helm.tasks.list() == ([], None)
