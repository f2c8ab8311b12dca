"""Writes src/helmsman/hub/verb_types.py from the verbs of the service: the types of their arguments and results.

python scripts/make_verb_types.py            write it
python scripts/make_verb_types.py --check    only say whether it is up to date
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
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from generated_page import write_or_check
from helmsman.hub.conversation import EVENTS
from helmsman.model.client_tools import ClientTool
from helmsman.model.options import SafetyOptions, StartOptions, TurnOptions, WorkOptions
from helmsman.operations.nature import VERBS
from helmsman.service import HelmsmanService
from helmsman.settings import load_settings

PAGE = "../src/helmsman/hub/verb_types.py"
HEAD = '''"""Signatures of the verbs that a program may ask of the hub.

Made by `scripts/make_verb_types.py` from the service, and checked against it by the tests. They are texts because a program
needs few of them, and does not load the modules of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

'''
TABLES = {
    "OPTION_TYPES": "Groups of options, which several verbs take. A verb names one behind `**`.",
    "VERB_TYPES": "Parameters and results.",
}
EVENTS_TYPES = "(session_id: str, cursor: int) -> tuple[int, list[tuple[str, str, str]]]"
LINE = 120
KEPT_BY_PROGRAM = frozenset({"on_question", "bring", "self"})
"""Parameters that the program itself handles."""


def main() -> int:
    """Write the module, or compare it."""
    return write_or_check(PAGE, module())


def module() -> str:
    """Return the module as text."""
    settings = load_settings({}, {"HOME": "/"}, Path("/"))
    service = HelmsmanService(settings, env={})
    verbs = {EVENTS: EVENTS_TYPES, **{verb: declared(service, verb) for verb in VERBS}}
    tables = zip(TABLES.items(), (option_groups(), verbs), strict=True)
    return HEAD + "\n".join(table(name, meaning, entries) for (name, meaning), entries in tables)


def table(name: str, meaning: str, entries: Mapping[str, str]) -> str:
    """Return one mapping of names to signatures, in lines of at most 120 characters."""
    lines = [f"{name}: Final[Mapping[str, str]] = {{"]
    for key, signature in sorted(entries.items()):
        if len(line := f'    "{key}": "{signature}",') <= LINE:
            lines.append(line)
        else:
            wrapped = textwrap.wrap(
                signature, LINE - 10, drop_whitespace=False, break_long_words=False, break_on_hyphens=False
            )
            lines += [f'    "{key}": (', *(f'        "{part}"' for part in wrapped), "    ),"]
    return "\n".join([*lines, "}", f'"""{meaning}"""', ""])


def declared(service: HelmsmanService, verb: str) -> str:
    """Return the signature of a verb."""
    function = inspect.unwrap(functools.reduce(getattr, verb.split("."), typing.cast("Any", service)))
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


def option_groups() -> dict[str, str]:
    """Return the groups of options. Each one extends the one before."""
    groups: dict[str, str] = {}
    known: set[str] = set()
    for group in (SafetyOptions, StartOptions, WorkOptions, TurnOptions):
        hints = typing.get_type_hints(group)
        listed = [f"{name}: {text(kind)}" for name, kind in hints.items() if name not in known]
        groups[group.__name__] = f"({', '.join([*listed, *(f'**options: {name}' for name in [*groups][-1:])])})"
        known |= hints.keys()
    return groups


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
