"""Who may use the dashboard: the bearer token, a one-time code, its cookie, and nobody else."""

from __future__ import annotations

import itertools
import re
from typing import Any

import httpx2
import pytest
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp

from helmsman.httpd.application import build_app
from helmsman.httpd.listening import HttpOptions
from helmsman.httpd.operation_routes import operation_routes
from helmsman.service import HelmsmanService
from helmsman.web.api import api_routes
from helmsman.web.login import CODE_SECONDS, Logins
from helmsman.web.proof import Challenges
from tests.web.browser import Browser

pytestmark = pytest.mark.anyio

PAGE = {"X-Helmsman": "1", "Content-Type": "application/json"}


def paths(helm: HelmsmanService, method: str) -> list[str]:
    """Every path of the dashboard and of the API that takes this method, with something in place of its parameters."""
    routes = api_routes(helm, Logins(secure=False), Challenges("a token of these tests"))
    found = [route.path for route in routes if method in (route.methods or ())]
    found += [route.path for route in operation_routes() if route.method == method]
    return [re.sub(r"{[a-zA-Z_]+(:int)?}", "0", path) for path in found if "{path:path}" not in path]


# --- every route -----------------------------------------------------------------------------------------------------


async def test_without_token_or_cookie_nothing_of_the_api_answers(
    helm: HelmsmanService, anybody: httpx2.AsyncClient
) -> None:
    looks, acts = paths(helm, "GET"), paths(helm, "POST")
    assert len(looks) > 10
    assert len(acts) > 7
    for path in looks:
        refused = await anybody.get(path)
        assert (refused.status_code, refused.json()["code"]) == (401, "wrong_token"), path
    for path in acts:
        refused = await anybody.post(path, json={}, headers=PAGE)
        open_ones = ("/api/login", "/api/login/device", "/api/proof", "/api/proof/code")
        expected = (400, "invalid_input") if path in open_ones else (401, "wrong_token")
        assert (refused.status_code, refused.json()["code"]) == expected, path
        assert refused.headers["connection"] == "close"
    for method, path in itertools.product(("DELETE", "PUT", "PATCH", "OPTIONS"), ("/api/sessions", "/", "/app.js")):
        assert (await anybody.request(method, path)).status_code == 401, (method, path)


async def test_with_the_cookie_nothing_is_done_that_the_page_did_not_ask_for(
    helm: HelmsmanService, browser: Browser
) -> None:
    del browser.http.headers["x-helmsman"]
    wrong: list[dict[str, str]] = [
        {},
        {"X-Helmsman": "1", "Content-Type": "text/plain"},
        {"X-Helmsman": "1"},
        {"Content-Type": "application/json"},
        {**PAGE, "Origin": "http://127.0.0.1:1"},
        {**PAGE, "Origin": "https://127.0.0.1:8645"},
        {**PAGE, "Sec-Fetch-Site": "cross-site"},
        {**PAGE, "Sec-Fetch-Site": "same-site"},
    ]
    for path, headers in itertools.product(paths(helm, "POST"), wrong):
        refused = await browser.http.post(path, content=b"{}", headers=headers)
        expected = (403, "cross_site") if path.startswith("/api/") else (401, "wrong_token")
        assert (refused.status_code, refused.json()["code"]) == expected, (path, headers)
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):
        refused = await browser.http.get("/api/sessions", headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "cross_site")
    own = {**PAGE, "Origin": "http://127.0.0.1:8645", "Sec-Fetch-Site": "same-origin"}
    assert (await browser.http.post("/api/codes", content=b"{}", headers=own)).status_code == 200


async def test_other_hosts_and_origins_get_nothing_at_all(browser: Browser) -> None:
    for path in ("/", "/app.js", "/api/sessions"):
        assert (await browser.http.get(path, headers={"Host": "evil.example"})).status_code == 421
        assert (await browser.http.get(path, headers={"Origin": "https://evil.example"})).status_code == 403


async def test_the_token_needs_no_page(anybody: httpx2.AsyncClient, token: str) -> None:
    bearer = {"Authorization": f"Bearer {token}"}
    assert (await anybody.get("/api/sessions", headers=bearer)).status_code == 200
    assert (await anybody.post("/api/codes", headers=bearer)).status_code == 200
    assert (await anybody.get("/api/sessions", headers={"Authorization": "Bearer wrong"})).status_code == 401


async def test_the_cookie_does_not_open_mcp(browser: Browser) -> None:
    for path in ("/mcp", "/mcp/"):
        assert (await browser.http.post(path, content=b"{}", headers=PAGE)).status_code == 401


# --- the login -------------------------------------------------------------------------------------------------------


async def log_in(client: httpx2.AsyncClient, code: str) -> httpx2.Response:
    return await client.post("/api/login", json={"code": code}, headers=PAGE)


async def test_a_code_is_good_once(anybody: httpx2.AsyncClient, logins: Logins) -> None:
    code = logins.new_code()
    assert logins.is_waiting(code)
    welcome = await log_in(anybody, code.value)
    assert (welcome.status_code, welcome.json()) == (200, {"ok": True})
    assert not logins.is_waiting(code)
    cookie = welcome.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" not in cookie
    assert (await anybody.get("/api/sessions")).status_code == 200
    anybody.cookies.clear()
    again = await log_in(anybody, code.value)
    assert (again.status_code, again.json()["code"]) == (401, "wrong_code")
    assert "set-cookie" not in again.headers
    assert (await anybody.get("/api/sessions")).status_code == 401


@pytest.mark.parametrize(
    "others",
    [
        'theme={"dark":true}',
        'x=a"b',
        "a b=c",
        "alone",
        "=nameless",
        "tz=Europe Berlin",
        "a@b=1",
        "helmsman-8645=planted",
    ],
)
async def test_cookies_of_other_servers_on_this_host_lock_out_no_user(browser: Browser, others: str) -> None:
    """A browser sends those of all ports along: some are no proper cookies, and one may have been put in place of ours."""
    ((name, value),) = browser.http.cookies.items()
    browser.http.cookies.clear()
    for sent in (f"{others}; {name}={value}", f"{name}={value}; {others}"):
        assert (await browser.http.get("/api/sessions", headers={"Cookie": sent})).status_code == 200, sent
    assert (await browser.http.get("/api/sessions", headers={"Cookie": others})).status_code == 401


async def test_a_code_can_be_typed_as_people_type(anybody: httpx2.AsyncClient, logins: Logins) -> None:
    for typed in (
        str.lower,
        lambda code: code.replace("-", ""),
        lambda code: f" {code} ",
        lambda code: code.replace("0", "o"),
    ):
        assert (await log_in(anybody, typed(logins.new_code().value))).status_code == 200


@pytest.mark.parametrize("code", ["", "wrong", "Ä", "x" * 200, "0000-0000-0000"])
async def test_a_wrong_code_is_refused(anybody: httpx2.AsyncClient, logins: Logins, code: str) -> None:
    logins.new_code()
    refused = await log_in(anybody, code)
    assert refused.status_code in (400, 401)
    assert "set-cookie" not in refused.headers


async def test_a_code_in_an_address_is_worth_nothing(anybody: httpx2.AsyncClient, logins: Logins) -> None:
    """What stands in an address can be read in the command line of a browser."""
    code = logins.new_code()
    for path in (f"/login?code={code.value}", f"/?code={code.value}", f"/api/login?code={code.value}"):
        assert "set-cookie" not in (await anybody.get(path)).headers
    assert logins.is_waiting(code)


async def test_the_token_is_not_for_the_page(anybody: httpx2.AsyncClient, token: str) -> None:
    """A person would type it into whatever answers at that port."""
    for given in ({"token": token}, {"code": token}):
        assert (await anybody.post("/api/login", json=given, headers=PAGE)).status_code in (400, 401)


async def test_one_logs_out_again(anybody: httpx2.AsyncClient, logins: Logins) -> None:
    await log_in(anybody, logins.new_code().value)
    assert (await anybody.get("/api/overview")).status_code == 200
    assert (await anybody.post("/api/logout", json={}, headers=PAGE)).json() == {"ok": True}
    assert (await anybody.get("/api/overview")).status_code == 401
    cross_site = await anybody.post("/api/login", json={"code": "x"}, headers={"Content-Type": "text/plain"})
    assert (cross_site.status_code, cross_site.json()["code"]) == (403, "cross_site")


async def test_a_logged_in_device_can_admit_another(
    browser: Browser, anybody: httpx2.AsyncClient, app: ASGIApp
) -> None:
    made = await browser.post("/api/codes")
    assert made["path"] == f"/#login={made['code']}"
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost:9000") as phone:
        assert (await log_in(phone, made["code"])).status_code == 200
        assert (await phone.get("/api/overview")).status_code == 200


async def test_behind_tls_the_cookie_is_for_tls_only(helm: HelmsmanService, token: str, tmp_path: Any) -> None:
    options = HttpOptions(tls_certificate=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem")
    logins = Logins(secure=True)
    app = build_app(helm, token=token, options=options, logins=logins)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="https://127.0.0.1:1") as client:
        welcome = await log_in(client, logins.new_code().value)
    assert "secure" in welcome.headers["set-cookie"].lower()


# --- codes and cookies -----------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


SCOPE = {"path": "/api/sessions", "method": "GET", "scheme": "http", "server": ("127.0.0.1", 8645)}


def cookie_of(logins: Logins) -> str:
    response = Response()
    logins.log_in(SCOPE, response)
    return response.headers["set-cookie"].partition(";")[0]


def admitted(logins: Logins, cookie: str) -> bool:
    return logins.knows(SCOPE, Headers({"cookie": cookie}))


def test_a_code_ends_after_ten_minutes() -> None:
    clock = Clock()
    logins = Logins(secure=False, clock=clock)
    early, late = logins.new_code(), logins.new_code()
    clock.now += CODE_SECONDS - 1
    assert logins.redeem(early.value)
    assert not logins.redeem(early.value)
    clock.now += 1
    assert not logins.redeem(late.value)


def test_many_codes_make_the_oldest_useless_and_nothing_grows() -> None:
    logins = Logins(secure=False)
    codes = [logins.new_code() for _ in range(1000)]
    assert not logins.redeem(codes[0].value)
    assert logins.redeem(codes[-1].value)
    assert len(logins._codes) < 100


def test_a_cookie_ends_with_its_server_and_with_its_time() -> None:
    """Who takes the port after the server has ended is sent the cookie by every page that is still open."""
    clock = Clock()
    logins = Logins(secure=False, clock=clock)
    cookie = cookie_of(logins)
    assert admitted(logins, cookie)
    assert not admitted(Logins(secure=False, clock=clock), cookie)
    clock.now += 31 * 86400
    assert not admitted(logins, cookie)


async def test_a_copy_of_the_cookie_ends_with_the_logout(browser: Browser, logins: Logins) -> None:
    ((name, value),) = browser.http.cookies.items()
    other = cookie_of(logins)
    assert (await browser.http.post("/api/logout", json={})).json() == {"ok": True}
    for cookie, status in ((f"{name}={value}", 401), (other, 200)):
        assert (await browser.http.get("/api/sessions", headers={"Cookie": cookie})).status_code == status


def test_a_cookie_that_was_tampered_with_is_none() -> None:
    logins = Logins(secure=False)
    cookie = cookie_of(logins)
    name, _, value = cookie.partition("=")
    expires, nonce, signature = value.split(".")
    assert admitted(logins, cookie)
    for wrong in (
        f"{int(expires) + 1}.{nonce}.{signature}",
        f"{expires}.{nonce}.{'0' * len(signature)}",
        f"{expires}.{nonce}",
        signature,
        "",
        "\xe4",
    ):
        assert not admitted(logins, f"{name}={wrong}")
    assert not admitted(logins, f"{name}x={value}")
    assert admitted(logins, f"other=1; {cookie}")
