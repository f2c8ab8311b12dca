"""Values of an agent's configuration, as people write them: `KEY=VALUE` with a value in TOML, and one layer over another."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_TEXTS_BY_NAME: Final = frozenset({"env", "http_headers", "env_http_headers", "query_params", "set"})
"""Tables of Codex's configuration in which every value is a text: the environment of an MCP server, its headers, …."""


def pair(text: str) -> tuple[str, str]:
    """Return the key and the value, still to be read, of `KEY=VALUE`.

    Raises:
        ValueError: It is not of that form.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"{text!r} is not of the form KEY=VALUE.")
    return key.strip(), value.strip()


def read_value(key: str, value: Any) -> Any:
    """Parse VALUE of `-c KEY=VALUE` as Codex does: as TOML, or as text if it is not TOML or the key only takes text.

    Values that are not text are returned unchanged.
    """
    if not isinstance(value, str):
        return value
    try:
        # Parsed as the value of a key: TOML has no syntax for a value alone.
        read = tomllib.loads(f"value = {value.strip()}")
    except (ValueError, RecursionError):
        return value
    meant = read["value"]
    # A newline in the text could add further keys.
    if read.keys() != {"value"} or not isinstance(meant, bool | int | float | str | list | dict):
        return value
    # `inf` and `nan` are TOML, but not JSON, in which the value is sent.
    if isinstance(meant, float) and not math.isfinite(meant):
        return value
    only_texts = not _TEXTS_BY_NAME.isdisjoint(key_path(key)[-2:-1])
    return value if only_texts and not isinstance(meant, str) else meant


def key_path(key: str) -> list[str]:
    """Return the names in a dotted key, read as Codex reads them: `projects."/src/my.app".trust_level` has three."""
    try:
        found: Any = tomllib.loads(f"{key} = 0")
    except (ValueError, RecursionError):
        return key.split(".")  # a path without quotes, which is cut at its dots
    path = []
    while isinstance(found, dict):
        # Several keys, from a newline in the text.
        if len(found) != 1:
            return key.split(".")
        ((name, found),) = found.items()
        path.append(name)
    return path


def dotted(path: Iterable[str]) -> str:
    """Return the key of these names, with quotes where one needs them."""
    return ".".join(name if _BARE.fullmatch(name) else as_toml(name) for name in path)


def as_toml(value: Any) -> str:
    """Return a configuration value in TOML, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_toml(key)} = {as_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    # Otherwise JSON is TOML, but for surrogate pairs, which TOML does not know, and for DEL, which it wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def over(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return one configuration over another, value by value.

    Keys may be dotted, or tables; no key of the result is in another.
    """
    chosen = dict(_leaves(own))
    # A default below or above a chosen key would come back through the merge.
    below = {key: value for key, value in _leaves(defaults) if not any(_overlap(key, other) for other in chosen)}
    return below | chosen


def _leaves(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        is_table = isinstance(value, Mapping) and value
        # A name with a dot would not survive as part of a dotted key.
        if is_table and all(isinstance(name, str) and name and "." not in name for name in value):
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield before + key, value


def _overlap(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")
