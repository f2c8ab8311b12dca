"""The example of an agent of one's own runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT, blocks


def test_the_agent_of_the_example_answers(tmp_path: Path) -> None:
    (example,) = blocks(ROOT / "docs" / "own-agent.md", "python")
    env = {"HOME": str(tmp_path), "HELMSMAN_STATE_DIR": str(tmp_path / "state"), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=60, cwd=tmp_path, env=env, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "Is anybody there?\n", "")
