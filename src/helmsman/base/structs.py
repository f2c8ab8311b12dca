"""Base class of frozen values, and their JSON as users see it.

A value is a `msgspec.Struct`: cheap to define, cheap to make, and msgspec encodes and decodes it by its declared types.
Stored and sent JSON has camelCase names and leaves out fields that have their default. `helmsman.model.codec` encodes and
decodes events.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from helmsman.base.json_values import camel_case

__all__ = [
    "SecretValue",
    "Tag",
    "Value",
    "fields_as_dict",
    "pack",
    "path_as_text",
    "path_from_text",
    "plain",
    "replace",
    "unpack",
    "unpack_if_valid",
]

T = TypeVar("T")


class Value(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base class of frozen values. Subclasses repeat `frozen=True`, for the type checker."""

    def to_json(self) -> dict[str, Any]:
        """Return the value as users see it, for `json.dumps`: its `type` if it has one, and its fields.

        Names are camelCase. Fields that are None are left out.
        """
        tag = self.__struct_config__.tag
        return fields_as_dict(self) if tag is None else {"type": tag, **fields_as_dict(self)}


class SecretValue(Value, frozen=True):
    """Value with fields that `repr` leaves out, because they may hold secrets."""

    secrets: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in self.secrets)
        return f"{type(self).__name__}({', '.join(shown)})"


class Tag:
    """Class attribute with the tag of a value's class: its `type` in JSON."""

    def __get__(self, _: object, cls: type[msgspec.Struct]) -> str:
        return str(cls.__struct_config__.tag)


if TYPE_CHECKING:
    from dataclasses import replace  # mypy checks the names of its fields, for Structs as well
else:

    def replace(value: Any, /, **changes: Any) -> Any:
        """Return a copy of a value with other fields."""
        copied = msgspec.structs.replace if isinstance(value, msgspec.Struct) else dataclasses.replace
        return copied(value, **changes)


def pack(value: Any) -> Any:
    """Return a value as plain JSON, for storage and for other processes. `unpack` reads it."""
    return msgspec.to_builtins(value, enc_hook=path_as_text)


def unpack(content: Any, kind: type[T]) -> T:
    """Return the value of this type that was packed.

    Raises:
        ValueError: It is not such a value.
    """
    try:
        return msgspec.convert(content, kind, dec_hook=path_from_text)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def unpack_if_valid(content: Any, kind: type[T]) -> T | None:
    """Return the value of this type that was packed; None if it is something else."""
    try:
        return unpack(content, kind)
    except ValueError:
        return None


def path_as_text(value: Any) -> str:
    """Encode a path, for msgspec (`enc_hook`)."""
    if not isinstance(value, PurePath):
        raise TypeError(f"{type(value).__name__} is no value that can be stored or sent")
    return str(value)


def path_from_text(kind: type[Any], content: Any) -> Any:
    """Decode a path, for msgspec (`dec_hook`)."""
    if not issubclass(kind, PurePath) or not isinstance(content, str):
        raise TypeError(f"{kind.__name__} cannot be read from {type(content).__name__}")
    return kind(content)


def fields_as_dict(value: Any) -> dict[str, Any]:
    """Return the fields of a value as users see them: camelCase names, fields that are None left out."""
    pairs = ((name, getattr(value, field)) for field, name in _names(type(value)))
    return {name: plain(content) for name, content in pairs if content is not None}


def _names(cls: type[Any]) -> Any:
    if issubclass(cls, msgspec.Struct):
        return zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True)
    return ((field.name, camel_case(field.name)) for field in dataclasses.fields(cls))


def plain(value: Any) -> Any:
    """Return a value as plain JSON, in the shape that users see."""
    match value:
        # Enums may be strings or numbers, too.
        case None | str() | int() | float() if not isinstance(value, Enum):
            return value
        case Enum():
            return value.value
        case PurePath():
            return str(value)
        case datetime():
            return value.isoformat()
        case list() | tuple():
            return [plain(entry) for entry in value]
        case Mapping():
            return value  # raw JSON is passed through
        case _ if hasattr(value, "to_json"):
            return value.to_json()
        case _ if dataclasses.is_dataclass(value):
            return fields_as_dict(value)
        case _:
            return value
