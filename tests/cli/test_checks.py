"""What `doctor` makes of a Codex that is odd in one way or another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from helmsman.cli import checks
from helmsman.codex.binary import CodexBinary
from helmsman.codex.features import Version
from helmsman.errors import EngineStartFailed
from helmsman.settings import load_settings

if TYPE_CHECKING:
    from helmsman.testing import HomeTemplates
    from tests.cli.conftest import Cli


def _binary(version: str) -> CodexBinary:
    return CodexBinary(
        path=Path("/x/codex"),
        version=Version.parse(version),
        exec_flags=frozenset(),
        resume_flags=frozenset(),
        has_app_server=True,
        can_listen_unix=False,
        has_cloud=False,
        has_mcp_server=False,
        path_dir=None,
    )


def test_an_old_codex_is_a_warning() -> None:
    old = checks._version(_binary("0.50.0"))
    assert (old.status, old.fix) == ("warning", "Update it to 0.93.0 or newer.")
    assert checks._version(_binary("0.93.0")).status == "ok"


def test_a_codex_that_does_not_start_is_quoted_without_its_backtrace() -> None:
    stderr = "WARNING: x\nError: no such home.\nStack backtrace:\n   6: <unknown>"
    failed = checks._no_handshake(EngineStartFailed("It exited. Run `helmsman doctor`.", stderr=stderr))
    assert failed.detail == "the app-server does not start: Error: no such home."
    assert checks._no_handshake(EngineStartFailed("It exited.")).detail == "It exited."


def test_a_codex_home_that_does_not_exist_is_a_failed_check(tmp_path: Path) -> None:
    settings = replace(load_settings(env={"HOME": str(tmp_path)}, cwd=tmp_path), codex_home=tmp_path / "none")
    home = checks._codex_home(settings)
    assert home.status == "failed"
    assert home.fix.startswith(f"Make it (`mkdir {tmp_path / 'none'}`)")


@pytest.mark.anyio
async def test_a_login_is_recognised(
    cli: Cli, codex_home_templates: HomeTemplates, codex_binary: Path, tmp_path: Path
) -> None:
    home = codex_home_templates.new_home(codex_binary, tmp_path / "fresh")
    (home.path / "auth.json").write_text(json.dumps({"OPENAI_API_KEY": "sk-not-a-real-key"}), encoding="utf-8")
    done = await cli.run("doctor", "--json", CODEX_HOME=str(home.path))
    (report,) = done.json
    account: dict[str, Any] = next(check for check in report["checks"] if check["name"] == "Account")
    assert (account["status"], account["detail"]) == ("ok", "logged in with an API key")
    assert "sk-not" not in done.stdout


@pytest.mark.anyio
async def test_a_program_that_only_looks_like_codex_fails_the_handshake(cli: Cli, tmp_path: Path) -> None:
    impostor = tmp_path / "codex"
    impostor.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo codex-cli 0.150.0 && exit\n[ "$1" = app-server ] && [ $# = 1 ] && exit 3\n'
        "echo 'Usage: codex app-server [OPTIONS]'\n",
        encoding="utf-8",
    )
    impostor.chmod(0o700)
    done = await cli.run("doctor", "--json", CODEX_CLI_PATH=str(impostor))
    (report,) = done.json
    failed = {check["name"] for check in report["checks"] if check["status"] == "failed"}
    assert done.exit_code == 1
    assert failed & {"Codex", "Handshake"}
