"""Tests of the cloud client with the real `codex cloud` and a scripted backend, on every supported version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from helmsman.agents.codex.binary import CodexBinary, find_codex
from helmsman.agents.codex.cloud import CloudClient
from helmsman.agents.codex.features import Version
from helmsman.errors import (
    ApplyConflict,
    CloudEnvironmentMissing,
    CloudNoDiff,
    CloudNotLoggedIn,
    CloudOutputUnreadable,
    CloudRateLimited,
    CloudSubmitUncertain,
    CloudTaskNotFound,
    CloudUnreachable,
    DirtyTree,
    HelmsmanError,
    Unsupported,
)
from helmsman.testing import CodexHome, HomeTemplates, ScriptedCloud, git

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.matrix(changed_in=["0.152.0"]),
    pytest.mark.rare,  # `test_cloud_replayed` has what the same programs answered
]

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


@pytest.fixture(scope="module")
def home(
    tmp_path_factory: pytest.TempPathFactory, codex_binary: Path, codex_home_templates: HomeTemplates
) -> CodexHome:
    """One for all tests on a version: `codex cloud` keeps nothing in it but a log."""
    return codex_home_templates.new_home(codex_binary, tmp_path_factory.mktemp("cloud") / "home")


@pytest.fixture(scope="module")
async def binary(codex_binary: Path, home: CodexHome) -> CodexBinary:
    return await find_codex(explicit=codex_binary, env=home.env)


@pytest.fixture
def client(binary: CodexBinary, cloud: ScriptedCloud, home: CodexHome) -> CloudClient:
    """Client that is logged in to the scripted cloud."""
    if binary.version >= Version.parse("0.152.0"):
        pytest.skip("This Codex takes no backend but OpenAI's.")
    cloud.log_in(home)
    return CloudClient(binary, home.path, cloud.env(home))


# --- submit ----------------------------------------------------------------------------------------------------------


async def test_a_task_is_submitted_with_what_was_asked_for(client: CloudClient, cloud: ScriptedCloud) -> None:
    submitted = await client.submit("Fix it", environment="my PROJECT", attempts=2, branch="dev")

    (task,) = cloud.tasks.values()
    assert (task.title, task.environment, task.branch, len(task.attempts)) == ("Fix it", "env_1", "dev", 2)
    assert submitted.external_id == task.id
    assert submitted.url.endswith(f"/codex/tasks/{task.id}")


async def test_no_prompt_is_read_as_an_option(client: CloudClient, cloud: ScriptedCloud) -> None:
    prompts = ["--help", "-", "-c model=x\nand more", "$(touch x) `y` 'z'", "ü" * 500_000]
    for prompt in prompts:
        await client.submit(prompt, environment="env_1")

    assert [task.title for task in cloud.tasks.values()] == prompts


@pytest.mark.needs_git
async def test_a_task_starts_from_the_branch_that_is_checked_out(
    client: CloudClient, cloud: ScriptedCloud, git_repo: Path
) -> None:
    git(git_repo, "switch", "--quiet", "--create", "feature/x")

    await client.submit("Fix it", environment="env_1", directory=git_repo)
    await client.submit("Fix it", environment="env_1")

    assert [task.branch for task in cloud.tasks.values()] == ["feature/x", "main"]


async def test_an_environment_that_cannot_be_meant_is_refused(client: CloudClient, cloud: ScriptedCloud) -> None:
    cloud.add_environment("env_2", "Twin")
    cloud.add_environment("env_3", "twin")

    for name in ("", "nowhere", "Twin", "--env"):
        with pytest.raises(CloudEnvironmentMissing):
            await client.submit("Fix it", environment=name)
    assert cloud.tasks == {}


async def test_a_submit_that_broke_off_is_not_said_to_have_failed(client: CloudClient, cloud: ScriptedCloud) -> None:
    cloud.fault = lambda request: 502 if request.method == "POST" else None

    with pytest.raises(CloudSubmitUncertain, match="before you submit") as caught:
        await client.submit("Fix it", environment="env_1")

    assert not caught.value.retryable


# --- follow ----------------------------------------------------------------------------------------------------------


async def test_the_status_follows_the_task(client: CloudClient, cloud: ScriptedCloud) -> None:
    task = cloud.add_task("Fix it\n[READY] at once", environment="env_1")

    waiting = await client.status(task.id)
    task.begin()
    running = await client.status(task.id)
    task.complete(DIFF)
    done = await client.status(waiting.url)
    task.mark_applied()
    applied = await client.status(task.id)
    task.applied = False
    task.fail()
    failed = await client.status(task.id)

    seen = [(status.status, status.said) for status in (waiting, running, done, applied, failed)]
    assert seen == [
        ("working", "PENDING"),
        ("working", "PENDING"),
        ("completed", "READY"),
        ("completed", "APPLIED"),
        ("failed", "ERROR"),
    ]
    assert (done.title, done.environment, done.note) == (task.title, "My project", None)
    assert done.diff_stat is not None
    assert (done.diff_stat.files, done.diff_stat.added, done.diff_stat.removed) == (1, 1, 0)
    assert done.updated_at is not None
    assert waiting.diff_stat is None


async def test_a_task_whose_listing_disagrees_is_unknown_with_both(client: CloudClient, cloud: ScriptedCloud) -> None:
    task = cloud.add_task("Fix it", environment="env_1")
    task.complete(DIFF)
    task.listed_as = "failed"

    status = await client.status(task.id)

    assert status.status == "unknown"
    assert status.note is not None
    assert "READY" in status.note
    assert "ERROR" in status.note
    assert status.url in status.note


async def test_a_task_that_moves_on_between_the_two_looks_is_no_disagreement(
    client: CloudClient, cloud: ScriptedCloud
) -> None:
    task = cloud.add_task("Fix it", environment="env_1")

    def finish_after_the_listing(_request: object) -> None:
        if len(cloud.requests) == 2:
            task.complete(DIFF)

    cloud.fault = finish_after_the_listing

    assert (await client.status(task.id)).status == "completed"


async def test_a_task_that_only_the_listing_still_has_is_unknown(client: CloudClient, cloud: ScriptedCloud) -> None:
    task = cloud.add_task("Fix it", environment="env_1")
    cloud.fault = lambda request: 404 if request.path.endswith(task.id) else None

    status = await client.status(task.id)

    assert (status.status, status.title) == ("unknown", "Fix it")
    assert status.note is not None
    assert "is not there" in status.note


async def test_a_task_without_a_listing_is_reported_with_a_note(client: CloudClient, cloud: ScriptedCloud) -> None:
    task = cloud.add_task("Fix it", environment="env_1")
    cloud.fault = lambda request: 500 if request.path.endswith("/list") else None

    status = await client.status(task.id)

    assert status.status == "working"
    assert status.note is not None
    assert "unconfirmed" in status.note


async def test_tasks_are_listed_newest_first(client: CloudClient, cloud: ScriptedCloud) -> None:
    cloud.add_environment("env_2", "Other")
    for number, environment in enumerate(["env_1", "env_2", "env_1"]):
        cloud.add_task(f"Task {number}", environment=environment).complete(DIFF)

    tasks = await client.list()

    assert [task.title for task in tasks] == ["Task 2", "Task 1", "Task 0"]
    assert [task.environment for task in tasks] == ["My project", "Other", "My project"]
    assert [task.title for task in (await client.page(environment="env_2")).tasks] == ["Task 1"]


async def test_tasks_are_listed_page_by_page(client: CloudClient, cloud: ScriptedCloud) -> None:
    for number in range(21):
        cloud.add_task(f"Task {number}", environment="env_1")

    first = await client.page()
    rest = await client.page(cursor=first.cursor)

    assert [task.title for task in first.tasks] == [f"Task {number}" for number in range(20, 0, -1)]
    assert ([task.title for task in rest.tasks], rest.cursor) == (["Task 0"], None)


async def test_environments_come_from_the_configuration_and_from_recent_tasks(
    client: CloudClient, cloud: ScriptedCloud
) -> None:
    cloud.add_environment("env_2", "Other")
    for environment in ("env_1", "env_1", "env_2"):
        cloud.add_task("Fix it", environment=environment)

    known = await client.environments({"site": "env_9", "mine": "My project"}, default="site")
    cloud.rejects_login = True
    offline = await client.environments({"site": "env_9"})

    assert [(one.name, one.reference, one.source) for one in known.environments] == [
        ("site", "env_9", "configuration"),
        ("mine", "My project", "configuration"),
        ("Other", "Other", "listing"),
    ]
    assert [one.is_default for one in known.environments] == [True, False, False]
    assert "cannot list" in known.note
    assert [one.name for one in offline.environments] == ["site"]
    assert "Only what is configured" in offline.note
    with pytest.raises(CloudNotLoggedIn):
        await client.environments()


# --- read and apply --------------------------------------------------------------------------------------------------


async def test_results_bring_the_diff_of_an_attempt_and_how_many_there_are(
    client: CloudClient, cloud: ScriptedCloud
) -> None:
    task = cloud.add_task("Fix it", environment="env_1", attempts=2)
    unfinished = await client.results(task.id)
    task.complete(DIFF, message="Done")
    task.complete(OTHER_DIFF, attempt=2)

    first = await client.results(task.id)
    second = await client.results(task.id, attempt=2)
    third = await client.results(task.id, attempt=3)

    assert (unfinished.diff, unfinished.attempts) == (None, 0)
    assert unfinished.note is not None
    assert "not finished" in unfinished.note
    assert (first.diff, first.attempts, second.diff) == (DIFF, 2, OTHER_DIFF)
    assert (third.diff, third.attempts) == (None, 2)
    assert first.note is not None
    assert (await client.status(task.id)).url in first.note


async def test_results_of_a_task_that_changed_nothing_say_so(client: CloudClient, cloud: ScriptedCloud) -> None:
    answered = cloud.add_task("What is this?", environment="env_1")
    answered.complete(message="A test")
    failed = cloud.add_task("Fix it", environment="env_1")
    failed.fail()

    assert "changed no file" in ((await client.results(answered.id)).note or "")
    assert "failed" in ((await client.results(failed.id)).note or "")
    with pytest.raises(CloudNoDiff):
        await client.diff(answered.id)


@pytest.mark.needs_git
async def test_a_change_is_applied_unstaged(client: CloudClient, cloud: ScriptedCloud, git_repo: Path) -> None:
    task = cloud.add_task("Fix it", environment="env_1")
    task.complete(DIFF)
    task.complete(OTHER_DIFF, attempt=2)

    applied = await client.apply(task.id, git_repo, attempt=2, state_dir=git_repo.with_name("state"))

    assert (git_repo / "README.md").read_text(encoding="utf-8") == "# A repository\nanother line\n"
    assert git(git_repo, "status", "--porcelain") == " M README.md\n"
    assert (applied.files, applied.three_way, applied.repository) == (("README.md",), False, git_repo)


@pytest.mark.needs_git
async def test_a_change_that_cannot_be_applied_leaves_the_tree_alone(
    client: CloudClient, cloud: ScriptedCloud, git_repo: Path
) -> None:
    task = cloud.add_task("Fix it", environment="env_1", attempts=2)
    with pytest.raises(CloudNoDiff):
        await client.apply(task.id, git_repo, state_dir=git_repo.with_name("state"))
    task.complete(DIFF.replace("# A repository", "# Something else"))
    task.complete(DIFF, attempt=2)
    with pytest.raises(ApplyConflict):
        await client.apply(task.id, git_repo, state_dir=git_repo.with_name("state"))
    (git_repo / "new.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(DirtyTree):
        await client.apply(task.id, git_repo, attempt=2, state_dir=git_repo.with_name("state"))

    assert git(git_repo, "status", "--porcelain") == "?? new.txt\n"


async def test_a_cancel_says_that_there_is_none_and_where_to_do_it(client: CloudClient, cloud: ScriptedCloud) -> None:
    task = cloud.add_task("Fix it", environment="env_1")

    answer = client.cancel(task.id)

    assert f"/codex/tasks/{task.id} " in answer
    assert "cannot cancel" in answer
    assert cloud.requests == []


# --- what goes wrong -------------------------------------------------------------------------------------------------


async def test_a_codex_that_is_not_logged_in_is_told_to_log_in(
    binary: CodexBinary, codex_binary: Path, codex_home_templates: HomeTemplates, tmp_path: Path
) -> None:
    home = codex_home_templates.new_home(codex_binary, tmp_path / "home")
    client = CloudClient(binary, home.path, home.env)

    with pytest.raises(CloudNotLoggedIn, match="helmsman agents login"):
        await client.list()
    with pytest.raises(CloudNotLoggedIn):
        await client.status("task_e_1")
    with pytest.raises(CloudNotLoggedIn):
        await client.submit("Fix it", environment="env_1")


async def test_no_network_is_an_error_to_try_again(
    binary: CodexBinary, cloud: ScriptedCloud, home: CodexHome, unreachable: dict[str, str]
) -> None:
    cloud.log_in(home)
    client = CloudClient(binary, home.path, unreachable)

    for call in (client.list(), client.status("task_e_1"), client.submit("Fix it", environment="env_1")):
        with pytest.raises(CloudUnreachable) as caught:
            await call
        assert caught.value.retryable


@pytest.fixture
def unreachable(binary: CodexBinary, cloud: ScriptedCloud, home: CodexHome) -> dict[str, str]:
    """As if the network were down: the backend's port is closed, or, where it must be OpenAI's, that of the proxy."""
    env = cloud.env(home, reachable=False)
    if binary.version >= Version.parse("0.152.0"):
        env["HTTPS_PROXY"] = env.pop("CODEX_CLOUD_TASKS_BASE_URL").removesuffix("/backend-api")
    return env


async def test_each_refusal_of_the_cloud_has_its_error(client: CloudClient, cloud: ScriptedCloud) -> None:
    task = cloud.add_task("Fix it", environment="env_1")
    expected: dict[int, type[HelmsmanError]] = {
        200: CloudOutputUnreadable,  # an answer in another form
        401: CloudNotLoggedIn,
        403: CloudNotLoggedIn,
        404: CloudTaskNotFound,
        429: CloudRateLimited,
        500: CloudUnreachable,
    }

    for status, error in expected.items():
        cloud.fault = lambda _request, status=status: status  # type: ignore[misc]
        with pytest.raises(error) as caught:
            await client.status(task.id)
        assert "Scripted fault" not in caught.value.message


async def test_a_task_that_vanished_is_not_found(client: CloudClient, cloud: ScriptedCloud) -> None:
    task = cloud.add_task("Fix it", environment="env_1")
    assert (await client.status(task.id)).status == "working"
    del cloud.tasks[task.id]

    for call in (client.status(task.id), client.diff(task.id), client.results(task.id)):
        with pytest.raises(CloudTaskNotFound):
            await call


async def test_newer_versions_say_that_they_take_no_other_cloud(
    binary: CodexBinary, cloud: ScriptedCloud, home: CodexHome
) -> None:
    if binary.version < Version.parse("0.152.0"):
        pytest.skip("This Codex takes any backend.")
    cloud.log_in(home)

    with pytest.raises(Unsupported, match="Unset CODEX_CLOUD_TASKS_BASE_URL"):
        await CloudClient(binary, home.path, cloud.env(home)).list()


async def test_nothing_is_left_where_helmsman_runs(
    client: CloudClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)

    await client.list()

    assert list(place.iterdir()) == []
