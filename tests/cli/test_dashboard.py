"""`helmsman dashboard`: its code lets one in, once, and it ends as a server does."""

from __future__ import annotations

import json
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx2
import pytest

from helmsman.cli import dashboard
from helmsman.cli.dashboard_process import DashboardOptions, listener_of
from helmsman.errors import InvalidSetting
from helmsman.httpd.listening import HttpOptions
from helmsman.testing import CodexHome
from tests import warm
from tests.clients.server_process import SECONDS, ServerProcess, Serving
from tests.fake_tailscale import FakeTailscale, tailscale

__all__ = ["tailscale"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to end a server by"),
]


@dataclass(frozen=True)
class ServingDashboard(Serving):
    """As `helmsman serve`, but the dashboard."""

    def command(self, *arguments: str) -> list[str]:
        return warm.command("dashboard", *arguments)


@pytest.fixture
def serving(codex_home: CodexHome, codex_binary: Path, git_repo: Path) -> ServingDashboard:
    return ServingDashboard.on(codex_home, codex_binary, git_repo)


async def printed(server: ServerProcess) -> tuple[str, str]:
    """The page's address and the code."""
    with anyio.fail_after(SECONDS):
        address = (await server.stdout.receive_until(b"\n", 1000)).decode()
        code = (await server.stdout.receive_until(b"\n", 1000)).decode()
    return address.rstrip("/"), code.removeprefix("Code: ").partition(" ")[0]


async def log_in(http: httpx2.AsyncClient, page: str, code: str) -> int:
    return (await http.post(f"{page}/api/login", json={"code": code}, headers={"X-Helmsman": "1"})).status_code


async def test_the_printed_code_lets_one_in_once(serving: ServingDashboard) -> None:
    async with serving.started("--port", "0") as server:
        page, code = await printed(server)
        assert page.startswith("http://127.0.0.1:")
        assert code not in page
        async with httpx2.AsyncClient(timeout=SECONDS) as http:
            assert await log_in(http, page, code) == 200
            assert (await http.get(f"{page}/api/overview")).status_code == 200
            assert (await http.post(f"{page}/mcp", content=b"{}")).status_code == 401
            http.cookies.clear()
            assert await log_in(http, page, code) == 401
        assert await server.end_by(signal.SIGINT) == 130
    assert len(server.errors) == 1, server.errors


async def test_a_signal_ends_it_quietly_while_a_browser_listens(serving: ServingDashboard) -> None:
    async with serving.started("--port", "0") as server:
        page, code = await printed(server)
        async with httpx2.AsyncClient(timeout=SECONDS) as http:
            await log_in(http, page, code)
            async with http.stream("GET", f"{page}/api/live") as stream:
                lines = stream.aiter_lines()
                assert await anext(lines) == "event: hello"
                assert await server.end_by(signal.SIGTERM) == 143
    assert len(server.errors) == 1, server.errors


async def test_it_gives_a_code_for_a_server_that_runs_already(
    serving: ServingDashboard, codex_home: CodexHome, codex_binary: Path, git_repo: Path
) -> None:
    async with Serving.on(codex_home, codex_binary, git_repo).over_http() as running:
        page = running.url.removesuffix("/mcp")
        told: dict[str, str] = {}
        for address in (running.url, page, f"{page}/", page.replace("127.0.0.1", "localhost")):
            async with serving.started("--json", "--server", address) as asking:
                with anyio.fail_after(SECONDS):
                    told = json.loads(await asking.stdout.receive_until(b"\n", 1000))
                assert await asking.ended() == 0
        async with httpx2.AsyncClient(timeout=SECONDS) as http:
            assert await log_in(http, page, told["code"]) == 200
            assert (await http.get(f"{page}/api/overview")).status_code == 200


async def test_ports_that_the_tailnet_serves_already_are_left_alone(
    serving: ServingDashboard, tailscale: FakeTailscale
) -> None:
    tailscale.served.write_text('{"TCP": {"443": {"HTTPS": true}}}')
    env = {"PATH": f"{tailscale.folder}:{serving.env['PATH']}"}
    async with serving.started("--port", "0", "--tailscale", env=env) as server:
        assert await server.ended() == 2
    assert "serves something else" in server.errors[0]
    assert "--https" not in tailscale.log.read_text()


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "file:///etc/passwd", "nonsense"])
async def test_where_no_server_is_that_is_said(serving: ServingDashboard, address: str) -> None:
    async with serving.started("--server", address) as asking:
        assert await asking.ended() == 2
    (error,) = asking.errors
    assert address in error


async def test_other_interfaces_need_tls_here_too(serving: ServingDashboard) -> None:
    async with serving.started("--listen", "0.0.0.0") as server:
        assert await server.ended() == 2
    assert "SSH tunnel" in server.errors[0]


@pytest.mark.parametrize(
    ("is_terminal", "env", "opens"),
    [
        (True, {"DISPLAY": ":0"}, True),
        (True, {"WAYLAND_DISPLAY": "wayland-0"}, True),
        (True, {"DISPLAY": ":0", "SSH_CONNECTION": "192.0.2.1 1 192.0.2.2 22"}, False),
        (False, {"DISPLAY": ":0"}, False),
        (True, {}, False),
    ],
)
def test_a_browser_is_opened_only_where_a_person_sits_before_a_screen(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, env: dict[str, str], opens: bool
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", "linux")
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: is_terminal, raising=False)
    assert dashboard.is_desktop() is opens


def test_the_dashboard_moves_to_a_free_port_only_if_none_was_asked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        options = DashboardOptions(http=HttpOptions(port=other.getsockname()[1]))
        with listener_of(options, may_move=True) as moved:
            assert moved.getsockname()[1] != options.port
        with pytest.raises(InvalidSetting, match="Cannot listen"):
            listener_of(options, may_move=False)
