"""What the login shell costs, and whether Codex is told to keep snapshots of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

import anyio
import pytest

from helmsman.agents.codex.access import shell_profile
from helmsman.agents.codex.access.shell_profile import login_shell, measure_profile, profile_seconds, snapshot_options
from helmsman.agents.codex.binary import CodexBinary
from helmsman.agents.codex.features import Version

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no login shells"),
]

OFF = ("--disable", "shell_snapshot")
ON = ("--enable", "shell_snapshot")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The account's shell: one that writes down each run and takes as long as the test says."""
    program = tmp_path / "shell"
    program.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\n. {tmp_path}/takes\n", encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "takes").write_text("", encoding="utf-8")
    monkeypatch.setattr(shell_profile, "login_shell", lambda _env: str(program))
    return program


def runs(shell: Path) -> int:
    file = shell.parent / "runs"
    return len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0


def codex(path: Path, version: str = "0.166.0") -> CodexBinary:
    return CodexBinary.connected(path, Version.parse(version))


async def options(
    folder: Path, choice: Literal["auto", "on", "off"] = "auto", version: str = "0.166.0"
) -> tuple[str, ...]:
    with anyio.fail_after(30):
        return await snapshot_options(
            choice,
            codex(folder, version),
            codex_home=folder / "codex-home",
            state_dir=folder / "state",
            env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
        )


async def test_a_quick_profile_means_no_snapshots(tmp_path: Path, shell: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_profile, "QUICK", 20.0)  # however busy the machine is
    monkeypatch.setattr(shell_profile, "_PATIENCE", 20.0)
    assert await options(tmp_path) == OFF


async def test_a_slow_profile_keeps_codex_as_it_is_and_is_known_the_next_time(
    tmp_path: Path, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell_profile, "_PATIENCE", 0.01)
    (tmp_path / "takes").write_text("sleep 0.2", encoding="utf-8")
    assert await options(tmp_path) == ()
    with anyio.fail_after(30):
        while not (tmp_path / "state" / "shell-profile.json").exists():
            await anyio.sleep(0.01)
    measured = runs(shell)
    assert measured > 0
    monkeypatch.setattr(shell_profile, "_PATIENCE", 20.0)
    assert await options(tmp_path) == ()
    assert runs(shell) == measured


async def test_a_changed_profile_is_measured_again(tmp_path: Path, shell: Path) -> None:
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    assert profile_seconds(env, tmp_path / "state") == profile_seconds(env, tmp_path / "state")
    once = runs(shell)
    (tmp_path / ".profile").write_text("# new\n", encoding="utf-8")
    profile_seconds(env, tmp_path / "state")
    assert runs(shell) > once


@pytest.mark.parametrize(("choice", "expected"), [("on", ON), ("off", OFF)])
async def test_who_decides_is_not_measured_for(
    tmp_path: Path, shell: Path, choice: Literal["on", "off"], expected: tuple[str, ...]
) -> None:
    assert await options(tmp_path, choice) == expected
    assert runs(shell) == 0


async def test_what_codex_itself_is_configured_to_do_is_left_alone(tmp_path: Path, shell: Path) -> None:
    (tmp_path / "codex-home").mkdir()
    config = tmp_path / "codex-home" / "config.toml"
    config.write_text("[features]\nshell_snapshot = true\n", encoding="utf-8")
    assert await options(tmp_path) == ()
    assert runs(shell) == 0


async def test_a_codex_without_snapshots_is_told_nothing(tmp_path: Path, shell: Path) -> None:
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
    assert 0 < seconds < shell_profile.SLOWEST


def test_a_state_directory_that_cannot_be_written_only_forgets(tmp_path: Path, shell: Path) -> None:
    (tmp_path / "state").write_text("a file", encoding="utf-8")
    assert profile_seconds({"HOME": str(tmp_path)}, tmp_path / "state") is not None


async def test_a_profile_that_takes_too_long_is_let_finish(
    tmp_path: Path, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell_profile, "SLOWEST", 0.01)
    (tmp_path / "takes").write_text(
        f"until [ -e {tmp_path}/go ]; do sleep 0.01; done; touch {tmp_path}/finished", encoding="utf-8"
    )
    assert measure_profile(str(shell), {"PATH": "/usr/bin:/bin"}) is None
    assert not (tmp_path / "finished").exists()
    (tmp_path / "go").touch()
    with anyio.fail_after(30):
        while not (tmp_path / "finished").exists():
            await anyio.sleep(0.01)
