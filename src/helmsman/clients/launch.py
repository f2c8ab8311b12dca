"""Determine the command with which a client starts the running Helmsman.

A client is often a desktop program without the shell's PATH, and starts Helmsman long after this process has ended. So
the entry contains the full path of the console script, unless it is in a temporary cache (`uvx`, `pipx run`); then it
names the runner. A file that is shared with others gets no path of this machine.
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
"""Directories in uv's cache for environments of `uvx`."""


@dataclass(frozen=True, slots=True)
class Running:
    """Running process: its program, its Python, and the script directory."""

    program: str
    python: str
    prefix: str
    scripts: str

    @classmethod
    def now(cls) -> Running:
        return cls(sys.argv[0], sys.executable, sys.prefix, sysconfig.get_path("scripts"))


def launch_words(running: Running, *, shared: bool, which: Callable[[str], str | None] = available) -> tuple[str, ...]:
    """Return the words that start Helmsman, without arguments. `shared` is for files shared with other users."""
    if shared:
        return ("helmsman",) if which("helmsman") else ("uvx", DISTRIBUTION)
    cache = _runner_of_cache(PurePath(running.prefix))
    if cache == "uvx" or (cache is not None and which("uvx")):
        return (which("uvx") or "uvx", DISTRIBUTION)
    if cache is not None:
        return (which("pipx") or "pipx", "run", DISTRIBUTION)
    scripts = Path(running.scripts)
    for candidate in (Path(running.program), *(scripts / name for name in ("helmsman", "helmsman.exe"))):
        # Do not resolve links: `uv tool` and `pipx` keep one in ~/.local/bin that survives upgrades.
        if program_name(str(candidate)) in HELMSMAN_NAMES and candidate.is_file():
            return (str(candidate.absolute()),)
    # -P excludes the current directory: clients start it in a project, which may contain a module of any name.
    return (running.python, "-P", "-m", "helmsman")


def _runner_of_cache(prefix: PurePath) -> str | None:
    """Return the runner that created the environment, if it is temporary."""
    parts = prefix.parts
    if any(part.startswith(_UV_BUCKETS) for part in parts):
        return "uvx"
    pairs = set(pairwise(parts))
    return "pipx" if pairs & {(".cache", "pipx"), ("pipx", ".cache"), ("Caches", "pipx")} else None
