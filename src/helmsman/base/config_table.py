"""Checked access to one table of `helmsman.toml`. Errors name the file, the key and the allowed values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.unknown_names import nearest
from helmsman.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

_SECRET: Final = re.compile(r"secret|token(?!s)")
"""Matches the keys of secrets. Limits on tokens are none."""


class ConfigTable:
    """Table of a file. `name` is its dotted name, and `keys` are all keys that it may have."""

    def __init__(self, content: Any, name: str, path: Path, keys: Collection[str]) -> None:
        if not isinstance(content, dict):
            raise InvalidSetting(f"{name} in {path} is {content!r:.100}. Make it a table: [{name}].")
        self.content: Mapping[str, Any] = content
        self.path = path
        self._name = name
        # A misspelt key would silently leave its default in force.
        for key in content:
            if key not in keys:
                close = nearest(key, keys)
                advice = f"Did you mean {close}?" if close else f"Use one of: {', '.join(keys)}."
                raise InvalidSetting(f"{path} has an unknown key {name}.{key}. {advice}")

    def get(self, key: str, read: Callable[[Any], Any]) -> Any:
        """Return a checked value, or None if the key is missing. `read` raises `ValueError` with the allowed values."""
        if key not in self.content:
            return None
        try:
            return read(self.content[key])
        except ValueError as error:
            raise self.refuse(key, str(error)) from None

    def required(self, key: str, read: Callable[[Any], Any]) -> Any:
        if key not in self.content:
            raise InvalidSetting(f"{self._name} in {self.path} has no {key}. Set it.")
        return self.get(key, read)

    def refuse(self, key: str, allowed: str) -> InvalidSetting:
        """Return the error for a value. Secrets are not part of it."""
        value = self.content.get(key)
        shown = "not shown here" if _SECRET.search(key) else f"{value!r:.100}"
        return InvalidSetting(f"{self._name}.{key} in {self.path} is {shown}, which is not valid. Set it to {allowed}.")


def number(least: float, most: float, allowed: str) -> Callable[[Any], float]:
    """Return a reader of numbers from `least` to `most`."""

    def read(value: Any) -> float:
        # `true` is a number in Python.
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ValueError(allowed)
        return value

    return read


def switch(value: Any) -> bool:
    """Read a truth value."""
    if not isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004 - as all other readers
    return value
