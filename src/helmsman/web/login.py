"""Who may use the dashboard: people who came with a one-time code, and then have a cookie.

A code is made by whoever has the bearer token (`helmsman dashboard` prints one in its login link), is good for ten minutes
and for one login. The cookie is a signature of its own end with a key made from the token: no list of logins is kept, a
restart of the server ends none, and a new token ends all. A browser sends it with requests that other sites caused, if
they are clever enough, so it alone changes nothing: `Logins.verdict` wants to see that the page itself asked.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.datastructures import Headers
    from starlette.responses import Response
    from starlette.types import Scope

Verdict = Literal["admitted", "unknown", "cross_site"]

CODE_SECONDS: Final = 600
_COOKIE_SECONDS: Final = 30 * 86400
_MAX_CODES: Final = 32
"""So many codes may wait to be used; one more, and the oldest is of no use any more."""
_READS: Final = frozenset({"GET", "HEAD"})
_CLOSED: Final = ("/api", "/mcp")
_LOGIN: Final = "/api/login"
PAGE_HEADER: Final = "x-helmsman"
"""Only a page of our own can send it: elsewhere the browser would have to ask us first, and we do not answer that."""


@dataclass(frozen=True, slots=True)
class Code:
    """A one-time code and when it ends, in seconds since 1970."""

    value: str
    expires_at: float

    @property
    def path(self) -> str:
        return f"/login?code={self.value}"


class Logins:
    """Makes codes, takes them for cookies, and knows its cookies again."""

    def __init__(self, token: str, *, secure: bool, clock: Callable[[], float] = time.time) -> None:
        """`secure`: the server speaks TLS, and so must the cookie. `clock` gives seconds since 1970."""
        self._token = token.encode()
        self._key = hmac.digest(self._token, b"helmsman dashboard cookie", "sha256")
        self._secure = secure
        self._clock = clock
        self._codes: dict[bytes, float] = {}
        # Browsers keep one jar for all ports of a host: servers of other installations must not take each other's place.
        self._cookie_name = f"helmsman-{hashlib.sha256(self._key).hexdigest()[:8]}"

    # --- codes -------------------------------------------------------------------------------------------------------

    def new_code(self) -> Code:
        """A code for one login."""
        self._drop_old_codes()
        while len(self._codes) >= _MAX_CODES:
            del self._codes[next(iter(self._codes))]
        code = Code(secrets.token_urlsafe(24), self._clock() + CODE_SECONDS)
        self._codes[_digest(code.value)] = code.expires_at
        return code

    def redeem(self, code: str) -> bool:
        """Whether this is a code that was made here, is not too old and was not used; from now on it is."""
        self._drop_old_codes()
        given = _digest(code)
        # Every code is looked at, so that no answer comes sooner than another.
        matching = [known for known in self._codes if hmac.compare_digest(known, given)]
        for known in matching:
            del self._codes[known]
        return bool(matching)

    def is_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "surrogatepass"), self._token)

    def _drop_old_codes(self) -> None:
        now = self._clock()
        self._codes = {code: expires_at for code, expires_at in self._codes.items() if expires_at > now}

    # --- cookies -----------------------------------------------------------------------------------------------------

    def welcome(self, response: Response) -> None:
        """Give the cookie of a login along with this response."""
        self._set_cookie(response, self._signed(f"{int(self._clock()) + _COOKIE_SECONDS}.{secrets.token_hex(8)}"))

    def send_off(self, response: Response) -> None:
        """Take the cookie back."""
        self._set_cookie(response, "", seconds=0)

    def _set_cookie(self, response: Response, value: str, *, seconds: int = _COOKIE_SECONDS) -> None:
        response.set_cookie(
            self._cookie_name, value, max_age=seconds, path="/", secure=self._secure, httponly=True, samesite="strict"
        )

    def _signed(self, content: str) -> str:
        return f"{content}.{hmac.new(self._key, content.encode('ascii'), 'sha256').hexdigest()}"

    def _knows(self, headers: Headers) -> bool:
        try:
            cookies = SimpleCookie("; ".join(headers.getlist("cookie")))
            value = cookies[self._cookie_name].value
            content, _, _ = value.rpartition(".")
            if not hmac.compare_digest(self._signed(content).encode(), value.encode()):
                return False
            return int(content.partition(".")[0]) > self._clock()
        except (CookieError, KeyError, ValueError):
            return False

    # --- requests ----------------------------------------------------------------------------------------------------

    def verdict(self, scope: Scope, headers: Headers) -> Verdict:
        """Whether a request without the bearer token may pass. Host and Origin have been looked at."""
        path: str = scope["path"]
        is_read = scope["method"] in _READS
        if not any(path == closed or path.startswith(f"{closed}/") for closed in _CLOSED):
            return "admitted" if is_read else "unknown"  # the page itself, which knows nothing yet
        if path == _LOGIN and scope["method"] == "POST":
            return "admitted" if _is_from_page(scope, headers) else "cross_site"
        if not path.startswith("/api/") or not self._knows(headers):
            return "unknown"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "cross_site"
        return "admitted" if is_read or _is_from_page(scope, headers) else "cross_site"


def _is_from_page(scope: Scope, headers: Headers) -> bool:
    """Whether a page of this very server sent it. The Guard lets any port of our host through; here it must be ours."""
    origin = headers.get("origin")
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    return (
        media_type == "application/json"
        and PAGE_HEADER in headers
        and origin in (None, f"{scope['scheme']}://{headers.get('host', '')}")
        and headers.get("sec-fetch-site", "same-origin") == "same-origin"
    )


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()
