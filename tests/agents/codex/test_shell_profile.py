"""Tests of measuring the login shell, and of the decision about Codex's shell snapshots."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

import anyio
import pytest

from helmsman.agents.codex import processes
from helmsman.agents.codex.binary import CodexBinary
from helmsman.agents.codex.features import Version
from helmsman.agents.codex.processes import login_shell, measure_profile, snapshot_options

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no login shells"),
]

OFF = ("--disable", "shell_snapshot")
ON = ("--enable", "shell_snapshot")


@pytest.fixture
def shell(tmp_path: Path) -> Path:
    """Shell that takes as long as the test says."""
    program = tmp_path / "shell"
    program.write_text(f"#!/bin/sh\n. {tmp_path}/takes\n", encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "takes").write_text("", encoding="utf-8")
    return program


def codex(path: Path, version: str = "0.166.0") -> CodexBinary:
    return CodexBinary.connected(path, Version.parse(version))


async def options(
    folder: Path, choice: Literal["auto", "on", "off"] = "auto", version: str = "0.166.0"
) -> tuple[str, ...]:
    return await snapshot_options(choice, codex(folder, version), codex_home=folder / "codex-home")


async def test_there_are_no_snapshots_unless_somebody_wants_them(tmp_path: Path) -> None:
    assert await options(tmp_path) == OFF


@pytest.mark.parametrize(("choice", "expected"), [("on", ON), ("off", OFF)])
async def test_what_the_user_says_holds(
    tmp_path: Path, choice: Literal["on", "off"], expected: tuple[str, ...]
) -> None:
    assert await options(tmp_path, choice) == expected


async def test_what_codex_itself_is_configured_to_do_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "codex-home").mkdir()
    config = tmp_path / "codex-home" / "config.toml"
    config.write_text("[features]\nshell_snapshot = true\n", encoding="utf-8")
    assert await options(tmp_path) == ()


async def test_a_codex_without_snapshots_is_told_nothing(tmp_path: Path) -> None:
    assert await options(tmp_path, "off", "0.93.0") == ()


def test_a_shell_that_cannot_be_run_has_no_time(tmp_path: Path) -> None:
    assert measure_profile(str(tmp_path / "nothing"), {}) is None


def test_the_account_has_a_shell_that_can_be_measured(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    shell = login_shell(env)
    if shell is None:
        pytest.skip("this account has none")
    seconds = measure_profile(shell, env)
    assert seconds is not None
    assert 0 < seconds < processes.SLOWEST


async def test_a_profile_that_takes_too_long_is_let_finish(
    tmp_path: Path, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SLOWEST", 0.01)
    (tmp_path / "takes").write_text(
        f"until [ -e {tmp_path}/go ]; do sleep 0.01; done; touch {tmp_path}/finished", encoding="utf-8"
    )
    assert measure_profile(str(shell), {"PATH": "/usr/bin:/bin"}) is None
    assert not (tmp_path / "finished").exists()
    (tmp_path / "go").touch()
    with anyio.fail_after(30):
        while not (tmp_path / "finished").exists():
            await anyio.sleep(0.01)
