"""Responses API of Codex: the parts of a step become server-sent events.

The result is a list of beats that the server plays in order: an event to send, a gate to wait at, or the end of the
connection. All beats are computed before the first byte is sent, so a script that cannot be played gets a clear error
instead of half a stream. `dialect` knows which tools a Codex offers and how they are called.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from helmsman.model.events import Usage
from helmsman.testing import script
from helmsman.testing.api import Beat, ModelApi, SentEvent, joined
from helmsman.testing.dialect import Dialect
from helmsman.testing.model_request import ModelRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DEFAULT_USAGE: Final = Usage(input_tokens=100, cached_input_tokens=20, output_tokens=10, reasoning_output_tokens=3)
"""Usage of a response whose step does not set it."""


class ResponsesApi(ModelApi):
    """See `helmsman.testing.api.ModelApi`."""

    def fits(self, path: str) -> bool:
        return path == "/v1/responses"

    def read(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
        return ModelRequest(headers, body)

    def headers(self, parts: Sequence[script.Part]) -> Mapping[str, str]:
        """Return the response headers, which carry the account's rate limits."""
        listed = dict(super().headers(parts))
        for limit in (part.rate_limit for part in parts if isinstance(part, script.Limit)):
            values = {
                "used-percent": limit.used_percent,
                "window-minutes": limit.window_minutes,
                "reset-at": limit.resets_at,
            }
            listed |= {f"x-codex-{limit.name}-{key}": str(value) for key, value in values.items() if value is not None}
        return listed

    def beats(self, parts: Sequence[script.Part], request: ModelRequest) -> list[Beat]:
        dialect = Dialect(request)
        response = {"id": self.new_id("resp")}
        usage = next((part.usage for part in parts if isinstance(part, script.Cost)), DEFAULT_USAGE)
        # Without the end, Codex takes the stream for broken.
        ending: list[Beat] = [{"type": "response.completed", "response": response | {"usage": _usage(usage)}}]
        beats: list[Beat] = [{"type": "response.created", "response": response}]
        position = itertools.count()
        for part in parts:
            match part:
                case script.Gate():
                    beats.append(part)
                case script.Cut() | script.Hang():
                    ending = [part]
                case script.ResponseFailed(code, message):
                    error = {"code": code, "message": message}
                    ending = [{"type": "response.failed", "response": response | {"error": error}}]
                case script.Incomplete(reason):
                    details = {"incomplete_details": {"reason": reason}}
                    ending = [{"type": "response.incomplete", "response": response | details}]
                case script.Say():
                    beats += self._message(part, next(position))
                case script.Think():
                    beats += self._reasoning(part, next(position))
                case script.Search(query):
                    action = {"type": "search", "query": query}
                    search = {"type": "web_search_call", "id": self.new_id("ws"), "status": "completed"}
                    beats += _whole(search | {"action": action}, next(position))
                case script.ToolCall():
                    item = dialect.item(part, self.new_id("call"))
                    beats += _whole({"id": self.new_id("item")} | item, next(position))
                case _:
                    pass  # a cost or a limit, which go into the end and the headers of the response
        return beats + ending

    def _message(self, part: script.Say, index: int) -> Iterator[Beat]:
        item: SentEvent = {"type": "message", "role": "assistant", "id": self.new_id("msg")}
        if part.phase is not None:
            item["phase"] = part.phase
        where = {"item_id": item["id"], "output_index": index, "content_index": 0}
        yield _added(item | {"content": []}, index)
        yield from _deltas(part.chunks, {"type": "response.output_text.delta", **where})
        yield _done(item | {"content": [{"type": "output_text", "text": joined(part.chunks)}]}, index)

    def _reasoning(self, part: script.Think, index: int) -> Iterator[Beat]:
        item: SentEvent = {"type": "reasoning", "id": self.new_id("rs"), "summary": []}
        where = {"item_id": item["id"], "output_index": index}
        yield _added(item, index)
        if part.chunks:
            empty = {"type": "summary_text", "text": ""}
            yield {"type": "response.reasoning_summary_part.added", "summary_index": 0, "part": empty, **where}
            yield from _deltas(
                part.chunks, {"type": "response.reasoning_summary_text.delta", "summary_index": 0, **where}
            )
            item = item | {"summary": [{"type": "summary_text", "text": joined(part.chunks)}]}
        if part.raw is not None:
            yield {"type": "response.reasoning_text.delta", "content_index": 0, "delta": part.raw, **where}
            item = item | {"content": [{"type": "reasoning_text", "text": part.raw}]}
        yield _done(item | {"encrypted_content": "scripted"}, index)


def _deltas(chunks: Sequence[script.Chunk], template: SentEvent) -> Iterator[Beat]:
    for chunk in chunks:
        yield template | {"delta": chunk} if isinstance(chunk, str) else chunk


def _whole(item: SentEvent, index: int) -> Iterator[Beat]:
    yield _added(item, index)
    yield _done(item, index)


def _added(item: SentEvent, index: int) -> SentEvent:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def _done(item: SentEvent, index: int) -> SentEvent:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def _usage(usage: Usage) -> SentEvent:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_output_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
