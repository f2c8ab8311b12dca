from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helmsman.agents.codex.binary import CodexBinary, find_codex
from helmsman.agents.codex.features import Version
from helmsman.agents.codex.sandbox import check_sandbox

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="the programs here speak as Codex on Linux does"),
]


def _program(folder: Path, script: str) -> CodexBinary:
    """Return a program that replaces Codex."""
    path = folder / "codex"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o700)
    return _binary(path)


def _binary(path: Path) -> CodexBinary:
    return CodexBinary(
        path=path,
        version=Version(0, 1, 0),
    )


@pytest.mark.matrix
async def test_the_sandbox_of_every_codex_can_be_tried(codex_binary: Path, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    check = await check_sandbox(await find_codex(explicit=codex_binary))
    assert (check.works, check.detail) == (True, "a command ran in it and could not write")
    assert set(tmp_path.iterdir()) == before


async def test_a_sandbox_in_which_nothing_runs_is_reported_with_the_reason_and_the_fix(tmp_path: Path) -> None:
    check = await check_sandbox(_program(tmp_path, "echo first >&2; echo 'bwrap: no namespaces here' >&2; exit 1"))
    assert check.works is False
    assert check.detail == "a command could not be run in it: bwrap: no namespaces here"
    assert "bubblewrap" in check.fix


async def test_a_sandbox_that_lets_a_command_write_is_no_sandbox(tmp_path: Path) -> None:
    check = await check_sandbox(
        _program(tmp_path, 'while [ "$1" != -- ] && [ $# -gt 0 ]; do shift; done; shift; exec "$@"')
    )
    assert check.works is False
    assert "could write" in check.detail


async def test_an_older_codex_gets_the_platform(tmp_path: Path) -> None:
    script = """
    [ "$2" = --help ] && printf 'Commands:\\n  macos    x\\n  linux    y\\n' && exit
    [ "$1 $2" = "sandbox linux" ] && echo ran
    """
    assert (await check_sandbox(_program(tmp_path, script))).works is True


async def test_a_program_that_cannot_be_run_is_reported(tmp_path: Path) -> None:
    check = await check_sandbox(_binary(tmp_path / "missing"))
    assert check.works is False
    assert "missing" in check.detail


async def test_other_platforms_are_not_guessed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert (await check_sandbox(_binary(tmp_path / "missing"))).works is None
