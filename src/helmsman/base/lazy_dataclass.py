"""Data classes whose methods are written when they are first needed.

The standard library compiles six functions for a frozen class, which takes half a millisecond, and the hub has a hundred and
fifty of these classes when it says its first word. Here `__init__` is compiled when the first instance is made, and all
other methods are shared. `dataclasses.fields`, `replace` and the like work as ever, and so do type checkers. A class that is
frozen inherits only from classes made here.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import reprlib
from dataclasses import MISSING, FrozenInstanceError
from typing import TYPE_CHECKING, Any, Final

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from dataclasses import dataclass
else:

    def dataclass(*, slots: bool = False, frozen: bool = False, **options: bool) -> Callable[[type[Any]], type[Any]]:
        """As in `dataclasses`. Without slots it is the one from there."""
        if not slots:
            return dataclasses.dataclass(frozen=frozen, **options)
        with_fields = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, **options)
        return lambda cls: _made(cls, with_fields, _FROZEN if frozen else _OPEN)


def _made(cls: type[Any], with_fields: Callable[[type[Any]], type[Any]], methods: Mapping[str, object]) -> type[Any]:
    cls.__doc__ = cls.__doc__ or cls.__name__  # or else one is made of the signature, which takes longest of all
    cls = with_fields(cls)
    if hasattr(cls, "__post_init__") or not all(field.init for field in dataclasses.fields(cls)):
        raise TypeError(f"{cls.__name__} does more than take its fields: make it with `dataclasses`.")

    def first_init(self: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__ = _written_init(cls)
        cls.__init__(self, *args, **kwargs)

    for name, method in {"__init__": first_init, **methods}.items():
        if name not in vars(cls):
            setattr(cls, name, method)
    return cls


def _written_init(cls: Any) -> Any:
    positional, by_name, body = ["self"], ["*"], ["pass"]
    known: dict[str, Any] = {"__name__": cls.__module__, "_MISSING": MISSING}
    is_frozen = cls.__setattr__ is _setattr
    for field in dataclasses.fields(cls):
        name = value = parameter = field.name
        known[f"_set_{name}"] = getattr(cls, name).__set__  # the quickest way past a `__setattr__` that refuses
        if field.default is not MISSING:
            known[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
        elif field.default_factory is not MISSING:
            known[f"_make_{name}"] = field.default_factory
            parameter = f"{name}=_MISSING"
            value = f"_make_{name}() if {name} is _MISSING else {name}"
        (by_name if field.kw_only else positional).append(parameter)
        body.append(f"_set_{name}(self, {value})" if is_frozen else f"self.{name} = {value}")
    parameters = ", ".join(positional + (by_name if len(by_name) > 1 else []))
    exec(f"def __init__({parameters}):\n " + "\n ".join(body), known)  # noqa: S102 - made of names in our own code
    init = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {field.name: field.type for field in dataclasses.fields(cls)}
    return init


class _Signature:
    """What `inspect.signature` says of a class of which there is no instance yet."""

    def __get__(self, instance: object, cls: type[Any]) -> Any:
        if instance is not None:
            raise AttributeError("__signature__")
        import inspect

        whole = inspect.signature(_written_init(cls))
        return whole.replace(parameters=list(whole.parameters.values())[1:], return_annotation=None)


@functools.cache
def _compared(cls: Any) -> Callable[[Any], Any]:
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    return operator.attrgetter(*names) if names else lambda _: ()


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    values = _compared(self.__class__)
    return values(self) == values(other)


def _hash(self: Any) -> int:
    return hash(_compared(self.__class__)(self))


@reprlib.recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _setattr(_self: Any, name: str, _value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(_self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


_OPEN: Final = {"__signature__": _Signature(), "__eq__": _eq, "__hash__": None, "__repr__": _repr}
_FROZEN: Final = _OPEN | {
    "__hash__": _hash,
    "__setattr__": _setattr,
    "__delattr__": _delattr,
    "__getstate__": _getstate,
    "__setstate__": _setstate,
}
