"""HTTP and the dashboard are the hub's; the address and the logins outlive it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from http.cookiejar import CookieJar
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPCookieProcessor, OpenerDirector, Request, build_opener

import anyio
import anyio.to_thread
import httpx2
import pytest

from helmsman.base.structs import replace
from helmsman.cli.dashboard_process import known_dashboard
from helmsman.httpd.mcp_sessions import CUT
from helmsman.hub.control import LISTEN_PATH, ask_hub, events
from helmsman.hub.launch import SOCKET, connect
from helmsman.notices.devices import DeviceBook
from helmsman.testing import ScriptedModel, say
from helmsman.testing.hubs import hub_pid
from mcp import Client
from tests import warm
from tests.clients.server_process import SECONDS, Serving
from tests.fake_tailscale import FakeTailscale, tailscale
from tests.httpd.test_http import HELLO
from tests.hub.conftest import Place

__all__ = ["tailscale"]

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


class Dashboard(Serving):
    def command(self, *arguments: str) -> list[str]:
        return warm.command("dashboard", *arguments)

    @asynccontextmanager
    async def turned_on(self, *arguments: str) -> AsyncIterator[dict[str, str]]:
        """Turn it on; yield its address and a code. The block turns it off."""
        async with self.started("--port", "0", "--no-open", "--json", *arguments) as command:
            with anyio.fail_after(SECONDS):
                shown = json.loads(await command.stdout.receive_until(b"\n", 10_000))
            assert await command.ended() == 0
        try:
            yield shown
        finally:
            with anyio.CancelScope(shield=True):
                async with self.started("stop") as stopping:
                    assert await stopping.ended() == 0


async def fetch(request: Request, opener: OpenerDirector | None = None) -> Any:
    def ask() -> Any:
        try:
            with (opener or build_opener()).open(request, timeout=SECONDS) as response:
                return json.load(response)
        except HTTPError as error:
            error.close()
            raise

    return await anyio.to_thread.run_sync(ask)


PUBLIC_KEY = (
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaxfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpZP40Li"
    "/hp/m47n60p8D54WK84zV2sxXs7LtkBoN79R9Q=="
)
"""Public key of a browser: P-256, SPKI in base64."""


class Browser:
    """Somebody at the dashboard, with their cookies."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._cookies = CookieJar()
        self._opener = build_opener(HTTPCookieProcessor(self._cookies))

    @property
    def cookie(self) -> str:
        return "; ".join(f"{cookie.name}={cookie.value}" for cookie in self._cookies)

    async def get(self, path: str) -> Any:
        return await self._ask(Request(self._address + path))

    async def post(self, path: str, **content: str) -> Any:
        headers = {"x-helmsman": "1", "content-type": "application/json"}
        return await self._ask(Request(self._address + path, json.dumps(content).encode(), headers))

    async def _ask(self, request: Request) -> Any:
        return await fetch(request, self._opener)


async def test_a_login_and_an_open_port_outlive_the_hub_and_a_logout_too(bare_place: Place) -> None:
    async with Dashboard(bare_place.env, bare_place.directory).turned_on() as shown:
        browser = Browser(shown["address"])
        await browser.post("api/login", code=shown["code"])
        await bare_place.kill_hub()
        assert (await browser.get("api/overview"))["running"] == 0
        (client,) = (ask_hub(bare_place.state_dir, "status") or {})["clients"]
        assert client["kind"] == "dashboard"
        with pytest.raises(HTTPError, match="401"):
            await Browser(shown["address"]).get("api/overview")
        copied = browser.cookie
        await browser.post("api/logout")
        await bare_place.kill_hub()
        with pytest.raises(HTTPError, match="401"):
            await fetch(Request(shown["address"] + "api/overview", headers={"Cookie": copied}))


@pytest.mark.parametrize("word", ["restart", "stop"])
async def test_a_dashboard_continues_when_the_hub_is_restarted_or_stopped(bare_place: Place, word: str) -> None:
    async with Dashboard(bare_place.env, bare_place.directory).turned_on() as shown:
        browser = Browser(shown["address"])
        await browser.post("api/login", code=shown["code"])
        before = bare_place.hub
        ask_hub(bare_place.state_dir, word)
        assert (await browser.get("api/overview"))["running"] == 0
        assert bare_place.hub != before


async def test_a_mistake_in_the_options_leaves_the_dashboard_on(bare_place: Place) -> None:
    dashboard = Dashboard(bare_place.env, bare_place.directory)
    async with dashboard.turned_on():
        known = known_dashboard(bare_place.state_dir)
        async with dashboard.started("--listen", "0.0.0.0") as mistaken:
            assert await mistaken.ended() == 2
        assert known is not None
        assert known.is_running()


async def test_a_hub_stays_while_its_dashboard_is_on_and_then_as_long_as_the_settings_say(bare_place: Place) -> None:
    place = replace(bare_place, env={**bare_place.env, "HELMSMAN_HUB_IDLE_MS": "0"})
    dashboard = Dashboard(place.env, place.directory)
    async with dashboard.turned_on() as first:
        hub, known = place.hub, known_dashboard(place.state_dir)
        async with dashboard.turned_on() as second:
            assert second["address"] == first["address"]
            assert second["code"] != first["code"]
            assert known_dashboard(place.state_dir) == known
            assert place.hub == hub
    with anyio.fail_after(SECONDS):
        while hub_pid(place.state_dir) is not None:
            await anyio.sleep(0.01)


async def test_a_dashboard_is_on_again_after_its_process_was_killed_and_browsers_can_be_revoked(
    bare_place: Place,
) -> None:
    dashboard = Dashboard(bare_place.env, bare_place.directory)
    async with dashboard.turned_on() as shown:
        port = int(shown["address"].rstrip("/").rpartition(":")[2])
        book = DeviceBook(bare_place.state_dir)
        device = book.add("Chrome on Linux", PUBLIC_KEY, origin=shown["address"].rstrip("/"), port=port)
        known = known_dashboard(bare_place.state_dir)
        assert known is not None
        os.kill(known.pid, signal.SIGKILL)
        with anyio.fail_after(SECONDS):
            while known.is_running():
                await anyio.sleep(0.01)
        async with dashboard.started("--no-open", "--json") as again:
            with anyio.fail_after(SECONDS):
                assert json.loads(await again.stdout.receive_until(b"\n", 10_000))["address"] == shown["address"]
        async with dashboard.started("devices", "--json") as listing:
            with anyio.fail_after(SECONDS):
                (listed,) = json.loads(await listing.stdout.receive_until(b"\n", 10_000))["devices"]
        assert (listed["id"], listed["name"], listed["push"]) == (device.id, "Chrome on Linux", False)
        async with dashboard.started("devices", "--revoke", "chrome") as revoking:
            assert await revoking.ended() == 0
        assert book.all() == ()


async def test_the_tailnet_gets_the_dashboard_until_its_process_ends_even_if_killed(
    bare_place: Place, tailscale: FakeTailscale
) -> None:
    env = {**bare_place.env, "PATH": f"{tailscale.folder}:{bare_place.env['PATH']}"}
    async with Dashboard(env, bare_place.directory).turned_on("--tailscale") as shown:
        assert shown["address"] == "https://box.tail.ts.net/"
        here = next(line for line in tailscale.log.read_text().splitlines() if "--https=443" in line).split()[-1]
        proxied = {"Host": "box.tail.ts.net", "X-Forwarded-Proto": "https", "Origin": "https://box.tail.ts.net"}
        async with httpx2.AsyncClient(timeout=SECONDS, headers={**proxied, "X-Helmsman": "1"}) as http:
            welcome = await http.post(f"{here}/api/login", json={"code": shown["code"]})
        assert welcome.status_code == 200
        assert "secure" in welcome.headers["set-cookie"].lower()
        known = known_dashboard(bare_place.state_dir)
        assert known is not None
        os.kill(known.pid, signal.SIGKILL)
        with anyio.fail_after(SECONDS):
            while "443" in tailscale.served.read_text():
                await anyio.sleep(0.02)


async def test_a_session_of_a_client_shows_in_the_dashboard_of_the_same_hub(place: Place, model: ScriptedModel) -> None:
    model.on("hello", say("done"))
    async with place.over_http() as served, Client(place.on_stdio()) as client:
        started = await client.call_tool("codex_start", {"prompt": "hello"})
        session = started.structured_content["sessionId"]
        await client.call_tool("codex_wait", {"sessionId": session})
        listing = Request(served.url.removesuffix("/mcp") + "/api/sessions", headers=served.headers)
        assert session in json.dumps(await fetch(listing))
        status = ask_hub(place.state_dir, "status") or {}
        assert sorted(client["kind"] for client in status["clients"]) == ["http", "mcp"]


async def test_a_call_of_the_modern_era_that_is_cut_fails_alone(place: Place, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("slow", say(gate, "done"))
    async with place.over_http() as served, Client(served.transport(), mode="2026-07-28") as client:
        started = await client.call_tool("codex_start", {"prompt": "slow"})
        session = {"sessionId": started.structured_content["sessionId"]}
        await gate.reached()

        async def wait() -> None:
            cut = await client.call_tool("codex_wait", session)
            assert cut.is_error
            assert CUT in str(cut.content)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.sleep(0.3)
            await place.kill_hub()
        gate.release()
        waited = await client.call_tool("codex_wait", session)
        assert waited.structured_content["result"] == "done"


async def test_the_api_is_on_tcp_too_behind_the_token_but_control_of_the_hub_is_not(bare_place: Place) -> None:
    async with bare_place.over_http() as served:
        base = served.url.removesuffix("/mcp")

        def request(path: str, **headers: str) -> Request:
            return Request(base + path, headers=headers)

        with pytest.raises(HTTPError, match="401"):
            await fetch(request("/v1/sessions"))
        for refused in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            with pytest.raises(HTTPError, match=r"421|403"):
                await fetch(request("/v1/sessions", **served.headers, **refused))
        assert await fetch(request("/v1/sessions", **served.headers)) == {"sessions": []}
        assert (await fetch(request("/v1/openapi.json", **served.headers)))["openapi"]
        with pytest.raises(HTTPError, match="404"):
            await fetch(request("/v1/hub", **served.headers))


async def test_the_unix_socket_serves_the_dashboard_and_mcp_as_well(served: Place) -> None:
    transport = httpx2.AsyncHTTPTransport(uds=str(served.state_dir / SOCKET))
    async with httpx2.AsyncClient(transport=transport, base_url="http://hub", timeout=SECONDS) as http:
        assert "Helmsman" in (await http.get("/")).text
        assert (await http.get("/api/overview")).json()["running"] == 0
        accept = {"Accept": "application/json, text/event-stream"}
        hello = await http.post("/mcp", json=HELLO, headers=accept)
        assert hello.headers["mcp-session-id"]
        assert '"serverInfo"' in hello.text


async def test_the_hub_listens_by_itself_when_a_program_asks(served: Place) -> None:
    """Without a socket from the program, and until the program leaves."""
    state = str(served.state_dir)
    connection = connect(state)
    assert connection is not None
    with closing(connection):
        stream = events(connection, "POST", LISTEN_PATH, {"http": {"port": 0}})
        name, data = await anyio.to_thread.run_sync(next, stream)
        assert name == "listening"
        token = (served.state_dir / "http-token").read_text(encoding="utf-8").strip()
        address = json.loads(data)["address"].removesuffix("/mcp")
        listed = Request(f"{address}/v1/sessions", headers={"Authorization": f"Bearer {token}"})
        assert await fetch(listed) == {"sessions": []}
    with anyio.fail_after(SECONDS):
        while (ask_hub(served.state_dir, "status") or {})["clients"]:
            await anyio.sleep(0.01)
    with pytest.raises(URLError):
        await fetch(listed)
