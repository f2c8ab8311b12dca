"""Routes of a rewind: preview and execution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helmsman.capabilities.rewinding import RewindPart
from helmsman.shapes.contract import Input
from helmsman.shapes.rewinds import rewind_as_dict, rewind_in_words
from helmsman.shapes.safe_values import safe
from helmsman.web.json_http import body, session_id

if TYPE_CHECKING:
    from starlette.requests import Request

    from helmsman.capabilities.rewinding import Rewind
    from helmsman.service import HelmsmanService


class ShownRewindInput(Input):
    to: int | str | None = None
    part: RewindPart | None = None
    undo: bool = False


class DoneRewindInput(ShownRewindInput):
    digest: str


class RewindRoutes:
    """Shows rewinds, and does them."""

    def __init__(self, helm: HelmsmanService) -> None:
        self._helm = helm

    async def show(self, request: Request) -> dict[str, Any]:
        given = ShownRewindInput.read(dict(request.query_params), whole="query")
        preview = await self._helm.extras.rewinding.preview(
            session_id(request), to=given.to, part=given.part, undo=given.undo
        )
        return _told(preview, done=False)

    async def do(self, request: Request) -> dict[str, Any]:
        given = await body(request, DoneRewindInput)
        done = await self._helm.extras.rewinding.rewind(
            session_id(request), digest=given.digest, to=given.to, part=given.part, undo=given.undo
        )
        return _told(done, done=True)


def _told(rewind: Rewind, *, done: bool) -> dict[str, Any]:
    shown = rewind_as_dict(rewind, done=done)
    told: dict[str, Any] = safe({**shown, "lines": rewind_in_words(shown)})
    told.pop("diff", None)
    return told
