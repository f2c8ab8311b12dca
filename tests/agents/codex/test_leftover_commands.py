"""Commands that sessions have left running are ended, all of them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from helmsman.agents.codex.processes import commands_left, end_commands

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the system does not tell of processes")

SESSION = "0199a0f2-7c11-7d20-9f0a-3b2d5c8e1f00"


def test_processes_started_while_a_command_is_ended_end_too(tmp_path: Path) -> None:
    busy = "for each in $(seq 500); do sleep 600 & done; wait"
    env = {**os.environ, "CODEX_THREAD_ID": SESSION}
    with subprocess.Popen(["sh", "-c", busy], env=env, cwd=tmp_path, start_new_session=True):
        deadline = time.monotonic() + 30
        while len(commands_left({SESSION}, tmp_path)) < 5:
            assert time.monotonic() < deadline
        end_commands({SESSION}, tmp_path)
        assert commands_left({SESSION}, tmp_path) == ()
