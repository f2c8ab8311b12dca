"""A dialect of model APIs: one for each protocol that agents speak to a model, a module each, listed in `model`.

A dialect reads a request as a `ModelRequest`, whatever it looked like, and spells the parts of a step as a stream. Scripts,
the playbook and the server know none of it.
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
    """One per scripted model, so that ids are unique in its life."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    @abstractmethod
    def fits(self, path: str) -> bool:
        """Whether a request to this path is of this dialect."""

    @abstractmethod
    def read(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
        """A request."""

    def is_aside(self, request: ModelRequest) -> bool:
        """Whether this is no part of a conversation: the agent wants a title, or the like, and gets a word."""
        return False

    @abstractmethod
    def beats(self, parts: Sequence[script.Part], request: ModelRequest) -> list[Beat]:
        """A whole response: what the server sends, waits for or breaks off, in this order.

        Raises:
            NotOffered: A part needs a tool that this agent does not have.
        """

    def headers(self, parts: Sequence[script.Part]) -> Mapping[str, str]:
        """The headers of a stream."""
        return {"content-type": "text/event-stream", "cache-control": "no-store"}

    def error(self, failure: script.Fail) -> Mapping[str, Any]:
        """The body of an HTTP error."""
        return {"error": dict(failure.error)}

    def encoded(self, event: SentEvent) -> bytes:
        """An event in the format of server-sent events."""
        return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()

    def new_id(self, kind: str) -> str:
        return f"{kind}_{next(self._numbers)}"


def joined(chunks: Sequence[script.Chunk]) -> str:
    """The text of chunks."""
    return "".join(chunk for chunk in chunks if isinstance(chunk, str))


def text_of(content: Any) -> str:
    """The text of a message, however its content is given: as such, or in pieces."""
    if isinstance(content, str):
        return content
    pieces = content if isinstance(content, list) else ()
    return "\n".join(str(piece["text"]) for piece in pieces if isinstance(piece, dict) and "text" in piece)
