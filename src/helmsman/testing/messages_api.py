"""Anthropic's Messages API, used by Claude Code.

The conversation is converted to items of the Responses API, so that scripts treat all agents alike. Claude Code adds
reminders to user messages, and requests titles without tools.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.json_values import rows
from helmsman.testing import script
from helmsman.testing.api import AgentEncoder, Beat, ModelApi, SentEvent, text_of
from helmsman.testing.model_request import ModelRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from helmsman.model.events import Usage

_REMINDER: Final = re.compile(r"<system-reminder>.*?</system-reminder>\s*", re.DOTALL)
_STEERED: Final = re.compile(r"\AThe user sent a new message while you were working:\n(.*?)\n\n", re.DOTALL)


class MessagesRequest(ModelRequest):
    """Request of Claude Code."""

    @cached_property
    def thread_id(self) -> str:
        return self.headers.get("x-claude-code-session-id", "")

    @cached_property
    def input(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(item for message in rows(self.body.get("messages")) for item in _items(message))

    @cached_property
    def instructions(self) -> str:
        said = [text_of(self.body.get("system")), *(text_of(item["content"]) for item in self._system_messages())]
        return "\n\n".join(said)

    def _system_messages(self) -> Iterator[Mapping[str, Any]]:
        return (item for item in self.input if item.get("role") == "developer")


def _items(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    role, content = str(message.get("role")), message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if role == "system":
        said = text_of(content)
        steered = _STEERED.match(said)  # form of user messages sent during a turn
        if steered is not None:
            yield {"type": "message", "role": "user", "content": steered[1]}
        else:
            yield {"type": "message", "role": "developer", "content": said}
        return
    texts: list[str] = []
    for block in blocks if isinstance(blocks, list) else ():
        match block.get("type"):
            case "tool_result":
                output = text_of(block.get("content"))
                yield {"type": "function_call_output", "call_id": block.get("tool_use_id"), "output": output}
            case "tool_use":
                arguments = json.dumps(block.get("input"))
                yield {"type": "function_call", "name": block.get("name"), "arguments": arguments}
            case "thinking":
                yield {"type": "reasoning"}
            case "text":
                texts.append(_REMINDER.sub("", str(block.get("text", ""))))
            case "image":
                source = block.get("source") or {}
                data = f"data:{source.get('media_type')};base64,{source.get('data')}"
                yield {"type": "message", "role": role, "content": [{"type": "input_image", "image_url": data}]}
            case _:
                pass
    for text in texts:
        if text.strip():
            yield {"type": "message", "role": role, "content": text}


class MessagesApi(ModelApi):
    """See `helmsman.testing.api.ModelApi`."""

    def fits(self, path: str) -> bool:
        return path == "/v1/messages"

    def read(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> MessagesRequest:
        return MessagesRequest(headers, body)

    def is_aside(self, request: ModelRequest) -> bool:
        return not request.tools

    def error(self, failure: script.Fail) -> Mapping[str, Any]:
        return {"type": "error", "error": {"type": "api_error", **failure.error}}

    def encoder(self, request: ModelRequest, usage: Usage) -> AgentEncoder:
        return _Stream(self, request, usage)


class _Stream(AgentEncoder):
    _blocks = 0

    def begin(self) -> Iterable[Beat]:
        message = {"id": self.new_id("msg"), "type": "message", "role": "assistant", "model": self.request.model}
        yield {"type": "message_start", "message": {**message, "content": [], "usage": _usage(self.usage)}}

    def text(self, chunks: Sequence[script.Chunk]) -> Iterable[Beat]:
        return self._block({"type": "text", "text": ""}, _deltas("text", chunks))

    def thought(self, chunks: Sequence[script.Chunk]) -> Iterable[Beat]:
        signature: Beat = {"type": "signature_delta", "signature": "scripted"}
        empty = {"type": "thinking", "thinking": "", "signature": ""}
        return self._block(empty, [*_deltas("thinking", chunks), signature])

    def call(self, name: str, arguments: Mapping[str, Any]) -> Iterable[Beat]:
        block = {"type": "tool_use", "id": self.new_id("toolu"), "name": name, "input": {}}
        return self._block(block, [{"type": "input_json_delta", "partial_json": json.dumps(arguments)}])

    def end(self, ending: script.Ending | None) -> Iterable[Beat]:
        if isinstance(ending, script.ResponseFailed):
            yield {"type": "error", "error": {"type": ending.code, "message": ending.message}}
            return
        reason = "max_tokens" if ending is not None else "tool_use" if self.has_called else "end_turn"
        stopped = {"stop_reason": reason, "stop_sequence": None}
        yield {"type": "message_delta", "delta": stopped, "usage": {"output_tokens": self.usage.output_tokens}}
        yield {"type": "message_stop"}

    def _block(self, block: SentEvent, deltas: Sequence[Beat]) -> Iterable[Beat]:
        where = {"index": self._blocks}
        self._blocks += 1
        yield {"type": "content_block_start", **where, "content_block": block}
        for delta in deltas:
            yield {"type": "content_block_delta", **where, "delta": delta} if isinstance(delta, dict) else delta
        yield {"type": "content_block_stop", **where}


def _deltas(kind: str, chunks: Sequence[script.Chunk]) -> list[Beat]:
    return [{"type": f"{kind}_delta", kind: chunk} if isinstance(chunk, str) else chunk for chunk in chunks]


def _usage(usage: Usage) -> SentEvent:
    # Anthropic counts cached tokens beside the input tokens, not among them.
    return {
        "input_tokens": usage.input_tokens - usage.cached_input_tokens,
        "cache_read_input_tokens": usage.cached_input_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.output_tokens,
    }
