"""Google's Gemini API, which Gemini CLI speaks.

The conversation is read as items of the Responses API, so that whatever a script asks of a request means the same for every
agent. Gemini CLI asks a small model which model to use, and wants JSON for an answer, in requests that are no streams.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.json_values import rows
from helmsman.testing.api import AgentEncoder, Beat, ModelApi, SentEvent
from helmsman.testing.model_request import ModelRequest
from helmsman.testing.script import Incomplete

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from helmsman.model.events import Usage
    from helmsman.testing import script

_ROUTED: Final = {
    "reasoning": "scripted",
    "next_speaker": "user",
    "model_choice": "flash",
    "complexity_reasoning": "scripted",
    "complexity_score": 1,
}
"""Whatever is asked aside, the answer is in here."""


class GeminiRequest(ModelRequest):
    """Request in Gemini's form."""

    names_conversation = False

    @cached_property
    def input(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(item for content in rows(self.body.get("contents")) for item in _items(content))

    @cached_property
    def instructions(self) -> str:
        return "\n".join(_texts(self.body.get("systemInstruction")))

    @cached_property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        groups = self.body.get("tools")
        found: list[Mapping[str, Any]] = []
        for group in groups if isinstance(groups, list) else ():
            for tool in group.get("functionDeclarations") or ():
                parameters = tool.get("parametersJsonSchema") or tool.get("parameters") or {}
                found.append({"type": "function", "name": tool.get("name"), "parameters": parameters})
        return tuple(found)


def _items(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    role = "assistant" if content.get("role") == "model" else "user"
    parts = [part for part in content.get("parts") or () if isinstance(part, dict)]
    said = [str(part["text"]) for part in parts if "text" in part and not part.get("thought")]
    if role == "assistant":
        yield {"type": "message", "role": role, "content": "".join(said)}
    else:  # text that Gemini CLI adds is a separate part before the user's
        yield from ({"type": "message", "role": role, "content": text} for text in said)
    for part in parts:
        if isinstance(called := part.get("functionCall"), dict):
            yield {
                "type": "function_call",
                "name": called.get("name"),
                "arguments": json.dumps(called.get("args")),
            }
        if isinstance(answered := part.get("functionResponse"), dict):
            yield {"type": "function_call_output", "output": json.dumps(answered.get("response"))}


def _texts(content: Any) -> Iterator[str]:
    parts = content.get("parts") if isinstance(content, dict) else None
    return (str(part["text"]) for part in parts or () if isinstance(part, dict) and "text" in part)


class GeminiApi(ModelApi):
    """See `helmsman.testing.api.ModelApi`."""

    def fits(self, path: str) -> bool:
        return path.endswith((":streamGenerateContent", ":generateContent"))

    def read(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> GeminiRequest:
        return GeminiRequest(headers, body)

    def is_aside(self, request: ModelRequest) -> bool:
        return not request.tools

    def encoder(self, request: ModelRequest, usage: Usage) -> AgentEncoder:
        # A request without tools is the router's, which wants JSON.
        return (_Routed if self.is_aside(request) else _Stream)(self, request, usage)

    def encoded(self, event: SentEvent) -> bytes:
        if event.get("aside"):
            # These answers are no streams.
            return json.dumps({key: value for key, value in event.items() if key != "aside"}).encode()
        return f"data: {json.dumps(event)}\n\n".encode()


class _Stream(AgentEncoder):
    def text(self, chunks: Sequence[script.Chunk], **mark: bool) -> Iterable[Beat]:
        return [_candidate([{"text": chunk, **mark}]) if isinstance(chunk, str) else chunk for chunk in chunks]

    def thought(self, chunks: Sequence[script.Chunk]) -> Iterable[Beat]:
        return self.text(chunks, thought=True)

    def call(self, name: str, arguments: Mapping[str, Any]) -> Iterable[Beat]:
        yield _candidate([{"functionCall": {"name": name, "args": arguments}}])

    def end(self, ending: script.Ending | None) -> Iterable[Beat]:
        yield _candidate([{"text": ""}], self.usage, "MAX_TOKENS" if isinstance(ending, Incomplete) else "STOP")


class _Routed(_Stream):
    def part(self, part: script.Part) -> Iterable[Beat]:
        return ()

    def end(self, ending: script.Ending | None) -> Iterable[Beat]:
        yield {"aside": True, **_candidate([{"text": json.dumps(_ROUTED)}], self.usage, "STOP")}


def _candidate(parts: list[SentEvent], usage: Usage | None = None, reason: str | None = None) -> SentEvent:
    candidate: SentEvent = {"index": 0, "content": {"role": "model", "parts": parts}}
    if reason is not None:
        candidate["finishReason"] = reason
    event: SentEvent = {"candidates": [candidate]}
    if usage is not None:
        event["usageMetadata"] = {
            "promptTokenCount": usage.input_tokens,
            "cachedContentTokenCount": usage.cached_input_tokens,
            "candidatesTokenCount": usage.output_tokens - usage.reasoning_output_tokens,
            "thoughtsTokenCount": usage.reasoning_output_tokens,
            "totalTokenCount": usage.input_tokens + usage.output_tokens,
        }
    return event
