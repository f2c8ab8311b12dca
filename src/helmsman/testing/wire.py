"""Responses API of Codex. `dialect` knows which tools a Codex offers and how they are called."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from helmsman.testing import script
from helmsman.testing.api import Beat, Encoder, ModelApi, SentEvent, joined
from helmsman.testing.dialect import Dialect
from helmsman.testing.model_request import ModelRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from helmsman.model.events import Usage


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

    def encoder(self, request: ModelRequest, usage: Usage) -> Encoder:
        return _Stream(self, request, usage)


class _Stream(Encoder):
    def begin(self) -> Iterable[Beat]:
        self._dialect = Dialect(self.request)
        self._response = {"id": self.new_id("resp")}
        self._position = itertools.count()
        yield {"type": "response.created", "response": self._response}

    def part(self, part: script.Part) -> Iterable[Beat]:
        match part:
            case script.Say():
                yield from self._message(part, next(self._position))
            case script.Think():
                yield from self._reasoning(part, next(self._position))
            case script.Search(query):
                action = {"type": "search", "query": query}
                search = {"type": "web_search_call", "id": self.new_id("ws"), "status": "completed"}
                yield from _whole(search | {"action": action}, next(self._position))
            case script.ToolCall():
                item = self._dialect.item(part, self.new_id("call"))
                yield from _whole({"id": self.new_id("item")} | item, next(self._position))
            case _:
                pass  # a cost or a limit, which go into the end and the headers of the response

    def end(self, ending: script.Ending | None) -> Iterable[Beat]:
        # Without the end, Codex takes the stream for broken.
        kind, more = "completed", {"usage": _usage(self.usage)}
        match ending:
            case script.ResponseFailed(code, message):
                kind, more = "failed", {"error": {"code": code, "message": message}}
            case script.Incomplete(reason):
                kind, more = "incomplete", {"incomplete_details": {"reason": reason}}
            case _:
                pass
        yield {"type": f"response.{kind}", "response": self._response | more}

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
