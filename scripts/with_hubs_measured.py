"""Run a command with coverage measured in hubs and keepers too.

They take nothing of the environment of whoever starts them, by which coverage measures other processes. So the virtual
environment says it to them for as long as the command runs: python scripts/with_hubs_measured.py COMMAND …
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ("helmsman.cli.hub_process", "helmsman.agents.keeper.process")
# Before `a1_coverage.pth`, which coverage installs and which measures where it finds these variables.
BEFORE_COVERAGE = Path(sysconfig.get_path("purelib")) / "a0_measured_hubs.pth"


def main() -> int:
    variables = {"COVERAGE_PROCESS_START": str(ROOT / "pyproject.toml"), "COVERAGE_FILE": str(ROOT / ".coverage")}
    BEFORE_COVERAGE.write_text(
        f"import os, sys; set({MEASURED}).isdisjoint(sys.orig_argv) or os.environ.update({variables})\n"
    )
    try:
        return subprocess.run(sys.argv[1:], check=False).returncode
    finally:
        BEFORE_COVERAGE.unlink()


if __name__ == "__main__":
    sys.exit(main())
