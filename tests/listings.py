"""How the tools are listed now, beside how they were before their schemas were shortened, and the tokens of both.

`golden/listed_before.json` is that listing, as pydantic makes it: an `anyOf … null` around everything optional, a definition
for everything nested. What has come since is left out of the count, so that a new tool or field makes nothing worse.

Tokens are counted as pieces: by the pattern with which OpenAI's newer tokenizers (`o200k_base`) cut a text before they merge
bytes, for plain ASCII. A rare word is one piece and two or three tokens: the true count is some 10 % higher, on both sides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from helmsman.mcp.router_tool import router_tools
from helmsman.mcp.server import toolset_tools

Schema = Mapping[str, Any]

AT_MOST: Final = 0.75
"""The goal, now beside before."""
_BEFORE: Final = Path(__file__).parent / "golden" / "listed_before.json"
_PIECE: Final = re.compile(r"[^\r\n\w]?[A-Z]*[a-z]+|[^\r\n\w]?[A-Z]+|\d{1,3}| ?(?:[^\s\w]|_)+|\s+|\w")
OFFERED: Final = (
    *toolset_tools("sessions", ("sessions",)),
    *toolset_tools("agents", ("agents",)),
    *toolset_tools("extras", ("extras",)),
    *toolset_tools("capabilities", ("sessions",)),
    *router_tools({"codex": "Codex"}, expose_primitives=True),
)
"""Every tool but those of compat, which are listed as the original listed them."""


def counts() -> dict[str, tuple[int, int]]:
    """The tokens of each toolset, now and before."""
    now = listed_now()
    return {
        toolset: (sum(count(_as_before(now[tool["name"]], tool)) for tool in tools), sum(map(count, tools)))
        for toolset, tools in listed_before().items()
    }


def listed_now() -> dict[str, dict[str, Any]]:
    """The tools by their names, as they go over the wire."""
    return {tool.name: tool.listed().model_dump(by_alias=True, exclude_none=True, mode="json") for tool in OFFERED}


def listed_before() -> dict[str, list[dict[str, Any]]]:
    """The tools of each toolset as they were listed before."""
    before: dict[str, list[dict[str, Any]]] = json.loads(_BEFORE.read_text(encoding="utf-8"))
    return before


def count(value: Any) -> int:
    """The tokens of a value as JSON."""
    return len(_PIECE.findall(json.dumps(value, ensure_ascii=False, separators=(",", ":"))))


def fields(
    schema: Schema, root: Schema | None = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """Everything with a name in a schema: where it is, and its own schema, without the null that is left out."""
    root = schema if root is None else root
    if "$ref" in schema:
        yield from fields(
            {**root["$defs"][_name(schema)], **{k: v for k, v in schema.items() if k != "$ref"}}, root, path
        )
        return
    if path:
        yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from fields(_some(field), root, (*path, name))
    if "items" in schema:
        yield from ((where, field) for where, field in fields(schema["items"], root, path) if where != path)


def _some(field: Schema) -> Schema:
    parts = [part for part in field.get("anyOf", ()) if part != {"type": "null"}]
    return {**parts[0], **{key: value for key, value in field.items() if key != "anyOf"}} if len(parts) == 1 else field


def _name(reference: Schema) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _as_before(tool: dict[str, Any], before: Schema) -> dict[str, Any]:
    """A tool as it is listed now, with only those parameters and fields that it had before."""
    pruned = {
        key: _pruned(tool[key], tool[key], {path for path, _ in fields(before[key])}, ())
        for key in ("inputSchema", "outputSchema")
    }
    return tool | pruned


def _pruned(schema: Schema, root: Schema, known: set[tuple[str, ...]], path: tuple[str, ...]) -> dict[str, Any]:
    pruned = dict(schema)
    if "items" in schema:
        pruned["items"] = _pruned(schema["items"], root, known, path)
    if "properties" in schema:
        kept = [name for name in schema["properties"] if (*path, name) in known]
        pruned["properties"] = {name: _pruned(schema["properties"][name], root, known, (*path, name)) for name in kept}
        if "required" in schema:
            pruned["required"] = [name for name in schema["required"] if name in kept]
    return pruned
