"""Request of Codex to the model, with properties for tests.

The body is kept unchanged. The properties handle the shapes of all supported Codex versions and ignore unknown ones.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Versions of Codex name it differently.
_THREAD_HEADERS = ("thread-id", "thread_id", "session_id", "session-id")
_CONTEXT = re.compile(r"\s*(# AGENTS\.md instructions|<(skill|[a-z]+(_[a-z]+)+)[ >])")
"""Beginnings of messages that Codex writes in the user's name: environment, instructions, an aborted turn."""
# lines such as exit code and wall time that Codex puts above a tool's output; they vary by version
_OUTPUT_HEADING = re.compile(r"\A(?:[^\n]*\n){1,8}?Output:\n?")


@dataclass(frozen=True)
class ModelRequest:
    """Request from Codex."""

    headers: Mapping[str, str]
    body: Mapping[str, Any]

    names_conversation: ClassVar[bool] = True
    """True if requests identify their conversation. If not, the messages in it determine the step."""

    @cached_property
    def thread_id(self) -> str:
        """Codex thread. Sub-agents have their own threads."""
        named = (self.headers.get(name) for name in _THREAD_HEADERS)
        return next((value for value in named if value), str(self.body.get("prompt_cache_key", "")))

    @cached_property
    def turn_id(self) -> str | None:
        """Turn, if Codex reports it (0.115 and newer)."""
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
        """Requested reasoning effort."""
        reasoning = self.body.get("reasoning")
        return reasoning.get("effort") if isinstance(reasoning, dict) else None

    @cached_property
    def input(self) -> tuple[Mapping[str, Any], ...]:
        """Conversation so far."""
        items = self.body.get("input")
        return tuple(item for item in items if isinstance(item, dict)) if isinstance(items, list) else ()

    @cached_property
    def user_texts(self) -> tuple[str, ...]:
        """Messages of the user or a parent agent, oldest first, without context added by Codex."""
        return tuple(text for _, text in self._user_messages())

    @property
    def last_user_text(self) -> str:
        return self.user_texts[-1] if self.user_texts else ""

    @cached_property
    def new_user_texts(self) -> tuple[str, ...]:
        """Messages received since the model last acted."""
        # What came before its last action was already answered.
        answered = [index for index, item in enumerate(self.input) if _is_from_model(item)]
        last = answered[-1] if answered else -1
        return tuple(text for index, text in self._user_messages() if index > last)

    def steps_since(self, text: str) -> int:
        """Return the number of model messages since the newest user message with this text."""
        last = max((index for index, said in self._user_messages() if said == text), default=-1)
        return sum(item.get("role") == "assistant" for item in self.input[last + 1 :])

    @cached_property
    def only_notified(self) -> bool:
        """Return whether the model had finished and only receives the report of a sub-agent."""
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
        """Image addresses (mostly data URLs) in all user messages."""
        return tuple(
            str(piece["image_url"])
            for item in self.input
            if item.get("role") == "user" and isinstance(item.get("content"), list)
            for piece in item["content"]
            if isinstance(piece, dict) and "image_url" in piece
        )

    @cached_property
    def tool_outputs(self) -> tuple[str, ...]:
        """Tool outputs, oldest first, without the header lines of Codex."""
        return tuple(
            _OUTPUT_HEADING.sub("", _text_of(item.get("output")))
            for item in self.input
            if str(item.get("type", "")).endswith("_call_output")
        )

    @property
    def tool_output(self) -> str:
        """Output of the newest tool call."""
        return self.tool_outputs[-1] if self.tool_outputs else ""

    @cached_property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """Offered tools, unchanged. Newer models get them in an input item instead of in `tools`."""
        offers = [self.body, *(item for item in self.input if item.get("type") == "additional_tools")]
        listed = (offer.get("tools") for offer in offers)
        return tuple(tool for tools in listed if isinstance(tools, list) for tool in tools if isinstance(tool, dict))

    @cached_property
    def tool_names(self) -> tuple[str, ...]:
        """Names of the offered tools; in a namespace as `namespace.name`, unnamed ones by type."""
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
        """Base and developer instructions."""
        developer = (_text_of(item.get("content")) for item in self.input if item.get("role") == "developer")
        return "\n\n".join([str(self.body.get("instructions") or ""), *developer]).strip()

    @property
    def output_schema(self) -> Mapping[str, Any] | None:
        """JSON schema of the final message."""
        text = self.body.get("text")
        form = text.get("format") if isinstance(text, dict) else None
        return form.get("schema") if isinstance(form, dict) else None


def _is_from_model(item: Mapping[str, Any]) -> bool:
    kind = str(item.get("type", "message"))
    return item.get("role") == "assistant" or kind == "reasoning" or "_call" in kind


def _is_report(item: Mapping[str, Any]) -> bool:
    """Return whether the item reports the result of a sub-agent."""
    if item.get("type") == "agent_message":
        return not _words_to_model(item)
    return item.get("role") == "user" and _text_of(item.get("content")).startswith("<subagent_notification>")


def _words_to_model(item: Mapping[str, Any]) -> str:
    """Return the text of a user or parent agent in this item."""
    content = item.get("content")
    if item.get("type") == "agent_message" and isinstance(content, list):
        # A sub-agent's task is marked as encrypted, but is not when offline; reports to its parent are plain.
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
