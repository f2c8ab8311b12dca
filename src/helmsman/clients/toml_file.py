"""Edit single values of a TOML file and keep the rest, including comments.

Values in an existing table are edited with tomlkit, which keeps the text around them. Whole tables are appended and
removed as lines of text, so nothing else moves. Callers compare the parsed result with the expected value (`changes`),
so an unusual file leads to an error, never to a loss.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable

from helmsman.clients.json_file import NotReadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tomlkit import TOMLDocument

_TOKEN: Final = re.compile(
    r'"""(?s:\\.|[^\\])*?"{3,5}|'
    + r"'''(?s:.)*?'{3,5}|"
    + r'"(?:\\.|[^"\\\r\n])*"|'
    + r"'[^'\r\n]*'|#[^\r\n]*|[\[\]{}]"
)
"""Tokens that may contain a bracket: strings, comments, and brackets themselves."""
_BLANK_LINE: Final = re.compile(r"[ \t]*\r?\n")
_BLANK_LINE_ABOVE: Final = re.compile(r"(?:^|\n)(?P<blank>\r?\n)\Z")


@dataclass(frozen=True)
class TomlFile:
    """Text of a TOML file."""

    text: str

    @cached_property
    def value(self) -> Any:
        """Parsed content.

        Raises:
            NotReadable: The text is not TOML.
        """
        try:
            return tomllib.loads(self.text.removeprefix("\ufeff"))
        except (ValueError, RecursionError) as error:
            raise NotReadable(str(error)) from error

    def source(self, path: Sequence[str]) -> str | None:
        """Return the source text of the value at `path`; None if it is absent."""
        item = _item(self._document, path)
        return None if item is None else str(item.as_string()).strip()

    def with_value(self, path: Sequence[str], value: Any) -> TomlFile:
        """Set the value at `path`. A new table is appended to the file."""
        document = self._document
        owner = _item(document, path[:-1])
        # A table can be appended as text; an inline table has to be edited in place.
        if owner is None or (isinstance(value, dict) and _is_written_as_tables(document, path[:-1])):
            return self._appended(path, value)
        item = tomlkit.inline_table() if isinstance(value, dict) else tomlkit.item(value)
        if isinstance(value, dict):
            item.update(value)
        owner[path[-1]] = item
        return self._rewritten(document)

    def with_source(self, path: Sequence[str], source: str) -> TomlFile:
        """Replace the source text of a value."""
        document = self._document
        owner = _item(document, path[:-1])
        if owner is None:
            raise NotReadable(f"there is no table {'.'.join(path[:-1])}")
        owner[path[-1]] = tomlkit.value(source)
        return self._rewritten(document)

    def without(self, path: Sequence[str]) -> TomlFile:
        """Remove the value or table at `path`."""
        blocks = list(self._blocks(path))
        if blocks:
            text = self.text
            # From the end, so that earlier positions stay valid.
            for start, end in reversed(blocks):
                text = text[:start] + text[end:]
            return TomlFile(text)
        document = self._document
        owner = _item(document, path[:-1])
        if owner is None or path[-1] not in owner:
            return self
        del owner[path[-1]]
        return self._rewritten(document)

    @property
    def _document(self) -> TOMLDocument:
        """Parsed on each access, because edits change tomlkit documents in place."""
        try:
            return tomlkit.parse(self.text.removeprefix("\ufeff"))
        except TOMLKitError as error:
            raise NotReadable(str(error)) from error

    def _rewritten(self, document: TOMLDocument) -> TomlFile:
        return TomlFile(("\ufeff" if self.text.startswith("\ufeff") else "") + tomlkit.dumps(document))

    def _appended(self, path: Sequence[str], value: dict[str, Any]) -> TomlFile:
        """Append a table, after a blank line unless the file is empty."""
        table = tomlkit.table()
        for key, item in value.items():
            if isinstance(item, dict):
                table[key] = tomlkit.inline_table()
                table[key].update(item)
            else:
                table[key] = item
        name = ".".join(tomlkit.key(part).as_string() for part in path)
        lines = f"[{name}]\n{table.as_string()}"
        newline = "\r\n" if "\r\n" in self.text else "\n"
        gap = "" if not self.text.strip("\ufeff") else newline if self.text.endswith("\n") else newline * 2
        return TomlFile(self.text + gap + lines.replace("\n", newline))

    def _blocks(self, path: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Yield the spans of a table and its subtables, from the header to the last line, with blank lines between."""
        headers = [*_headers(self.text), (len(self.text), [])]
        for (start, keys), (limit, _) in pairwise(headers):
            if keys[: len(path)] != [*path]:
                continue
            lines = self.text[start:limit].splitlines(keepends=True)
            # Comments directly above a header belong to the table that follows.
            while len(lines) > 1 and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
                lines.pop()  # blank lines, and comments on the next table
            end = start + len("".join(lines))
            if not self.text[end:].strip():  # last table of the file: also remove the blank line above
                above = _BLANK_LINE_ABOVE.search(self.text[:start])
                start = start if above is None else above.start("blank")
            else:
                blank = _BLANK_LINE.match(self.text, end)
                end = end if blank is None else blank.end()
            yield start, end


def _headers(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the position of each table header and its keys; arrays of tables are left out."""
    depth = 0
    for token in _TOKEN.finditer(text):
        if token[0] in ("[", "{"):
            line_start = text.rfind("\n", 0, token.start()) + 1
            # Only a bracket at the beginning of a line, outside of values, is a header.
            if depth == 0 and not text[line_start : token.start()].strip():
                yield line_start, _header_keys(text[line_start:].partition("\n")[0].rstrip("\r"))
            depth += 1
        elif token[0] in ("]", "}"):
            depth -= 1


def _item(document: Any, path: Sequence[str]) -> Any:
    item = document
    for key in path:
        if not isinstance(item, dict) or key not in item:
            return None
        item = item[key]
    return item


def _is_written_as_tables(document: TOMLDocument, path: Sequence[str]) -> bool:
    """Return whether `[a.b]` may be added for a new `b`: not if `a` is an inline table."""
    return not isinstance(_item(document, path), InlineTable)


def _header_keys(line: str) -> list[str]:
    try:
        found: Any = tomllib.loads(line)
    except ValueError:
        return []
    keys = []
    while isinstance(found, dict) and len(found) == 1:
        ((key, found),) = found.items()
        keys.append(key)
    return keys
