"""The dashboard's API for the dashboard of another machine: the same routes, asked by a call instead of by HTTP.

Whoever asks has come through the hub's own door, so nobody has to log in, and the routes for that are left out.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from starlette.routing import Router

from helmsman.web.api import Dashboard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Message

    from helmsman.service import HelmsmanService

_PATIENCE_SECONDS: Final = 25.0
"""A call that waits for changes is answered by then."""
_NOT_FOUND: Final = 404


class PageCalls:
    """Answers requests to one Helmsman's dashboard."""

    def __init__(self, helm: HelmsmanService) -> None:
        dashboard = Dashboard(helm)
        self._live = dashboard.live
        self._router = Router(dashboard.routes())

    async def answer(self, method: str, path: str, query: str, body: str) -> tuple[int, Any]:
        """The status, and what is JSON."""
        status, content = _NOT_FOUND, bytearray()
        incoming: list[Message] = [{"type": "http.request", "body": body.encode("utf-8", "surrogatepass")}]

        async def receive() -> Message:
            return incoming.pop() if incoming else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            content.extend(message.get("body", b""))

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode("ascii", "replace"),
            "headers": [],
        }
        await self._router(scope, receive, send)
        return status, json.loads(content or b"{}")

    async def changes(self, last_event_id: str | None) -> Mapping[str, Any]:
        """What has changed since, or `resumed: false`: anything may have."""
        return await self._live.changes(last_event_id, _PATIENCE_SECONDS)
