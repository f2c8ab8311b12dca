"""Dashboard API for the dashboard of another machine: the same routes, by call instead of HTTP.

The caller is connected through the hub, so the routes for login are left out.
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
"""Timeout of a call that waits for changes."""
_NOT_FOUND: Final = 404


class PageCalls:
    """Answers requests to one Helmsman's dashboard."""

    def __init__(self, helm: HelmsmanService) -> None:
        dashboard = Dashboard(helm)
        self._live = dashboard.live
        self._router = Router(dashboard.routes())

    async def answer(self, method: str, path: str, query: str, body: str) -> tuple[int, Any]:
        """Return status and JSON content."""
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
        """Return the changes since an event, or `resumed: false` if they are unknown."""
        return await self._live.changes(last_event_id, _PATIENCE_SECONDS)
