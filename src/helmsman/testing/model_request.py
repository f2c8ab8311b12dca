"""One request of Codex to the model, with what tests ask about it read out of the body.

The body is kept as it came; the properties understand the shapes of all supported Codex versions and never raise on
what they do not know.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_THREAD_HEADERS = ("thread-id", "thread_id", "session_id", "session-id")
_CONTEXT = re.compile(r"\s*(# AGENTS\.md instructions|<(skill|[a-z]+(_[a-z]+)+)[ >])")
"""How the messages begin that Codex itself writes in the user's name: environment, instructions, an aborted turn."""
_OUTPUT_HEADING = re.compile(r"\A(?:[^\n]*\n){1,8}?Output:\n?")
"""Codex puts a few lines (exit code, wall time) above the output of a tool, different ones in each version."""


@dataclass(frozen=True)
class ModelRequest:
    """What Codex sent."""

    headers: Mapping[str, str]
    body: Mapping[str, Any]

    names_conversation: ClassVar[bool] = True
    """Whether a request says which conversation it belongs to; else what has been said in it tells how far it has come."""

    @cached_property
    def thread_id(self) -> str:
        """The Codex thread, also for sub-agents, which have threads of their own."""
        named = (self.headers.get(name) for name in _THREAD_HEADERS)
        return next((value for value in named if value), str(self.body.get("prompt_cache_key", "")))

    @cached_property
    def turn_id(self) -> str | None:
        """The turn, where Codex says which (0.115 and newer)."""
        try:
            metadata = json.loads(self.headers.get("x-codex-turn-metadata", "{}"))
        except ValueError:
            return None
        return metadata.get("turn_id") if isinstance(metadata, dict) else None

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def effort(self) -> str | None:
        """The reasoning effort asked for."""
        reasoning = self.body.get("reasoning")
        return reasoning.get("effort") if isinstance(reasoning, dict) else None

    @cached_property
    def input(self) -> tuple[Mapping[str, Any], ...]:
        """The conversation so far."""
        items = self.body.get("input")
        return tuple(item for item in items if isinstance(item, dict)) if isinstance(items, list) else ()

    @cached_property
    def user_texts(self) -> tuple[str, ...]:
        """What the person (or a parent agent) wrote, oldest first, without the context Codex adds."""
        return tuple(text for _, text in self._user_messages())

    @property
    def last_user_text(self) -> str:
        return self.user_texts[-1] if self.user_texts else ""

    @cached_property
    def new_user_texts(self) -> tuple[str, ...]:
        """What was written since the model last said or did something."""
        answered = [index for index, item in enumerate(self.input) if _is_from_model(item)]
        last = answered[-1] if answered else -1
        return tuple(text for index, text in self._user_messages() if index > last)

    def steps_since(self, text: str) -> int:
        """How often the model has spoken since the newest message of a person with this text."""
        last = max((index for index, said in self._user_messages() if said == text), default=-1)
        return sum(item.get("role") == "assistant" for item in self.input[last + 1 :])

    @cached_property
    def only_notified(self) -> bool:
        """Whether the model had finished and only hears that a sub-agent did too; nothing is asked of it."""
        answered = [index for index, item in enumerate(self.input) if _is_from_model(item)]
        if not answered or self.input[answered[-1]].get("role") != "assistant":
            return False
        since = self.input[answered[-1] + 1 :]
        return bool(since) and all(_is_report(item) for item in since)

    def _user_messages(self) -> Iterator[tuple[int, str]]:
        for index, item in enumerate(self.input):
            text = _words_to_model(item)
            if text and not _CONTEXT.match(text):
                yield index, text

    @cached_property
    def images(self) -> tuple[str, ...]:
        """The image addresses (mostly data URLs) in all user messages."""
        return tuple(
            str(piece["image_url"])
            for item in self.input
            if item.get("role") == "user" and isinstance(item.get("content"), list)
            for piece in item["content"]
            if isinstance(piece, dict) and "image_url" in piece
        )

    @cached_property
    def tool_outputs(self) -> tuple[str, ...]:
        """What tools returned, oldest first, without the lines that Codex puts above a command's output."""
        return tuple(
            _OUTPUT_HEADING.sub("", _text_of(item.get("output")))
            for item in self.input
            if str(item.get("type", "")).endswith("_call_output")
        )

    @property
    def tool_output(self) -> str:
        """What the newest tool call returned."""
        return self.tool_outputs[-1] if self.tool_outputs else ""

    @cached_property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools on offer, as they came. Newer models get them in an input item instead of in `tools`."""
        offers = [self.body, *(item for item in self.input if item.get("type") == "additional_tools")]
        listed = (offer.get("tools") for offer in offers)
        return tuple(tool for tools in listed if isinstance(tools, list) for tool in tools if isinstance(tool, dict))

    @cached_property
    def tool_names(self) -> tuple[str, ...]:
        """The names on offer; those in a namespace as `namespace.name`, nameless ones by their type."""
        names: list[str] = []
        for tool in self.tools:
            name = str(tool.get("name") or tool.get("type"))
            inner = tool.get("tools")
            if isinstance(inner, list):
                names += [f"{name}.{member.get('name')}" for member in inner if isinstance(member, dict)]
            else:
                names.append(name)
        return tuple(names)

    @cached_property
    def instructions(self) -> str:
        """Everything said to the model above the person: base and developer instructions."""
        developer = (_text_of(item.get("content")) for item in self.input if item.get("role") == "developer")
        return "\n\n".join([str(self.body.get("instructions") or ""), *developer]).strip()

    @property
    def output_schema(self) -> Mapping[str, Any] | None:
        """The JSON schema that the final message is to follow."""
        text = self.body.get("text")
        form = text.get("format") if isinstance(text, dict) else None
        return form.get("schema") if isinstance(form, dict) else None


def _is_from_model(item: Mapping[str, Any]) -> bool:
    kind = str(item.get("type", "message"))
    return item.get("role") == "assistant" or kind == "reasoning" or "_call" in kind


def _is_report(item: Mapping[str, Any]) -> bool:
    """Whether this tells an agent what its sub-agent has done."""
    if item.get("type") == "agent_message":
        return not _words_to_model(item)
    return item.get("role") == "user" and _text_of(item.get("content")).startswith("<subagent_notification>")


def _words_to_model(item: Mapping[str, Any]) -> str:
    """What a person, or a parent agent, says in this item."""
    content = item.get("content")
    if item.get("type") == "agent_message" and isinstance(content, list):
        # A task for a sub-agent is marked as encrypted (and is not, offline); reports to its parent are plain.
        return "".join(str(piece.get("encrypted_content", "")) for piece in content if isinstance(piece, dict))
    is_message = item.get("type", "message") == "message" and item.get("role") == "user"
    return _text_of(content) if is_message else ""


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else json.dumps(content)
    pieces = (piece.get("text") for piece in content if isinstance(piece, dict))
    return "".join(piece for piece in pieces if isinstance(piece, str))
