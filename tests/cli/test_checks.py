"""What `doctor` makes of a Codex that is odd in one way or another."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from helmsman.agents.codex.binary import CodexBinary
from helmsman.agents.codex.connection import read_mcp_servers
from helmsman.agents.codex.features import Version
from helmsman.base.structs import replace
from helmsman.cli import checks
from helmsman.errors import EngineStartFailed
from helmsman.settings import Settings, load_settings
from helmsman.tasks.model import TaskDraft
from helmsman.tasks.registry import REGISTRY_NAME, Registry
from helmsman.testing import HomeTemplates
from tests.cli.conftest import Cli


def _settings(tmp_path: Path, **env: str) -> Settings:
    return load_settings(env={"HOME": str(tmp_path), **env}, cwd=tmp_path)


def _binary(version: str) -> CodexBinary:
    return CodexBinary(
        path=Path("/x/codex"),
        version=Version.parse(version),
    )


def test_an_old_codex_is_a_warning() -> None:
    old = checks.check_version(_binary("0.50.0"))
    assert (old.status, old.fix) == ("warning", "Update it to 0.93.0 or newer.")
    assert checks.check_version(_binary("0.93.0")).status == "ok"


def test_a_codex_that_is_not_on_the_path_is_named_by_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checks.to_type(_binary("0.163.0")) == "/x/codex"
    (tmp_path / "codex").touch(mode=0o700)
    assert checks.to_type(_binary("0.163.0")) == "codex"


def test_a_codex_that_does_not_start_is_quoted_without_its_backtrace() -> None:
    stderr = "WARNING: x\nError: no such home.\nStack backtrace:\n   6: <unknown>"
    failed = checks.no_handshake(EngineStartFailed("It exited. Run `helmsman doctor`.", stderr=stderr))
    assert failed.detail == "the app-server does not start: Error: no such home."
    assert checks.no_handshake(EngineStartFailed("It exited.")).detail == "It exited."


def test_a_codex_home_that_does_not_exist_is_a_failed_check(tmp_path: Path) -> None:
    settings = replace(_settings(tmp_path), codex_home=tmp_path / "none")
    home = checks.check_codex_home(settings)
    assert home.status == "failed"
    assert home.fix.startswith(f"Make it (`mkdir {tmp_path / 'none'}`)")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_codex_home_one_cannot_write_to_is_a_failed_check(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    home = checks.check_codex_home(replace(_settings(tmp_path), codex_home=locked))
    assert home.status == "failed"
    assert "permissions" in home.fix


def test_a_state_directory_open_to_all_users_fails_the_check(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (state,) = checks.check_state(_settings(tmp_path, HELMSMAN_STATE_DIR=str(shared)))
    assert state.status == "failed"
    assert "HELMSMAN_STATE_DIR" in state.detail


def test_a_registry_is_looked_into(tmp_path: Path) -> None:
    assert checks.check_tasks(_settings(tmp_path, HELMSMAN_STATE_DIR=str(tmp_path))).detail == "none yet"
    registry = Registry(tmp_path / REGISTRY_NAME)
    registry.add(TaskDraft(instruction="Fix it"))
    registry.close()
    tasks = checks.check_tasks(_settings(tmp_path, HELMSMAN_STATE_DIR=str(tmp_path)))
    assert (tasks.status, tasks.detail) == ("ok", "the registry is whole; 1 running")


def test_a_damaged_registry_is_a_failed_check_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / REGISTRY_NAME).write_text("not a database, and long enough to be taken for one" * 20, encoding="utf-8")
    tasks = checks.check_tasks(_settings(tmp_path, HELMSMAN_STATE_DIR=str(tmp_path)))
    assert tasks.status == "failed"
    assert "helmsman tasks" in tasks.fix
    assert [file.name for file in tmp_path.iterdir()] == [REGISTRY_NAME]


def test_without_git_there_is_a_warning_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    git = checks.check_git()
    assert (git.status, git.fix) == ("warning", "Install git.")


@pytest.mark.skipif(os.name != "posix", reason="there is no root here")
def test_only_root_is_warned_of_running_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (line,) = checks.check_user()
    assert (line.status, "root" in line.detail) == ("warning", True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert checks.check_user() == []


def test_mcp_servers_are_read_as_each_version_tells_of_them() -> None:
    tools: dict[str, Any] = {"read": {}, "write": {}}
    rows: list[Any] = [
        {"name": "well", "tools": tools, "serverInfo": {"name": "x"}, "authStatus": "unsupported"},
        {"name": "new", "tools": {}, "toolsError": "MCP startup failed: No such file", "serverInfo": None},
        {"name": "newer", "tools": {}, "serverInfo": None},
        {"name": "old", "tools": {}},
        {"name": "empty", "tools": {}, "serverInfo": {"name": "x"}},
        {"name": "web", "tools": {}, "authStatus": "notLoggedIn"},
        {"tools": {}},
        "odd",
    ]
    servers = {server.name: server for server in read_mcp_servers({"data": rows})}
    assert {name: server.answers for name, server in servers.items() if name != "web"} == {
        "well": True,
        "new": False,
        "newer": False,
        "old": None,
        "empty": True,
    }
    assert servers["web"].needs_login
    assert read_mcp_servers({}) == ()


def test_an_mcp_server_that_is_required_fails_and_another_warns() -> None:
    rows: list[Any] = [{"name": name, "tools": {}, "toolsError": "no " * 200} for name in ("must", "may", "off")]
    configured = {"must": {"required": True}, "may": {}, "off": {"enabled": False}}
    lines = checks.check_mcp_servers(read_mcp_servers({"data": rows}), configured, "codex")
    assert {line.name: line.status for line in lines} == {"MCP server must": "failed", "MCP server may": "warning"}
    assert all(len(line.detail) < 300 for line in lines)


def test_failures_of_an_mcp_server_are_reported_without_codexs_types() -> None:
    step = "Send message error Transport [codex_rmcp_client::a<b<c>>] error: Broken pipe (os error 32)"
    error = f"MCP startup failed: handshaking with MCP server failed: {step}, when send initialize request: {step}"
    rows = [{"name": "quits", "tools": {}, "toolsError": error}]
    (line,) = checks.check_mcp_servers(read_mcp_servers({"data": rows}), {}, "codex")
    assert line.detail == "does not start: handshaking with MCP server failed: Broken pipe (os error 32)."


def test_an_mcp_server_that_wants_a_login_says_how() -> None:
    web = checks.check_mcp_servers(
        read_mcp_servers({"data": [{"name": "w", "authStatus": "notLoggedIn"}]}), {}, "codex"
    )
    assert [line.fix for line in web] == ["Run `codex mcp login w`."]


def test_detaching_says_what_it_means_and_why_it_is_not_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def line(version: str, **env: str) -> tuple[str, str]:
        check = checks.check_detaching(_binary(version), _settings(tmp_path, **env))
        return check.status, f"{check.detail} {check.fix}"

    assert line("0.163.0")[0] == "ok"
    assert line("0.163.0", HELMSMAN_DETACH="0")[1].startswith("switched off")
    none, why = line("0.20.0")
    assert none == "warning"
    assert "cannot run as an app-server" in why
    monkeypatch.setattr(checks, "can_tell_sandboxed", lambda: True)
    on_pipe, what = line("0.145.0")
    assert on_pipe == "ok"
    assert "open questions survive" in what
    monkeypatch.setattr(checks, "can_tell_sandboxed", lambda: False)
    reachable, why = line("0.145.0")
    assert reachable == "warning"
    assert "network access" in why


def test_orphaned_engines_are_named_with_the_command_that_stops_them() -> None:
    def engine(name: str, status: str) -> dict[str, Any]:
        return {"id": name, "agent": "codex", "status": status, "version": "0.163.0", "pid": 7}

    lines = checks.check_engines([engine("a", "in use"), engine("b", "orphaned"), engine("c", "not answering")])
    assert [(line.status, line.fix) for line in lines] == [
        ("ok", ""),
        ("warning", "Run `helmsman hub engines stop b`."),
        ("warning", "Run `helmsman hub engines stop c`."),
    ]
    assert [line.detail for line in checks.check_engines([])] == ["none running"]


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


@pytest.mark.parametrize(
    ("budget", "model", "status"),
    [
        ("day_usd = 5", "gpt-5", "ok"),
        ("day_usd = 5", "gpt-unheard-of", "warning"),
        ("day_tokens = 5", "gpt-unheard-of", "ok"),
    ],
)
def test_a_budget_in_usd_that_a_model_without_a_price_never_reaches_is_a_warning(
    tmp_path: Path, budget: str, model: str, status: str
) -> None:
    own = tmp_path / "helmsman.toml"
    own.write_text(f"[budget]\n{budget}\n")
    (check,) = checks.check_budget(load_settings({}, {"HOME": str(tmp_path)}, tmp_path, user_file=own), model)
    assert (check.status, model in check.detail) == (status, status == "warning")
    own.unlink()
    assert checks.check_budget(load_settings({}, {"HOME": str(tmp_path)}, tmp_path, user_file=own), model) == []
