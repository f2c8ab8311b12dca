"""Login to the dashboard with a one-time code, then a cookie.

A code is issued to a client that has proved that it has the token (`web/proof.py`). It is short enough to type, and
valid for ten minutes and one login. It is never part of a URL that is sent or passed to a program: other users of the
machine can read the command line of a browser.

The cookie is its expiry time, signed with a key that lives as long as the process that has the port. Browsers send a
cookie to every port of its host, so a program that takes the port afterwards gets it from an open page, and must not be
able to use it. A browser that was remembered as a device (`web/devices.py`) gets the next cookie for a signature, without
a code; cookies of a revoked device are worthless. A browser may also send it with requests that other sites cause, so the
cookie alone permits no change: `is_from_page` checks that the page itself sent the request.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.files import replace_file
from helmsman.base.json_values import json_object
from helmsman.notices.devices import Device, DeviceBook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from socket import socket

    from starlette.datastructures import Headers
    from starlette.responses import Response
    from starlette.types import Scope

    from helmsman.base.processes import Process

CODE_SECONDS: Final = 600
_COOKIE_SECONDS: Final = 30 * 86400
_MAX_CODES: Final = 32
"""Codes that may be valid simultaneously. A further one invalidates the oldest."""
# Without letters that look like digits (I, L, O) or make words (U).
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Typed as read: O for zero, with or without hyphens.
_MISREAD: Final = str.maketrans("OIL", "011", " -\t")
_CODE_LENGTH: Final = 12
"""60 bits cannot be guessed in ten minutes. So attempts need no limit, which could lock out the user."""
PAGE_HEADER: Final = "x-helmsman"
"""Header that only our own page can send: for others the browser would ask first, and the server does not allow it."""
FRAGMENT: Final = "#login="
"""Page reads the code from the fragment of its URL, which browsers do not send."""


@dataclass(frozen=True, slots=True)
class Code:
    """One-time code and its expiry, in seconds since 1970."""

    value: str
    expires_at: float

    @property
    def path(self) -> str:
        return f"/{FRAGMENT}{self.value}"


class Logins:
    """Makes one-time codes, exchanges them for cookies, and verifies cookies."""

    def __init__(
        self,
        *,
        secure: bool,
        devices: DeviceBook | None = None,
        clock: Callable[[], float] = time.time,
        key: bytes | None = None,
        taken_back: Iterable[str] = (),
        on_taken_back: Callable[[str], None] = lambda _cookie: None,
    ) -> None:
        """Create a key for cookies, or take over an earlier hub's.

        Args:
            secure: The server uses TLS, so the cookie requires it.
            devices: Browsers that log in again without a code; none are remembered by default.
            clock: Returns seconds since 1970.
            key: Signing key of the cookies; a new one by default.
            taken_back: Cookies that were revoked by a logout.
            on_taken_back: Called with each further one.
        """
        self._key = key or secrets.token_bytes(32)
        self._secure = secure
        self.devices = devices
        self._clock = clock
        self._codes: dict[bytes, float] = {}
        self._taken_back = set(taken_back)
        self._on_taken_back = on_taken_back

    # --- codes -------------------------------------------------------------------------------------------------------

    def new_code(self) -> Code:
        """Create a code for one login."""
        self._drop_old_codes()
        while len(self._codes) >= _MAX_CODES:
            del self._codes[next(iter(self._codes))]
        letters = "".join(secrets.choice(_ALPHABET) for _ in range(_CODE_LENGTH))
        # In groups, which are easier to read out.
        value = "-".join(letters[at : at + 4] for at in range(0, _CODE_LENGTH, 4))
        code = Code(value, self._clock() + CODE_SECONDS)
        self._codes[_digest(code.value)] = code.expires_at
        return code

    def redeem(self, code: str) -> bool:
        """Return whether this is a code that was made here, is not too old and was not used; from now on it is."""
        self._drop_old_codes()
        given = _digest(code)
        # Every code is looked at, so that no answer comes sooner than another.
        matching = [known for known in self._codes if hmac.compare_digest(known, given)]
        for known in matching:
            del self._codes[known]
        return bool(matching)

    def is_waiting(self, code: Code) -> bool:
        """Return whether the code is unused and has not expired."""
        self._drop_old_codes()
        return _digest(code.value) in self._codes

    def _drop_old_codes(self) -> None:
        now = self._clock()
        self._codes = {code: expires_at for code, expires_at in self._codes.items() if expires_at > now}

    # --- cookies -----------------------------------------------------------------------------------------------------

    def log_in(self, scope: Scope, response: Response, device: Device | None = None) -> None:
        """Give the cookie of a login along with this response."""
        # Random, so that two logins have different cookies and each can be revoked.
        content = f"{int(self._clock()) + _COOKIE_SECONDS}.{secrets.token_hex(8)}"
        value = self._signed(content if device is None else f"{content}.{device.id}")
        self._set_cookie(scope, response, value, seconds=_COOKIE_SECONDS)

    def log_out(self, scope: Scope, headers: Headers, response: Response) -> None:
        """Take the cookie back; a copy of it is worth nothing from now on."""
        now = self._clock()
        # Expired cookies are refused anyway.
        self._taken_back = {value for value in self._taken_back if _ends_at(value) > now}
        for cookie in self._own_cookies(scope, headers):
            self._taken_back.add(cookie)
            self._on_taken_back(cookie)
        self._set_cookie(scope, response, "", seconds=0)

    def device_of(self, scope: Scope, headers: Headers) -> str | None:
        """Return the id of the device that the request comes from, if it was remembered."""
        return next(filter(None, map(_device_id, self._own_cookies(scope, headers))), None)

    def _set_cookie(self, scope: Scope, response: Response, value: str, *, seconds: int) -> None:
        response.set_cookie(
            _cookie_name(scope),
            value,
            max_age=seconds,
            path="/",
            secure=self._secure or scope["scheme"] == "https",  # a proxy on this machine may have the certificate
            httponly=True,
            # Strict: no other site can cause a request with this cookie.
            samesite="strict",
        )

    def _signed(self, content: str) -> str:
        return f"{content}.{hmac.new(self._key, content.encode('ascii'), 'sha256').hexdigest()}"

    def knows(self, scope: Scope, headers: Headers) -> bool:
        """Return whether the request comes from a browser that has logged in.

        The browser sends the cookies of all servers on this host. None of them may interfere, even one with our name
        and another value.
        """
        return bool(self._own_cookies(scope, headers))

    def _own_cookies(self, scope: Scope, headers: Headers) -> list[str]:
        pairs = (pair.partition("=") for line in headers.getlist("cookie") for pair in line.split(";"))
        values = [value.strip() for name, _, value in pairs if name.strip() == _cookie_name(scope)]
        return [value for value in values if self._is_good(value)]

    def _is_good(self, value: str) -> bool:
        content, _, _ = value.rpartition(".")
        # Compared in constant time, and before anything of the content is used.
        if not content.isascii() or not hmac.compare_digest(self._signed(content).encode(), value.encode()):
            return False
        device = _device_id(value)
        if device is not None and (self.devices is None or device not in {one.id for one in self.devices.all()}):
            return False
        return _ends_at(value) > self._clock() and value not in self._taken_back


def is_same_site(headers: Headers) -> bool:
    """Return whether no other site caused the request, as far as the browser says."""
    # Older browsers do not send the header.
    return headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")


def is_from_page(scope: Scope, headers: Headers) -> bool:
    """Return whether a page of this very server sent the request.

    The Guard accepts any port of our host; here it must be ours.
    """
    origin = headers.get("origin")
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    return (
        media_type == "application/json"
        and PAGE_HEADER in headers
        # `host` has the port, so a page of another port is refused.
        and origin in (None, f"{scope['scheme']}://{headers.get('host', '')}")
        and headers.get("sec-fetch-site", "same-origin") == "same-origin"
    )


def _ends_at(signed: str) -> int:
    return int(signed.partition(".")[0])


def _device_id(signed: str) -> str | None:
    _, _, *device, _ = signed.split(".")
    return device[0] if device else None


def _cookie_name(scope: Scope) -> str:
    """Browsers keep one jar for all ports of a host: servers must not take each other's place in it."""
    _, port = scope.get("server") or ("", None)
    return f"helmsman-{port or 0}"


def _digest(code: str) -> bytes:
    # Bounded, so that a huge code costs nothing.
    plain = code[:200].upper().translate(_MISREAD)
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).digest()


log = logging.getLogger(__name__)


# --- Logins that outlive a hub: the key of cookies, and cookies that were given back, in the state directory ----------

# They end with the process for which the hub listens. Browsers send a cookie to every port of its host, also to
# another program that takes the port after that process: the cookie must be worthless by then.


def stored_logins(state_dir: Path, listener: socket, holder: Process, *, secure: bool) -> Logins:
    """Return the logins of a listener. They are new if another process than `holder` had the port."""
    path = state_dir / f"http-logins-{listener.getsockname()[1]}.json"
    known = _read(path)
    # Another process had the port in between, and may have seen cookies.
    if not holder.started or known.get("holder") != list(holder):
        known = {"holder": list(holder), "key": secrets.token_hex(32), "takenBack": []}
        _write(path, known)

    def take_back(cookie: str) -> None:
        known["takenBack"].append(cookie)
        _write(path, known)

    key, taken_back = bytes.fromhex(known["key"]), tuple(known["takenBack"])
    return Logins(secure=secure, devices=DeviceBook(state_dir), key=key, taken_back=taken_back, on_taken_back=take_back)


def _read(path: Path) -> dict[str, Any]:
    try:
        return json_object(path.read_bytes()) or {}
    except OSError:
        return {}


def _write(path: Path, known: dict[str, Any]) -> None:
    try:
        replace_file(path, json.dumps(known))
    except OSError as error:
        log.warning("logins of the dashboard end with this hub: %s", error)
