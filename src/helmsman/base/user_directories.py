"""Directories of a user's settings and state, and roots of repositories. Front ends and the hub must agree on them.

Imported by fast commands: standard library only.
"""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NOBODY_KNOWS = "~"
"""Home of a user without one."""


def home_directory(env: Mapping[str, str]) -> str:
    named = env.get("USERPROFILE" if sys.platform == "win32" else "HOME")
    return named or os.path.expanduser("~")  # noqa: PTH111 - pathlib costs more than a whole pipe


def config_directory(env: Mapping[str, str]) -> str:
    """Return the directory of the user's own `helmsman.toml`."""
    return _usual(env, "XDG_CONFIG_HOME", ".config")


def data_directory(env: Mapping[str, str]) -> str:
    """Return the directory of programs that Helmsman installs."""
    return _usual(env, "XDG_DATA_HOME", ".local/share")


def usual_state_directory(env: Mapping[str, str]) -> str:
    """Return the default state directory."""
    return _usual(env, "XDG_STATE_HOME", ".local/state")


def _usual(env: Mapping[str, str], variable: str, below_home: str) -> str:
    if sys.platform == "win32":
        return f"{env.get('LOCALAPPDATA') or home_directory(env) + '/AppData/Local'}/helmsman"
    if (named := env.get(variable, "")).startswith("/"):  # the XDG specification says to ignore relative paths
        return f"{named}/helmsman"
    if sys.platform == "darwin":
        below_home = "Library/Application Support"
    return f"{home_directory(env)}/{below_home}/helmsman"


# --- Find the roots of git repositories -------------------------------------------------------------------------------


def is_root(place: str) -> bool:
    """Return whether a repository begins in a directory. Never raises.

    A `.git` counts when it is a file (a worktree, a submodule), a link, or has a HEAD: sandboxes leave empty ones behind.
    """
    mark = f"{place}/.git"
    try:
        kind = os.lstat(mark).st_mode
    except (OSError, ValueError):  # usually no such file
        return False
    return not stat.S_ISDIR(kind) or os.path.lexists(f"{mark}/HEAD")


def enclosing_roots(directory: str, home: str) -> list[str]:
    """Return the roots of all repositories around a directory, innermost first.

    A repository in the user's home, or above it, holds settings, not the projects below. It counts only if there is no
    other one.
    """
    roots = [place for place in upwards(directory) if is_root(place)]
    below = [root for root in roots if root not in set(upwards(home))]
    return below or roots


def project_places(directory: str, home: str) -> list[str]:
    """Return a directory and its parents up to the outermost repository's root.

    A repository created inside must not hide the outer one. Outside of repositories, return the directory alone: its
    parents may belong to other users.
    """
    roots = enclosing_roots(directory, home)
    places = list(upwards(directory))
    return places[: places.index(roots[-1]) + 1] if roots else places[:1]


def upwards(directory: str) -> Iterator[str]:
    """Yield a directory and all that it is in."""
    above: str | None = None
    while above != directory:
        yield directory
        above, directory = directory, os.path.dirname(directory)  # noqa: PTH120
