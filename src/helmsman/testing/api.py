"""Dialects of model APIs: one module for each protocol between agents and models, listed in `model`.

A dialect parses a request into a `ModelRequest`, and encodes the parts of a step as a stream. Scripts, the playbook and
the server are independent of it.

The stream is a list of beats that the server plays in order: an event to send, a gate to wait at, or the end of the
connection. All beats are computed before the first byte is sent, so a script that cannot be played gets a clear error
instead of half a stream.
"""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from helmsman.model.events import Usage
from helmsman.testing import script
from helmsman.testing.agent_tools import agent_calls

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from helmsman.testing.model_request import ModelRequest

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

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    @abstractmethod
    def fits(self, path: str) -> bool:
        """Return whether a request to this path uses this dialect."""

    @abstractmethod
    def read(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
        """Parse a request."""

    def is_aside(self, request: ModelRequest) -> bool:
        """Return whether the request is not part of a conversation, for example a request for a title."""
        return False

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
