"""Edit single values of a JSON file and keep every other character: comments, order, indentation.

Editors use JSON with comments and trailing commas, which must survive. So the file is parsed with positions, and text
is inserted and removed at these positions. `without` removes exactly the text that `with_source` inserts.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEFAULT_UNIT: Final = "  "
_DEEPEST: Final = 200
_BLANK: Final = re.compile(r"[ \t\r\n]*+")
_COMMENT: Final = re.compile(r"//[^\r\n]*+|/\*(?s:.*?)\*/")
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*+"')
_SCALAR: Final = re.compile(r"-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?|true|false|null")


class NotReadable(ValueError):
    """Invalid JSON. The message says where."""


@dataclass(slots=True)
class _Node:
    """Value with its position. `members` are those of an object."""

    start: int
    end: int
    value: Any
    members: list[_Member] | None = None

    def member(self, key: str) -> _Member | None:
        """Return the last member of that name, which is the one that counts."""
        return next((member for member in reversed(self.members or ()) if member.key == key), None)


@dataclass(slots=True)
class _Member:
    """Member of an object. `comma` is the position of the comma after it, if any."""

    key: str
    start: int
    node: _Node
    comma: int | None = None


@dataclass(frozen=True)
class JsonFile:
    """Text of a JSON file. `comments` allows comments and trailing commas."""

    text: str
    comments: bool = False

    @property
    def value(self) -> Any:
        """Parsed content.

        Raises:
            NotReadable: The text is not JSON.
        """
        return self._root.value

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
        member = None if owner is None else owner.member(path[-1])
        if owner is None or owner.members is None or member is None:
            return self
        number = owner.members.index(member)
        start = member.start
        end = member.node.end if member.comma is None else member.comma + 1
        while self.text[start - 1] in " \t\r\n":
            start -= 1
        if "\n" in self.text[start : member.start] and self.text[end:].partition("\n")[0].strip():
            start = member.start  # keep other text on this line away from a comment above
        text = self.text[:start] + self.text[end:]
        if len(owner.members) == 1 and not self.text[owner.start + 1 : start].strip():
            rest = _BLANK.match(text, start)
            if rest is not None and text[rest.end()] == "}":
                text = text[:start] + text[rest.end() :]
        # The last member was removed, so the previous one must not have a comma.
        if member.comma is None and number > 0:
            comma = owner.members[number - 1].comma
            assert comma is not None
            text = text[:comma] + text[comma + 1 :]
        return JsonFile(text, self.comments)

    # --- finding --------------------------------------------------------------------------------------------------

    @cached_property
    def _root(self) -> _Node:
        return _Parser(self.text, comments=self.comments).parse()

    def _find(self, path: Sequence[str]) -> _Node | None:
        known, node = self._nearest(path)
        return node if known == len(path) else None

    def _nearest(self, path: Sequence[str]) -> tuple[int, _Node]:
        """Return the length of the existing part of a path, and its node."""
        node = self._root
        for number, key in enumerate(path):
            member = node.member(key)
            if member is None:
                return number, node
            node = member.node
        return len(path), node

    # --- writing --------------------------------------------------------------------------------------------------

    def _replaced(self, start: int, end: int, source: str) -> JsonFile:
        return JsonFile(self.text[:start] + source + self.text[end:], self.comments)

    def _added(self, owner: _Node, key: str, value: Any) -> JsonFile:
        """Append a member to an object."""
        if owner.members is None:
            raise NotReadable(f"{_place(self.text, owner.start)} is not an object, so {key!r} cannot be put into it")
        last = owner.members[-1] if owner.members else None
        end = owner.end - 1
        while self.text[end - 1] in " \t\r\n":
            end -= 1
        on_one_line = "\n" not in self.text[end : owner.end]
        if last is None:
            on_one_line = on_one_line and "\n" not in self.text.strip() and owner is not self._root
        if on_one_line:
            lead, tail = (" " if self.text[owner.start + 1] == " " or last is not None else ""), ""
            source = f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
        else:
            indent = self._indent_at(owner.start) + self._unit if last is None else self._indent_at(last.start)
            lead = self._newline + indent
            tail = "" if "\n" in self.text[end : owner.end] else self._newline + self._indent_at(owner.start)
            source = f"{json.dumps(key, ensure_ascii=False)}: {self._lines(value, indent)}"
        trailing = last is not None and last.comma is not None
        text = self.text[:end] + lead + source + ("," if trailing else "") + tail + self.text[end:]
        if last is not None and not trailing:
            text = text[: last.node.end] + "," + text[last.node.end :]
        return JsonFile(text, self.comments)

    def _written(self, value: Any, position: int) -> str:
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


class _Parser:
    def __init__(self, text: str, *, comments: bool) -> None:
        self._text = text
        self._comments = comments
        self._at = 0

    def parse(self) -> _Node:
        if self._text.startswith("\ufeff"):
            self._at = 1
        self._skip()
        root = self._value(0)
        self._skip()
        if self._at < len(self._text):
            raise self._wrong("the end of the file was expected")
        if root.members is None:
            self._at = root.start
            raise self._wrong("an object was expected")
        return root

    def _value(self, depth: int) -> _Node:
        if depth > _DEEPEST:
            raise self._wrong("too many levels")
        start = self._at
        match self._peek():
            case "{":
                return self._object(start, depth)
            case "[":
                return self._array(start, depth)
            case '"':
                value = self._string()
                return _Node(start, self._at, value)
        found = _SCALAR.match(self._text, start)
        if found is None:
            raise self._wrong("a value was expected")
        self._at = found.end()
        return _Node(start, self._at, json.loads(found[0]))

    def _object(self, start: int, depth: int) -> _Node:
        self._at += 1
        members: list[_Member] = []
        self._skip()
        while self._peek() != "}":
            if members and members[-1].comma is None:
                raise self._wrong("a comma or } was expected")
            key_start = self._at
            if self._peek() != '"':
                raise self._wrong("a name in double quotes was expected")
            key = self._string()
            self._skip()
            if self._peek() != ":":
                raise self._wrong("a colon was expected")
            self._at += 1
            self._skip()
            members.append(_Member(key, key_start, self._value(depth + 1)))
            members[-1].comma = self._comma("}")
        self._at += 1
        value = {member.key: member.node.value for member in members}
        return _Node(start, self._at, value, members)

    def _array(self, start: int, depth: int) -> _Node:
        self._at += 1
        items: list[Any] = []
        more = True
        self._skip()
        while self._peek() != "]":
            if not more:
                raise self._wrong("a comma or ] was expected")
            items.append(self._value(depth + 1).value)
            more = self._comma("]") is not None
        self._at += 1
        return _Node(start, self._at, items)

    def _comma(self, closing: str) -> int | None:
        """Skip a comma, if there is one; return its position."""
        self._skip()
        if self._peek() != ",":
            return None
        comma = self._at
        self._at += 1
        self._skip()
        if self._peek() == closing and not self._comments:
            raise self._wrong("a comma before the end is not allowed here")
        return comma

    def _string(self) -> str:
        found = _STRING.match(self._text, self._at)
        if found is None:
            raise self._wrong("a text is not closed, or holds a line break")
        try:
            value: str = json.loads(found[0])
        except ValueError:
            raise self._wrong("a text has a wrong escape") from None
        self._at = found.end()
        return value

    def _skip(self) -> None:
        while True:
            blank = _BLANK.match(self._text, self._at)
            assert blank is not None
            self._at = blank.end()
            if self._peek() != "/":
                return
            comment = _COMMENT.match(self._text, self._at)
            if comment is None or not self._comments:
                raise self._wrong("a comment is not closed" if self._comments else "comments are not allowed here")
            self._at = comment.end()

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _wrong(self, what: str) -> NotReadable:
        return NotReadable(f"{_place(self._text, self._at)}: {what}")
