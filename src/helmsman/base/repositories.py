"""Find the roots of git repositories. Imported by fast commands: standard library only."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


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
