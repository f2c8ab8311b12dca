"""The programs in docs/recipes.md do what the page says, with a real Codex."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from helmsman.testing import CodexHome, ScriptedModel, add, patch, say
from tests.docs.pages import ROOT, blocks


@pytest.mark.anyio
@pytest.mark.needs_git
async def test_many_tasks_run_in_worktrees_and_leave_the_tree_alone(
    model: ScriptedModel, codex_home: CodexHome, codex_binary: Path, git_repo: Path, tmp_path: Path
) -> None:
    (program,) = [block for block in blocks(ROOT / "docs" / "recipes.md", "python") if "many.py" in block]
    (tmp_path / "many.py").write_text(program, encoding="utf-8")
    for name in ("one", "two"):
        model.on(f"Make {name}", patch(add(f"{name}.txt", "made\n")), say(f"{name} is made"))
    before = sorted(git_repo.iterdir())
    env = codex_home.env | {"CODEX_CLI_PATH": str(codex_binary), "HELMSMAN_DETACH": "0"}
    with anyio.fail_after(60):
        done = await anyio.run_process(
            [sys.executable, str(tmp_path / "many.py"), "Make one", "Make two"], env=env, cwd=git_repo, check=False
        )
    assert done.returncode == 0, done.stderr.decode()
    shown = done.stdout.decode()
    assert "done one is made" in shown
    assert "done two is made" in shown
    assert sorted(git_repo.iterdir()) == before
