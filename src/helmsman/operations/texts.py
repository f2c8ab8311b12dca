"""Texts about operations, as templates for Codex, for any agent, or for one agent by name.

Titles, docstrings and descriptions name the agent and the tools by placeholders: `{agent}`, `{tool}_wait`. A part in double
square brackets is only true of Codex, and is left out for another agent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.structs import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Container

CODEX: Final = "codex"

_PLACEHOLDER: Final = re.compile(r"\{([\w']+)\}")
_ONLY_CODEX: Final = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)
# Only before a capital or a quotation mark, so that "e.g. main" does not end a sentence.
_BETWEEN_SENTENCES: Final = re.compile(r"(?<=\.)\s(?=[\"A-Z])")
_TOOL_NAME: Final = re.compile(r"\b(codex|agent)_[a-z_]+")


class Voice(Value, frozen=True):
    """Agent that a text is about: the values of its placeholders."""

    words: Mapping[str, str]
    is_other: bool = False
    """True for a single agent other than Codex."""

    def render(self, template: str) -> str:
        """Return the text. Braces around other words stay, as in an example of JSON."""
        text = _ONLY_CODEX.sub("", template).strip() if self.is_other else _ONLY_CODEX.sub(r"\1", template)
        return _PLACEHOLDER.sub(lambda match: self.words.get(match[1], match[0]), text)


FOR_CODEX: Final = Voice(
    {
        "tool": CODEX,
        "agent": "Codex",
        "Agent": "Codex",
        "kind": "Codex",
        "agents": "OpenAI Codex",
        "a_session": "a Codex session",
        "sessions": "Codex sessions",
        "agents_have": "Codex has",
        "session's": "a Codex session's",
    }
)
FOR_ANY: Final = Voice(
    {
        "tool": "agent",
        "agent": "the agent",
        "Agent": "The agent",
        "kind": "agent",
        "agents": "coding agents",
        "a_session": "an agent's session",
        "sessions": "agents' sessions",
        "agents_have": "agents have",
        "session's": "an agent's",
    }
)


def voice_of(name: str, title: str) -> Voice:
    """Return the voice for the tools of one agent, by its name and by what sentences call it."""
    if name == CODEX:
        return FOR_CODEX
    return Voice({**FOR_ANY.words, "tool": name, "agent": title, "Agent": title, "kind": title}, is_other=True)


def rendered(schema: Any, say: Callable[[str], str]) -> Any:
    """Return a schema with rendered descriptions, without the fields whose description is then empty."""
    if isinstance(schema, list):
        return [rendered(part, say) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(text := schema.get("description"), str):
        schema = schema | {"description": say(text)}
    return {key: rendered(part, say) for key, part in schema.items() if not _says_nothing(part, say)}


def _says_nothing(field: Any, say: Callable[[str], str]) -> bool:
    text = field.get("description") if isinstance(field, dict) else None
    return isinstance(text, str) and not say(text)


def with_descriptions(schema: Any, say: Callable[[str], str]) -> Any:
    """Return a schema with other descriptions, without those that are then empty."""
    if isinstance(schema, list):
        return [with_descriptions(part, say) for part in schema]
    if not isinstance(schema, dict):
        return schema
    said = {key: say(part) if key == "description" and isinstance(part, str) else part for key, part in schema.items()}
    return {key: with_descriptions(part, say) for key, part in said.items() if key != "description" or part}


def naming_only(names: Container[str], text: str) -> str:
    """Return a text for a client that has only these tools.

    A name of another tool becomes that of its twin (`agent_say` for `codex_say`). A clause that names a tool without one
    is left out.
    """

    def twin(match: re.Match[str]) -> str:
        # `codex_` and `agent_` tools differ only in the prefix.
        other = ("agent" if match[1] == CODEX else CODEX) + match[0].removeprefix(match[1])
        return other if match[0] not in names and other in names else match[0]

    def is_known(part: str) -> bool:
        return all(match[0] in names for match in _TOOL_NAME.finditer(part))

    text = _TOOL_NAME.sub(twin, text)
    if is_known(text):
        return text
    sentences = []
    for sentence in _BETWEEN_SENTENCES.split(text):
        clauses = [clause for clause in sentence.split("; ") if is_known(clause)]
        if clauses:
            # A clause is dropped with its colon, because what it introduces is gone too.
            sentences.append("; ".join(clauses).rstrip(".:") + "." if not is_known(sentence) else sentence)
    return " ".join(sentences)
