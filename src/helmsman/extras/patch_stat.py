"""What a unified diff changes, file by file, where only its text is known and there is no git to ask."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from helmsman.worktrees import FileStat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helmsman.worktrees import FileKind

_HUNK: Final = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_KINDS: Final[tuple[tuple[str, FileKind], ...]] = (
    ("new file mode ", "added"),
    ("deleted file mode ", "deleted"),
    ("rename from ", "renamed"),
    ("copy from ", "copied"),
)
_NOWHERE: Final = "/dev/null"


@dataclass(slots=True)
class _Section:
    """One file of a diff while its lines are read."""

    path: str
    kind: FileKind = "modified"
    old_path: str | None = None
    added: int = 0
    removed: int = 0
    binary: bool = False

    def take_header(self, line: str) -> None:
        for mark, kind in _KINDS:
            if line.startswith(mark):
                self.kind = kind
                if kind in ("renamed", "copied"):
                    self.old_path = line.removeprefix(mark)
        if line.startswith("+++ ") and (path := line.removeprefix("+++ ").rstrip("\t")) != _NOWHERE:
            self.path = path.removeprefix("b/")
        elif line.startswith(("rename to ", "copy to ")):
            self.path = line.partition(" to ")[2]
        elif line.startswith(("Binary files ", "GIT binary patch")):
            self.binary = True

    def stat(self) -> FileStat:
        added, removed = (None, None) if self.binary else (self.added, self.removed)
        return FileStat(path=self.path, kind=self.kind, old_path=self.old_path, added=added, removed=removed)


def files_of(diff: str) -> tuple[FileStat, ...]:
    """The files of a diff in git's form, in its order. Lines are counted inside of hunks only."""
    return tuple(section.stat() for section in _sections(diff))


def stat_of(files: tuple[FileStat, ...]) -> str:
    """An overview of changed files for people."""
    lines = [f" {file.path} | " + ("binary" if file.binary else f"+{file.added} -{file.removed}") for file in files]
    added, removed = (sum(count or 0 for count in counts) for counts in zip(*_counts(files), strict=True))
    return "\n".join([*lines, f" {len(files)} file(s) changed, +{added} -{removed}\n"])


def _counts(files: tuple[FileStat, ...]) -> list[tuple[int | None, int | None]]:
    return [(0, 0), *((file.added, file.removed) for file in files)]


def _sections(diff: str) -> Iterator[_Section]:
    section: _Section | None = None
    old_left = new_left = 0
    for line in diff.split("\n"):
        if section is not None and (old_left > 0 or new_left > 0):
            section.added += line.startswith("+")
            section.removed += line.startswith("-")
            old_left -= line.startswith(("-", " ")) or not line
            new_left -= line.startswith(("+", " ")) or not line
        elif line.startswith("diff --git "):
            if section is not None:
                yield section
            section = _Section(path=line.rpartition(" b/")[2])
        elif section is not None and (hunk := _HUNK.match(line)):
            old_left, new_left = (int(count) if count else 1 for count in hunk.groups())
        elif section is not None:
            section.take_header(line)
    if section is not None:
        yield section
