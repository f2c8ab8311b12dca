"""Format file changes as coloured lines.

Two forms are accepted: a unified diff of many files (`diff_lines`), and one file of a file change, which Codex sends as
bare hunks or as the whole content (`change_lines`). No line is left out, because users approve these changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from helmsman.base.sanitize import in_sight, named
from helmsman.git.diff import DiffLine, FileDiff, FileKind, LineKind, read_change, read_diff

if TYPE_CHECKING:
    from helmsman.model.events import PathChange

ADDED: Final = "green"
REMOVED: Final = "red"
HUNK: Final = "cyan"
HEADING: Final = "bold"

_STYLES: Final[dict[LineKind, str]] = {"add": ADDED, "remove": REMOVED, "hunk": HUNK, "note": "dim", "raw": "yellow"}
_VERBS: Final[dict[FileKind, str]] = {"added": "add", "deleted": "delete", "copied": "copy"}


def change_lines(change: PathChange, directory: str | None = None) -> list[Text]:
    """Format one file of a file change, with a heading. Paths below `directory` are relative to it."""
    # Codex sends a new file as bare content and an update as bare hunks; `read_change` reads both.
    file = read_change(change)
    return [_heading(file, directory), *map(_body_line, file.lines)]


def diff_lines(diff: str) -> list[Text]:
    """Format a unified diff, with a heading for each file."""
    lines: list[Text] = []
    for file in read_diff(diff):
        # Text before the first file header belongs to no file.
        lines += [_heading(file, None)] if file.path else []
        lines += map(_body_line, file.lines)
    return lines


def _heading(file: FileDiff, directory: str | None) -> Text:
    path = named(relative_path(file.path, directory))
    if file.old_path is not None:
        path = f"{named(relative_path(file.old_path, directory))} → {path}"
    heading = Text(f"{_VERBS.get(file.kind, 'change')} {path}", HEADING)
    if file.added is not None:
        heading.append(f"  +{file.added}", ADDED)
        heading.append(f" -{file.removed or 0}", REMOVED)
    return heading


def _body_line(line: DiffLine) -> Text:
    # A line outside hunks may have any prefix, so it is marked: it could look like a heading.
    shown = in_sight(line.text)
    return Text(f"│ {shown}" if line.kind == "raw" else shown, _STYLES.get(line.kind, ""))


def relative_path(path: str, directory: str | None) -> str:
    """Return the path relative to a directory, if it is inside."""
    # With the separator, so that /src/app2 is not taken for a part of /src/app.
    return path.removeprefix(directory.rstrip("/\\") + "/") if directory else path
