"""Statistics of a unified diff from its text alone, without git."""

from __future__ import annotations

from helmsman.base.sanitize import named
from helmsman.model.unified_diff import FileStat, read_diff


def files_of(diff: str) -> tuple[FileStat, ...]:
    """Return the files of a diff, in order."""
    return tuple(
        FileStat(path=file.path, kind=file.kind, old_path=file.old_path, added=file.added, removed=file.removed)
        for file in read_diff(diff)
        if file.path
    )


def stat_of(files: tuple[FileStat, ...]) -> str:
    """Format an overview of changed files."""
    lines = [
        f" {named(file.path)} | " + ("binary" if file.binary else f"+{file.added} -{file.removed}") for file in files
    ]
    added, removed = (sum(count or 0 for count in counts) for counts in zip(*_counts(files), strict=True))
    return "\n".join([*lines, f" {len(files)} file(s) changed, +{added} -{removed}\n"])


def _counts(files: tuple[FileStat, ...]) -> list[tuple[int | None, int | None]]:
    return [(0, 0), *((file.added, file.removed) for file in files)]
