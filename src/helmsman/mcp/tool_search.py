"""Short listing of many tools: what a client lists stays small, and two tools find and call the rest.

A client puts the whole list into its model's context in every conversation. If the tools of the chosen toolsets are more
than `LISTED_TOKENS`, only the first toolsets are listed that fit, and `helmsman_find`. What a client has found is listed
to it as well, newest first, as far as there is room, and the client is notified that its list has changed. A client that
does not read the list again calls the tool with `helmsman_call`, which is the same call under another name.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types

from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

LISTED_TOKENS: Final = 3000
"""Most tokens of names, descriptions and inputs that are listed."""
_CHARS_PER_TOKEN: Final = 4.0
"""Measured: 4.04 to 4.33 in every toolset but compat (4.85), so the estimate is never too low."""
FIND: Final = "helmsman_find"
CALL: Final = "helmsman_call"
_MAX_FOUND: Final = 5
_MAX_CLIENTS: Final = 1000
_WORD: Final = re.compile(r"[a-z0-9]+")
_FIND_INPUT: Final = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "The name of a tool, or what it should do."}},
    "required": ["query"],
    "additionalProperties": False,
}
_CALL_INPUT: Final = {
    "type": "object",
    "properties": {
        "tool": {"type": "string", "description": f"Its name, as {FIND} gave it."},
        "arguments": {"type": "object", "description": "What its inputSchema asks for."},
    },
    "required": ["tool"],
    "additionalProperties": False,
}


def listed_tokens(tools: Iterable[types.Tool]) -> float:
    """Estimate what a client's model reads of a list."""
    return sum(map(len, map(_as_read, tools))) / _CHARS_PER_TOKEN


def _as_read(tool: types.Tool) -> str:
    read = {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
    return json.dumps(read, ensure_ascii=False, separators=(",", ":"))


class ToolSearch:
    """Chooses the tools that each client is listed, and remembers what it has found."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, dict[str, None]] = OrderedDict()
        """Names of tools by client, oldest first."""

    def listed(
        self, client: str, groups: Sequence[Sequence[str]], listing: Callable[[Sequence[str]], Sequence[types.Tool]]
    ) -> tuple[Sequence[types.Tool], Sequence[str]]:
        """Return the list for a client, and the names of the tools that are not in it.

        Args:
            client: The client.
            groups: Names of all tools, in groups that are listed whole or not at all. The first always is.
            listing: Returns the listing of tools beside each other.
        """
        names = [name for group in groups for name in group]
        everything = listing(names)
        # Without other groups, or with a short list, there is nothing to search for.
        if len(groups) == 1 or listed_tokens(everything) <= LISTED_TOKENS:
            return everything, []
        search = listed_tokens(_search_tools(names))

        def fits(chosen: Sequence[str]) -> bool:
            return search + listed_tokens(listing(chosen)) <= LISTED_TOKENS

        # Groups in their order of need, then what the client has found, newest first.
        chosen = list(groups[0])
        for group in groups[1:]:
            if fits([*chosen, *group]):
                chosen += group
        for name in reversed(self._found.get(client, {})):
            if name in names and name not in chosen and fits([*chosen, name]):
                chosen.append(name)
        hidden = [name for name in names if name not in chosen]
        return [*listing(chosen), *_search_tools(hidden)], hidden

    def find(self, client: str, query: str, tools: Sequence[types.Tool], hidden: Sequence[str]) -> list[types.Tool]:
        """Return the tools that fit best, and note those that the client is not listed yet."""
        words = _words(query)
        # Sorting is stable: equal tools stay in the order of the list.
        ranked = sorted(tools, key=lambda tool: -_fit(tool, query.strip().lower(), words))
        found = [tool for tool in ranked if _fit(tool, query.strip().lower(), words) > 0][:_MAX_FOUND]
        known = self._found.setdefault(client, {})
        self._found.move_to_end(client)
        for tool in reversed(found):
            if tool.name in hidden:
                # Moved to the end: the last find is listed first.
                known.pop(tool.name, None)
                known[tool.name] = None
        if len(self._found) > _MAX_CLIENTS:
            self._found.popitem(last=False)  # nothing reports that a client over HTTP is gone
        return found


def _search_tools(hidden: Sequence[str]) -> list[types.Tool]:
    names = ", ".join(hidden)
    about = f"Find a tool that is not in your list. Returns how to call up to {_MAX_FOUND}. There are also: {names}."
    return [
        types.Tool(
            name=FIND,
            title="Find a tool",
            description=about,
            input_schema=_FIND_INPUT,
            annotations=types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
        ),
        types.Tool(
            name=CALL,
            title="Call a tool that was found",
            description=f"Call a tool that {FIND} returned, if your client does not offer it by its own name.",
            input_schema=_CALL_INPUT,
            annotations=types.ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True),
        ),
    ]


def query_in(params: types.CallToolRequestParams) -> str:
    """Return the query of a search.

    Raises:
        InvalidInput: No query is given.
    """
    query = (params.arguments or {}).get("query")
    if not isinstance(query, str) or not query.strip():
        raise InvalidInput(f"query is missing. Tell {FIND} in a few words what the tool should do.", parameter="query")
    return query


def called_through(params: types.CallToolRequestParams) -> types.CallToolRequestParams:
    """Return the call that a call of `helmsman_call` stands for.

    Raises:
        InvalidInput: It names no tool, or arguments that are not an object.
    """
    given = params.arguments or {}
    name, arguments = given.get("tool"), given.get("arguments", {})
    # A call of itself would never end.
    if not isinstance(name, str) or name in ("", FIND, CALL):
        raise InvalidInput(f"tool is missing. Name one that {FIND} returned.", parameter="tool")
    if not isinstance(arguments, dict):
        raise InvalidInput(
            f"arguments is not an object. Give what the inputSchema of {name} asks for.", parameter="arguments"
        )
    return params.model_copy(update={"name": name, "arguments": arguments})


def found_result(found: Sequence[types.Tool], hidden: Sequence[str]) -> types.CallToolResult:
    """Return the definitions of the tools that were found."""
    if not found:
        text = f"No tool fits. There are: {', '.join(hidden)}."
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])
    told: list[dict[str, Any]] = [
        {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema} for tool in found
    ]
    lines = [f"Call each by its name, or by {CALL} with tool and arguments.", *map(json.dumps, told)]
    return types.CallToolResult(content=[types.TextContent(type="text", text="\n".join(lines))])


def _words(text: str) -> set[str]:
    # Singular and plural count as one.
    return {word.removesuffix("s") for word in _WORD.findall(text.lower())}


def _fit(tool: types.Tool, query: str, words: set[str]) -> int:
    """Return how well a tool fits: a word of its name counts most, then its title, then its description."""
    if tool.name == query:
        return 1000
    name, title, about = _words(tool.name), _words(tool.title or ""), _words(tool.description or "")
    return 10 * len(words & name) + 4 * len(words & title) + len(words & about)
