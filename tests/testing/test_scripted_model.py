from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import anyio
import pytest

from helmsman.testing import CodexHome, ScriptedModel, add, patch, run, say, think

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.matrix
@pytest.mark.anyio
async def test_one_script_runs_on_every_version(codex_binary: Path, codex_home: CodexHome, model: ScriptedModel, git_repo: Path) -> None:
    model.on("Fix the bug", run("echo hello"), [think("hm"), patch(add("a.txt", "hi\n"))], lambda request: say("Done: " + request.tool_outputs[0]))
    with anyio.fail_after(60):
        done = await anyio.run_process([str(codex_binary), "exec", "--json", "-s", "workspace-write", "Fix the bug"], cwd=git_repo, env=codex_home.env, stdin=subprocess.DEVNULL, check=False)
    print(done.stdout.decode(), done.stderr.decode()[-500:])
    assert done.returncode == 0
    assert (git_repo / "a.txt").read_text() == "hi\n"
    print(model.requests[1].body["input"][-1])
    items = [json.loads(line) for line in done.stdout.decode().splitlines()]
    assert any(i.get("item", {}).get("text") == "Done: hello\n" for i in items)
