"""What the app-server can do beyond running turns: upkeep of sessions, models, the account.

`AppServerEngine.extras` gives it. Each method is the boundary's verb (`agents.protocol.EngineExtras`) in terms of the bare
methods of `helmsman.agents.codex.wire.app_server`, with what differs between versions of Codex.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import anyio
import anyio.to_thread

from helmsman.agents.codex.engine.review_output import from_text, is_of, read_review
from helmsman.agents.codex.features import Feature
from helmsman.agents.codex.normalise import from_app_server
from helmsman.errors import EngineRefused
from helmsman.model.events import RateLimitsReported

if TYPE_CHECKING:
    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.codex.wire.app_server import AppServer
    from helmsman.agents.protocol import Account, Goal, Model, PastTurn, ReviewReport

log = logging.getLogger(__name__)

_FILE_ATTEMPTS: Final = 10
_FILE_PAUSE: Final = 0.1


class _Engine(Protocol):
    """What is needed of the engine itself."""

    @property
    def api(self) -> AppServer: ...

    @property
    def binary(self) -> CodexBinary: ...

    @property
    def rate_limits(self) -> RateLimitsReported | None: ...

    async def history(self, session_id: str) -> tuple[PastTurn, ...]: ...

    def forget(self, session_id: str) -> None: ...

    def hold_to_roots(self, session_id: str) -> None: ...


class AppServerExtras:
    """See `helmsman.agents.protocol.EngineExtras`."""

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine
        self._api = engine.api
        self._binary = engine.binary

    # --- upkeep ------------------------------------------------------------------------------------------------------

    async def roll_back(self, session_id: str, turns: int) -> None:
        if self._binary.can(Feature.REVERT):
            try:
                await self._api.revert_thread(session_id, (await self._engine.history(session_id))[-turns].id)
            except EngineRefused:  # the history of older sessions cannot be reverted
                if not self._binary.can(Feature.ROLLBACK):
                    raise
            else:
                return
        await self._api.roll_back_thread(session_id, turns)

    def check_compacting(self) -> None:
        self._api.check_compacting()

    async def compact(self, session_id: str) -> None:
        await self._api.compact_thread(session_id)

    async def rename(self, session_id: str, name: str) -> None:
        await self._api.name_thread(session_id, name)

    async def archive(self, session_id: str) -> None:
        await self._api.archive_thread(session_id)
        self._engine.forget(session_id)

    async def unarchive(self, session_id: str) -> None:
        await self._api.unarchive_thread(session_id)

    async def goal(self, session_id: str) -> Goal | None:
        return await self._api.goal(session_id)

    async def set_goal(self, session_id: str, objective: str | None) -> Goal | None:
        if objective is None:
            await self._api.clear_goal(session_id)
            return None
        self._engine.hold_to_roots(session_id)  # Codex sets to work on it at once
        return await self._api.set_goal(session_id, objective)

    # --- reviews -----------------------------------------------------------------------------------------------------

    async def review_report(self, session_id: str, shown: str | None) -> ReviewReport | None:
        """Codex tells of the end before it has written it down, so the file may still have to catch up."""
        path = (await self._api.read_thread(session_id)).path
        for _ in range(_FILE_ATTEMPTS if path is not None else 0):
            report = await anyio.to_thread.run_sync(read_review, Path(path or ""))
            if shown is None or (report is not None and is_of(report, shown)):
                return report
            await anyio.sleep(_FILE_PAUSE)
        return None if shown is None else from_text(shown)

    # --- about Codex -------------------------------------------------------------------------------------------------

    async def models(self) -> tuple[Model, ...]:
        return await self._api.models()

    async def account(self) -> Account:
        return await self._api.account()

    @property
    def known_rate_limits(self) -> RateLimitsReported | None:
        return self._engine.rate_limits

    async def rate_limits(self) -> RateLimitsReported | None:
        """Codex can be asked only with a ChatGPT login; what it reported while it worked is known in any case."""
        try:
            answer = await self._api.rate_limits()
        except EngineRefused as refused:
            log.debug("account/rateLimits/read: %s", refused)
            return self._engine.rate_limits
        event = from_app_server("account/rateLimits/updated", answer)
        return event if isinstance(event, RateLimitsReported) else self._engine.rate_limits
