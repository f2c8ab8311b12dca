"""Dialects of model APIs: one module for each protocol between agents and models, listed in `model`.

A dialect parses a request into a `ModelRequest`, and encodes the parts of a step as a stream. Scripts, the playbook and
the server are independent of it.
"""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from helmsman.testing import script

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.testing.model_request import ModelRequest

SentEvent = dict[str, Any]
Beat = SentEvent | script.Gate | script.Cut | script.Hang


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
    def beats(self, parts: Sequence[script.Part], request: ModelRequest) -> list[Beat]:
        """Return the response as a sequence of events, waits and interruptions.

        Raises:
            NotOffered: A part needs a tool that this agent does not have.
        """

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
