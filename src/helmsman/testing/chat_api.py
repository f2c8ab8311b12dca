"""OpenAI's chat completions API, used by OpenCode, Qwen Code and Copilot with custom models.

The conversation is converted to items of the Responses API, so that scripts treat all agents alike. A request has no
conversation id: the number of model messages since the last user message selects the step.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.json_values import rows
from helmsman.testing.api import AgentEncoder, Beat, ModelApi, SentEvent, joined, text_of
from helmsman.testing.model_request import ModelRequest
from helmsman.testing.script import Incomplete

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from helmsman.model.events import Usage
    from helmsman.testing import script

# text that agents add to the user's prompt
_REMINDER: Final = re.compile(r"<(system[-_]reminder|[a-z]+_[a-z_]+)>.*?</\1>\s*", re.DOTALL)


class ChatRequest(ModelRequest):
    """Request in the form of chat completions."""

    names_conversation = False

    @cached_property
    def input(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(item for message in rows(self.body.get("messages")) for item in _items(message))

    @cached_property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        listed = self.body.get("tools")
        named = (tool.get("function") for tool in listed if isinstance(tool, dict)) if isinstance(listed, list) else ()
        return tuple({"type": "function", **tool} for tool in named if isinstance(tool, dict))


def _items(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    role, text = str(message.get("role")), text_of(message.get("content"))
    if role == "tool":
        yield {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": text}
    elif role == "assistant":
        yield {"type": "message", "role": role, "content": text}
        for called in message.get("tool_calls") or ():
            function = called.get("function") or {}
            yield {"type": "function_call", "name": function.get("name"), "arguments": function.get("arguments")}
    else:
        # Agents wrap what the user has said in reminders, which would not match a script.
        said = _REMINDER.sub("", text).strip() if role == "user" else text
        yield {"type": "message", "role": "developer" if role == "system" else role, "content": said}


class ChatApi(ModelApi):
    """See `helmsman.testing.api.ModelApi`."""

    def fits(self, path: str) -> bool:
        return path == "/v1/chat/completions"

    def read(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> ChatRequest:
        return ChatRequest(headers, body)

    def is_aside(self, request: ModelRequest) -> bool:
        return not request.tools  # requests for titles and summaries have no tools

    def encoder(self, request: ModelRequest, usage: Usage) -> AgentEncoder:
        return (_Stream if request.body.get("stream") else _Whole)(self, request, usage)

    def encoded(self, event: SentEvent) -> bytes:
        if event.get("object") == "chat.completion":
            return json.dumps(event).encode()
        # The protocol's own end mark, which is no JSON.
        return b"data: [DONE]\n\n" if "done" in event else f"data: {json.dumps(event)}\n\n".encode()


class _Whole(AgentEncoder):
    """Encoder of an answer that is no stream, which some agents request for their own use."""

    _text = ""

    def text(self, chunks: Sequence[script.Chunk]) -> Iterable[Beat]:
        self._text += joined(chunks)
        return ()

    def thought(self, chunks: Sequence[script.Chunk]) -> Iterable[Beat]:
        return ()

    def call(self, name: str, arguments: Mapping[str, Any]) -> Iterable[Beat]:
        return ()

    def end(self, ending: script.Ending | None) -> Iterable[Beat]:
        choice = {"index": 0, "message": {"role": "assistant", "content": self._text}, "finish_reason": "stop"}
        head = {"id": self.new_id("chatcmpl"), "created": 0, "model": self.request.model, "object": "chat.completion"}
        yield {**head, "choices": [choice], "usage": _usage(self.usage)}


class _Stream(AgentEncoder):
    def begin(self) -> Iterable[Beat]:
        head = {"id": self.new_id("chatcmpl"), "created": 0, "model": self.request.model}
        self._head: SentEvent = {**head, "object": "chat.completion.chunk"}
        self._calls = 0
        yield self._delta({"role": "assistant", "content": ""})

    def text(self, chunks: Sequence[script.Chunk], name: str = "content") -> Iterable[Beat]:
        return [self._delta({name: chunk}) if isinstance(chunk, str) else chunk for chunk in chunks]

    def thought(self, chunks: Sequence[script.Chunk]) -> Iterable[Beat]:
        return self.text(chunks, "reasoning_content")

    def call(self, name: str, arguments: Mapping[str, Any]) -> Iterable[Beat]:
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"index": self._calls, "id": self.new_id("call"), "type": "function", "function": function}
        self._calls += 1
        yield self._delta({"tool_calls": [call]})

    def end(self, ending: script.Ending | None) -> Iterable[Beat]:
        is_cut_off = isinstance(ending, Incomplete)
        yield self._delta({}, "length" if is_cut_off else "tool_calls" if self.has_called else "stop")
        # The counts come in a last chunk without choices.
        yield {**self._head, "choices": [], "usage": _usage(self.usage)}
        yield {"done": True}

    def _delta(self, delta: SentEvent, reason: str | None = None) -> SentEvent:
        return {**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def _usage(usage: Usage) -> SentEvent:
    return {
        "prompt_tokens": usage.input_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "completion_tokens": usage.output_tokens,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_output_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
