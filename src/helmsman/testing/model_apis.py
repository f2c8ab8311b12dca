"""Dialects of model APIs: the protocols between agents and models.

A dialect parses a request into a `ModelRequest`, and encodes the parts of a step as a stream. Scripts, the playbook and
the server are independent of it.

The stream is a list of beats that the server plays in order: an event to send, a gate to wait at, or the end of the
connection. All beats are computed before the first byte is sent, so a script that cannot be played gets a clear error
instead of half a stream.
"""

from __future__ import annotations

import itertools
import json
import re
from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from helmsman.base.json_values import rows
from helmsman.model.events import Usage
from helmsman.testing import script
from helmsman.testing.model_request import ModelRequest
from helmsman.testing.tools import CodexTools, agent_calls

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

SentEvent = dict[str, Any]
Beat = SentEvent | script.Gate | script.Cut | script.Hang

DEFAULT_USAGE: Final = Usage(input_tokens=100, cached_input_tokens=20, output_tokens=10, reasoning_output_tokens=3)
"""Usage of a response whose step does not set it."""


class Encoder(ABC):
    """Encodes one response."""

    def __init__(self, api: ModelApi, request: ModelRequest, usage: Usage) -> None:
        self.new_id = api.new_id
        self.request = request
        self.usage = usage

    def begin(self) -> Iterable[Beat]:
        """Return the events before the first part."""
        return ()

    @abstractmethod
    def part(self, part: script.Part) -> Iterable[Beat]:
        """Return the events of a part.

        Raises:
            NotOffered: It needs a tool that this agent does not have.
        """

    @abstractmethod
    def end(self, ending: script.Ending | None) -> Iterable[Beat]:
        """Return the events after the last part, or those of an abnormal ending."""


class AgentEncoder(Encoder):
    """Encodes one response to an agent whose tools `agent_calls` knows: text, thoughts and calls."""

    has_called = False

    def part(self, part: script.Part) -> Iterable[Beat]:
        match part:
            case script.Say(chunks):
                yield from self.text(chunks)
            case script.Think(chunks, raw):
                yield from self.thought(chunks or (raw or "",))
            case script.ToolCall():
                self.has_called = True
                for name, arguments in agent_calls(part, self.request):
                    yield from self.call(name, arguments)
            case _:
                pass  # a cost, or a limit that this API does not report

    @abstractmethod
    def text(self, chunks: Sequence[script.Chunk]) -> Iterable[Beat]:
        """Return a message."""

    @abstractmethod
    def thought(self, chunks: Sequence[script.Chunk]) -> Iterable[Beat]:
        """Return reasoning."""

    @abstractmethod
    def call(self, name: str, arguments: Mapping[str, Any]) -> Iterable[Beat]:
        """Return the call of a tool."""


class ModelApi(ABC):
    """Base class of API dialects. Each scripted model has one instance, so that ids are unique within it."""

    paths: ClassVar[tuple[str, ...]]
    """Ends of the paths of its requests."""
    request: ClassVar[type[ModelRequest]]
    has_asides: ClassVar[bool] = True

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def fits(self, path: str) -> bool:
        """Return whether a request to this path uses this dialect."""
        return path.endswith(self.paths)

    def read(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
        """Parse a request."""
        return self.request(headers, body)

    def is_aside(self, request: ModelRequest) -> bool:
        """Return whether the request is not part of a conversation: agents ask for titles and summaries without tools."""
        return self.has_asides and not request.tools

    @abstractmethod
    def encoder(self, request: ModelRequest, usage: Usage) -> Encoder:
        """Return the encoder of a response."""

    def beats(self, parts: Sequence[script.Part], request: ModelRequest) -> list[Beat]:
        """Return the response as a sequence of events, waits and interruptions.

        Raises:
            NotOffered: A part needs a tool that this agent does not have.
        """
        usage = next((part.usage for part in parts if isinstance(part, script.Cost)), DEFAULT_USAGE)
        encoder = self.encoder(request, usage)
        beats = list(encoder.begin())
        for part in parts:
            match part:
                case script.Gate():
                    beats.append(part)
                case script.Cut() | script.Hang():
                    return [*beats, part]
                case script.Ending():
                    return [*beats, *encoder.end(part)]
                case _:
                    beats += encoder.part(part)
        return [*beats, *encoder.end(None)]

    def headers(self, parts: Sequence[script.Part]) -> Mapping[str, str]:
        """Return the headers of a stream."""
        return {"content-type": "text/event-stream", "cache-control": "no-store"}

    def error(self, failure: script.Fail) -> Mapping[str, Any]:
        """Return the body of an HTTP error."""
        return {"error": dict(failure.error)}

    def encoded(self, event: SentEvent) -> bytes:
        """Encode an event as a server-sent event."""
        return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()

    def new_id(self, kind: str) -> str:
        return f"{kind}_{next(self._numbers)}"


def joined(chunks: Sequence[script.Chunk]) -> str:
    """Return the text of chunks."""
    return "".join(chunk for chunk in chunks if isinstance(chunk, str))


def text_of(content: Any) -> str:
    """Return the text of a message whose content is a string or a list of pieces."""
    if isinstance(content, str):
        return content
    # Pieces without text, such as images, are not part of what was said.
    pieces = content if isinstance(content, list) else ()
    return "\n".join(str(piece["text"]) for piece in pieces if isinstance(piece, dict) and "text" in piece)


# --- the Responses API of Codex --------------------------------------------------------------------------------------
# `CodexTools` knows which tools a Codex offers and how they are called.


class ResponsesApi(ModelApi):
    paths = ("/v1/responses",)
    request = ModelRequest
    has_asides = False

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
        return _ResponsesEncoder(self, request, usage)


class _ResponsesEncoder(Encoder):
    def begin(self) -> Iterable[Beat]:
        self._tools = CodexTools(self.request)
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
                yield from _whole_item(search | {"action": action}, next(self._position))
            case script.ToolCall():
                item = self._tools.item(part, self.new_id("call"))
                yield from _whole_item({"id": self.new_id("item")} | item, next(self._position))
            case _:
                pass  # a cost or a limit, which go into the end and the headers of the response

    def end(self, ending: script.Ending | None) -> Iterable[Beat]:
        # Without the end, Codex takes the stream for broken.
        kind, more = "completed", {"usage": _responses_usage(self.usage)}
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
        yield _added_item(item | {"content": []}, index)
        yield from _text_deltas(part.chunks, {"type": "response.output_text.delta", **where})
        yield _done_item(item | {"content": [{"type": "output_text", "text": joined(part.chunks)}]}, index)

    def _reasoning(self, part: script.Think, index: int) -> Iterator[Beat]:
        item: SentEvent = {"type": "reasoning", "id": self.new_id("rs"), "summary": []}
        where = {"item_id": item["id"], "output_index": index}
        yield _added_item(item, index)
        if part.chunks:
            empty = {"type": "summary_text", "text": ""}
            yield {"type": "response.reasoning_summary_part.added", "summary_index": 0, "part": empty, **where}
            yield from _text_deltas(
                part.chunks, {"type": "response.reasoning_summary_text.delta", "summary_index": 0, **where}
            )
            item = item | {"summary": [{"type": "summary_text", "text": joined(part.chunks)}]}
        if part.raw is not None:
            yield {"type": "response.reasoning_text.delta", "content_index": 0, "delta": part.raw, **where}
            item = item | {"content": [{"type": "reasoning_text", "text": part.raw}]}
        yield _done_item(item | {"encrypted_content": "scripted"}, index)


def _text_deltas(chunks: Sequence[script.Chunk], template: SentEvent) -> Iterator[Beat]:
    for chunk in chunks:
        yield template | {"delta": chunk} if isinstance(chunk, str) else chunk


def _whole_item(item: SentEvent, index: int) -> Iterator[Beat]:
    yield _added_item(item, index)
    yield _done_item(item, index)


def _added_item(item: SentEvent, index: int) -> SentEvent:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def _done_item(item: SentEvent, index: int) -> SentEvent:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def _responses_usage(usage: Usage) -> SentEvent:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_output_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


# --- OpenAI's chat completions, used by OpenCode, Qwen Code and Copilot with custom models ---------------------------
# The conversation is converted to items of the Responses API, so that scripts treat all agents alike. A request has no
# conversation id: the number of model messages since the last user message selects the step.


# text that agents add to the user's prompt
_CHAT_REMINDER: Final = re.compile(r"<(system[-_]reminder|[a-z]+_[a-z_]+)>.*?</\1>\s*", re.DOTALL)


class ChatRequest(ModelRequest):
    """Request in the form of chat completions."""

    names_conversation = False

    @cached_property
    def input(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(item for message in rows(self.body.get("messages")) for item in _chat_items(message))

    @cached_property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        listed = self.body.get("tools")
        named = (tool.get("function") for tool in listed if isinstance(tool, dict)) if isinstance(listed, list) else ()
        return tuple({"type": "function", **tool} for tool in named if isinstance(tool, dict))


def _chat_items(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
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
        said = _CHAT_REMINDER.sub("", text).strip() if role == "user" else text
        yield {"type": "message", "role": "developer" if role == "system" else role, "content": said}


class ChatApi(ModelApi):
    paths = ("/v1/chat/completions",)
    request = ChatRequest

    def encoder(self, request: ModelRequest, usage: Usage) -> AgentEncoder:
        return (_ChatEncoder if request.body.get("stream") else _WholeChatEncoder)(self, request, usage)

    def encoded(self, event: SentEvent) -> bytes:
        if event.get("object") == "chat.completion":
            return json.dumps(event).encode()
        # The protocol's own end mark, which is no JSON.
        return b"data: [DONE]\n\n" if "done" in event else f"data: {json.dumps(event)}\n\n".encode()


class _WholeChatEncoder(AgentEncoder):
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
        yield {**head, "choices": [choice], "usage": _chat_usage(self.usage)}


class _ChatEncoder(AgentEncoder):
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
        is_cut_off = isinstance(ending, script.Incomplete)
        yield self._delta({}, "length" if is_cut_off else "tool_calls" if self.has_called else "stop")
        # The counts come in a last chunk without choices.
        yield {**self._head, "choices": [], "usage": _chat_usage(self.usage)}
        yield {"done": True}

    def _delta(self, delta: SentEvent, reason: str | None = None) -> SentEvent:
        return {**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def _chat_usage(usage: Usage) -> SentEvent:
    return {
        "prompt_tokens": usage.input_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "completion_tokens": usage.output_tokens,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_output_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


# --- Google's Gemini API ---------------------------------------------------------------------------------------------
# Gemini CLI asks a small model which model to use, and wants JSON for an answer, in requests that are no streams.


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
        return tuple(item for content in rows(self.body.get("contents")) for item in _gemini_items(content))

    @cached_property
    def instructions(self) -> str:
        return "\n".join(_gemini_texts(self.body.get("systemInstruction")))

    @cached_property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        groups = self.body.get("tools")
        found: list[Mapping[str, Any]] = []
        for group in groups if isinstance(groups, list) else ():
            for tool in group.get("functionDeclarations") or ():
                parameters = tool.get("parametersJsonSchema") or tool.get("parameters") or {}
                found.append({"type": "function", "name": tool.get("name"), "parameters": parameters})
        return tuple(found)


def _gemini_items(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
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


def _gemini_texts(content: Any) -> Iterator[str]:
    parts = content.get("parts") if isinstance(content, dict) else None
    return (str(part["text"]) for part in parts or () if isinstance(part, dict) and "text" in part)


class GeminiApi(ModelApi):
    paths = (":streamGenerateContent", ":generateContent")
    request = GeminiRequest

    def encoder(self, request: ModelRequest, usage: Usage) -> AgentEncoder:
        # A request without tools is the router's, which wants JSON.
        return (_RoutedEncoder if self.is_aside(request) else _GeminiEncoder)(self, request, usage)

    def encoded(self, event: SentEvent) -> bytes:
        if event.get("aside"):
            # These answers are no streams.
            return json.dumps({key: value for key, value in event.items() if key != "aside"}).encode()
        return f"data: {json.dumps(event)}\n\n".encode()


class _GeminiEncoder(AgentEncoder):
    def text(self, chunks: Sequence[script.Chunk], **mark: bool) -> Iterable[Beat]:
        return [_gemini_candidate([{"text": chunk, **mark}]) if isinstance(chunk, str) else chunk for chunk in chunks]

    def thought(self, chunks: Sequence[script.Chunk]) -> Iterable[Beat]:
        return self.text(chunks, thought=True)

    def call(self, name: str, arguments: Mapping[str, Any]) -> Iterable[Beat]:
        yield _gemini_candidate([{"functionCall": {"name": name, "args": arguments}}])

    def end(self, ending: script.Ending | None) -> Iterable[Beat]:
        reason = "MAX_TOKENS" if isinstance(ending, script.Incomplete) else "STOP"
        yield _gemini_candidate([{"text": ""}], self.usage, reason)


class _RoutedEncoder(_GeminiEncoder):
    def part(self, part: script.Part) -> Iterable[Beat]:
        return ()

    def end(self, ending: script.Ending | None) -> Iterable[Beat]:
        yield {"aside": True, **_gemini_candidate([{"text": json.dumps(_ROUTED)}], self.usage, "STOP")}


def _gemini_candidate(parts: list[SentEvent], usage: Usage | None = None, reason: str | None = None) -> SentEvent:
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


# --- Anthropic's Messages API, used by Claude Code -------------------------------------------------------------------
# Claude Code adds reminders to user messages, and requests titles without tools.


_REMINDER: Final = re.compile(r"<system-reminder>.*?</system-reminder>\s*", re.DOTALL)
_STEERED: Final = re.compile(r"\AThe user sent a new message while you were working:\n(.*?)\n\n", re.DOTALL)


class MessagesRequest(ModelRequest):
    """Request of Claude Code."""

    @cached_property
    def thread_id(self) -> str:
        return self.headers.get("x-claude-code-session-id", "")

    @cached_property
    def input(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(item for message in rows(self.body.get("messages")) for item in _messages_items(message))

    @cached_property
    def instructions(self) -> str:
        said = [text_of(self.body.get("system")), *(text_of(item["content"]) for item in self._system_messages())]
        return "\n\n".join(said)

    def _system_messages(self) -> Iterator[Mapping[str, Any]]:
        return (item for item in self.input if item.get("role") == "developer")


def _messages_items(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
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
    paths = ("/v1/messages",)
    request = MessagesRequest

    def error(self, failure: script.Fail) -> Mapping[str, Any]:
        return {"type": "error", "error": {"type": "api_error", **failure.error}}

    def encoder(self, request: ModelRequest, usage: Usage) -> AgentEncoder:
        return _MessagesEncoder(self, request, usage)


class _MessagesEncoder(AgentEncoder):
    _blocks = 0

    def begin(self) -> Iterable[Beat]:
        message = {"id": self.new_id("msg"), "type": "message", "role": "assistant", "model": self.request.model}
        yield {"type": "message_start", "message": {**message, "content": [], "usage": _messages_usage(self.usage)}}

    def text(self, chunks: Sequence[script.Chunk]) -> Iterable[Beat]:
        return self._block({"type": "text", "text": ""}, _messages_deltas("text", chunks))

    def thought(self, chunks: Sequence[script.Chunk]) -> Iterable[Beat]:
        signature: Beat = {"type": "signature_delta", "signature": "scripted"}
        empty = {"type": "thinking", "thinking": "", "signature": ""}
        return self._block(empty, [*_messages_deltas("thinking", chunks), signature])

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


def _messages_deltas(kind: str, chunks: Sequence[script.Chunk]) -> list[Beat]:
    return [{"type": f"{kind}_delta", kind: chunk} if isinstance(chunk, str) else chunk for chunk in chunks]


def _messages_usage(usage: Usage) -> SentEvent:
    # Anthropic counts cached tokens beside the input tokens, not among them.
    return {
        "input_tokens": usage.input_tokens - usage.cached_input_tokens,
        "cache_read_input_tokens": usage.cached_input_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.output_tokens,
    }
