"""Writes src/helmsman/hub/verbs.py from the verbs of the service: the types of their arguments and results.

python scripts/make_verbs.py            write it
python scripts/make_verbs.py --check    only say whether it is up to date
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import os
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Coroutine, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from generated_page import write_or_check
from helmsman.hub.conversation import EVENTS
from helmsman.model import nature
from helmsman.model.client_tools import ClientTool
from helmsman.model.nature import NATURE, READS, Nature
from helmsman.service import HelmsmanService
from helmsman.settings import load_settings

PAGE = "../src/helmsman/hub/verbs.py"
HEAD = '''"""Verbs that a program may ask of the hub: the nature of each, and its signature.

Made by `scripts/make_verbs.py` from the methods of the service that are declared as verbs (`helmsman.model.nature`), and
checked against them by the tests. Signatures are texts because a program needs few of them, and does not load the modules of
the others. `**` names a group of options (`helmsman.model.options`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

'''
IMPORTS = """
if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.model.nature import Nature

VERBS: Final[Mapping[str, tuple[Nature, str]]] = {
"""
TAIL = """}
READING: Final = frozenset(verb for verb, (nature, _) in VERBS.items() if nature.reads)
"""
EVENTS_TYPES = "(session_id: str, cursor: int) -> tuple[int, list[tuple[str, str, str]]]"
LINE = 120
PARTS = [*(name for name in dir(HelmsmanService) if hasattr(getattr(HelmsmanService, name), NATURE)), "extras", "tasks"]
"""Verbs and parts of the service itself."""
KEPT_BY_PROGRAM = frozenset({"on_question", "bring", "self"})
"""Parameters that the program itself handles."""


def main() -> int:
    """Write the module, or compare it."""
    return write_or_check(PAGE, module())


def module() -> str:
    """Return the module as text."""
    settings = load_settings({}, {"HOME": "/"}, Path("/"))
    service = HelmsmanService(settings, env={})
    verbs = {EVENTS: (READS, EVENTS_TYPES), **dict(verbs_of(service, "", PARTS))}
    # By identity: natures with different names may be equal.
    natures = {id(value): name for name, value in vars(nature).items() if isinstance(value, Nature)}
    lines: list[str] = []
    for name, (kind, signature) in sorted(verbs.items()):
        lines += entry(name, natures[id(kind)], signature)
    used = sorted({natures[id(kind)] for kind, _ in verbs.values()})
    return "\n".join(
        [f"{HEAD}from helmsman.model.nature import {', '.join(used)}", f"{IMPORTS}{chr(10).join(lines)}", TAIL]
    )


def verbs_of(part: object, path: str, names: Collection[str]) -> Iterator[tuple[str, tuple[Nature, str]]]:
    """Yield the verbs of the service or of a part of it, and of the parts in it."""
    for name in names:
        value = getattr(part, name)
        if (kind := getattr(value, NATURE, None)) is not None:
            yield path + name, (kind, declared(value))
        elif type(value).__module__.startswith("helmsman.capabilities."):
            yield from verbs_of(value, f"{path}{name}.", [one for one in dir(value) if not one.startswith("_")])


def entry(name: str, kind: str, signature: str) -> list[str]:
    """Return the entry of a verb, in lines of at most 120 characters."""
    if len(line := f'    "{name}": ({kind}, "{signature}"),') <= LINE:
        return [line]
    wrapped = textwrap.wrap(signature, LINE - 10, drop_whitespace=False, break_long_words=False, break_on_hyphens=False)
    *parts, last = [f'        "{part}"' for part in wrapped]
    return [f'    "{name}": (', f"        {kind},", *parts, f"{last},", "    ),"]


def declared(method: Callable[..., object]) -> str:
    """Return the signature of a verb."""
    function = inspect.unwrap(method)
    hints = hints_of(function)
    parameters = [name for name in hints if name not in {*KEPT_BY_PROGRAM, "return"}]
    listed = []
    for name in parameters:
        if inspect.signature(function).parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            (group,) = typing.get_args(hints[name])
            listed.append(f"**{name}: {group.__name__}")
        else:
            listed.append(f"{name}: {text(hints[name])}")
    return f"({', '.join(listed)}) -> {text(hints['return'])}"


def hints_of(function: Any) -> dict[str, Any]:
    """Return the types of a function, also those that its module imports for the type checker alone."""
    names = names_of(inspect.getmodule(function))
    return {
        name: eval(hint, names) if isinstance(hint, str) else hint for name, hint in function.__annotations__.items()
    }


@functools.cache
def names_of(module: Any) -> dict[str, Any]:
    """Return the names that a module defines."""
    names = dict(vars(module))
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            imported = importlib.import_module(node.module)
            for one in node.names:
                if (name := one.asname or one.name) not in names and hasattr(imported, one.name):
                    names[name] = getattr(imported, one.name)
    return names


def text(kind: Any) -> str:
    """Return the source of a type. Paths are sent as texts, and so is a time that may also be a text."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    match origin:
        case None:
            return plain(kind)
        case typing.Annotated:
            return text(parts[0])
        case typing.Union | types.UnionType:
            return " | ".join(dict.fromkeys(text(part) for part in of_union(parts)))
        case _ if origin is Literal:
            return f"Literal[{', '.join(map(repr, parts))}]"
        case _ if origin is Callable:
            return f"Callable[[{', '.join(map(text, parts[0]))}], {text(parts[1])}]"
        case _ if origin is Coroutine:
            return text(parts[2])
        case _:
            return f"{plain(origin)}[{', '.join(map(text, parts))}]"


def of_union(parts: tuple[Any, ...]) -> list[Any]:
    """Return the parts of a union that are sent."""
    if str in parts:
        parts = tuple(part for part in parts if part not in (os.PathLike[str], Path, datetime))
    return [part for part in parts if part is not ClientTool]


def plain(kind: Any) -> str:
    if kind in (None, type(None)):
        return "None"
    if kind is ...:
        return "..."
    if kind is Any:
        return "Any"
    is_ours = kind.__module__.startswith("helmsman.")
    return f"{kind.__module__}.{kind.__qualname__}" if is_ours else str(kind.__name__)


if __name__ == "__main__":
    sys.exit(main())
