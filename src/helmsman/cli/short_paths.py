"""Paths in tables: the end of one says more than its beginning."""

from __future__ import annotations

from typing import Final

_LEAST: Final = 12


def end_of(path: str, room: int) -> str:
    """The path, or as much of its end as there is room for (a few characters are always shown)."""
    room = max(_LEAST, room)
    return path if len(path) <= room else "…" + path[len(path) - room + 1 :]
