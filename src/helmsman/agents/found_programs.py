"""What is known of an agent's program without running it: its version, and whether somebody has logged in."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.json_values import json_object_in, optional_text
from helmsman.base.lazy_dataclass import dataclass
from helmsman.base.programs import check_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_INTERPRETER: Final = re.compile(r"(?:node|nodejs|bun|deno|python[\d.]*)(?:\.exe)?")
_LEVELS: Final = 4
"""How far above its program the description of a package is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The program of an agent, as it was found. `version` is None where only the program itself could tell.

    `login` is the file or the variable in which a login was found; there may be others, which are not looked for.
    """

    version: str | None
    path: str
    login: str | None = None


def agent_file(argv: Sequence[str]) -> str:
    """Return the file of an agent among the words that start it: of `node script.js` it is the script."""
    interpreter = _INTERPRETER.fullmatch(Path(argv[0]).name)
    scripts = (word for word in argv[1:] if not word.startswith("-") and Path(word).is_file())
    return next(scripts, argv[0]) if interpreter else argv[0]


def check_command(argv: Sequence[str], env: Mapping[str, str] | None) -> None:
    """Check the program of an agent, and its script, before each start: a session that writes there may have begun since it
    was found.

    Raises:
        ProgramRefused: A known session may write it.
    """
    for file in {argv[0], agent_file(argv)}:
        check_program(file, env)


def packaged_version(path: str) -> str | None:
    """The version of a program that npm has installed, by its package; None of any other."""
    program = Path(os.path.realpath(path))
    for place in (*program.parents,)[:_LEVELS]:
        package = json_object_in(place / "package.json") or {}
        if (version := optional_text(package.get("version"))) is not None:
            return version
    return None


def login_in(env: Mapping[str, str], variables: Iterable[str], files: Iterable[Path]) -> str | None:
    """The first of these that there is: a variable that is set, or a file that is not empty."""
    for name in variables:
        if env.get(name):
            return name
    for file in files:
        try:
            if file.stat().st_size > len("{}\n"):
                return str(file)
        except OSError:
            continue
    return None
