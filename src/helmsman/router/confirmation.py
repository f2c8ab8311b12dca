"""Stateless tokens that confirm a plan.

With `require_confirmation`, a request returns its plan and a token; the same request with the token executes it. The
token contains an expiry and a keyed digest of the whole plan, so it is valid only for that plan, that key and that
time. It can be reused while valid, but work starts once, because the token is also its idempotency key.
"""

from __future__ import annotations

import hmac
import json
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from helmsman.errors import InvalidInput

LIFETIME: Final = timedelta(minutes=10)
_TOKEN: Final = re.compile(r"C-(?P<expiry>[0-9a-f]{8})(?P<digest>[0-9a-f]{64})")
"""Expiry in seconds since 1970, and the digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedPlan:
    """Everything that must not change between preview and execution."""

    action: str
    task_id: str | None = None
    instruction: str = ""
    mode: str | None = None
    directory: str | None = None
    max_cost_usd: float | None = None
    terms: tuple[tuple[str, str], ...] = ()
    """All other parameters, by name."""


def seal(plan: ConfirmedPlan, key: bytes, now: datetime) -> str:
    """Return a token for this plan, valid for `LIFETIME`."""
    expiry = f"{int((now + LIFETIME).timestamp()):08x}"
    return f"C-{expiry}{_digest(plan, key, expiry)}"


def check(token: str, plan: ConfirmedPlan, key: bytes, now: datetime) -> None:
    """Check that the token confirms this plan now.

    Raises:
        InvalidInput: The token is for another plan, has expired, or is malformed; the detail `reason` is `other_plan`,
            `expired` or `not_a_token`.
    """
    advice = "Send the request again without the token to see what would be done, and confirm that."
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise InvalidInput(f"This is not a confirmation token. {advice}", reason="not_a_token")
    if not hmac.compare_digest(found["digest"], _digest(plan, key, found["expiry"])):
        raise InvalidInput(f"This token does not confirm what the request would now do. {advice}", reason="other_plan")
    until = datetime.fromtimestamp(int(found["expiry"], 16), UTC)
    if now >= until:
        raise InvalidInput(
            f"This token was good until {until.isoformat(timespec='seconds')}. {advice}", reason="expired"
        )


def _digest(plan: ConfirmedPlan, key: bytes, expiry: str) -> str:
    content = f"helmsman confirmation {expiry} {json.dumps(asdict(plan), sort_keys=True)}"
    return hmac.new(key, content.encode("ascii"), "sha256").hexdigest()
