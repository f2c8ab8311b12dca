"""Edit single values of a JSON file and keep every other character: comments, order, indentation.

Editors use JSON with comments and trailing commas, which must survive. Python's parser reads the text with blanks in their
place, so positions are the same, and text is inserted and removed there. `without` removes exactly the text that
`with_source` inserts.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEFAULT_UNIT: Final = "  "
# Possessive (`*+`): a hostile file must not make the expression backtrack.
_BLANK: Final = re.compile(r"[ \t\r\n]*+")
_STRING: Final = r'"(?:[^"\\]|\\.)*+"'
# Strings are matched first, so that slashes inside them are no comments.
_COMMENT: Final = re.compile(rf"{_STRING}|(//[^\r\n]*+|/\*(?s:.*?)\*/)", re.DOTALL)
_LAST_COMMA: Final = re.compile(rf"{_STRING}|(?<=[^ \t\r\n{{\[,:])([ \t\r\n]*+,)(?=[ \t\r\n]*+[}}\]])", re.DOTALL)
_DECODER: Final = json.JSONDecoder()


class NotReadable(ValueError):
    """Invalid JSON. The message says where."""


class _Node(NamedTuple):
    """Span of a value in the text."""

    start: int
    end: int
    value: Any


class _Member(NamedTuple):
    """Member of an object. `comma` is the position of the comma after it, if any."""

    key: str
    start: int
    node: _Node
    comma: int | None


@dataclass(frozen=True)
class JsonFile:
    """Text of a JSON file. `comments` allows comments and trailing commas."""

    text: str
    comments: bool = False

    @cached_property
    def value(self) -> dict[str, Any]:
        """Parsed content.

        Raises:
            NotReadable: The text is not JSON.
        """
        try:
            value = json.loads(self._plain)
        except json.JSONDecodeError as error:
            raise NotReadable(f"{_place(self.text, error.pos)}: {error.msg}") from error
        except RecursionError:
            raise NotReadable("too many levels") from None
        if not isinstance(value, dict):
            raise NotReadable(f"{_place(self.text, self._root.start)}: Expecting an object")
        return value

    def source(self, path: Sequence[str]) -> str | None:
        """Return the source text of the value at `path`; None if it is absent."""
        node = self._find(path)
        return None if node is None else self.text[node.start : node.end]

    def with_value(self, path: Sequence[str], value: Any) -> JsonFile:
        """Set the value at `path` in the style of the file, creating missing objects."""
        known, node = self._nearest(path)
        for key in reversed(path[known + 1 :]):
            value = {key: value}
        if known == len(path):
            return self._replaced(node.start, node.end, self._written(value, node.start))
        return self._added(node, path[known], value)

    def with_source(self, path: Sequence[str], source: str) -> JsonFile:
        """Replace the source text of an existing value."""
        node = self._find(path)
        if node is None:
            raise NotReadable(f"there is no {'.'.join(path)}")
        return self._replaced(node.start, node.end, source)

    def without(self, path: Sequence[str]) -> JsonFile:
        """Remove the member at `path`; comments around it stay."""
        owner = self._find(path[:-1])
        members = [] if owner is None else self._members(owner)
        # Duplicates: the last one counts, as in every parser.
        number = next((number for number, one in reversed([*enumerate(members)]) if one.key == path[-1]), None)
        if owner is None or number is None:
            return self
        member = members[number]
        start = member.start
        end = member.node.end if member.comma is None else member.comma + 1
        while self.text[start - 1] in " \t\r\n":
            start -= 1
        if "\n" in self.text[start : member.start] and self.text[end:].partition("\n")[0].strip():
            start = member.start  # keep other text on this line away from a comment above
        text = self.text[:start] + self.text[end:]
        if len(members) == 1 and not self.text[owner.start + 1 : start].strip():
            rest = _skipped(text, start)
            # An object that is empty now gets no stray blanks.
            if text[rest] == "}":
                text = text[:start] + text[rest:]
        # The last member was removed, so the previous one must not have a comma.
        if member.comma is None and number > 0:
            comma = members[number - 1].comma
            assert comma is not None
            text = text[:comma] + text[comma + 1 :]
        return JsonFile(text, self.comments)

    # --- finding --------------------------------------------------------------------------------------------------

    @cached_property
    def _bare(self) -> str:
        """Text with its comments and byte order mark replaced by blanks."""
        # A byte order mark, as some editors on Windows write it.
        text = self.text.replace("\ufeff", " ", 1) if self.text.startswith("\ufeff") else self.text
        return _blanked(text, _COMMENT) if self.comments else text

    @cached_property
    def _plain(self) -> str:
        """JSON that has every value at the position it has in the text."""
        return _blanked(self._bare, _LAST_COMMA) if self.comments else self._bare

    @cached_property
    def _root(self) -> _Node:
        return self._node(_skipped(self._bare, 0))

    def _node(self, start: int) -> _Node:
        # Same positions as in the text, because blanks have replaced the rest.
        value, end = _DECODER.raw_decode(self._plain, start)
        return _Node(start, end, value)

    def _members(self, owner: _Node) -> list[_Member]:
        """Return the members of an object."""
        members: list[_Member] = []
        at = _skipped(self._bare, owner.start + 1)
        while self._bare[at] != "}":
            key, end = _DECODER.raw_decode(self._plain, at)
            colon = _skipped(self._bare, end)
            node = self._node(_skipped(self._bare, colon + 1))
            after = _skipped(self._bare, node.end)
            comma = after if self._bare[after] == "," else None
            members.append(_Member(key, at, node, comma))
            at = after if comma is None else _skipped(self._bare, comma + 1)
        return members

    def _find(self, path: Sequence[str]) -> _Node | None:
        known, node = self._nearest(path)
        return node if known == len(path) else None

    def _nearest(self, path: Sequence[str]) -> tuple[int, _Node]:
        """Return the length of the existing part of a path, and its node. Of members with one name the last counts."""
        node = self._root
        for number, key in enumerate(path):
            members = self._members(node) if isinstance(node.value, dict) else []
            found = next((one.node for one in reversed(members) if one.key == key), None)
            if found is None:
                return number, node
            node = found
        return len(path), node

    # --- writing --------------------------------------------------------------------------------------------------

    def _replaced(self, start: int, end: int, source: str) -> JsonFile:
        return JsonFile(self.text[:start] + source + self.text[end:], self.comments)

    def _added(self, owner: _Node, key: str, value: Any) -> JsonFile:
        """Append a member to an object."""
        if not isinstance(owner.value, dict):
            raise NotReadable(f"{_place(self.text, owner.start)} is not an object, so {key!r} cannot be put into it")
        last = next(reversed(self._members(owner)), None)
        end = owner.end - 1
        while self.text[end - 1] in " \t\r\n":
            end -= 1
        on_one_line = "\n" not in self.text[end : owner.end]
        if last is None:
            on_one_line = on_one_line and "\n" not in self.text.strip() and owner != self._root
        if on_one_line:
            lead, tail = (" " if self.text[owner.start + 1] == " " or last is not None else ""), ""
            source = f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
        else:
            indent = self._indent_at(owner.start) + self._unit if last is None else self._indent_at(last.start)
            lead = self._newline + indent
            tail = "" if "\n" in self.text[end : owner.end] else self._newline + self._indent_at(owner.start)
            source = f"{json.dumps(key, ensure_ascii=False)}: {self._lines(value, indent)}"
        # A trailing comma is the user's style, and is kept.
        trailing = last is not None and last.comma is not None
        text = self.text[:end] + lead + source + ("," if trailing else "") + tail + self.text[end:]
        if last is not None and not trailing:
            text = text[: last.node.end] + "," + text[last.node.end :]
        return JsonFile(text, self.comments)

    def _written(self, value: Any, position: int) -> str:
        # A file on one line stays on one line.
        if "\n" not in self.text.strip():
            return json.dumps(value, ensure_ascii=False)
        return self._lines(value, self._indent_at(position))

    def _lines(self, value: Any, indent: str) -> str:
        """Format the value with one line per member of an object; lists stay on one line."""
        if not isinstance(value, dict) or not value:
            return json.dumps(value, ensure_ascii=False)
        inner = indent + self._unit
        members = [
            f"{inner}{json.dumps(key, ensure_ascii=False)}: {self._lines(item, inner)}" for key, item in value.items()
        ]
        return "{" + self._newline + f",{self._newline}".join(members) + self._newline + indent + "}"

    @cached_property
    def _newline(self) -> str:
        # One kind of line end, the file's own.
        return "\r\n" if "\r\n" in self.text else "\n"

    @cached_property
    def _unit(self) -> str:
        """Indentation unit of the file."""
        found = re.search(r'^([ \t]+)"', self.text, re.MULTILINE)
        return found[1] if found else _DEFAULT_UNIT

    def _indent_at(self, position: int) -> str:
        line_start = self.text.rfind("\n", 0, position) + 1
        found = re.compile(r"[ \t]*").match(self.text, line_start)
        return "" if found is None else found[0]


def _place(text: str, position: int) -> str:
    line_start = text.rfind("\n", 0, position) + 1
    return f"line {text.count(chr(10), 0, position) + 1}, column {position - line_start + 1}"


def _skipped(text: str, position: int) -> int:
    """Return the next position that is not blank."""
    blank = _BLANK.match(text, position)
    return position if blank is None else blank.end()


def _blanked(text: str, pattern: re.Pattern[str]) -> str:
    """Replace what the group of a pattern matches by as many blanks."""
    return pattern.sub(lambda found: " " * len(found[0]) if found[1] else found[0], text)
