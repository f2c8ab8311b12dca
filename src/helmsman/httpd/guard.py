"""Access control of the HTTP server. It is decided once, on the path that the routes see, and the default is to refuse.

Host and Origin are checked first, so that no web page in the user's browser can try tokens (DNS rebinding, cross-site
requests). Then a request is a member's, by the bearer token or the dashboard's cookie, or a stranger's. A stranger may fetch
the files of the page and use the login paths, which are listed one by one. A stranger's request is small, and each
connection serves one. Where OAuth is on, a program to which the user has granted access may use `/mcp` and nothing else,
for as long as the grant holds.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

from helmsman.httpd.limits import admitted
from helmsman.httpd.listening import MCP_PATH
from helmsman.httpd.public import OPEN_PATHS
from helmsman.web.devices import DEVICE_LOGIN_PATH
from helmsman.web.grants import Grant
from helmsman.web.json_http import STRANGERS_BODY, STRANGERS_BODY_BYTES
from helmsman.web.login import is_from_page, is_same_site
from helmsman.web.proof import CODE_PATH, PROOF_PATH
from helmsman.web.static_files import page_paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from helmsman.web.login import Logins
    from helmsman.web.oauth import OAuth

LOGIN_PATH: Final = "/api/login"
_OPEN_POSTS: Final = frozenset({LOGIN_PATH, DEVICE_LOGIN_PATH, PROOF_PATH, CODE_PATH})
_OAUTH_PATHS: Final = frozenset(
    {"/authorize", "/register", "/revoke", "/token"}
)  # clients try these paths without metadata
_NO_OAUTH: Final = (
    "There is no OAuth here. Send the token of the state directory as a bearer token, or set HELMSMAN_OAUTH."
)
_READS: Final = frozenset({"GET", "HEAD"})
_DISCARDED_BYTES: Final = 256 * 1024
_GRANT_SECONDS: Final = 2.0
"""Seconds between looks whether the grant of a long response still holds."""

_Caller = Literal["member", "stranger"]


class Guard:
    """Passes a request on if its Host and Origin are allowed and its path is open to the caller."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        answers_to: Callable[[str | None], bool],
        logins: Logins,
        oauth: OAuth | None = None,
    ) -> None:
        self._app = app
        self._oauth = oauth
        self._token = token.encode()
        self._answers_to = answers_to
        self._logins = logins
        self._page = page_paths()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008, "reason": "There are no web sockets here."})
            return
        if scope["path"] == f"{MCP_PATH}/":
            scope = {**scope, "path": MCP_PATH}
        verdict = self.verdict(scope, Headers(scope=scope))
        if (verdict == "member" or isinstance(verdict, Grant)) and not admitted(scope):
            verdict = refused(
                503, "too_many_connections", "Too many clients are connected. Close some, then try again."
            )
        if verdict == "member":
            await self._app(scope, receive, send)
        elif isinstance(verdict, Grant):
            await self._while_it_holds(verdict, scope, receive, send)
        elif verdict == "stranger":
            await _answered_and_closed(self._app, {**scope, STRANGERS_BODY: True}, receive, send)
        else:
            await _answered_and_closed(verdict, scope, receive, send)

    async def _while_it_holds(self, grant: Grant, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a program until the user takes its access back."""
        oauth, started, finished = self._oauth, False, False

        async def send_on(message: Message) -> None:
            nonlocal started, finished
            started = True
            finished = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        async def look(serving: anyio.CancelScope) -> None:
            while True:
                if oauth is None or not oauth.grants.holds(grant.id):
                    serving.cancel()
                await anyio.sleep(_GRANT_SECONDS)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look, tasks.cancel_scope)
            await self._app(scope, receive, send_on)
            tasks.cancel_scope.cancel()
        if started and not finished:
            await send({"type": "http.response.body", "body": b""})

    def verdict(self, scope: Scope, headers: Headers) -> _Caller | Grant | JSONResponse:
        """Return the type of caller if the request may pass, otherwise the refusal."""
        path: str = scope["path"]
        if not is_plain(path):
            return refused(400, "bad_path", "This path cannot be used. Write it from / on, without //, . and ..")
        if not self._answers_to(host_name(f"//{headers.get('host', '')}")):
            return refused(
                421,
                "wrong_host",
                "This server does not answer to that Host. Use the address it printed, or start it with --allow-name.",
            )
        origin = headers.get("origin")
        if origin is not None and not self._answers_to(host_name(origin)):
            return refused(403, "wrong_origin", "Web pages of other sites may not use this server.")
        is_read = scope["method"] in _READS
        if is_oauth(path):
            return self._oauth_verdict(scope, headers)
        if self._has_token(headers):
            return "member"
        if (grant := self._grant(scope, headers)) is not None:
            return grant
        if is_read and path in OPEN_PATHS:
            return "stranger"
        if is_read and path in self._page:
            return "member" if self._logins.knows(scope, headers) and is_same_site(headers) else "stranger"
        if scope["method"] == "POST" and path in _OPEN_POSTS:
            return _stranger_who_writes(headers) if is_from_page(scope, headers) else _cross_site()
        if not path.startswith("/api/") or not self._logins.knows(scope, headers):
            return self._not_logged_in(scope, headers)
        if not is_same_site(headers) or not (is_read or is_from_page(scope, headers)):
            return _cross_site()
        return "member"

    def _oauth_verdict(self, scope: Scope, headers: Headers) -> _Caller | JSONResponse:
        path, method = scope["path"], scope["method"]
        if not self._has_oauth(scope, headers) or self._oauth is None or not self._oauth.is_open(method, path):
            return _no_oauth()
        if method == "POST":
            return _stranger_who_writes(headers)
        return "stranger" if method in _READS else _no_oauth()

    def _has_oauth(self, scope: Scope, headers: Headers) -> bool:
        return self._oauth is not None and self._oauth.serves(scope, host_name(f"//{headers.get('host', '')}"))

    def _grant(self, scope: Scope, headers: Headers) -> Grant | None:
        """Return the grant of the program that asks, if it has one for this."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if self._oauth is None or scheme.lower() != "bearer" or not self._has_oauth(scope, headers):
            return None
        return self._oauth.grant_of(scope, headers.get("host", ""), given.strip())

    def _not_logged_in(self, scope: Scope, headers: Headers) -> JSONResponse:
        refusal = refused(
            401, "wrong_token", "Log in first, or send the token of the state directory as a bearer token."
        )
        if self._oauth is not None and scope["path"] == MCP_PATH and self._has_oauth(scope, headers):
            has_token = "authorization" in headers
            refusal.headers["WWW-Authenticate"] = self._oauth.challenge(
                scope, headers.get("host", ""), has_token=has_token
            )
        return refusal

    def _has_token(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Compared as bytes and in constant time, also when the scheme is wrong: no answer comes faster than another.
        matches = compare_digest(given.strip().encode("utf-8", "surrogateescape"), self._token)
        return scheme.lower() == "bearer" and matches


def is_plain(path: str) -> bool:
    """Return whether the path has only one reading: single slashes, no `.` or `..`, no invisible characters."""
    root, *parts = path.split("/")
    is_odd = "\\" in path or any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in path)
    return root == "" and bool(parts) and all(parts[:-1]) and not is_odd and not {".", ".."} & {*parts}


def is_oauth(path: str) -> bool:
    """Return whether a client looks for OAuth here: its metadata (also below a path), or its endpoints."""
    _, found, name = path.rpartition("/.well-known/")
    return path in _OAUTH_PATHS or (bool(found) and name.startswith(("oauth-", "openid-configuration")))


def refused(status: int, code: str, message: str) -> JSONResponse:
    headers = {"WWW-Authenticate": 'Bearer realm="helmsman"'} if status == 401 else None
    return JSONResponse({"code": code, "message": message}, status_code=status, headers=headers)


def host_name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _no_oauth() -> JSONResponse:
    """Answer 404: a client that gets a 401 here takes it for an authorization server that fails.

    OAuth libraries show `error_description`.
    """
    told = {"code": "not_found", "message": _NO_OAUTH, "error": "not_found", "error_description": _NO_OAUTH}
    return JSONResponse(told, status_code=404)


def _cross_site() -> JSONResponse:
    return refused(403, "cross_site", "Only the dashboard's own page may ask for that.")


def _stranger_who_writes(headers: Headers) -> _Caller | JSONResponse:
    """Refuse a body by its announced length before it is read. `web/json_http.py` counts bodies without a length."""
    announced = headers.get("content-length", "0")
    # `int` raises for thousands of digits. Twenty are too large already.
    if announced.isdigit() and int(announced[:20]) <= STRANGERS_BODY_BYTES:
        return "stranger"
    return refused(413, "too_large", f"Before a login no request may be larger than {STRANGERS_BODY_BYTES} bytes.")


async def _answered_and_closed(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Close the connection after this response, because strangers may not keep connections.

    Between the response and the close, a little of the remaining input is read. Otherwise a client that is still sending
    would see a reset connection and not the reason.
    """
    all_read = False

    async def receive_on() -> Message:
        nonlocal all_read
        message = await receive()
        all_read = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def send_on(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["Connection"] = "close"
        if message["type"] != "http.response.body" or message.get("more_body", False):
            await send(message)
            return
        await send({**message, "more_body": True})
        left = _DISCARDED_BYTES
        while not all_read and left > 0:
            # An empty message counts as a byte, so that the loop ends.
            left -= len((await receive_on()).get("body", b"")) or 1
        await send({"type": "http.response.body", "body": b""})

    await app(scope, receive_on, send_on)
