"""A scripted model for Claude Code: answers Anthropic's Messages API with tool calls and sentences, one after the other."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from helmsman.testing.local_server import serve

Story: TypeAlias = "Generator[tuple[str, dict[str, Any]], str, str]"
"""Yields tool calls (name, arguments), is sent what each gave, and returns the last sentence."""


@asynccontextmanager
async def claude_model(story: Story) -> AsyncIterator[str]:
    """Run a model that plays a story for clients with tools; others get one word. Yield its address."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        asked: dict[str, Any] = json.loads(await request.body() or b"{}")
        if not request.url.path.endswith("/messages"):
            response: Response = JSONResponse({"input_tokens": 1})
        elif not asked.get("tools"):
            response = _streamed({"type": "text", "text": "ok"})
        else:
            response = _streamed(_next(story, _tool_result(asked)))
        await response(scope, receive, send)

    async with serve(app) as address:
        yield address


def _next(story: Story, given: str | None) -> dict[str, Any]:
    try:
        name, arguments = next(story) if given is None else story.send(given)
    except StopIteration as end:
        return {"type": "text", "text": end.value}
    return {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex}", "name": name, "input": arguments}


def _tool_result(asked: dict[str, Any]) -> str | None:
    """What the last tool gave; None where the conversation begins."""
    content = asked["messages"][-1]["content"]
    for block in content if isinstance(content, list) else ():
        if block.get("type") == "tool_result":
            given = block["content"]
            return given if isinstance(given, str) else "".join(part.get("text", "") for part in given)
    return None


def _streamed(block: dict[str, Any]) -> Response:
    usage = {"input_tokens": 1, "output_tokens": 1}
    message_id = f"msg_{uuid.uuid4().hex}"
    whole = {"id": message_id, "type": "message", "role": "assistant", "model": "claude-opus-5-5", "content": []}
    if block["type"] == "text":
        empty, delta, reason = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}, "end_turn"
    else:
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        empty, reason = {**block, "input": {}}, "tool_use"
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**whole, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]
    text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return Response(text, media_type="text/event-stream")
