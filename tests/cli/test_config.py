"""`helmsman agents config` and `helmsman agents login`, on the real Codex."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import anyio
import anyio.to_thread
import pytest

from helmsman.base.files import file_lock
from helmsman.cli.exit_codes import ExitCode
from helmsman.testing import CodexHome
from helmsman.testing.fake_app_server import FakeAppServer, answer, exit_now, notify
from tests.cli.conftest import Cli

pytestmark = pytest.mark.anyio


async def test_the_configuration_is_read_as_it_holds_and_with_where_it_comes_from(
    cli: Cli, codex_home: CodexHome
) -> None:
    codex_home.configure(
        model_verbosity="low",
        mcp_servers={"a": {"command": "true", "env": {"API_TOKEN": "s3cret"}}},
        projects={"/src/my.app": {"trust_level": "untrusted"}},
    )
    file = codex_home.path / "config.toml"
    done = await cli.run("agents", "config")
    lines = done.stdout.splitlines()
    assert 'model_verbosity = "low"' in lines
    tops = [line.partition(" ")[0].partition(".")[0] for line in lines]
    assert tops == sorted(tops), "Codex tells them in another order each time"
    assert 'mcp_servers.a.env.API_TOKEN = "[redacted]"' in done.stdout
    one = await cli.run("agents", "config", "get", "model_verbosity")
    assert (one.exit_code, one.stdout, one.stderr) == (0, '"low"\n', f"  from {file}\n")
    (shown,) = (await cli.run("agents", "config", "get", "mcp_servers.a.command", "--json")).json
    assert shown == {"key": "mcp_servers.a.command", "value": "true", "layer": "user", "file": str(file)}
    quoted = 'projects."/src/my.app".trust_level'
    assert f'{quoted} = "untrusted"' in done.stdout.splitlines()
    assert (await cli.run("agents", "config", "get", quoted)).stdout == '"untrusted"\n'
    change = await cli.run("agents", "config", "set", f"{quoted}=trusted", "mcp_servers.b\n[x]\ny={}")
    assert f'- {quoted} = "untrusted"\n  + {quoted} = "trusted"\n' in change.stderr
    assert "+ mcp_servers.b\\n[x]\\ny = {}\n" in change.stderr, "one line each"
    missing = await cli.run("agents", "config", "get", "no_such_key")
    assert (missing.exit_code, missing.stderr) == (ExitCode.FAILED, "Nothing sets no_such_key.\n")


@pytest.mark.long
async def test_a_change_is_shown_agreed_to_and_written_by_codex(cli: Cli, codex_home: CodexHome) -> None:
    codex_home.configure(model_verbosity="low")
    file = codex_home.path / "config.toml"
    file.write_text(f"# mine\n{file.read_text(encoding='utf-8')}", encoding="utf-8")
    before = file.read_text(encoding="utf-8")
    words = (
        "agents",
        "config",
        "set",
        "model_verbosity=high",
        "hide_agent_reasoning=true",
        "--unset",
        "model_verbosity_not_there",
    )
    asked = await cli.run(*words)
    assert asked.exit_code == ExitCode.USAGE
    assert "Add --yes to do it" in asked.stderr
    assert file.read_text(encoding="utf-8") == before
    async with cli.on_terminal(*words) as program:
        await program.shows('- model_verbosity = "low"')
        await program.shows('+ model_verbosity = "high"')
        await program.shows("+ hide_agent_reasoning = true")
        await program.shows("Change it? [y/N]")
        program.press("n")
        assert await program.exit_code() == ExitCode.FAILED
    assert file.read_text(encoding="utf-8") == before
    (done,) = (await cli.run(*words, "--yes", "--json")).json
    assert done["written"] is True
    assert done["changes"][0] == {"key": "model_verbosity", "before": "low", "after": "high"}
    assert 'model_verbosity = "high"' in file.read_text(encoding="utf-8")
    assert "# mine" in file.read_text(encoding="utf-8")
    again = await cli.run("agents", "config", "set", "hide_agent_reasoning=true", "--yes")
    assert "nothing to change" in again.stderr
    assert (
        await cli.run("agents", "config", "set", "--unset", "hide_agent_reasoning", "--yes")
    ).exit_code == ExitCode.OK
    assert "hide_agent_reasoning" not in file.read_text(encoding="utf-8")


async def test_invalid_and_widening_values_are_not_written(cli: Cli, codex_home: CodexHome) -> None:
    before = (codex_home.path / "config.toml").read_text(encoding="utf-8")
    wrong = await cli.run("agents", "config", "set", "sandbox_mode=open", "--yes")
    assert wrong.exit_code != ExitCode.OK
    assert "sandbox_mode" in wrong.stderr
    secret = await cli.run("agents", "config", "set", "mcp_servers.a.env.API_TOKEN=s3cret", "--json")
    assert "s3cret" not in secret.stdout + secret.stderr
    roots = str(cli.directory)
    confined = await cli.run("agents", "config", "set", "model_verbosity=low", "--yes", HELMSMAN_ALLOWED_ROOTS=roots)
    assert "There are allowed roots" in confined.stderr
    assert (await cli.run("agents", "config", "set", "nothing")).exit_code == ExitCode.USAGE
    assert (await cli.run("agents", "config", "set")).exit_code == ExitCode.USAGE
    assert (codex_home.path / "config.toml").read_text(encoding="utf-8") == before


ENDED = notify("account/login/completed", {"loginId": "1", "success": True, "error": None})
CODE = answer({"type": "chatgptDeviceCode", "loginId": "1", "verificationUrl": "https://x.test/", "userCode": "AB-CD"})


@pytest.mark.parametrize("actions", [[CODE, ENDED], [ENDED, CODE]], ids=["afterwards", "before the answer"])
async def test_a_login_with_a_code_waits_until_codex_says_that_it_is_done(
    bare_cli: Cli, tmp_path: Path, actions: list[dict[str, Any]]
) -> None:
    server = FakeAppServer(tmp_path / "fake", on={"account/login/start": actions})
    done = await bare_cli.run("agents", "login", "--device-code", CODEX_CLI_PATH=str(server.path))
    assert (done.exit_code, done.stdout) == (ExitCode.OK, "https://x.test/\nAB-CD\n")
    assert "Codex is logged in." in done.stderr
    assert server.received("account/login/start")[0]["params"] == {"type": "chatgptDeviceCode"}


async def test_a_login_ends_with_the_codex_that_was_to_log_in(bare_cli: Cli, tmp_path: Path) -> None:
    server = FakeAppServer(tmp_path / "fake", on={"account/login/start": [CODE, exit_now(1)]})
    done = await bare_cli.run("agents", "login", "--device-code", "--json", CODEX_CLI_PATH=str(server.path))
    begun, failed = done.json
    assert begun == {"url": "https://x.test/", "code": "AB-CD"}
    assert failed["error"]["code"] == "engine_lost"


async def test_codex_stores_an_api_key_from_stdin(cli: Cli, codex_home: CodexHome) -> None:
    key = "sk-proj-" + "a" * 40
    done = await cli.run("agents", "login", "--with-api-key", "--json", stdin=f"{key}\n".encode())
    assert (done.exit_code, done.json) == (ExitCode.OK, [{"loggedIn": True}])
    assert key in (codex_home.path / "auth.json").read_text(encoding="utf-8")
    empty = await cli.run("agents", "login", "--with-api-key")
    assert (empty.exit_code, "Codex is not logged in: " in empty.stderr) == (ExitCode.FAILED, True)
    both = await cli.run("agents", "login", "--with-api-key", "--device-code")
    assert both.exit_code == ExitCode.USAGE


@pytest.fixture
def login_port() -> Iterator[None]:
    """Codex waits for the browser on one and the same port, which others who run these tests want too."""
    with file_lock(Path(tempfile.gettempdir()) / "helmsman-test-login.lock", timeout=60):
        yield


@pytest.mark.usefixtures("login_port")
async def test_a_login_shows_its_page_and_says_how_it_ended(cli: Cli) -> None:
    async with cli.on_terminal("agents", "login", columns=1000) as program:
        await program.shows("Open this page to log in:")
        await program.shows("originator=")
        page = next(word for word in program.screen.split() if word.startswith("https://"))
        asked = {name: values[0] for name, values in parse_qs(urlsplit(page).query).items()}
        back = f"{asked['redirect_uri']}?error=access_denied&state={asked['state']}"

        def refuse() -> None:
            """As the page does when the person says no."""
            with urlopen(back.replace("localhost", "127.0.0.1"), timeout=30) as answer:
                answer.read()

        with anyio.fail_after(60):
            await anyio.to_thread.run_sync(refuse)
        await program.shows("Codex is not logged in: ")
        assert await program.exit_code() == ExitCode.FAILED


@pytest.mark.long
async def test_a_key_that_codex_does_not_know_is_refused(cli: Cli, codex_home: CodexHome) -> None:
    before = (codex_home.path / "config.toml").read_text(encoding="utf-8")
    done = await cli.run("agents", "config", "set", "model_verbosity=low", "nonsense=1", "--yes")
    assert done.exit_code == ExitCode.USAGE
    assert "Codex does not know nonsense. Some that it knows: " in done.stderr
    assert "model_verbosity" in done.stderr
    close = await cli.run("agents", "config", "set", "model_verbosty=low", "--yes")
    assert "Codex does not know model_verbosty. Did you mean model_verbosity?" in close.stderr
    assert (codex_home.path / "config.toml").read_text(encoding="utf-8") == before
