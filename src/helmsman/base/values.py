"""Encode Helmsman's values as JSON between its own processes.

A frozen dataclass becomes its class and fields, a tuple stays a tuple, and an error is raised again as the same type.
Only value classes of this package are decoded, so a peer cannot name arbitrary code. `stand_in` replaces objects that
are not values, such as sessions and functions.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec

from helmsman.errors import HelmsmanError

_KIND: Final = "$"
"""Key that marks an encoded object. Its value is the kind."""
_PACKAGE: Final = "helmsman"
_RAISED: Final[dict[str, type[Exception]]] = {"TypeError": TypeError, "ValueError": ValueError}
"""Errors of callers that are not ours."""


def _no_stand_in(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} is no value that can be sent to another process")


def encoded(value: Any, stand_in: Callable[[Any], Any] = _no_stand_in) -> Any:
    """Return a value as plain JSON. `stand_in` replaces objects that are not values."""
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, Enum)):
        return value

    def inside(part: Any) -> Any:
        return encoded(part, stand_in)

    match value:
        case Enum():
            return {_KIND: "enum", "of": _name(type(value)), "is": inside(value.value)}
        case Path():
            return {_KIND: "path", "is": str(value)}
        case bytes():
            return {_KIND: "bytes", "is": base64.b64encode(value).decode()}
        case datetime():
            return {_KIND: "time", "is": value.isoformat()}
        case timedelta():
            return {_KIND: "span", "is": [value.days, value.seconds, value.microseconds]}
        case HelmsmanError():
            details = {name: inside(part) for name, part in value.details.items()}
            return {_KIND: "error", "of": _name(type(value)), "is": value.message, "details": details}
        case Exception() if type(value).__name__ in _RAISED:
            return {_KIND: "mistake", "of": type(value).__name__, "is": str(value)}
        case msgspec.Struct():
            fields = {name: inside(getattr(value, name)) for name in value.__struct_fields__}
            return {_KIND: "value", "of": _name(type(value)), "is": fields}
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: inside(getattr(value, field.name)) for field in dataclasses.fields(value)}
            return {_KIND: "value", "of": _name(type(value)), "is": fields}
        case tuple() if hasattr(value, "_fields"):
            return {_KIND: "named", "of": _name(type(value)), "is": [inside(part) for part in value]}
        case tuple():
            return {_KIND: "tuple", "is": [inside(part) for part in value]}
        case Mapping() if any(type(key) is not str for key in value):  # JSON has only texts for keys
            return {_KIND: "pairs", "is": [[inside(key), inside(part)] for key, part in value.items()]}
        case Mapping():
            entries = {key: inside(part) for key, part in value.items()}
            return {_KIND: "map", "is": entries} if _KIND in entries else entries
        case Set():
            return {_KIND: "set", "is": [inside(part) for part in value]}
        case Sequence():
            return [inside(part) for part in value]
        case _:
            return stand_in(value)


def decoded(content: Any, stand_in: Callable[[Mapping[str, Any]], Any] = _no_stand_in) -> Any:
    """Return the decoded value. `stand_in` resolves the replacements of the other side.

    Raises:
        ValueError: It was not encoded by this module.
    """

    def inside(part: Any) -> Any:
        return decoded(part, stand_in)

    if isinstance(content, list):
        return [inside(part) for part in content]
    if not isinstance(content, dict):
        return content
    is_ = content.get("is")
    match content.get(_KIND):
        case None:
            return {key: inside(part) for key, part in content.items()}
        case "map":
            return {key: inside(part) for key, part in content["is"].items()}
        case "pairs":
            return {inside(key): inside(part) for key, part in content["is"]}
        case "tuple":
            return tuple(inside(part) for part in content["is"])
        case "set":
            return frozenset(inside(part) for part in content["is"])
        case "path":
            return Path(str(is_))
        case "bytes":
            return base64.b64decode(str(is_))
        case "time":
            return datetime.fromisoformat(str(is_))
        case "span":
            return timedelta(*content["is"])
        case "enum":
            return _class(content["of"], Enum)(inside(is_))
        case "error":
            details = {key: inside(part) for key, part in content["details"].items()}
            return _class(content["of"], HelmsmanError)(str(is_), **details)
        case "mistake":
            return _RAISED[content["of"]](str(is_))
        case "named":
            return _class(content["of"], tuple)(*(inside(part) for part in content["is"]))
        case "value":
            return _made(_class(content["of"], object), {key: inside(part) for key, part in content["is"].items()})
        case _:
            return stand_in(content)


def _made(cls: type[Any], fields: Mapping[str, Any]) -> Any:
    if issubclass(cls, msgspec.Struct):
        return cls(**{name: part for name, part in fields.items() if name in cls.__struct_fields__})
    if not dataclasses.is_dataclass(cls):
        raise ValueError(f"{cls.__name__} is no value")
    known = {field.name: field.init for field in dataclasses.fields(cls)}
    value = cls(**{name: part for name, part in fields.items() if known.get(name)})
    for name, part in fields.items():
        if known.get(name) is False:
            object.__setattr__(value, name, part)
    return value


def _name(cls: type[Any]) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _class(name: str, kind: type[Any]) -> type[Any]:
    module, _, path = name.partition(":")
    if module.partition(".")[0] != _PACKAGE:
        raise ValueError(f"{name} is none of ours")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if not isinstance(found, type) or not issubclass(found, kind) or found.__module__ != module:
        raise ValueError(f"{name} is no value")
    return found
