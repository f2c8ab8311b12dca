"""What the login shell costs, as the doctor measures it."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from helmsman.cli import checks
from helmsman.cli.checks import login_shell, measure_profile

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no login shells"),
]


@pytest.fixture
def shell(tmp_path: Path) -> Path:
    """A shell that takes as long as the test says."""
    program = tmp_path / "shell"
    program.write_text(f"#!/bin/sh\n. {tmp_path}/takes\n", encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "takes").write_text("", encoding="utf-8")
    return program


def test_a_shell_that_cannot_be_run_has_no_time(tmp_path: Path) -> None:
    assert measure_profile(str(tmp_path / "nothing"), {}) is None


def test_the_account_has_a_shell_that_can_be_measured(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    shell = login_shell(env)
    if shell is None:
        pytest.skip("this account has none")
    seconds = measure_profile(shell, env)
    assert seconds is not None
    assert 0 < seconds < checks._SLOWEST


async def test_a_profile_that_takes_too_long_is_let_finish(
    tmp_path: Path, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_SLOWEST", 0.01)
    (tmp_path / "takes").write_text(
        f"until [ -e {tmp_path}/go ]; do sleep 0.01; done; touch {tmp_path}/finished", encoding="utf-8"
    )
    assert measure_profile(str(shell), {"PATH": "/usr/bin:/bin"}) is None
    assert not (tmp_path / "finished").exists()
    (tmp_path / "go").touch()
    with anyio.fail_after(30):
        while not (tmp_path / "finished").exists():
            await anyio.sleep(0.01)
