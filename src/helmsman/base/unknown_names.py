"""A misspelt name is an error with a suggestion, never a value that is silently left out.

`sanbox="read-only"` must not run without the sandbox that was meant. Python itself refuses an argument that a function does
not have; a function that takes `**options` says here which there are.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """The name that was probably meant; with a `likeness` near 1, only if it is nearly the same."""
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=likeness)), None)


def only_known_arguments(options: type[Any]) -> Callable[[Callable[P, ResultT]], Callable[P, ResultT]]:
    """For a function with `**options: Unpack[…]`: what is no key of that TypedDict raises TypeError, at the call."""

    def decorate(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
        named = [
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind is not parameter.VAR_KEYWORD and name != "self"
        ]
        known = frozenset([*named, *options.__annotations__])

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> ResultT:
            for name in kwargs:
                if name not in known:
                    meant = nearest(name, sorted(known))
                    hint = f". Did you mean {meant!r}?" if meant else f". It takes: {', '.join(sorted(known))}."
                    raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}")
            return function(*args, **kwargs)

        return checked

    return decorate
