"""docs/commands.md, docs/reference.md and docs/events.md are what the code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize(
    "script", ["make_commands.py", "make_reference.py", "make_events.py", "make_evidence.py", "make_verbs.py"]
)
def test_the_reference_is_up_to_date(script: str) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPTS / script, "--check"], capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
