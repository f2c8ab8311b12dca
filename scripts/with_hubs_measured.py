"""Run a command with coverage measured in hubs, supervisors, workers of a fleet and MCP servers of tests too.

They take nothing of the environment of whoever starts them, by which coverage measures other processes. So the virtual
environment has it done for as long as the command runs: python scripts/with_hubs_measured.py COMMAND …
Most of them end by `os._exit`, before which coverage has to be told to save.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
HUB = "helmsman.cli.hub_process"
MEASURED = (HUB, "helmsman.agents.supervisor.process", "helmsman.testing.mcp_test_server")
WORKER = ["-m", "helmsman", "fleet", "worker"]
# Before `a1_coverage.pth`, which coverage installs and which measures where it finds these variables.
BEFORE_COVERAGE = Path(sysconfig.get_path("purelib")) / "a0_measured_hubs.pth"
THIS_IS_MEASURED = "this is measured"


def main() -> int:
    BEFORE_COVERAGE.write_text(
        f"import sys; (any(word.endswith({MEASURED}) for word in sys.orig_argv) or sys.orig_argv[1:5] == {WORKER})"
        f" and __import__('runpy').run_path({__file__!r}, run_name={THIS_IS_MEASURED!r})\n"
    )
    try:
        return subprocess.run(sys.argv[1:], check=False).returncode
    finally:
        BEFORE_COVERAGE.unlink()


def be_measured() -> None:
    if not os.access(ROOT, os.W_OK):
        return  # in a sandbox, which cannot store measurements
    os.environ["COVERAGE_PROCESS_START"] = str(ROOT / "pyproject.toml")
    os.environ["COVERAGE_FILE"] = str(ROOT / ".coverage")
    leave, started = os._exit, os.getpid()

    def save_and_leave(status: int) -> NoReturn:
        import coverage

        # A hub forks before it begins. A supervisor forks on the way to the next hub, which must not take its time.
        if (HUB in sys.orig_argv or os.getpid() == started) and (measuring := coverage.Coverage.current()) is not None:
            measuring.stop()
            measuring.save()
        leave(status)

    os._exit = save_and_leave


if __name__ == THIS_IS_MEASURED:
    be_measured()
elif __name__ == "__main__":
    sys.exit(main())
