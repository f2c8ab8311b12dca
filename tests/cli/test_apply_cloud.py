"""`helmsman diff` and `apply` of a cloud task, on the oldest and the newest Codex that takes another backend than OpenAI's.

What each version between them says and does is shown by `tests/agents/codex/test_cloud.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from helmsman.tasks.model import TaskDraft
from helmsman.tasks.registry import REGISTRY_NAME, Registry
from helmsman.testing import CodexHome, HomeTemplates, ScriptedCloud, codex_versions, git
from helmsman.testing.binaries import codex_version
from tests.cli.conftest import Cli

pytestmark = [pytest.mark.anyio, pytest.mark.matrix, pytest.mark.needs_git]

DIFF = """\
diff --git a/README.md b/README.md
--- a/README.md
+++ b/README.md
@@ -1 +1,2 @@
 # A repository
+one more line
"""


@pytest.fixture
async def cloud() -> AsyncIterator[ScriptedCloud]:
    async with ScriptedCloud() as cloud:
        cloud.add_environment("env_1", "My project")
        yield cloud


@pytest.fixture
def cloud_cli(
    tmp_path: Path, codex_binary: Path, codex_home_templates: HomeTemplates, cloud: ScriptedCloud, git_repo: Path
) -> Cli:
    able = [path for path in codex_versions().values() if codex_version(path) < (0, 152, 0)]
    if codex_binary not in (*able[:1], *able[-1:]):
        pytest.skip("This Codex takes no backend but OpenAI's, or is neither the oldest nor the newest that does.")
    home: CodexHome = codex_home_templates.new_home(codex_binary, tmp_path / "home")
    cloud.log_in(home)
    return Cli(cloud.env(home) | {"CODEX_CLI_PATH": str(codex_binary)}, git_repo)


def registered(state_dir: Path, external_id: str) -> str:
    """The task in the registry, as a submit leaves it."""
    state_dir.mkdir(parents=True, exist_ok=True)
    registry = Registry(state_dir / REGISTRY_NAME)
    draft = TaskDraft(origin="cloud", instruction="Fix it", status="working", external_id=external_id)
    task, _ = registry.add(draft)
    registry.close()
    return task.id


async def test_a_cloud_task_is_looked_at_and_applied_here(cloud_cli: Cli, cloud: ScriptedCloud, git_repo: Path) -> None:
    task = cloud.add_task("Fix it", environment="env_1", attempts=2)
    task.complete(DIFF)
    task.complete(DIFF.replace("one more", "another"), attempt=2)
    task_id = registered(Path(cloud_cli.env["HELMSMAN_STATE_DIR"]), task.id)
    shown = await cloud_cli.run("diff", task_id)
    assert (shown.exit_code, "+one more line" in shown.stdout) == (0, True)
    (applied,) = (await cloud_cli.run("apply", "--yes", "--json", "--attempt", "2", task_id)).json
    assert (applied["taskId"], applied["repository"], applied["how"]) == (task_id, str(git_repo), "clean")
    assert (git_repo / "README.md").read_text(encoding="utf-8") == "# A repository\nanother line\n"
    refused = await cloud_cli.run("apply", "--yes", task_id)
    assert (refused.exit_code, "uncommitted" in refused.stderr) == (1, True)
    assert git(git_repo, "status", "--porcelain") == " M README.md\n"
    assert "is in the cloud" in (await cloud_cli.run("session", "discard", task_id)).stderr


async def test_a_cloud_task_that_says_something_else_by_now_is_not_applied(
    cloud_cli: Cli, cloud: ScriptedCloud, git_repo: Path
) -> None:
    task = cloud.add_task("Fix it", environment="env_1")
    task.complete(DIFF)
    task_id = registered(Path(cloud_cli.env["HELMSMAN_STATE_DIR"]), task.id)
    assert (await cloud_cli.run("apply", task_id)).exit_code == 2  # without a terminal
    (shown,) = (await cloud_cli.run("diff", "--json", task_id)).json
    task.complete(DIFF.replace("one more", "an evil"))
    refused: dict[str, Any] = {}
    for command in (["apply"],):
        (refused,) = (await cloud_cli.run(*command, "--json", "--digest", shown["digest"], task_id)).json
        assert refused["error"]["code"] == "diff_changed"
        assert "an evil line" in refused["error"]["diff"]
    assert git(git_repo, "status", "--porcelain") == ""
    (applied,) = (await cloud_cli.run("apply", "--json", "--digest", refused["error"]["digest"], task_id)).json
    assert applied["digest"] == refused["error"]["digest"]
