"""The HTTP server against whoever can reach its port: web pages, other local users, and clients that only want to hurt it.

Who is let in by token, Host and Origin is tested in `tests/httpd/test_http.py`, the dashboard's logins in `tests/web`.
"""

from __future__ import annotations

import hmac
import re
import shutil
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from anyio.abc import SocketStream
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from helmsman.httpd import guard
from helmsman.httpd import limits as http_limits
from helmsman.httpd.guard import Guard
from helmsman.httpd.listening import HttpOptions, http_token
from helmsman.httpd.server import serve_http
from helmsman.service import HelmsmanService
from helmsman.web import static_files
from helmsman.web.login import Logins
from tests.clients.server_process import HttpServer, Serving

pytestmark = pytest.mark.anyio

SECONDS = 30
TOKEN = "the-right-token-of-this-server-0123456789"


class Server:
    """A server in this process, so that its limits can be made small."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None
        assert parts.port is not None
        self.url, self.host, self.port = address, parts.hostname, parts.port

    async def connect(self) -> SocketStream:
        return await anyio.connect_tcp(self.host, self.port)

    def head(self, method: str = "POST", path: str = "/mcp", **headers: str) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}:{self.port}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode()


@asynccontextmanager
async def serving(helm: HelmsmanService, options: HttpOptions | None = None) -> AsyncIterator[Server]:
    addresses: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve_http, helm, options or HttpOptions(), lambda address, _: addresses.append(address))
        with anyio.fail_after(SECONDS):
            while not addresses:
                await anyio.sleep(0.01)
        yield Server(addresses[0])
        tasks.cancel_scope.cancel()


async def everything(stream: SocketStream) -> bytes:
    """What comes until the server closes the connection."""
    received = b""
    with anyio.fail_after(SECONDS):
        try:
            async for chunk in stream:
                received += chunk
        except anyio.BrokenResourceError:
            pass
    return received


def token_of(helm: HelmsmanService) -> str:
    return http_token(helm.settings.state_dir)


async def is_alive(server: Server) -> bool:
    async with httpx2.AsyncClient(timeout=SECONDS) as client:
        return (await client.post(server.url, json={})).status_code == 401


# --- slow and many ---------------------------------------------------------------------------------------------------


async def test_a_connection_that_says_nothing_is_closed(helm: HelmsmanService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "STRANGER_SECONDS", 0.3)
    async with serving(helm) as server, await server.connect() as silent:
        assert await everything(silent) == b""
        assert await is_alive(server)


async def test_a_head_that_comes_letter_by_letter_is_not_waited_for(
    helm: HelmsmanService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_limits, "STRANGER_SECONDS", 0.3)
    async with serving(helm) as server, await server.connect() as slow, anyio.create_task_group() as tasks:

        async def trickle() -> None:
            with anyio.CancelScope(), anyio.fail_after(SECONDS):
                try:
                    for letter in server.head(X_Long="x" * 100_000):
                        await slow.send(bytes([letter]))
                        await anyio.sleep(0.02)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return

        tasks.start_soon(trickle)
        assert await everything(slow) == b""


async def test_a_second_request_has_to_come_in_time_too(helm: HelmsmanService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "HEAD_SECONDS", 0.3)
    async with serving(helm) as server, await server.connect() as stream:
        await stream.send(server.head("GET", "/api/anything", Authorization=f"Bearer {token_of(helm)}"))
        assert b" 404 " in await stream.receive()
        await stream.send(b"GET /api/")
        await everything(stream)


async def test_a_body_that_comes_too_slowly_is_refused(helm: HelmsmanService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "BODY_SECONDS", 0.3)
    headers = {"Authorization": f"Bearer {token_of(helm)}", "Accept": "application/json, text/event-stream"}
    async with serving(helm) as server, await server.connect() as slow:
        await slow.send(server.head(Content_Type="application/json", Content_Length="1000", **headers) + b'{"json')
        answer = await everything(slow)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"too_slow"' in answer


async def test_a_login_that_comes_too_slowly_is_refused(helm: HelmsmanService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one body that is read without a token."""
    monkeypatch.setattr(http_limits, "BODY_SECONDS", 0.3)
    page = {"X_Helmsman": "1", "Content_Type": "application/json", "Content_Length": "1000"}
    async with serving(helm) as server, await server.connect() as slow:
        await slow.send(server.head(path="/api/login", **page) + b'{"co')
        assert b" 408 " in await everything(slow)


# --- large -----------------------------------------------------------------------------------------------------------


async def test_a_large_body_without_a_token_is_refused_before_it_is_read(helm: HelmsmanService) -> None:
    async with serving(helm) as server, await server.connect() as stream:
        await stream.send(server.head(Content_Type="application/json", Content_Length=str(10**12)))
        with anyio.fail_after(SECONDS):
            assert (await stream.receive()).startswith(b"HTTP/1.1 401 ")


async def test_a_large_login_is_refused(helm: HelmsmanService) -> None:
    async with serving(helm) as server, httpx2.AsyncClient(timeout=SECONDS) as client:
        page = {"X-Helmsman": "1", "Content-Type": "application/json"}
        content = b'{"code": "' + b"x" * 5_000 + b'"}'
        login = server.url.replace("/mcp", "/api/login")

        async def in_pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(content), 100):
                yield content[at : at + 100]

        for body in (content, in_pieces()):
            refused = await client.post(login, content=body, headers=page)
            assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
        assert await is_alive(server)


@pytest.mark.parametrize("head", [b"\x00\xff\x16\x03\x01" * 100, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 50_000])
async def test_an_invalid_request_is_refused_and_the_server_continues(helm: HelmsmanService, head: bytes) -> None:
    async with serving(helm) as server, await server.connect() as stream:
        await stream.send(head)
        assert b" 400 " in await everything(stream)
        assert await is_alive(server)


# --- those who have not said who they are -----------------------------------------------------------------------------


def bearer(helm: HelmsmanService) -> dict[str, str]:
    return {"Authorization": f"Bearer {token_of(helm)}"}


async def test_five_hundred_silent_connections_lock_out_no_client(helm: HelmsmanService) -> None:
    async with serving(helm) as server, AsyncExitStack() as stack:
        for _ in range(500):
            await stack.enter_async_context(await server.connect())
        async with httpx2.AsyncClient(timeout=SECONDS, headers=bearer(helm)) as client:
            base = server.url.removesuffix("/mcp")
            assert (await client.get(f"{base}/api/overview")).status_code == 200
            async with client.stream("GET", f"{base}/api/live") as stream:
                assert await anext(stream.aiter_lines()) == "event: hello"
        assert (await httpx2_get(base)).status_code == 200, "the page, for somebody who is about to log in"


async def httpx2_get(address: str) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=SECONDS) as client:
        return await client.get(address)


async def test_endless_heads_and_bodies_lock_out_no_client(helm: HelmsmanService) -> None:
    async with serving(helm) as server, AsyncExitStack() as stack:
        page = {"X_Helmsman": "1", "Content_Type": "application/json", "Content_Length": "1000"}
        beginnings = [b"GET /mcp HT", server.head(path="/api/login", **page) + b"{", server.head(Content_Length="1000")]
        for number in range(150):
            stream = await stack.enter_async_context(await server.connect())
            await stream.send(beginnings[number % 3])
        async with httpx2.AsyncClient(timeout=SECONDS, headers=bearer(helm)) as client:
            assert (await client.get(server.url.replace("/mcp", "/api/overview"))).status_code == 200


async def test_a_flood_of_connections_does_not_displace_prompt_clients(helm: HelmsmanService) -> None:
    async with serving(helm) as server, anyio.create_task_group() as tasks:

        async def flood() -> None:
            while True:
                async with AsyncExitStack() as stack:
                    for _ in range(100):
                        stack.push_async_callback((await server.connect()).aclose)

        for _ in range(3):
            tasks.start_soon(flood)
        for _ in range(10):
            async with httpx2.AsyncClient(timeout=SECONDS, headers=bearer(helm)) as client:
                assert (await client.get(server.url.replace("/mcp", "/api/tasks"))).status_code == 200
        tasks.cancel_scope.cancel()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make a certificate with")
async def test_silent_connections_before_tls_lock_out_no_client(helm: HelmsmanService, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)]
    await anyio.run_process([*make, *names])
    options = HttpOptions(tls_certificate=certificate, tls_key=key)
    trust = ssl.create_default_context(cafile=str(certificate))
    async with serving(helm, options) as server, AsyncExitStack() as stack:
        first = await stack.enter_async_context(await server.connect())
        for number in range(100):
            stream = await stack.enter_async_context(await server.connect())
            if number % 2:
                await stream.send(b"\x16\x03\x01")  # the beginning of TLS
        async with httpx2.AsyncClient(timeout=SECONDS, headers=bearer(helm), verify=trust) as client:
            assert (await client.get(server.url.replace("/mcp", "/api/overview"))).status_code == 200
        assert await everything(first) == b"", "the oldest has made room"
        async with await server.connect() as plain:
            await plain.send(server.head("GET", "/"))
            assert b"200" not in await everything(plain)


async def test_members_stay_while_strangers_come_and_go(helm: HelmsmanService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "STRANGER_SECONDS", 0.2)
    async with serving(helm) as server, await server.connect() as member, AsyncExitStack() as stack:
        for _ in range(3):
            await member.send(server.head("GET", "/api/tasks", **bearer(helm)))
            with anyio.fail_after(SECONDS):
                assert b" 200 " in await member.receive()
            silent = [await stack.enter_async_context(await server.connect()) for _ in range(70)]
            assert await everything(silent[-1]) == b""


async def test_there_is_room_for_so_many_members_and_it_becomes_free_again(
    helm: HelmsmanService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_limits, "MAX_MEMBERS", 3)
    async with serving(helm) as server:
        ask = server.head("GET", "/api/tasks", **bearer(helm))
        async with AsyncExitStack() as stack:
            for expected in (b" 200 ", b" 200 ", b" 200 ", b" 503 "):
                stream = await stack.enter_async_context(await server.connect())
                await stream.send(ask)
                with anyio.fail_after(SECONDS):
                    assert expected in await stream.receive()
        with anyio.fail_after(SECONDS):
            while True:
                async with await server.connect() as stream:
                    await stream.send(ask)
                    if b" 200 " in await stream.receive():
                        break  # the server has seen that the others have gone


async def test_a_refusal_ends_the_connection_and_what_was_sent_after_it_is_not_looked_at(helm: HelmsmanService) -> None:
    async with serving(helm) as server, await server.connect() as stream:
        await stream.send(server.head("GET", "/api/tasks") + server.head("GET", "/api/tasks", **bearer(helm)))
        answer = await everything(stream)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    async with serving(helm) as server, await server.connect() as stream:
        await stream.send(server.head("GET", "/api/tasks", **bearer(helm)) + server.head("GET", "/api/tasks"))
        answer = await everything(stream)
    assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200", b"401"]


async def test_a_web_socket_is_not_opened(helm: HelmsmanService) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13", "Sec_WebSocket_Key": "x"}
    for headers, status in ((upgrade, b" 401 "), (upgrade | bearer(helm), b" 404 ")):
        async with serving(helm) as server, await server.connect() as stream:
            await stream.send(server.head("GET", "/api/socket", **headers))
            with anyio.fail_after(SECONDS):
                assert status in await stream.receive()


# --- paths -----------------------------------------------------------------------------------------------------------

SPELLINGS = [
    *(
        "/mcp%0a",
        "/mcp%0A%0a",
        "/mcp%0d%0a",
        "/mcp%09",
        "/mcp%00",
        "/mcp%20",
        "/mcp/",
        "//mcp",
        "/./mcp",
        "/x/../mcp",
        "/%2e/mcp",
    ),
    *(
        "/%6dcp",
        "/MCP",
        "/mcp;x",
        "/mcp%2f",
        "/mcp%3f",
        "/mcp%23",
        "/mcp\\",
        "/mcp%5c",
        "/mcp%e2%80%a8",
        "/mcp%c2%85",
        "/mcp?/app.js",
    ),
    *(
        "/app.js/../mcp",
        "/app.js%2f..%2fmcp",
        "/app.js%0a",
        "/app.js/mcp",
        "/index.html/../api/tasks",
        "/..%2fapi/tasks",
    ),
    *(
        "/api/tasks%0a",
        "/api//tasks",
        "//api/tasks",
        "/api/./tasks",
        "/API/tasks",
        "/%61pi/tasks",
        "/api%2ftasks",
        "/api/tasks/",
    ),
    *(
        "/api/login%0a",
        "/api/login/../tasks",
        "/api/proof/../tasks",
        "*",
        "mcp",
        "http://127.0.0.1/mcp",
        "http://127.0.0.1/app.js",
    ),
]


async def test_no_spelling_of_a_path_gets_past_the_guard(helm: HelmsmanService) -> None:
    async with serving(helm) as server:
        for path in SPELLINGS:
            for method in ("GET", "POST", "OPTIONS", "DELETE", "HEAD", "PUT"):
                async with await server.connect() as stream:
                    await stream.send(
                        server.head(method, path, Content_Type="application/json", Content_Length="2") + b"{}"
                    )
                    answer = await everything(stream)
                assert answer.split()[1] in (b"400", b"401", b"403"), (method, path, answer)


@given(
    st.text(st.sampled_from("/.%20aAmMcCpPiI\\\n\r\t?#;~")).map(lambda tail: f"/{tail}"),
    st.sampled_from(["GET", "POST", "HEAD"]),
)
def test_public_paths_are_listed_one_by_one(path: str, method: str) -> None:
    client = Guard(nobody, token=TOKEN, answers_to=HttpOptions().answers_to, logins=Logins(secure=False))
    scope = {"type": "http", "path": path, "method": method, "scheme": "http"}
    verdict = client.verdict(scope, Headers({"host": "127.0.0.1"}))
    if verdict == "stranger":
        assert method in ("GET", "HEAD")
        assert path == "/" or path.removeprefix("/") in {
            file.relative_to(static_files._ROOT).as_posix() for file in static_files._ROOT.rglob("*")
        }
    else:
        assert not isinstance(verdict, str)


# --- web pages -------------------------------------------------------------------------------------------------------


@pytest.fixture
def server_process(codex_home: Any, codex_binary: Path, git_repo: Path) -> Serving:
    return Serving.on(codex_home, codex_binary, git_repo)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to end a server by")
async def test_a_page_of_another_port_gets_nothing_out_of_the_cookie(server_process: Serving) -> None:
    """Browsers send a cookie to every port of its host, so another local user's page may come with it."""
    async with server_process.over_http() as server, httpx2.AsyncClient(timeout=SECONDS) as browser:
        base = server.url.removesuffix("/mcp")
        await log_in(browser, server, base)
        assert (await browser.get(f"{base}/api/sessions")).status_code == 200
        stranger = "http://127.0.0.1:1"
        for headers in (
            {"Origin": stranger, "X-Helmsman": "1"},
            {"Origin": stranger},
            {"Sec-Fetch-Site": "same-site", "X-Helmsman": "1"},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            refused = await browser.post(f"{base}/api/sessions", json={"prompt": "x"}, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (403, "cross_site")
            assert "access-control-allow-origin" not in refused.headers
        # Nor is the cookie of any use for the tools.
        assert (await browser.post(server.url, json={})).status_code == 401


async def test_a_preflight_is_answered_with_a_refusal(helm: HelmsmanService) -> None:
    ask = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
    async with serving(helm) as server, httpx2.AsyncClient(timeout=SECONDS) as browser:
        for path in ("/mcp", "/api/sessions", "/api/login"):
            refused = await browser.options(server.url.replace("/mcp", path), headers=ask)
            assert refused.status_code in (401, 403, 405)
            assert not [name for name in refused.headers if name.startswith("access-control-")]


async def log_in(browser: httpx2.AsyncClient, server: HttpServer, base: str) -> None:
    page = {"X-Helmsman": "1", "Origin": base}
    code = (await browser.post(f"{base}/api/codes", json={}, headers=server.headers)).json()["code"]
    welcome = await browser.post(f"{base}/api/login", json={"code": code}, headers=page)
    assert welcome.status_code == 200, welcome.text


# --- the guard by itself ---------------------------------------------------------------------------------------------


async def nobody(*_: Any) -> None:
    raise AssertionError


def refusal(**headers: str) -> str | None:
    client = Guard(nobody, token=TOKEN, answers_to=HttpOptions().answers_to, logins=Logins(secure=False))
    scope = {"type": "http", "path": "/mcp", "method": "POST", "scheme": "http"}
    answer = client.verdict(scope, Headers({name.replace("_", "-"): value for name, value in headers.items()}))
    return bytes(answer.body).decode() if isinstance(answer, JSONResponse) else None


def test_the_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return hmac.compare_digest(left, right)

    monkeypatch.setattr(guard, "compare_digest", compare)
    for given_token in ("", "t", TOKEN[:-1], TOKEN + "x", "\u00fc"):
        assert "wrong_token" in str(refusal(host="127.0.0.1", authorization=f"Bearer {given_token}"))
    assert refusal(host="127.0.0.1", authorization=f"Bearer {TOKEN}") is None
    assert len(compared) == 6
    assert {right for _, right in compared} == {TOKEN.encode()}


@given(
    host=st.text(st.characters(codec="latin-1", exclude_characters="\r\n")).filter(lambda host: "127.0.0.1" not in host)
)
def test_no_other_host_gets_as_far_as_the_token(host: str) -> None:
    answer = refusal(host=host, authorization=f"Bearer {TOKEN}")
    if not HttpOptions().answers_to(guard.host_name(f"//{host}")):
        assert "wrong_host" in str(answer)
    else:
        assert guard.host_name(f"//{host}") in ("localhost", "::1")


@given(origin=st.from_regex(r"(https?|file|null|chrome-extension)://[a-z0-9.@:-]{1,30}", fullmatch=True))
def test_no_other_origin_gets_as_far_as_the_token(origin: str) -> None:
    answer = refusal(host="127.0.0.1", origin=origin, authorization=f"Bearer {TOKEN}")
    if guard.host_name(origin) not in ("localhost", "127.0.0.1", "::1"):
        assert "wrong_origin" in str(answer)
