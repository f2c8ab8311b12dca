"""Writes the little TOML that a Codex configuration needs: the standard library only reads it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def to_toml(values: Mapping[str, Any]) -> str:
    """Strings, numbers, booleans, lists and nested tables as a TOML document."""
    return "\n".join(_table(values, ())) + "\n"


def _table(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for key, value in values.items():
        if not isinstance(value, dict):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in values.items():
        if isinstance(value, dict):
            inner = (*path, key)
            yield f"\n[{'.'.join(map(_key, inner))}]"
            yield from _table(value, inner)


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, dict):  # inside a list
        return "{" + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool | int | float):
        return json.dumps(value)  # for these a JSON value is a TOML value
    raise TypeError(f"{value!r} cannot be written as TOML. Use text, numbers, booleans, lists or tables.")


def _text(text: str) -> str:
    """A JSON text is a TOML text, but for pairs of escapes (so none are made) and one character TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
