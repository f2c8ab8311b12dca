"""Whether Codex is told to keep snapshots of the login shell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import pytest

from helmsman.agents.codex.binary import CodexBinary
from helmsman.agents.codex.features import Version
from helmsman.agents.codex.processes import snapshot_options

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no login shells"),
]

OFF = ("--disable", "shell_snapshot")
ON = ("--enable", "shell_snapshot")


def codex(path: Path, version: str = "0.166.0") -> CodexBinary:
    return CodexBinary(path=path, version=Version.parse(version))


async def options(
    folder: Path, choice: Literal["auto", "on", "off"] = "auto", version: str = "0.166.0"
) -> tuple[str, ...]:
    return await snapshot_options(choice, codex(folder, version), codex_home=folder / "codex-home")


async def test_there_are_no_snapshots_unless_they_are_enabled(tmp_path: Path) -> None:
    assert await options(tmp_path) == OFF


@pytest.mark.parametrize(("choice", "expected"), [("on", ON), ("off", OFF)])
async def test_the_setting_of_the_user_holds(
    tmp_path: Path, choice: Literal["on", "off"], expected: tuple[str, ...]
) -> None:
    assert await options(tmp_path, choice) == expected


async def test_the_configuration_of_codex_itself_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "codex-home").mkdir()
    config = tmp_path / "codex-home" / "config.toml"
    config.write_text("[features]\nshell_snapshot = true\n", encoding="utf-8")
    assert await options(tmp_path) == ()


async def test_a_codex_without_snapshots_gets_no_option_for_them(tmp_path: Path) -> None:
    assert await options(tmp_path, "off", "0.93.0") == ()
