"""Declared tables of `helmsman.toml`. Errors name the file, the key and the allowed values.

A table is declared as a value whose fields are annotated with their readers. A reader returns a value as the code needs it,
or raises `ValueError` with the allowed values.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_type_hints

from msgspec.structs import fields

from helmsman.base.structs import Value
from helmsman.base.unknown_names import nearest
from helmsman.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

ValueT = TypeVar("ValueT", bound=Value)

_SECRET: Final = re.compile(r"secret|token(?!s)")
"""Matches the keys of secrets. Limits on tokens are none."""


class Contradiction(ValueError):
    """Raised by a declared table if a value does not fit the others. `allowed` says what is."""

    def __init__(self, key: str, allowed: str) -> None:
        super().__init__(allowed)
        self.key = key


class _Table:
    """Table of a file. `name` is its dotted name, and `keys` are all keys that it may have."""

    def __init__(self, content: Any, name: str, path: Path, keys: Collection[str]) -> None:
        if not isinstance(content, dict):
            raise InvalidSetting(f"{name} in {path} is {content!r:.100}. Make it a table: [{name}].")
        self.content: Mapping[str, Any] = content
        self._path = path
        self._name = name
        # A misspelt key would silently leave its default in force.
        for key in content:
            if key not in keys:
                close = nearest(key, keys)
                advice = f"Did you mean {close}?" if close else f"Use one of: {', '.join(keys)}."
                raise InvalidSetting(f"{path} has an unknown key {name}.{key}. {advice}")

    def value(self, key: str, read: Callable[[Any], Any]) -> Any:
        """Return a checked value. `read` raises `ValueError` with the allowed values; a missing value is None for it."""
        try:
            return read(self.content.get(key))
        except ValueError as error:
            if key in self.content:
                raise self.refuse(key, str(error)) from None
            raise InvalidSetting(f"{self._name} in {self._path} has no {key}. Set it to {error}.") from None

    def refuse(self, key: str, allowed: str) -> InvalidSetting:
        """Return the error for a value. Secrets are not part of it."""
        value = self.content.get(key)
        shown = "not shown here" if _SECRET.search(key) else f"{value!r:.100}"
        return InvalidSetting(
            f"{self._name}.{key} in {self._path} is {shown}, which is not valid. Set it to {allowed}."
        )


def read_table(kind: type[ValueT], content: Any, name: str, path: Path) -> ValueT:
    """Read a declared table. Its keys are the fields that are annotated with a reader.

    Raises:
        InvalidSetting: It is no such table.
    """
    readers = _readers(kind)
    table = _Table(content, name, path, readers)
    needed = {one.name for one in fields(kind) if one.required}
    given = {key: table.value(key, read) for key, read in readers.items() if key in needed or key in table.content}
    try:
        return kind(**given)
    except Contradiction as error:
        raise table.refuse(error.key, str(error)) from None


@cache
def _readers(kind: type[Value]) -> Mapping[str, Callable[[Any], Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


# --- readers ---------------------------------------------------------------------------------------------------------


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


def one_of(*choices: str) -> Callable[[Any], str]:
    """Return a reader of one of these words."""

    def read(value: Any) -> str:
        # A value of another type may not be comparable.
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return value

    return read


def some_text(value: Any) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("a text")
    return value


def some_path(value: Any) -> Path:
    """Read a path."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("a path")
    return Path(value)


def words(example: str) -> Callable[[Any], tuple[str, ...]]:
    """Return a reader of a list of words."""

    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not value or not all(isinstance(word, str) and word for word in value):
            raise ValueError(f"a list of words, such as {example}")
        return tuple(value)

    return read
