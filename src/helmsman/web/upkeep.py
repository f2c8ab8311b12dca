"""Routes of a session's menu: rename, hand over, archive, fork, forget turns, review, compact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from helmsman.base.json_values import present
from helmsman.shapes.contract import Input, NothingInput
from helmsman.web.acting import state_of
from helmsman.web.json_http import body, session_id

if TYPE_CHECKING:
    from starlette.requests import Request

    from helmsman.service import HelmsmanService
    from helmsman.web.live import Live


class NameBody(Input):
    name: str


class HandBody(Input):
    to: str | None = None


class ForkBody(Input):
    message: str | None = None
    from_turn: int | None = Field(None, ge=1)


class RollBackBody(Input):
    turns: int = Field(1, ge=1)


class ReviewBody(Input):
    instructions: str | None = None


class UpkeepRoutes:
    """Endpoints of the session menu.

    An action that an agent does not support is refused with a list of agents that do (409 unsupported).
    """

    def __init__(self, helm: HelmsmanService, live: Live) -> None:
        self._helm = helm
        self._live = live

    async def rename(self, request: Request) -> dict[str, Any]:
        given = await body(request, NameBody)
        session = await self._helm.extras.upkeep.rename(session_id(request), given.name)
        return {"sessionId": session.id, "name": session.state.name}

    async def hand(self, request: Request) -> dict[str, Any]:
        given = await body(request, HandBody)
        session = await self._helm.hand(session_id(request), given.to)
        self._live.mark(session.id, ["details"])
        owner = session.opened_by
        return present({"sessionId": session.id, "client": None if owner is None else owner.title})

    async def archive(self, request: Request) -> dict[str, Any]:
        await body(request, NothingInput)
        await self._helm.extras.upkeep.archive(session_id(request))
        return {"sessionId": session_id(request)}

    async def unarchive(self, request: Request) -> dict[str, Any]:
        await body(request, NothingInput)
        return state_of(await self._helm.extras.upkeep.unarchive(session_id(request)))

    async def fork(self, request: Request) -> dict[str, Any]:
        given = await body(request, ForkBody)
        message = (given.message or "").strip() or None
        return state_of(await self._helm.fork(session_id(request), message, from_turn=given.from_turn))

    async def roll_back(self, request: Request) -> dict[str, Any]:
        given = await body(request, RollBackBody)
        return state_of(await self._helm.extras.upkeep.roll_back(session_id(request), given.turns))

    async def review(self, request: Request) -> dict[str, Any]:
        given = await body(request, ReviewBody)
        instructions = (given.instructions or "").strip() or None
        begun = await self._helm.extras.reviews.start(session_id=session_id(request), instructions=instructions)
        return {"nothing": begun.nothing} if begun.session is None else state_of(begun.session)

    async def compact(self, request: Request) -> dict[str, Any]:
        await body(request, NothingInput)
        return state_of(await self._helm.extras.upkeep.compact(session_id(request)))
