"""The page as the server sees it: a client that asks for JSON and waits until something has become true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2

SECONDS = 60
_LOOK_AGAIN = 0.02


@dataclass(frozen=True)
class Browser:
    """A client that is logged in."""

    http: httpx2.AsyncClient

    async def get(self, path: str, **params: Any) -> dict[str, Any]:
        answer = await self.http.get(path, params=params)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "no-store"
        content: dict[str, Any] = answer.json()
        return content

    async def post(self, path: str, expect: int = 200, **fields: Any) -> dict[str, Any]:
        answer = await self.http.post(path, json=fields)
        assert answer.status_code == expect, answer.text
        content: dict[str, Any] = answer.json()
        return content

    async def start(self, prompt: str, **fields: Any) -> str:
        """Start a session; its id."""
        started = await self.post("/api/sessions", 201, prompt=prompt, **fields)
        return str(started["sessionId"])

    async def until(self, path: str, is_so: Callable[[dict[str, Any]], Any], **params: Any) -> dict[str, Any]:
        """What is at the path, once that is as it should be."""
        with anyio.fail_after(SECONDS):
            while not is_so(content := await self.get(path, **params)):
                await anyio.sleep(_LOOK_AGAIN)
        return content

    async def settled(self, session_id: str) -> dict[str, Any]:
        """The session, once its turn has ended or it asks something."""
        return await self.until(f"/api/sessions/{session_id}", lambda session: session["status"] != "active")

    async def question(self) -> dict[str, Any]:
        """The one open question, once there is one."""
        found = await self.until("/api/questions", lambda content: content["questions"])
        (question,) = found["questions"]
        return dict(question)
