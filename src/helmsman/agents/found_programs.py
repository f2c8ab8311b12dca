"""What is known of an agent's program without running it: its version, and whether somebody has logged in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.json_values import json_object_in, optional_text
from helmsman.base.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
