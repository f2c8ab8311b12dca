"""Suggestions for misspelt names, which are errors and never ignored.

`sanbox="read-only"` must not run without a sandbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Return the known name that was probably meant. With a `likeness` near 1, only if it is nearly the same."""
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=likeness)), None)
