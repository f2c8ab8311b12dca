"""Tests that temporary directories are removed after the block, or after their process was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from helmsman.base.files import clear_abandoned, temporary_directory

KILLED = """
import os, signal, sys
from pathlib import Path
from helmsman.base.files import temporary_directory
with temporary_directory(Path(sys.argv[1]), "work"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_only_leftovers_of_killed_processes_are_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert len(list(tmp_path.iterdir())) == 2
    with temporary_directory(tmp_path, "work") as ours:
        clear_abandoned(tmp_path)
        assert sorted(map(str, tmp_path.iterdir())) == sorted([ours, str(tmp_path / "other")])
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
