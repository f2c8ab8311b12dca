"""Parts of a change: some of its files, and some of the hunks of a file.

A part is computed among git's objects: the tree before the change, with the chosen files taken from the tree after it, and
chosen hunks applied by `git apply`. No working tree is read or written here. All functions block.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from helmsman.errors import InvalidInput, WorktreeError
from helmsman.git.diff import read_diff
from helmsman.git.patches import diff_digest, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from helmsman.git.command import Git
    from helmsman.git.diff import FileDiff

    Selection = Mapping[str, Collection[int] | None]  # hunks of each file, counted from 0; None is the whole file

_FILE: Final = b"diff --git "
_HUNK: Final = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def selected_tree(git: Git, before: str, after: str, patch: bytes, selection: Selection) -> str:
    """Return the tree `before` with the selected parts of the change to `after`. `git` is from `scratch`.

    `patch` is the whole change, as `helmsman.git.tree_changes` makes it.

    Raises:
        InvalidInput: The change has no such file or hunk, or the file has no hunks that can be separated.
        WorktreeError: Git failed.
    """
    known = _sections(patch)
    whole: set[str] = set()
    hunks = bytearray()
    for path, chosen in selection.items():
        if path not in known:
            raise InvalidInput(f"{path!r:.200} is not among these changes. Look at them again.", parameter="only")
        sections = known[path]
        if chosen is None:
            whole |= {
                path,
                *(one.file.old_path for one in sections if one.file.kind == "renamed" and one.file.old_path),
            }
        else:
            _check_hunks(path, sections, chosen)
            hunks += _with_hunks(sections[0].patch, chosen) if chosen else b""
    git.run("read-tree", before)
    _take_files(git, before, after, whole)
    if hunks:
        git.run("apply", "--cached", "--whitespace=nowarn", stdin=bytes(hunks))
    return git.text("write-tree")


def marks_of(patch: bytes) -> dict[str, str]:
    """Return a mark for each file of a change that differs once the file's change differs."""
    found = _sections(patch).items()
    return {path: diff_digest(b"".join(one.patch for one in sections))[:16] for path, sections in found}


def without(patch: bytes, selection: Selection) -> dict[str, Collection[int] | None]:
    """Return the selection of everything else in a change."""
    rest: dict[str, Collection[int] | None] = {}
    for path, sections in _sections(patch).items():
        chosen = selection.get(path, ())
        if chosen is None:
            continue
        if not chosen:
            rest[path] = None
            continue
        _check_hunks(path, sections, chosen)
        left = frozenset(range(len(_hunks(sections[0].patch)[1]))) - {*chosen}
        if left:
            rest[path] = left
    return rest


def _check_hunks(path: str, sections: list[_Section], hunks: Collection[int]) -> None:
    """Check that a file has these hunks. They are separable where the file stays, with its name and its mode."""
    count = 0
    if len(sections) == 1 and sections[0].file.kind == "modified":
        header, found = _hunks(sections[0].patch)
        count = 0 if b"\nold mode " in header else len(found)
    if not count:
        raise InvalidInput(f"{path} has no parts that can be taken alone. Take the whole file.", parameter="only")
    if not all(0 <= hunk < count for hunk in hunks):
        raise InvalidInput(f"{path} has {count} hunks. Look at the changes again.", parameter="only")


def _take_files(git: Git, before: str, after: str, paths: Collection[str]) -> None:
    """Put these files into the index as they are in the tree `after`."""
    raw = git.names("diff-tree", "-r", "--no-renames", "--ignore-submodules=none", "--raw", "-z", before, after)
    lines, found = bytearray(), set[str]()
    for about, path in zip(raw[::2], raw[1::2], strict=True):
        if shown(path) in paths:
            _, mode, _, name, _ = about.removeprefix(":").split(" ")
            lines += f"{mode} {name}\t".encode() + os.fsencode(path) + b"\0"
            found.add(shown(path))
    if missing := sorted({*paths} - found):  # its name is shown in another way than git has it
        raise InvalidInput(f"{missing[0]} cannot be taken alone. Take all changes.", parameter="only")
    if lines:
        git.run("update-index", "-z", "--replace", "--index-info", stdin=bytes(lines))


class _Section(NamedTuple):
    """Part of a patch about one file."""

    file: FileDiff
    patch: bytes


def _sections(patch: bytes) -> dict[str, list[_Section]]:
    """Return the parts of a patch by the path that is shown for them."""
    found: dict[str, list[_Section]] = {}
    for part in (b"\n" + patch).split(b"\n" + _FILE)[1:]:
        section = _FILE + part.removesuffix(b"\n") + b"\n"
        file = read_diff(section.decode("utf-8", "replace"))[0]
        found.setdefault(file.path, []).append(_Section(file, section))
    return found


def _hunks(section: bytes) -> tuple[bytes, list[list[bytes]]]:
    """Return the header of a file and its hunks, each as lines. A line of content never begins with `@@`."""
    header: list[bytes] = []
    hunks: list[list[bytes]] = []
    for line in _lines(section):
        if _HUNK.match(line):
            hunks.append([])
        (hunks[-1] if hunks else header).append(line)
    return b"".join(header), hunks


def _lines(section: bytes) -> Iterator[bytes]:
    """Yield lines as git sees them: only a newline ends one."""
    yield from (line + b"\n" for line in section.removesuffix(b"\n").split(b"\n"))


def _with_hunks(section: bytes, chosen: Collection[int]) -> bytes:
    """Return the patch of a file with some of its hunks, at the lines at which they now belong."""
    header, hunks = _hunks(section)
    patch, moved = bytearray(header), 0
    for number, (first, *lines) in enumerate(hunks):
        if number not in chosen:
            continue
        found = _HUNK.match(first)
        if found is None:
            raise WorktreeError("A hunk of this change cannot be read. Take the whole file.")
        begin, old, new = int(found[1]), int(found[2] or 1), int(found[4] or 1)
        # A hunk without lines on one side names the line before it there.
        at = begin + moved + (old == 0) - (new == 0)
        patch += b"@@ -%d,%d +%d,%d @@" % (begin, old, at, new) + first[found.end() :] + b"".join(lines)
        moved += new - old
    return bytes(patch)
