"""JSON of calls between a program and the hub: arguments and results, by the declared types of the verbs.

A value is encoded as the codec of events does it (`helmsman.base.structs`). It does not say its type: both sides know the
types of a verb from `helmsman.hub.verbs`. A session is sent as its id, and a function of the program as a number.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import cache
from inspect import get_annotations
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from helmsman.base.structs import path_from_text
from helmsman.errors import HelmsmanError
from helmsman.hub.verbs import VERBS
from helmsman.model import options
from helmsman.sessions.session import Session

_MODULE: Final = re.compile(r"helmsman(?:\.[a-z_0-9]+)+")
_NAMES: Final[Mapping[str, Any]] = {
    "Any": Any,
    "Callable": Callable,
    "Collection": Collection,
    "Literal": Literal,
    "Mapping": Mapping,
    "Path": Path,
    "Sequence": Sequence,
    "datetime": datetime,
}
"""Names in the types of verbs, beside builtins and classes of this package."""
RESULT: Final = "return"
_MISTAKES: Final[Mapping[str, type[Exception]]] = {"TypeError": TypeError, "ValueError": ValueError}
"""Errors of callers that are not ours."""


@cache
def _signature(verb: str) -> tuple[Mapping[str, str], str | None]:
    """Return the types of a verb's parameters by their names, of its result as `RESULT`, and its group of options."""
    function = ast.parse(f"def verb{VERBS[verb][1]}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    types = {one.arg: ast.unparse(one.annotation) for one in function.args.args if one.annotation is not None}
    if function.returns is not None:
        types[RESULT] = ast.unparse(function.returns)
    group = function.args.kwarg
    return types, None if group is None or group.annotation is None else ast.unparse(group.annotation)


def parameters_of(verb: str) -> Sequence[str]:
    """Return the names of a verb's parameters, in their order."""
    types, group = _signature(verb)
    return [*(name for name in types if name != RESULT), *_options(group)]


@cache
def _options(group: str | None) -> Mapping[str, Any]:
    """Return the types of a group of options (`helmsman.model.options`) by their names."""
    kinds = {} if group is None else get_type_hints(getattr(options, group))
    # A path is sent as text.
    return {name: Sequence[str] if kind == Sequence[options.PathLike] else kind for name, kind in kinds.items()}


@cache
def type_of(verb: str, name: str) -> Any:
    """Return the type of a parameter, or of the result (`RESULT`); None for an unknown parameter.

    Loads the modules of this type only.
    """
    types, group = _signature(verb)
    if name not in types:
        return _options(group).get(name)
    declared = types[name]
    # Only the modules of this type, because all of them together take long to import.
    for module in set(_MODULE.findall(declared)):
        importlib.import_module(module)

    # `get_annotations` evaluates texts only as annotations of something.
    def typed() -> None: ...

    typed.__annotations__ = {name: declared}
    names = {**_NAMES, "helmsman": importlib.import_module("helmsman")}
    return get_annotations(typed, globals=names, eval_str=True)[name]


def callbacks_of(verb: str) -> Sequence[tuple[Any, ...]]:
    """Return the types of the arguments of each function that a verb takes."""
    named = [name for name, kind in _signature(verb)[0].items() if kind.startswith("Callable[")]
    return [found for name in named if (found := function_types(type_of(verb, name))) is not None]


# `Callable` may be one part of a union with None.
def function_types(kind: Any) -> tuple[Any, ...] | None:
    """Return the types of the arguments of a function of the program; None if this is no type of a function."""
    callables = [part for part in (kind, *get_args(kind)) if get_origin(part) is Callable]
    return tuple(get_args(callables[0])[0]) if callables else None


def pack_value(
    value: Any,
    number: Callable[[Callable[..., object]], int] | None = None,
    session: Callable[[Session], None] | None = None,
) -> Any:
    """Return a value as plain JSON. `number` numbers functions of the program, and `session` gets each session in it.

    Raises:
        TypeError: It is no value that can be sent.
    """

    def hook(part: Any) -> Any:
        match part:
            case Session() if session is not None:
                session(part)
                return part.id
            case os.PathLike():
                return os.fspath(part)
            case Mapping():
                return dict(part)
            # A subclass of str, which msgspec does not encode.
            case str():
                return str(part)
            case Sequence():
                return list(part)
            case _ if number is not None and callable(part):
                return number(part)
            case _:
                raise TypeError(f"{type(part).__name__} is no value that can be sent to another process")

    return msgspec.to_builtins(value, enc_hook=hook, str_keys=True)


def unpack_value(content: Any, kind: Any, session: Callable[[str], Session] | None = None) -> Any:
    """Return the value of a type that was packed. `session` finds a session by its id.

    Raises:
        ValueError: It is not such a value.
    """

    def hook(part_kind: type[Any], part: Any) -> Any:
        if part_kind is Session and session is not None:
            return session(str(part))
        return path_from_text(part_kind, part)

    try:
        return msgspec.convert(content, kind, dec_hook=hook, str_keys=True)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def pack_error(error: Exception) -> dict[str, Any]:
    """Return an error of ours, or of the caller, as JSON."""
    if isinstance(error, HelmsmanError):
        return {"code": error.code, "message": error.message, "details": pack_value(error.details)}
    return {"code": type(error).__name__, "message": str(error)}


def unpack_error(content: Mapping[str, Any]) -> Exception:
    """Return the error that was packed, as one of the same class. An unknown code is an error of the base class."""
    code, message = str(content["code"]), str(content["message"])
    if code in _MISTAKES:
        return _MISTAKES[code](message)
    known = _with_code(HelmsmanError, code) or HelmsmanError
    return known(message, **content.get("details", {}))


def _with_code(kind: type[HelmsmanError], code: str) -> type[HelmsmanError] | None:
    if kind.code == code:
        return kind
    found = (_with_code(one, code) for one in kind.__subclasses__())
    return next((one for one in found if one is not None), None)
