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
from helmsman.testing import script
from helmsman.testing.agent_tools import agent_calls
from helmsman.testing.api import Beat, ModelApi, SentEvent, joined, text_of
from helmsman.testing.model_request import ModelRequest
from helmsman.testing.wire import DEFAULT_USAGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from helmsman.model.events import Usage

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

    def beats(self, parts: Sequence[script.Part], request: ModelRequest) -> list[Beat]:
        usage = next((part.usage for part in parts if isinstance(part, script.Cost)), DEFAULT_USAGE)
        head = {"id": self.new_id("chatcmpl"), "created": 0, "model": request.model}
        # Some agents ask for a whole answer instead of a stream, for their own use.
        if not request.body.get("stream"):
            text = "".join(joined(part.chunks) for part in parts if isinstance(part, script.Say))
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            return [{**head, "object": "chat.completion", "choices": [choice], "usage": _usage(usage)}]
        head["object"] = "chat.completion.chunk"
        reason, calls = "stop", 0
        beats: list[Beat] = [_delta(head, {"role": "assistant", "content": ""})]
        for part in parts:
            match part:
                case script.Gate():
                    beats.append(part)
                case script.Cut() | script.Hang():
                    # What follows a cut is never sent.
                    return [*beats, part]
                case script.Incomplete():
                    reason = "length"
                case script.Say(chunks):
                    beats += _pieces(head, "content", chunks)
                case script.Think(chunks, raw):
                    beats += _pieces(head, "reasoning_content", chunks or (raw or "",))
                case script.ToolCall():
                    reason = "tool_calls"
                    for name, arguments in agent_calls(part, request):
                        function = {"name": name, "arguments": json.dumps(arguments)}
                        call = {"index": calls, "id": self.new_id("call"), "type": "function", "function": function}
                        beats.append(_delta(head, {"tool_calls": [call]}))
                        calls += 1
                case _:
                    pass  # a cost, or a limit that this API does not report
        end: list[Beat] = [
            _delta(head, {}, reason),
            # The counts come in a last chunk without choices.
            {**head, "choices": [], "usage": _usage(usage)},
            {"done": True},
        ]
        return [*beats, *end]

    def encoded(self, event: SentEvent) -> bytes:
        if event.get("object") == "chat.completion":
            return json.dumps(event).encode()
        # The protocol's own end mark, which is no JSON.
        return b"data: [DONE]\n\n" if "done" in event else f"data: {json.dumps(event)}\n\n".encode()


def _delta(head: SentEvent, delta: SentEvent, reason: str | None = None) -> SentEvent:
    return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def _pieces(head: SentEvent, name: str, chunks: Sequence[script.Chunk]) -> list[Beat]:
    return [_delta(head, {name: chunk}) if isinstance(chunk, str) else chunk for chunk in chunks]


def _usage(usage: Usage) -> SentEvent:
    return {
        "prompt_tokens": usage.input_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "completion_tokens": usage.output_tokens,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_output_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
