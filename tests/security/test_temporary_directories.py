"""Where a Codex session may write outside its directory without a question: temporary directories, unless excluded."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.service import HelmsmanService
from helmsman.testing import CodexHome, ScriptedModel, run, say

pytestmark = [pytest.mark.matrix, pytest.mark.anyio]

EXCLUDED = {"exclude_slash_tmp": True, "exclude_tmpdir_env_var": True}


@pytest.mark.parametrize("policy", ["never", "on-request"])
@pytest.mark.parametrize(
    ("sandbox", "is_excluded", "expected"),
    [("read-only", False, False), ("workspace-write", False, True), ("workspace-write", True, False)],
    ids=["read-only", "workspace-write", "workspace-write without temporary directories"],
)
async def test_only_a_writable_session_writes_below_tmp_and_the_configuration_can_end_that(
    helm: HelmsmanService,
    model: ScriptedModel,
    codex_home: CodexHome,
    folder: Path,
    sandbox: str,
    is_excluded: bool,
    expected: bool,
    policy: str,
) -> None:
    if is_excluded:
        codex_home.configure(sandbox_workspace_write=EXCLUDED)
    neighbour = folder.parent / "neighbour"
    neighbour.mkdir()
    model.on("go", run(f"touch {neighbour}/made.txt"), say("done"))
    session = await helm.start("go", cwd=folder, sandbox=sandbox, approval_policy=policy)  # type: ignore[arg-type]
    assert await session.wait(until="end", timeout=60)
    assert session.result == "done"
    assert (neighbour / "made.txt").exists() is expected
