"""How a client is to start the Helmsman that is running now.

A client is often a desktop program that does not have the shell's PATH, and it starts Helmsman long after this process has
ended. So the entry names the console script by its full path, unless that lies in a cache which is thrown away (`uvx`,
`pipx run`): then the runner is named. A file that is shared with others gets no path of this machine at all.
"""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from helmsman.base.programs import available
from helmsman.clients.entries import DISTRIBUTION, HELMSMAN_NAMES, program_name

if TYPE_CHECKING:
    from collections.abc import Callable

_UV_BUCKETS: Final = ("archive-v", "environments-v", "builds-v")
"""Folders of uv's cache in which `uvx` keeps what it runs."""


@dataclass(frozen=True, slots=True)
class Running:
    """What is known of the process that is running: its first word, its Python, and where scripts are installed."""

    program: str
    python: str
    prefix: str
    scripts: str

    @classmethod
    def now(cls) -> Running:
        return cls(sys.argv[0], sys.executable, sys.prefix, sysconfig.get_path("scripts"))


def launch_words(running: Running, *, shared: bool, which: Callable[[str], str | None] = available) -> tuple[str, ...]:
    """The words that start Helmsman, without its arguments. `shared` is for a file that others have too."""
    if shared:
        return ("helmsman",) if which("helmsman") else ("uvx", DISTRIBUTION)
    cache = _runner_of_cache(PurePath(running.prefix))
    if cache == "uvx" or (cache is not None and which("uvx")):
        return (which("uvx") or "uvx", DISTRIBUTION)
    if cache is not None:
        return (which("pipx") or "pipx", "run", DISTRIBUTION)
    scripts = Path(running.scripts)
    for candidate in (Path(running.program), *(scripts / name for name in ("helmsman", "helmsman.exe"))):
        # Links stay as they are: `uv tool` and `pipx` keep one in ~/.local/bin that outlives upgrades.
        if program_name(str(candidate)) in HELMSMAN_NAMES and candidate.is_file():
            return (str(candidate.absolute()),)
    # Not from the current directory (-P): clients start it in a project, which could have a module of any name.
    return (running.python, "-P", "-m", "helmsman")


def _runner_of_cache(prefix: PurePath) -> str | None:
    """Which runner made the environment, if it is one that does not last."""
    parts = prefix.parts
    if any(part.startswith(_UV_BUCKETS) for part in parts):
        return "uvx"
    pairs = set(pairwise(parts))
    return "pipx" if pairs & {(".cache", "pipx"), ("pipx", ".cache"), ("Caches", "pipx")} else None
