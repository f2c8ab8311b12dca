"""Whether a place is inside the allowed roots (`HELMSMAN_ALLOWED_ROOTS`): the one comparison that everyone uses.

A path is what it leads to: its links are followed first, so a link inside that leads outside is outside.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence


def is_inside(path: str | os.PathLike[str], roots: Sequence[Path]) -> bool:
    """Whether it is one of these directories or in one of them. The roots have their links resolved already."""
    place = Path(path)
    try:
        resolved = place.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, or no path at all
        return False
    return place.is_absolute() and any(map(resolved.is_relative_to, roots))


def refuse_outside(path: str | os.PathLike[str], roots: Sequence[Path], parameter: str) -> None:
    """Without any roots every place will do.

    Raises:
        InvalidInput: It is outside.
    """
    if roots and not is_inside(path, roots):
        allowed = ", ".join(map(str, roots))
        raise InvalidInput(
            f"{os.fspath(path)} is outside the allowed roots. Choose one inside: {allowed}.", parameter=parameter
        )
