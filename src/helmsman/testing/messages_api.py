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
from helmsman.testing.api import Beat, ModelApi, SentEvent, text_of
from helmsman.testing.dialect import NotOffered
from helmsman.testing.model_request import ModelRequest
from helmsman.testing.wire import DEFAULT_USAGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from helmsman.model.events import Usage

_REMINDER: Final = re.compile(r"<system-reminder>.*?</system-reminder>\s*", re.DOTALL)
_STEERED: Final = re.compile(r"\AThe user sent a new message while you were working:\n(.*?)\n\n", re.DOTALL)
_DIRECTORY: Final = re.compile(r"Primary working directory: ([^\n]+)")


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

    @cached_property
    def directory(self) -> str:
        """Agent's working directory, from its instructions: its tools take absolute paths."""
        found = _DIRECTORY.search(self.instructions)
        return "/" if found is None else found[1].strip()

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

    def beats(self, parts: Sequence[script.Part], request: ModelRequest) -> list[Beat]:
        usage = next((part.usage for part in parts if isinstance(part, script.Cost)), DEFAULT_USAGE)
        message = {"id": self.new_id("msg"), "type": "message", "role": "assistant", "model": request.model}
        beats: list[Beat] = [{"type": "message_start", "message": {**message, "content": [], "usage": _usage(usage)}}]
        reason, ending = "end_turn", list[Beat]()
        position = 0
        for part in parts:
            blocks: list[tuple[SentEvent, list[Beat]]] = []
            match part:
                case script.Gate():
                    beats.append(part)
                case script.Cut() | script.Hang():
                    return [*beats, part]
                case script.ResponseFailed(code, said):
                    ending = [{"type": "error", "error": {"type": code, "message": said}}]
                case script.Incomplete():
                    reason = "max_tokens"
                case script.Say(chunks):
                    blocks = [({"type": "text", "text": ""}, _deltas("text", chunks))]
                case script.Think(chunks, raw):
                    thought = chunks or (raw or "",)
                    signature: Beat = {"type": "signature_delta", "signature": "scripted"}
                    empty = {"type": "thinking", "thinking": "", "signature": ""}
                    blocks = [(empty, [*_deltas("thinking", thought), signature])]
                case script.ToolCall():
                    reason = "tool_use"
                    blocks = [self._tool_use(*called) for called in _calls(part, request)]
                case _:
                    pass  # a cost, or a limit that this API does not report
            for block, deltas in blocks:
                beats += _block(position, block, deltas)
                position += 1
        stopped = {"stop_reason": reason, "stop_sequence": None}
        end: list[Beat] = [
            {"type": "message_delta", "delta": stopped, "usage": {"output_tokens": usage.output_tokens}},
            {"type": "message_stop"},
        ]
        return [*beats, *(ending or end)]

    def _tool_use(self, name: str, arguments: Mapping[str, Any]) -> tuple[SentEvent, list[Beat]]:
        block = {"type": "tool_use", "id": self.new_id("toolu"), "name": name, "input": {}}
        return block, [{"type": "input_json_delta", "partial_json": json.dumps(arguments)}]


def _block(index: int, block: SentEvent, deltas: Sequence[Beat]) -> Iterator[Beat]:
    yield {"type": "content_block_start", "index": index, "content_block": block}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta} if isinstance(delta, dict) else delta
    yield {"type": "content_block_stop", "index": index}


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


def _calls(part: script.ToolCall, request: ModelRequest) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tools to call for a part, with their arguments.

    Raises:
        NotOffered: Claude Code has no tool for it.
    """
    match part:
        case script.Run(command, yield_ms=yield_ms):
            # Claude Code has no time after which a command moves to the background, only a flag.
            later = {} if yield_ms is None else {"run_in_background": True}
            yield _offered("Bash", request), {"command": command, "description": "run a command", **later}
        case script.Patch():
            for change in part.changes():
                yield from _change(change, request)
        case script.AskUser(questions):
            asked = [
                {
                    "question": one.text,
                    "header": one.header,
                    "multiSelect": False,
                    "options": [{"label": option, "description": option} for option in one.options],
                }
                for one in questions
            ]
            yield _offered("AskUserQuestion", request), {"questions": asked}
        case script.McpCall(server, tool, arguments):
            yield _offered(f"mcp__{server}__{tool}", request), arguments
        case script.SpawnAgent(message, name=name):
            yield (
                _offered("Agent", request),
                {"description": name, "prompt": message, "subagent_type": "general-purpose"},
            )
        case script.Call(name, arguments):
            yield name, arguments  # includes tools offered on demand
        case _:
            raise NotOffered(f"Claude Code has no tool for {type(part).__name__}.")


def _change(change: script.FileEdit, request: ModelRequest) -> Iterator[tuple[str, Mapping[str, Any]]]:
    assert isinstance(request, MessagesRequest)
    path = change.path if change.path.startswith("/") else f"{request.directory}/{change.path}"
    match change.kind:
        case "add":
            yield _offered("Write", request), {"file_path": path, "content": change.new}
        case "update" if change.moved_to is None:
            edit = {"file_path": path, "old_string": change.old, "new_string": change.new, "replace_all": False}
            yield _offered("Edit", request), edit
        case _:
            raise NotOffered("Claude Code deletes and moves files by commands only. Use run().")


def _offered(name: str, request: ModelRequest) -> str:
    if name not in request.tool_names:
        raise NotOffered(f"The script needs the tool {name!r}, but this agent offers only: {request.tool_names}.")
    return name
