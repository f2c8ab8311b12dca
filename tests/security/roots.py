"""What the tests of allowed roots have in common."""

from __future__ import annotations

from collections.abc import Awaitable

from helmsman.errors import EngineRefused, InvalidInput
from helmsman.sessions.session import Session

SECONDS = 60


async def finished(session: Session) -> Session:
    assert await session.wait(until="end", timeout=SECONDS)
    return session


async def is_refused(starting: Awaitable[Session]) -> bool:
    try:
        await finished(await starting)
    except (InvalidInput, EngineRefused) as error:
        # An older Codex refuses a permission profile that it does not know; and one that would follow any repository's
        # rules is not started there at all.
        return any(reason in error.message for reason in ("the allowed roots", "permission", "outside the sandbox"))
    return False
