"""The token that confirms a plan: what was shown is what is done, soon, or nothing is.

With `require_confirmation` a request is answered with what would be done and a token; the same request with the token does
it. The token keeps no state anywhere: it is an expiry and a keyed digest over the whole plan, so it fits that plan alone,
by that key alone, until then. It may be used again while it lasts: it says that the plan was agreed to, and starting
twice is what idempotency keys are for.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import struct
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from helmsman.errors import InvalidInput

LIFETIME: Final = timedelta(minutes=10)
_PREFIX: Final = "C-"
_EXPIRY: Final = struct.Struct(">Q")
_LONGEST_TOKEN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedPlan:
    """Everything that must not change between showing and doing."""

    action: str
    task_id: str | None = None
    instruction: str = ""
    mode: str | None = None
    directory: str | None = None
    max_cost_usd: float | None = None


def seal(plan: ConfirmedPlan, key: bytes, now: datetime, lifetime: timedelta = LIFETIME) -> str:
    """A token that confirms this plan until `lifetime` from now."""
    expiry = _EXPIRY.pack(int((now + lifetime).timestamp()))
    return _PREFIX + base64.urlsafe_b64encode(expiry + _digest(plan, key, expiry)).decode("ascii").rstrip("=")


def check(token: str, plan: ConfirmedPlan, key: bytes, now: datetime) -> None:
    """Return when the token confirms this plan now.

    Raises:
        InvalidInput: It is for another plan, has expired, or is no token of ours; the detail
            `reason` is `other_plan`, `expired` or `not_a_token`.
    """
    advice = "Send the request again without the token to see what would be done, and confirm that."
    raw = _decode(token)
    if raw is None:
        raise InvalidInput(f"This is not a confirmation token. {advice}", reason="not_a_token")
    expiry, digest = raw[: _EXPIRY.size], raw[_EXPIRY.size :]
    if not hmac.compare_digest(digest, _digest(plan, key, expiry)):
        raise InvalidInput(f"This token does not confirm what the request would now do. {advice}", reason="other_plan")
    if now.timestamp() >= _EXPIRY.unpack(expiry)[0]:
        until = datetime.fromtimestamp(_EXPIRY.unpack(expiry)[0], UTC).isoformat(timespec="seconds")
        raise InvalidInput(f"This token was good until {until}. {advice}", reason="expired")


def _digest(plan: ConfirmedPlan, key: bytes, expiry: bytes) -> bytes:
    content = json.dumps(asdict(plan), sort_keys=True).encode("utf-8")
    return hmac.new(key, b"helmsman confirmation\0" + expiry + content, hashlib.sha256).digest()


def _decode(token: str) -> bytes | None:
    if not token.startswith(_PREFIX) or len(token) > _LONGEST_TOKEN or not token.isascii():
        return None
    body = token.removeprefix(_PREFIX)
    try:
        raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if len(raw) == _EXPIRY.size + hashlib.sha256().digest_size else None
