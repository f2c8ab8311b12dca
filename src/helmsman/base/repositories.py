"""Where git repositories begin. Imported by thin commands: only what costs nothing."""

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
    except (OSError, ValueError):  # most have none
        return False
    return not stat.S_ISDIR(kind) or os.path.lexists(f"{mark}/HEAD")


def upwards(directory: str) -> Iterator[str]:
    """Yield a directory and all that it is in."""
    above: str | None = None
    while above != directory:
        yield directory
        above, directory = directory, os.path.dirname(directory)  # noqa: PTH120
