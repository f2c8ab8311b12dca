"""The token that confirms a plan: what was shown is what is done, soon, or nothing is.

With `require_confirmation` a request is answered with what would be done and a token; the same request with the token does
it. The token keeps no state anywhere: it is an expiry and a keyed digest over the whole plan, so it fits that plan alone,
by that key alone, until then. It may be used again while it lasts, but work that was agreed to is begun once: the token
is its idempotency key.
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
"""The expiry in seconds since 1970, and the digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedPlan:
    """Everything that must not change between showing and doing."""

    action: str
    task_id: str | None = None
    instruction: str = ""
    mode: str | None = None
    directory: str | None = None
    max_cost_usd: float | None = None
    terms: tuple[tuple[str, str], ...] = ()
    """Everything else that was asked for, by its name."""


def seal(plan: ConfirmedPlan, key: bytes, now: datetime) -> str:
    """A token that confirms this plan from now on, for as long as `LIFETIME`."""
    expiry = f"{int((now + LIFETIME).timestamp()):08x}"
    return f"C-{expiry}{_digest(plan, key, expiry)}"


def check(token: str, plan: ConfirmedPlan, key: bytes, now: datetime) -> None:
    """Return when the token confirms this plan now.

    Raises:
        InvalidInput: It is for another plan, has expired, or is no token of ours; the detail
            `reason` is `other_plan`, `expired` or `not_a_token`.
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
