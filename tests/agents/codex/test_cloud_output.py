"""Tests of parsing `codex cloud`: recorded output of real binaries (scripts/record_cloud.py), and invented output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.agents.codex import cloud as cloud_output
from helmsman.errors import (
    CloudEnvironmentMissing,
    CloudError,
    CloudNoDiff,
    CloudNotLoggedIn,
    CloudRateLimited,
    CloudSubmitUncertain,
    CloudTaskNotFound,
    CloudUnreachable,
    HelmsmanError,
    Unsupported,
)
from helmsman.model.cloud import CloudPage, DiffStat

RECORDED = {
    file.stem: json.loads(file.read_text(encoding="utf-8"))
    for file in sorted((Path(__file__).parents[2] / "golden" / "cloud").glob("*.json"))
}
WITH_BACKEND = [version for version, answers in RECORDED.items() if "exec" in answers]
TASK = "task_e_00000000000000000000000000000001"

FAILURES: dict[str, type[HelmsmanError]] = {
    "not_signed_in": CloudNotLoggedIn,
    "no_such_command": Unsupported,
    "too_many_attempts": CloudError,
    "other_backend": Unsupported,
    "unreachable_list": CloudUnreachable,
    "unreachable_status": CloudUnreachable,
    "unreachable_exec": CloudUnreachable,
    "unknown_environment": CloudEnvironmentMissing,
    "ambiguous_environment": CloudEnvironmentMissing,
    "pending_diff": CloudNoDiff,
    "error_diff": CloudNoDiff,
    "no_such_attempt": CloudNoDiff,
    "no_such_task": CloudTaskNotFound,
    "http_401": CloudNotLoggedIn,
    "http_429": CloudRateLimited,
    "http_500": CloudUnreachable,
    "broken_exec": CloudSubmitUncertain,
}


def test_the_oldest_and_the_newest_are_recorded() -> None:
    assert {"0.93.0", "0.145.0", "0.166.0"} <= RECORDED.keys()
    assert {"0.93.0", "0.145.0"} <= set(WITH_BACKEND)


@pytest.mark.parametrize(
    ("version", "story"),
    [(version, story) for version, answers in RECORDED.items() for story in answers if story in FAILURES],
)
def test_each_failure_has_its_error(version: str, story: str) -> None:
    answer = RECORDED[version][story]

    error = cloud_output.failure(answer["stderr"], answer["exit_code"])

    assert type(error) is FAILURES[story]
    assert error.message.endswith(".")
    assert "body=" not in error.message
    assert "Caused by" not in error.message.partition("(")[0]


@pytest.mark.parametrize("version", WITH_BACKEND)
@pytest.mark.parametrize(
    ("story", "said", "stat"),
    [
        ("pending", "PENDING", None),
        ("ready", "READY", DiffStat(1, 2, 1)),
        ("applied", "APPLIED", DiffStat(1, 2, 1)),
        ("error", "ERROR", None),
    ],
)
def test_status_and_listing_are_read_alike(version: str, story: str, said: str, stat: DiffStat | None) -> None:
    detail = cloud_output.read_detail(RECORDED[version][f"{story}_status"]["stdout"])
    page = cloud_output.read_page(RECORDED[version][f"{story}_list"]["stdout"])

    assert detail == cloud_output.Detail(said, "-Fix it\nall", "My project", stat)
    assert page is not None
    (listed,) = page.tasks
    assert (listed.external_id, listed.said, listed.title, listed.diff_stat) == (TASK, said, detail.title, stat)
    assert listed.environment == "My project"
    assert listed.updated_at is not None
    assert listed.updated_at.isoformat() == "2026-01-02T03:04:05.678901+00:00"
    assert listed.status == cloud_output.state_of(said)


@pytest.mark.parametrize("version", WITH_BACKEND)
def test_a_new_task_and_an_empty_list_are_read(version: str) -> None:
    submitted = cloud_output.read_submitted(RECORDED[version]["exec"]["stdout"])
    page = cloud_output.read_page(RECORDED[version]["empty_list"]["stdout"])

    assert submitted == (TASK, f"https://cloud.example/codex/tasks/{TASK}")
    assert page == CloudPage(tasks=(), cursor=None)


@pytest.mark.parametrize("version", WITH_BACKEND)
def test_the_number_of_attempts_is_read_from_a_refusal(version: str) -> None:
    def refused(story: str) -> CloudError:
        error = cloud_output.failure(RECORDED[version][story]["stderr"], 1)
        assert isinstance(error, CloudError)
        return error

    assert cloud_output.attempts_found(refused("no_such_attempt")) == 1
    assert cloud_output.attempts_found(refused("pending_diff")) is None


@pytest.mark.parametrize(
    ("given_id", "expected"),
    [
        ("task_e_1", "task_e_1"),
        (" task_e_1\n", "task_e_1"),
        ("https://chatgpt.com/codex/tasks/task_e_1", "task_e_1"),
        ("https://chatgpt.com/codex/tasks/task_e_1?tab=diff", "task_e_1"),
        ("--json", None),
        ("", None),
        ("../x", None),
        ("a b", None),
        ("https://chatgpt.com/", None),
    ],
)
def test_a_task_is_named_by_id_or_address(given_id: str, expected: str | None) -> None:
    assert cloud_output.read_task_id(given_id) == expected


def test_a_state_that_is_unknown_is_unknown() -> None:
    detail = cloud_output.read_detail("[PAUSED] Fix it\nMy project  •  1h ago\nno diff\n")

    assert detail is not None
    assert (detail.said, cloud_output.state_of(detail.said)) == ("PAUSED", "unknown")


@pytest.mark.parametrize(
    ("diff", "expected"),
    [
        ("", DiffStat(0, 0, 0)),
        ("diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n--- a\n+++ b\n c\n", DiffStat(1, 1, 1)),
        (
            "diff --git a/a b/b\nrename from a\nrename to b\ndiff --git a/c b/c\nnew file mode 100644\n",
            DiffStat(2, 0, 0),
        ),
    ],
)
def test_lines_of_a_diff_are_counted_in_its_hunks(diff: str, expected: DiffStat) -> None:
    assert cloud_output.diff_stat(diff) == expected


def test_an_error_holds_neither_secrets_nor_pages_of_html() -> None:
    stderr = (
        "Error: http error: list_tasks failed: GET https://x/y failed: 418; content-type=text/html; body=<html>\nlong"
    )
    secret = "Error: something with Authorization: Bearer abcdefghijklmnopqrstuvwxyz0123456789"

    assert "html" not in cloud_output.failure(stderr, 1).message
    assert "abcdefghijklmnop" not in json.dumps(cloud_output.failure(secret, 1).as_dict())
    assert len(cloud_output.failure("Error: " + "x" * 100_000, 1).message) < 1000


@given(st.text())
def test_no_text_is_too_odd(text: str) -> None:
    cloud_output.read_detail(text)
    cloud_output.read_submitted(text)
    cloud_output.read_task_id(text)
    cloud_output.diff_stat(text)
    assert cloud_output.read_page(text) is None
    assert isinstance(cloud_output.failure(text, 1), HelmsmanError)
    assert cloud_output.unreadable("list", text).code == "cloud_output_unreadable"


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["tasks", "id", "summary", "updated_at", "x"]), inner)
    ),
)


@given(_json)
def test_no_listing_is_too_odd(value: Any) -> None:
    page = cloud_output.read_page(json.dumps({"tasks": [value, {"id": "t", "summary": value}], "cursor": value}))

    assert page is not None
    assert page.tasks[-1].external_id == "t"
