"""Tests of the cloud client on recorded answers of every version, and on invented answers, through a shell script."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from helmsman.agents.codex.binary import CodexBinary
from helmsman.agents.codex.cloud import CloudClient, poll_delays
from helmsman.agents.codex.features import Version
from helmsman.base.structs import replace
from helmsman.errors import (
    ApplyConflict,
    CloudEnvironmentMissing,
    CloudError,
    CloudNoDiff,
    CloudNotLoggedIn,
    CloudOutputUnreadable,
    CloudSubmitUncertain,
    CloudTaskNotFound,
    CloudUnreachable,
    InvalidInput,
    Unsupported,
)

Replay = Callable[..., CloudClient]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.name != "posix", reason="A shell script stands in for Codex."),
]

RECORDED = {
    file.stem: json.loads(file.read_text(encoding="utf-8"))
    for file in sorted((Path(__file__).parents[2] / "golden" / "cloud").glob("*.json"))
}
WITH_BACKEND = [version for version, answers in RECORDED.items() if "exec" in answers]
TASK = "task_e_00000000000000000000000000000001"


def stand_in(folder: Path, script: str) -> CodexBinary:
    """Return a program that replaces Codex."""
    program = folder / "codex"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    return CodexBinary(
        path=program,
        version=Version.parse("0.145.0"),
    )


@pytest.fixture
def replay(tmp_path: Path) -> Replay:
    """Return a function for clients whose Codex gives recorded answers, by command: `replay("0.145.0",
    status="ready_status")`.
    """

    def make(version: str, **stories: str) -> CloudClient:
        cases = "".join(_case(command, RECORDED[version][story]) for command, story in stories.items())
        return CloudClient(stand_in(tmp_path, f'cat > /dev/null\ncase "$2" in\n{cases}esac'), tmp_path)

    return make


def _case(command: str, answer: dict[str, Any]) -> str:
    out, err = shlex.quote(answer["stdout"]), shlex.quote(answer["stderr"])
    return f"{command}) printf %s {out}; printf %s {err} >&2; exit {answer['exit_code']};;\n"


@pytest.mark.parametrize("version", WITH_BACKEND)
@pytest.mark.parametrize(
    ("story", "status"),
    [("pending", "working"), ("ready", "completed"), ("applied", "completed"), ("error", "failed")],
)
async def test_the_status_of_every_version_is_understood(replay: Replay, version: str, story: str, status: str) -> None:
    client = replay(version, status=f"{story}_status", list=f"{story}_list", diff=f"{story}_diff")

    told, results = await client.status(TASK), await client.results(TASK)

    assert (told.status, told.title, told.note) == (status, "-Fix it\nall", None)
    assert (results.diff is not None) == (status == "completed")
    assert results.note is not None


@pytest.mark.parametrize("version", WITH_BACKEND)
async def test_listing_and_detail_that_disagree_are_unknown(replay: Replay, version: str) -> None:
    status = await replay(version, status="ready_status", list="error_list").status(TASK)
    vanished = await replay(version, status="no_such_task", list="ready_list").status(TASK)

    assert (status.status, vanished.status) == ("unknown", "unknown")
    assert "says READY, the listing says ERROR" in (status.note or "")
    assert "is not there, the listing says READY" in (vanished.note or "")


@pytest.mark.parametrize("version", WITH_BACKEND)
async def test_a_task_that_is_nowhere_is_not_found(replay: Replay, version: str) -> None:
    with pytest.raises(CloudTaskNotFound):
        await replay(version, status="no_such_task", list="empty_list").status(TASK)


@pytest.mark.parametrize("version", WITH_BACKEND)
async def test_a_submit_and_its_failures_are_understood(replay: Replay, version: str) -> None:
    submitted = await replay(version, exec="exec").submit("Fix it", environment="env_1", branch="main")
    assert (submitted.external_id, submitted.url) == (TASK, f"https://cloud.example/codex/tasks/{TASK}")

    for story, error in (
        ("unknown_environment", CloudEnvironmentMissing),
        ("ambiguous_environment", CloudEnvironmentMissing),
        ("broken_exec", CloudSubmitUncertain),
    ):
        with pytest.raises(error):
            await replay(version, exec=story).submit("Fix it", environment="env_1")


@pytest.mark.parametrize("version", RECORDED)
async def test_failures_of_every_version_are_understood(replay: Replay, version: str) -> None:
    with pytest.raises(CloudNotLoggedIn):
        await replay(version, list="not_signed_in").list()
    with pytest.raises(CloudUnreachable):
        await replay(version, list="unreachable_list").list()
    with pytest.raises(CloudUnreachable):
        await replay(version, list="unreachable_list", status="unreachable_status").status(TASK)
    with pytest.raises(CloudUnreachable):
        await replay(version, exec="unreachable_exec").submit("Fix it", environment="env_1")


async def test_environments_are_those_of_the_configuration_and_the_listing(replay: Replay) -> None:
    listed = await replay("0.145.0", list="ready_list").environments({"site": "env_9"}, default="site")
    offline = await replay("0.166.0", list="unreachable_list").environments({"site": "env_9"})

    assert [(one.name, one.reference, one.is_default) for one in listed.environments] == [
        ("site", "env_9", True),
        ("My project", "My project", False),
    ]
    assert [one.name for one in offline.environments] == ["site"]
    assert "could not be read" in offline.note
    with pytest.raises(CloudUnreachable):
        await replay("0.166.0", list="unreachable_list").environments()


@pytest.mark.needs_git
async def test_a_recorded_diff_is_applied_or_refused_whole(replay: Replay, git_repo: Path) -> None:
    with pytest.raises(ApplyConflict):  # it changes a file that is not in this repository
        await replay("0.145.0", diff="ready_diff").apply(TASK, git_repo, state_dir=git_repo.with_name("state"))
    with pytest.raises(CloudNoDiff):
        await replay("0.145.0", diff="pending_diff").apply(TASK, git_repo, state_dir=git_repo.with_name("state"))


async def test_a_state_that_is_new_is_unknown_and_named(tmp_path: Path) -> None:
    script = r"""[ "$2" = list ] && echo '{"tasks": []}' || printf '[PAUSED] Fix it\nMine  •  1h ago\nno diff\n'"""

    status = await CloudClient(stand_in(tmp_path, script), tmp_path).status(TASK)

    assert (status.status, status.said) == ("unknown", "PAUSED")
    assert "PAUSED" in (status.note or "")


async def test_requests_that_codex_cannot_take_are_refused_before_a_run(tmp_path: Path) -> None:
    client = CloudClient(stand_in(tmp_path, f"touch {shlex.quote(str(tmp_path / 'ran'))}"), tmp_path)

    with pytest.raises(InvalidInput, match="1 to 4"):
        await client.submit("Fix it", environment="env_1", attempts=5)
    with pytest.raises(InvalidInput, match="empty"):
        await client.submit(" \n", environment="env_1")
    with pytest.raises(CloudEnvironmentMissing, match="needs an environment"):
        await client.submit("Fix it", environment="")
    with pytest.raises(InvalidInput, match="control characters"):
        await client.submit("Fix it", environment="env_1", branch="a\0b")
    with pytest.raises(InvalidInput, match="1 to 4"):
        await client.diff(TASK, attempt=0)
    with pytest.raises(InvalidInput, match="not the id of a cloud task"):
        await client.status("--json")
    with pytest.raises(Unsupported, match="cannot run tasks in the Codex cloud"):
        await CloudClient(replace(stand_in(tmp_path, ""), version=Version.parse("0.20.0")), tmp_path).list()
    assert not (tmp_path / "ran").exists()


async def test_unreadable_output_is_quoted_and_not_guessed(tmp_path: Path) -> None:
    strange = CloudClient(stand_in(tmp_path, "cat > /dev/null; echo 'Hello there'"), tmp_path)

    for call in (strange.list(), strange.status(TASK), strange.submit("Fix it", environment="env_1")):
        with pytest.raises(CloudOutputUnreadable, match="Hello there"):
            await call


async def test_a_failure_without_a_known_reason_is_passed_on(tmp_path: Path) -> None:
    broken = CloudClient(stand_in(tmp_path, "echo 'Error: the moon is full' >&2; exit 3"), tmp_path)

    with pytest.raises(CloudError, match="the moon is full") as caught:
        await broken.diff(TASK)
    assert (caught.value.code, caught.value.details["exit_code"]) == ("cloud_error", 3)


async def test_output_without_an_end_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helmsman.agents.codex.cloud._OUTPUT_LIMIT", 1_000_000)
    monkeypatch.setattr("helmsman.agents.child_process.STDIN_CLOSED_GRACE", 0.1)
    endless = CloudClient(stand_in(tmp_path, "exec yes"), tmp_path)

    with anyio.fail_after(20), pytest.raises(CloudError, match="more than 1000000 bytes"):
        await endless.diff(TASK)


async def test_a_codex_that_never_answers_is_given_up_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helmsman.agents.codex.cloud._ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("helmsman.agents.codex.cloud._SUBMIT_SECONDS", 0.2)
    monkeypatch.setattr("helmsman.agents.child_process.STDIN_CLOSED_GRACE", 0.1)
    silent = CloudClient(stand_in(tmp_path, "exec sleep 600"), tmp_path)

    with anyio.fail_after(20):
        with pytest.raises(CloudUnreachable, match="did not answer"):
            await silent.list()
        with pytest.raises(CloudSubmitUncertain, match="did not answer"):
            await silent.submit("Fix it", environment="env_1")


def test_a_cancel_is_answered_honestly(replay: Replay) -> None:
    answer = replay("0.166.0").cancel(TASK)

    assert f"https://chatgpt.com/codex/tasks/{TASK} " in answer
    assert "cannot cancel" in answer


def test_delays_between_looks_grow_to_fifteen_seconds() -> None:
    for seed in range(50):
        delays = poll_delays(Random(seed))
        for expected in (2, 5, 10, 15, 15, 15):
            assert 0.8 * expected <= next(delays) <= 1.2 * expected
        slow = poll_delays(Random(seed), first=0, then=60)
        assert next(slow) == 0
        assert all(48 <= next(slow) <= 72 for _ in range(3))
    assert len({next(poll_delays(Random(seed))) for seed in range(50)}) > 1
