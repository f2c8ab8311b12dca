from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from helmsman.cli.checks import check_release
from helmsman.testing import CodexHome, HomeTemplates
from tests.cli.conftest import Cli, Done

pytestmark = pytest.mark.anyio


def _checks(done: Done) -> dict[str, dict[str, Any]]:
    (report,) = done.json
    return {check["name"]: check for check in report["checks"]}


async def test_all_is_well_with_a_codex_that_needs_no_login(cli: Cli, codex_binary: Path) -> None:
    assert "This Codex can" not in (await cli.run("doctor")).stdout
    done = await cli.run("doctor", "--verbose")
    assert done.exit_code == 0, done.stdout
    assert str(codex_binary) in "".join(done.stdout.split())
    assert "✓ Handshake    the app-server answers" in done.stdout
    assert "✓ Sandbox      a command ran in it and could not write" in done.stdout
    assert "This Codex can\n  ✓ ask before it acts\n" in done.stdout
    assert done.stdout.endswith("All is well.\n")


async def test_json_has_checks_and_features(cli: Cli, codex_version: tuple[int, int, int]) -> None:
    done = await cli.run("doctor", "--json", HELMSMAN_DETACH="1")
    (report,) = done.json
    assert report["ok"] is True
    assert "survive" in _checks(done)["Detaching"]["detail"]
    if codex_version >= (0, 163, 0):
        assert "attach" in report["capabilities"]["can"], "though the Codex that the doctor has started ends with it"
    assert report["codex"]["version"] == ".".join(map(str, codex_version))
    assert {"ask", "fork", "review", "sandbox"} <= set(report["capabilities"]["can"])
    # A container may run all as root.
    assert {check["status"] for check in report["checks"] if check["name"] != "User"} <= {"ok", "absent"}


async def test_its_codex_takes_no_picture_of_the_login_shell(cli: Cli, codex_binary: Path, tmp_path: Path) -> None:
    wrapper, words = tmp_path / "codex", tmp_path / "words"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {words}\nexec {codex_binary} "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    done = await cli.run("doctor", "--json", CODEX_CLI_PATH=str(wrapper), HELMSMAN_SHELL_SNAPSHOTS="on")
    assert done.exit_code == 0, done.stdout
    starts = [line for line in words.read_text(encoding="utf-8").splitlines() if line.startswith("app-server")]
    assert any(call.startswith("app-server --disable shell_snapshot ") for call in starts)


async def test_no_codex_is_a_failed_check_with_its_fix(bare_cli: Cli) -> None:
    done = await bare_cli.run("doctor")
    assert done.exit_code == 1
    *_, last = done.stdout.partition(" checks failed:\n")
    assert "✗ Codex" in last
    assert "npm install -g @openai/codex" in " ".join(done.stdout.split())


async def test_a_missing_login_is_a_failed_check_with_its_fix(
    cli: Cli, codex_home_templates: HomeTemplates, codex_binary: Path, tmp_path: Path
) -> None:
    fresh = codex_home_templates.new_home(codex_binary, tmp_path / "fresh")
    done = await cli.run("doctor", "--json", CODEX_HOME=str(fresh.path))
    assert done.exit_code == 1
    account = _checks(done)["Account"]
    assert account["status"] == "failed"
    assert account["fix"] == "Run `helmsman agents login`."
    refused = await cli.run("run", "Look", CODEX_HOME=str(fresh.path))
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert refused.stderr == (
        "Error: Codex is not logged in, so nothing was started. Run `helmsman agents login`, then try again.\n"
    )


async def test_a_configuration_that_codex_cannot_read_is_named_and_no_turn_begins(
    cli: Cli, codex_home: CodexHome
) -> None:
    (codex_home.path / "config.toml").write_text("[broken\n", encoding="utf-8")
    done = await cli.run("doctor", "--json")
    checks = _checks(done)
    assert done.exit_code == 1
    assert checks["Configuration"]["status"] == "failed"
    assert (
        f"cannot read its own configuration: {codex_home.path}/config.toml:1:8: " in checks["Configuration"]["detail"]
    )
    assert "Account" not in checks, "nobody knows"
    refused = await cli.run("run", "Look")
    assert refused.exit_code != 0
    assert refused.stderr.startswith(
        f"Error: Codex cannot read its own configuration: {codex_home.path}/config.toml:1:8"
    )
    assert "Correct it there" in refused.stderr


async def test_the_settings_in_force_are_named(bare_cli: Cli) -> None:
    (bare_cli.directory / "helmsman.toml").write_text("max_sessions = 3\n", encoding="utf-8")
    assert _checks(await bare_cli.run("doctor", "--json"))["Settings"]["detail"].endswith("helmsman.toml")
    (bare_cli.directory / "helmsman.toml").write_text("max_sessions = 0\n", encoding="utf-8")
    assert (await bare_cli.run("doctor")).exit_code == 2


async def test_the_mcp_servers_of_codex_are_tried(
    cli: Cli, codex_home: CodexHome, mcp_server_config: dict[str, Any], codex_version: tuple[int, int, int]
) -> None:
    broken = {"command": "/no/such/server"}
    codex_home.configure(mcp_servers=mcp_server_config | {"broken": broken, "asleep": broken | {"enabled": False}})
    done = await cli.run("doctor", "--json")
    checks = _checks(done)
    assert done.exit_code == 0
    assert checks["MCP servers"]["detail"] == "lab (3 tools)"
    assert checks["MCP server broken"]["status"] == "warning"
    assert "mcp get broken" in checks["MCP server broken"]["fix"]
    if codex_version >= (0, 163, 0):
        assert checks["MCP server broken"]["detail"].startswith("does not start: No such file or directory")


async def test_every_line_that_is_not_well_says_what_to_do(bare_cli: Cli, tmp_path: Path) -> None:
    checks = _checks(await bare_cli.run("doctor", "--json", PATH=str(tmp_path)))
    unwell = [check for check in checks.values() if check["status"] != "ok"]
    assert {check["name"] for check in unwell} >= {"Codex", "Git"}
    assert all((check.get("fix") or check["detail"]).endswith(".") for check in unwell)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"versions": ["0.9.0", "1.0.0rc1", "1.0.0", "1.0.10", "1.0.9", "2.0.0b1"]}, "1.0.10 is newer than"),
        ({"versions": ["0.9.0"]}, "is the newest one"),
        ([], "does not say which releases"),
    ],
)
async def test_a_newer_release_is_named(body: object, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Accept"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Index) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
        check = check_release()
        thread.join(10)
    assert wanted in check.detail
    assert asked == [("/simple/codex-helmsman/", "application/vnd.pypi.simple.v1+json")]
    monkeypatch.setenv("PIP_INDEX_URL", "file:///etc")
    assert "no address of the web" in check_release().detail
