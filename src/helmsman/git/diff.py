"""Parse unified diffs as git does, without losing a line.

Lines end at `\\n` only. Inside a hunk, its header decides how many lines belong to it. So a removed line that reads `--
a/x` (`--- a/x` in the diff) is a removed line, and a file may contain a diff. The parser drops only headers that repeat
the file's path and kind. Unparsable content is kept as it is: a line outside of any hunk alone, a file whose hunks do
not add up as a whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol

from helmsman.base.sanitize import named
from helmsman.base.structs import Value, replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FileKind = Literal["added", "deleted", "modified", "renamed", "copied", "mode"]
LineKind = Literal["add", "remove", "same", "hunk", "note", "raw"]

_HUNK: Final = re.compile(r"@@ -([0-9]{1,9})(?:,([0-9]{1,9}))? \+([0-9]{1,9})(?:,([0-9]{1,9}))? @@")
_INDEX: Final = re.compile(r"index [0-9a-f]+\.\.[0-9a-f]+(?: [0-7]{6})?|(?:dis)?similarity index [0-9]+%")
_MODE: Final = re.compile(r"(old|new|new file|deleted file) mode ([0-7]{6})")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(rb"\\([0-7]{3}|.)")
_CONTROLS: Final = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_FILE_LINE: Final = b"diff --git "
_NOWHERE: Final = "/dev/null"
_PLAIN_FILE: Final = "100644"
_MOVES: Final[dict[str, FileKind]] = {"rename": "renamed", "copy": "copied"}


class DiffLine(Value, frozen=True):
    """Line of a diff. `before` and `after` are its numbers in the old and the new file."""

    kind: LineKind
    text: str
    before: int | None = None
    after: int | None = None


class FileDiff(Value, frozen=True, kw_only=True):
    """File of a diff. `path` is empty for text before the first file and for hunks without a file.

    `added` and `removed` count lines; None for a binary file, and if the hunks do not add up.
    """

    path: str
    kind: FileKind = "modified"
    old_path: str | None = None
    added: int | None = None
    removed: int | None = None
    lines: tuple[DiffLine, ...] = ()


def read_diff(diff: str) -> tuple[FileDiff, ...]:
    """Return the files of a diff, in its order."""
    return tuple(section.finished() for section in _sections(_lines_of(diff)))


def file_patches(patch: bytes) -> Iterator[bytes]:
    """Yield the part of a patch about each file."""
    # No line of a file's content begins like this: a sign precedes it.
    for part in (b"\n" + patch).split(b"\n" + _FILE_LINE)[1:]:
        yield _FILE_LINE + part.removesuffix(b"\n") + b"\n"


class FileOfChange(Protocol):
    """Fields of a file change that the parser reads (`helmsman.model.events.PathChange`)."""

    @property
    def path(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def moved_to(self) -> str | None: ...

    @property
    def diff(self) -> str | None: ...


def read_change(change: FileOfChange) -> FileDiff:
    """Parse a file change, which is bare hunks, or the whole content of a file added or deleted."""
    lines = _lines_of(change.diff or "")
    if change.kind == "update":
        section = _Section()
        for line in lines:
            section.take(line)
        read = replace(section.finished(), path=change.path)
    else:
        read = replace(_whole_file(lines, added=change.kind == "add"), path=change.path)
    if change.moved_to is not None:
        read = replace(read, path=change.moved_to, kind="renamed", old_path=change.path)
    return read if change.diff is not None else replace(read, added=None, removed=None)


def _lines_of(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def _whole_file(lines: Sequence[str], *, added: bool) -> FileDiff:
    numbered = enumerate(lines, 1)
    if added:
        shown = tuple(DiffLine("add", f"+{line}", None, number) for number, line in numbered)
        return FileDiff(path="", kind="added", added=len(lines), removed=0, lines=shown)
    shown = tuple(DiffLine("remove", f"-{line}", number) for number, line in numbered)
    return FileDiff(path="", kind="deleted", added=0, removed=len(lines), lines=shown)


class _Hunks:
    """Hunks of one file while they are parsed."""

    def __init__(self) -> None:
        self.lines: list[DiffLine] = []
        self.added = self.removed = 0
        self.broken = False
        self.begun = False
        self._before = self._after = 0
        self._old_left = self._new_left = 0

    @property
    def is_open(self) -> bool:
        return self._old_left > 0 or self._new_left > 0

    def goes_on(self, line: str) -> bool:
        """Return whether the line may continue an open hunk."""
        sign = line[:1] or " "  # some tools drop the space of an empty line
        if sign == "\\":
            return True
        in_old, in_new = sign in "- ", sign in "+ "
        return (in_old or in_new) and (self._old_left > 0 or not in_old) and (self._new_left > 0 or not in_new)

    def take(self, line: str) -> bool:
        """Parse a line if it belongs to a hunk or begins one. Return whether it does."""
        if self.is_open:
            if self.goes_on(line):
                self._take_body(line)
                return True
            self.broken = True  # git would call the patch corrupt
            self._old_left = self._new_left = 0
        if header := _HUNK.match(line):
            old, old_count, new, new_count = header.groups()
            self._before, self._after = int(old), int(new)
            # Git leaves out a count of 1.
            self._old_left = 1 if old_count is None else int(old_count)
            self._new_left = 1 if new_count is None else int(new_count)
            self.begun = True
            self.put(line, "hunk")
            return True
        # `\ No newline at end of file` follows the last line of a hunk, when no line is missing any more.
        if self.begun and line.startswith("\\ "):
            self.put(line, "note")
            return True
        return False

    def put(self, line: str, kind: LineKind = "raw") -> None:
        self.lines.append(DiffLine(kind, line))

    def _take_body(self, line: str) -> None:
        sign = line[:1] or " "
        if sign == "\\":
            self.put(line, "note")
            return
        old, new = sign in "- ", sign in "+ "
        kind: LineKind = "same" if old and new else "add" if new else "remove"
        self.lines.append(DiffLine(kind, line, self._before if old else None, self._after if new else None))
        self._before, self._old_left = self._before + old, self._old_left - old
        self._after, self._new_left = self._after + new, self._new_left - new
        self.added, self.removed = self.added + (sign == "+"), self.removed + (sign == "-")


@dataclass(slots=True)
class _Section:
    """File of a diff while it is parsed."""

    git_line: str | None = None
    old_line: str | None = None
    new_line: str | None = None
    kind: FileKind = "modified"
    moved_from: str | None = None
    moved_to: str | None = None
    mode_changed: bool = False
    binary: bool = False
    hunks: _Hunks = field(default_factory=_Hunks)
    source: list[str] = field(default_factory=list[str])

    @property
    def in_header(self) -> bool:
        return self.git_line is not None and not self.hunks.begun and not self.binary

    def take(self, line: str) -> None:
        self.source.append(line)
        if self.hunks.take(line) or (self.in_header and self._take_header(line)):
            return
        self.hunks.put(line)

    def _take_header(self, line: str) -> bool:
        """Parse a header. Return whether it was understood: recorded, or implied by path and kind."""
        if mode := _MODE.fullmatch(line):
            match mode[1]:
                case "new file":
                    self.kind = "added"
                    if mode[2] != _PLAIN_FILE:  # a program or a link, which the kind does not say
                        self.hunks.put(line, "note")
                case "deleted file":
                    self.kind = "deleted"
                case _:
                    self.mode_changed = True
                    self.hunks.put(line, "note")
            return True
        if line.startswith("--- ") and self.old_line is None:
            self.old_line = line
        elif line.startswith("+++ ") and self.new_line is None:
            self.new_line = line
        elif line.startswith(("Binary files ", "GIT binary patch")):
            self.binary = True
            self.hunks.put(line, "note")
        elif not self._take_move(line):
            return _INDEX.fullmatch(line) is not None
        return True

    def _take_move(self, line: str) -> bool:
        for verb, kind in _MOVES.items():
            if line.startswith(f"{verb} from ") and self.moved_from is None:
                self.kind, self.moved_from = kind, _name(line.removeprefix(f"{verb} from "))
                return True
            if line.startswith(f"{verb} to ") and self.moved_to is None:
                self.kind, self.moved_to = kind, _name(line.removeprefix(f"{verb} to "))
                return True
        return False

    def finished(self) -> FileDiff:
        old, new = _file_name(self.old_line, "a/"), _file_name(self.new_line, "b/")
        path = next((name for name in (self.moved_to, new, old) if name and name != _NOWHERE), None)
        both = None if self.git_line is None else _git_names(self.git_line, self.moved_from or path, path)
        path = path or (both[1] if both is not None else "")
        kind = self._kind(old, new)
        if self.hunks.broken or self.hunks.is_open:
            lines = tuple(DiffLine("raw", line) for line in self.source)
            return FileDiff(path=path, kind=kind, old_path=self.moved_from, lines=lines)
        old_path = self.moved_from or path
        # Show a header that names another file than the one shown: git would refuse it, or follow it.
        unlike = (
            None if both == (old_path, path) else self.git_line,
            None if old in (old_path, _NOWHERE if kind == "added" else None) else self.old_line,
            None if new in (path, _NOWHERE if kind == "deleted" else None) else self.new_line,
        )
        return FileDiff(
            path=path,
            kind=kind,
            old_path=self.moved_from,
            added=None if self.binary else self.hunks.added,
            removed=None if self.binary else self.hunks.removed,
            lines=(*(DiffLine("raw", line) for line in unlike if line is not None), *self.hunks.lines),
        )

    def _kind(self, old: str | None, new: str | None) -> FileKind:
        if self.kind != "modified":
            return self.kind
        if self.git_line is None:
            return "added" if old == _NOWHERE else "deleted" if new == _NOWHERE else "modified"
        return "mode" if self.mode_changed and not self.hunks.begun and not self.binary else "modified"


def _sections(lines: Sequence[str]) -> Iterator[_Section]:
    section: _Section | None = None
    second_name = -1
    for number, line in enumerate(lines):
        if section is not None and section.hunks.is_open and section.hunks.goes_on(line):
            section.take(line)
        elif line.startswith("diff --git "):
            if section is not None:
                yield section
            section = _Section(git_line=line, source=[line])
        # After `diff --git`, the lines with `---` and `+++` belong to the same file.
        elif _begins_plain_file(lines, number) and not (section is not None and section.in_header):
            if section is not None:
                yield section
            second_name = number + 1
            section = _Section(old_line=line, new_line=lines[second_name], source=[line, lines[second_name]])
        elif number == second_name:
            continue
        else:
            section = section or _Section()
            section.take(line)
    if section is not None:
        yield section


def _begins_plain_file(lines: Sequence[str], number: int) -> bool:
    """Return whether a file begins here without a `diff --git` line: two names, and a hunk."""
    if not lines[number].startswith("--- ") or number + 2 >= len(lines):
        return False
    return lines[number + 1].startswith("+++ ") and _HUNK.match(lines[number + 2]) is not None


def _file_name(line: str | None, prefix: str) -> str | None:
    """Return the name in a line of `---` or `+++`, which ends where a tab begins a date."""
    return None if line is None else _name(line[4:].partition("\t")[0]).removeprefix(prefix)


def _git_names(line: str, old: str | None, new: str | None) -> tuple[str, str] | None:
    """Return the two names in a line of `diff --git`. Without quotes a space may be part of a name, or between them."""
    both = line.removeprefix("diff --git ")
    if old is not None and new is not None and both == f"a/{old} b/{new}":
        return old, new
    # Unless a file was renamed, both names have the same length, and the space between them is in the middle.
    middle = len(both) // 2
    found = [both[:middle], both[middle + 1 :]] if both[middle : middle + 1] == " " else []
    if '"' in both[:1] + both[-1:]:
        found = re.findall(r'"(?:[^"\\]|\\.)*"|[^ "]+', both)
    if len(found) != 2:
        return None
    first, second = map(_name, found)
    if first[:2] != "a/" or second[:2] != "b/" or ('"' not in both and first[2:] != second[2:]):
        return None
    return first[2:], second[2:]


def _name(text: str) -> str:
    """Return a name as git writes it: quoted in C style if it is ambiguous."""
    quoted = _QUOTED.fullmatch(text)
    if quoted is None:
        return text
    raw = _ESCAPED.sub(_unescaped, quoted[1].encode("utf-8", "surrogateescape"))
    return raw.decode("utf-8", "replace")


def _unescaped(found: re.Match[bytes]) -> bytes:
    code = found[1]
    return bytes([int(code, 8) & 0xFF]) if len(code) == 3 else _CONTROLS.get(code, code)


class FileStat(Value, frozen=True, kw_only=True):
    """Changed file. `old_path` is the previous path of a renamed or copied file; `mode` is a change of the mode alone.

    `added` and `removed` count lines; None for a binary file.
    """

    path: str
    kind: FileKind
    old_path: str | None = None
    added: int | None
    removed: int | None

    @property
    def binary(self) -> bool:
        return self.added is None


# --- statistics ---------------------------------------------------------------------------------------------------------


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
    # With a row of zeros, a diff without files can be unzipped as well.
    return [(0, 0), *((file.added, file.removed) for file in files)]
