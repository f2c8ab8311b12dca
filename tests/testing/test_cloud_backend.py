"""What the scripted cloud backend answers, asked directly."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from helmsman.testing import CodexHome, ScriptedCloud

pytestmark = pytest.mark.anyio

DIFF = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1,2 @@\n-old\n+new\n+more\n"


async def call(cloud: ScriptedCloud, path: str, body: Any = None) -> Any:
    """GET, or POST with a body; the JSON that comes back, or the status of an error."""

    def ask() -> Any:
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(f"{cloud.base_url}/wham/{path}", data, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    return await anyio.to_thread.run_sync(ask)


async def test_environments_and_tasks_are_shown() -> None:
    async with ScriptedCloud() as cloud:
        cloud.add_environment("env_1", "My project")
        task = cloud.add_task("Fix it", environment="env_1", attempts=2)
        task.complete(DIFF, message="Done")
        task.complete("other", attempt=2)

        environments = await call(cloud, "environments")
        shown = await call(cloud, f"tasks/{task.id}")
        siblings = await call(cloud, f"tasks/{task.id}/turns/turn_0/sibling_turns")

    assert [environment["label"] for environment in environments] == ["My project"]
    assert shown["task"]["title"] == "Fix it"
    assert [item["type"] for item in shown["current_diff_task_turn"]["output_items"]] == ["output_diff", "message"]
    assert shown["current_assistant_turn"]["sibling_turn_ids"] == ["turn_1"]
    assert shown["task_status_display"]["latest_turn_status_display"] == {
        "turn_status": "completed",
        "diff_stats": {"files_modified": 1, "lines_added": 2, "lines_removed": 1},
    }
    assert [turn["output_items"][0]["diff"] for turn in siblings["sibling_turns"]] == ["other"]


async def test_a_new_task_is_pending_and_in_the_list() -> None:
    order = {
        "new_task": {"environment_id": "env_9", "branch": "main"},
        "input_items": [{"type": "message", "role": "user", "content": [{"content_type": "text", "text": "Do it"}]}],
    }

    async with ScriptedCloud() as cloud:
        made = await call(cloud, "tasks", order)
        with anyio.fail_after(5):
            task = await cloud.wait_for_task()
        task.begin()
        page = await call(cloud, "tasks/list?limit=1&environment_id=env_9")
        nothing = await call(cloud, "tasks/list?environment_id=other")

    assert made["id"] == task.id
    assert (task.title, task.branch, task.status) == ("Do it", "main", "in_progress")
    (listed,) = page["items"]
    assert listed["task_status_display"]["environment_label"] == "env_9"  # an environment without a label
    assert (page["cursor"], nothing["items"]) == (None, [])
    assert [request.method for request in cloud.requests] == ["POST", "GET", "GET"]
    assert cloud.requests[0].body == order


async def test_states_show_in_the_display() -> None:
    async with ScriptedCloud() as cloud:
        task = cloud.add_task("Fix it", environment="env_1")
        task.fail()
        failed = (await call(cloud, f"tasks/{task.id}"))["task_status_display"]
        task.mark_applied()
        applied = (await call(cloud, f"tasks/{task.id}"))["task_status_display"]

    assert failed["latest_turn_status_display"]["turn_status"] == "failed"
    assert applied["state"] == "applied"


async def test_unknown_tasks_and_rejected_logins_are_errors() -> None:
    async with ScriptedCloud() as cloud:
        assert await call(cloud, "tasks/nothing") == 404
        assert await call(cloud, "tasks/nothing/turns/turn_0/sibling_turns") == 404
        assert await call(cloud, "elsewhere") == 404
        cloud.rejects_login = True
        assert await call(cloud, "environments") == 401


async def test_a_home_is_given_a_login_and_an_address(tmp_path: Path) -> None:
    home = CodexHome(tmp_path)

    async with ScriptedCloud() as cloud:
        cloud.log_in(home)
        reachable, lost = cloud.env(home), cloud.env(home, reachable=False)

    assert json.loads((home.path / "auth.json").read_text(encoding="utf-8"))["auth_mode"] == "chatgpt"
    assert reachable["CODEX_CLOUD_TASKS_BASE_URL"] == cloud.base_url
    assert lost["CODEX_CLOUD_TASKS_BASE_URL"] != cloud.base_url
    assert reachable["CODEX_HOME"] == str(home.path)
