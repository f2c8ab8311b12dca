"""OAuth: the Python SDK's client gets access that the user has granted on the page, and nobody gets more."""

from __future__ import annotations

import base64
import hashlib
import shutil
import ssl
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio
import httpx2
import pytest
from mcp.client import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from helmsman.base.concurrency import background_tasks
from helmsman.base.structs import replace
from helmsman.httpd import application
from helmsman.httpd.listening import HttpOptions
from helmsman.httpd.server import serve_http
from helmsman.service import HelmsmanService
from helmsman.web.client_documents import (
    MAX_BYTES,
    InvalidClient,
    OAuthClient,
    _fetch,
    client_address,
    is_public,
    read_client,
)
from helmsman.web.login import PAGE_HEADER, Logins
from helmsman.web.oauth import OAuth

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from helmsman.settings import Settings

pytestmark = pytest.mark.anyio

ME = "https://client.example/metadata.json"
BACK = "http://127.0.0.1:3030/callback"
VERIFIER = "v" * 50
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).decode().rstrip("=")


async def the_client(client_id: str) -> OAuthClient:
    """The document of the client, without a network."""
    client_address(client_id)
    return OAuthClient(id=client_id, name="A client", redirect_uris=("http://127.0.0.1/callback",))


@dataclass
class Place:
    """A server with OAuth, and a browser that has logged in."""

    address: str
    browser: httpx2.AsyncClient
    stranger: httpx2.AsyncClient
    logins: Logins
    described: dict[str, Any] = field(default_factory=dict)

    @property
    def resource(self) -> str:
        return f"{self.address}/mcp"

    def request(self, **changed: str) -> dict[str, str]:
        wanted = {
            "response_type": "code",
            "client_id": ME,
            "redirect_uri": BACK,
            "code_challenge": CHALLENGE,
            "code_challenge_method": "S256",
            "state": "xyz",
            "resource": self.resource,
            "scope": "helmsman",
        }
        return {key: value for key, value in (wanted | changed).items() if value}

    async def ask(self, query: dict[str, str]) -> httpx2.Response:
        return await self.browser.post("/api/oauth/request", json={"query": query})

    async def decide(self, query: dict[str, str], *, allow: bool = True) -> dict[str, str]:
        """What the browser brings the client back."""
        answer = await self.ask(query)
        assert answer.status_code == 200, answer.text
        self.described = answer.json()
        decided = await self.browser.post(
            "/api/oauth/decision", json={"request": self.described["request"], "allow": allow}
        )
        assert decided.status_code == 200, decided.text
        target, _, told = decided.json()["redirect"].partition("?")
        assert target == query["redirect_uri"]
        return {key: values[0] for key, values in parse_qs(told).items()}

    async def token(self, **form: str) -> httpx2.Response:
        return await self.stranger.post("/token", data={"client_id": ME} | form)

    async def tokens(self) -> dict[str, Any]:
        code = (await self.decide(self.request()))["code"]
        return self.good(await self.token(**self.exchange(code)))

    def exchange(self, code: str, **changed: str) -> dict[str, str]:
        form = {"grant_type": "authorization_code", "code": code, "code_verifier": VERIFIER, "redirect_uri": BACK}
        return form | {"resource": self.resource} | changed

    @staticmethod
    def good(answer: httpx2.Response) -> dict[str, Any]:
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    async def status(self, token: str, path: str = "/mcp", **headers: str) -> int:
        told = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream", **headers}
        hello = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        return (
            await self.stranger.request("POST" if path == "/mcp" else "GET", path, json=hello, headers=told)
        ).status_code


@pytest.fixture
async def place(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(application, "OAuth", partial(OAuth, fetch=the_client))
    logins, addresses = Logins(secure=False), list[str]()
    listening = anyio.Event()

    def announce(address: str, _token: Path) -> None:
        addresses.append(address.removesuffix("/mcp"))
        listening.set()

    async with (
        HelmsmanService(replace(settings, oauth=True), env={"PATH": str(tmp_path)}) as helm,
        background_tasks() as tasks,
    ):
        tasks.start_soon(serve_http, helm, HttpOptions(), announce, logins)
        with anyio.fail_after(20):
            await listening.wait()
        base = addresses[0]
        async with (
            httpx2.AsyncClient(base_url=base, headers={PAGE_HEADER: "1"}) as browser,
            httpx2.AsyncClient(base_url=base) as stranger,
        ):
            assert (await browser.post("/api/login", json={"code": logins.new_code().value})).status_code == 200
            yield Place(base, browser, stranger, logins)


class Storage:
    tokens: OAuthToken | None = None
    info: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.info = client_info


async def test_the_sdks_client_is_granted_access_refreshes_it_and_loses_it(place: Place) -> None:
    back: dict[str, str] = {}

    async def redirect(url: str) -> None:
        assert url.startswith(f"{place.address}/authorize?")
        back.update(await place.decide({key: values[0] for key, values in parse_qs(urlsplit(url).query).items()}))

    async def callback() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code=back["code"], state=back["state"], iss=back["iss"])

    provider = OAuthClientProvider(
        place.resource,
        OAuthClientMetadata(client_name="A client", redirect_uris=[AnyUrl(BACK)]),
        Storage(),
        redirect,
        callback,
        client_metadata_url=ME,
    )
    async with (
        httpx2.AsyncClient(auth=provider) as http,
        Client(streamable_http_client(place.resource, http_client=http)) as client,
    ):
        assert (await client.list_tools()).tools
        assert (place.described["name"], place.described["clientHost"]) == ("A client", "client.example")
        assert (place.described["redirectUri"], place.described["resource"]) == (BACK, place.resource)
        assert provider.context.current_tokens is not None
        before = provider.context.current_tokens.access_token
        provider.context.token_expiry_time = 1
        assert (await client.list_tools()).tools
        assert provider.context.current_tokens.access_token != before
        assert await place.status(before) == 401
        back.clear()
        (grant,) = (await place.browser.get("/api/grants")).json()["grants"]
        assert await place.status(provider.context.current_tokens.access_token) != 401
        assert (await place.browser.post(f"/api/grants/{grant['id']}/revoke", json={})).status_code == 200
        assert await place.status(provider.context.current_tokens.access_token) == 401
    answer = await place.stranger.post("/mcp", json={})
    assert (
        f'resource_metadata="{place.address}/.well-known/oauth-protected-resource/mcp"'
        in answer.headers["www-authenticate"]
    )


async def test_a_token_opens_one_resource_at_one_address_and_nothing_else(place: Place) -> None:
    tokens = await place.tokens()
    token = tokens["access_token"]
    port = urlsplit(place.address).port
    assert tokens["expires_in"] <= 900
    assert await place.status(token) not in (401, 403, 421)
    assert await place.status(token, Host=f"localhost:{port}") == 401, "another address is another resource"
    for path in ("/api/overview", "/v1/sessions", "/api/grants", "/metrics"):
        assert await place.status(token, path) == 401, path
    assert await place.status(tokens["refresh_token"]) == 401
    assert (await place.stranger.post("/revoke", data={"token": token, "client_id": ME})).status_code == 200
    assert await place.status(token) == 401


async def test_codes_and_refresh_tokens_work_once_and_a_second_use_ends_the_grant(place: Place) -> None:
    code = (await place.decide(place.request()))["code"]
    for wrong in (
        {"code_verifier": "w" * 50},
        {"redirect_uri": f"{BACK}2"},
        {"resource": "https://other.example/mcp"},
        {"client_id": f"{ME}2"},
    ):
        refused = await place.token(**place.exchange(code, **wrong))
        assert refused.status_code in (400, 401), wrong
    first = place.good(await place.token(**place.exchange(code)))
    assert (await place.token(**place.exchange(code))).status_code == 400
    assert await place.status(first["access_token"]) == 401
    tokens = await place.tokens()
    renew = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
    second = place.good(await place.token(**renew))
    assert await place.status(second["access_token"]) != 401
    assert (await place.token(**renew)).status_code == 400
    assert await place.status(second["access_token"]) == 401, "somebody else has the old token"


@pytest.mark.parametrize(
    "changed",
    [
        {"redirect_uri": "http://127.0.0.1:3030/other"},
        {"redirect_uri": "http://evil.example/callback"},
        {"redirect_uri": "http://127.0.0.1.evil.example:3030/callback"},
        {"redirect_uri": "http://x@127.0.0.1:3030/callback"},
        {"redirect_uri": ""},
        {"client_id": "http://client.example/metadata.json"},
        {"client_id": "https://client.example"},
        {"client_id": "https://client.example/../metadata.json"},
        {"client_id": "https://user@client.example/metadata.json"},
        {"client_id": "https://client.example:8443/metadata.json"},
    ],
)
async def test_a_request_of_who_cannot_be_identified_is_answered_on_the_page_alone(
    place: Place, changed: dict[str, str]
) -> None:
    answer = await place.ask(place.request(**changed))
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_client")
    assert "redirect" not in answer.json()


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"resource": "https://other.example/mcp"}, "invalid_target"),
        ({"resource": ""}, "invalid_target"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge": ""}, "invalid_request"),
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"scope": "helmsman admin"}, "invalid_scope"),
    ],
)
async def test_a_wrong_request_cannot_be_allowed(place: Place, changed: dict[str, str], error: str) -> None:
    told = (await place.ask(place.request(**changed))).json()
    assert "request" not in told
    assert f"error={error}" in told["redirect"]


async def test_only_a_click_on_the_page_of_who_is_logged_in_grants_anything(place: Place) -> None:
    page = await place.stranger.get(f"/authorize?{urlencode(place.request())}")
    assert page.status_code == 200
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-frame-options"] == "DENY"
    query = {"query": place.request()}
    assert (await place.stranger.post("/api/oauth/request", json=query, headers={PAGE_HEADER: "1"})).status_code == 401
    name = (await place.ask(place.request())).json()["request"]
    decision = {"request": name, "allow": True}
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {PAGE_HEADER: ""}):
        sent = {**headers, **({} if PAGE_HEADER in headers else {PAGE_HEADER: "1"})}
        cookie = {"Cookie": "; ".join(f"{one.name}={one.value}" for one in place.browser.cookies.jar)}
        if PAGE_HEADER in headers:
            sent.pop(PAGE_HEADER)
        refused = await place.stranger.post("/api/oauth/decision", json=decision, headers={**sent, **cookie})
        assert refused.status_code == 403, headers
    assert (await place.browser.post("/api/oauth/decision", json=decision)).status_code == 200
    assert (await place.browser.post("/api/oauth/decision", json=decision)).status_code == 400, "a click counts once"
    denied = await place.decide(place.request(), allow=False)
    assert (denied["error"], denied["iss"], denied["state"]) == ("access_denied", place.address, "xyz")
    assert (await place.browser.get("/api/grants")).json() == {"grants": []}
    assert (await place.stranger.post("/register", json={})).status_code == 404


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "10.0.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "::1",
            "fe80::1",
        ),
        *("fc00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
    ],
)
def test_a_document_is_not_fetched_from_inside_a_network(address: str) -> None:
    assert not is_public(ip_address(address))
    assert is_public(ip_address("93.184.216.34"))
    assert is_public(ip_address("2606:2800:220:1:248:1893:25c8:1946"))


@pytest.mark.parametrize(
    "document",
    [
        b"no JSON",
        b'{"client_id": "https://other.example/x", "redirect_uris": ["https://other.example/"]}',
        b'{"client_id": "https://client.example/metadata.json", "redirect_uris": []}',
        b'{"client_id": "https://client.example/metadata.json", "redirect_uris": ["https://a.example/"], '
        b'"token_endpoint_auth_method": "private_key_jwt"}',
    ],
)
def test_a_document_of_another_client_is_not_believed(document: bytes) -> None:
    with pytest.raises(InvalidClient):
        read_client(ME, document)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make a certificate with")
def test_a_document_is_fetched_from_the_checked_address_without_redirects_and_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True)

    class Documents(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302 if self.path == "/moved.json" else 200)
            self.send_header("Location", "/metadata.json")
            self.send_header("Content-Type", "text/html" if self.path == "/page.json" else "application/json")
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(b"{}" if self.path != "/large.json" else b" " * (MAX_BYTES + 1))

        def log_message(self, *_: Any) -> None:
            pass

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    with ThreadingHTTPServer(("127.0.0.1", 0), Documents) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        port = server.server_address[1]

        def fetched(path: str, **options: Any) -> bytes:
            return _fetch(urlsplit(f"https://localhost/{path}"), port=port, **options)

        def anywhere(_: Any) -> bool:
            return True

        try:
            with pytest.raises(ValueError, match="not public"):
                fetched("metadata.json")
            with pytest.raises(ssl.SSLError):
                fetched("metadata.json", may_connect=anywhere)
            monkeypatch.setattr(ssl, "create_default_context", lambda: trusting)
            assert fetched("metadata.json", may_connect=anywhere) == b"{}"
            for path, why in (("moved.json", "302"), ("page.json", "text/html"), ("large.json", "larger")):
                with pytest.raises(ValueError, match=why):
                    fetched(path, may_connect=anywhere)
        finally:
            server.shutdown()
