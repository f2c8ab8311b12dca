"""Code in colours: which part of it is a keyword, a string, a comment. Pygments reads the code; its result is a
class for each piece, and the page's style sheet says what that looks like.

Imported only where something is shown: Pygments takes its time.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from pygments.lexers import find_lexer_class_by_name, find_lexer_class_for_filename
from pygments.token import Comment, Keyword, Literal, Name, Number, Operator, String
from pygments.util import ClassNotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pygments.lexer import Lexer

CLASSES: Final = ("kw", "str", "com", "num", "fn", "bi")
CHANGED: Final = "word"
"""Class of a word that differs from the line that was replaced."""

_KINDS: Final = (
    (Comment, "com"),
    (Keyword, "kw"),
    (Operator.Word, "kw"),
    (String, "str"),
    (Number, "num"),
    (Literal, "num"),
    (Name.Function, "fn"),
    (Name.Class, "fn"),
    (Name.Decorator, "fn"),
    (Name.Tag, "kw"),
    (Name.Attribute, "fn"),
    (Name.Builtin, "bi"),
    (Name.Constant, "bi"),
)
_MOST_CHARS: Final = 200_000
_LONGEST_LINE: Final = 1000
"""Longer lines are minified or malicious, and are not highlighted."""
_MOST_LINES: Final = 10_000
"""Highlighted lines of a diff. Further files have no colours."""
_WORDS: Final = re.compile(r"\w+|\s+|[^\w\s]")
_COMPARED: Final = 400
"""Characters of a line that are compared word by word."""
_ALIKE: Final = 0.5
"""Lines that have less in common are no two versions of one line."""

_Piece = tuple[str, str]
"""Class (or none) and text."""


def in_language(code: str, language: str) -> Iterator[_Piece]:
    """Yield the code in pieces; one piece without a class for an unknown language."""
    yield from _pieces(code, _by_name(language.lower()))


def colour_files(files: Iterable[dict[str, Any]]) -> None:
    """Add to each line of these files (`safe_values.shown_files`) its pieces behind the sign: `[length, class]`, …"""
    # Files beyond the limit stay plain, so that no file is coloured in part.
    room = _MOST_LINES
    for file in files:
        lines: list[list[Any]] = file["lines"]
        room -= len(lines)
        if room < 0:
            continue
        # By name: guessing from content is slow and often wrong.
        lexer = _by_file(file["path"].rpartition("/")[2])
        for is_hunk, part in groupby(lines, lambda line: line[0] in ("add", "remove", "same")):
            if is_hunk:
                _colour_hunk(list(part), lexer)


def _colour_hunk(lines: Sequence[list[Any]], lexer: Lexer | None) -> None:
    """Highlight both versions as a whole, since the meaning of a line depends on earlier ones."""
    coloured: dict[int, list[_Piece]] = {}
    # Each version separately: mixed, removed and added lines are no valid code.
    for kinds in (("remove", "same"), ("add", "same")):
        side = [line for line in lines if line[0] in kinds]
        if not side:
            continue
        shown = _lines_of(_pieces("\n".join(line[1][1:] for line in side), lexer))
        coloured |= {id(line): pieces for line, pieces in zip(side, shown, strict=True)}
    changed = _changed_words(lines)
    for line in lines:
        pieces = _marked(coloured[id(line)], changed.get(id(line), ()))
        if any(kind for kind, _ in pieces):
            line.append([[_units(text), kind] for kind, text in pieces])


def _units(text: str) -> int:
    """Return how long JavaScript takes it to be, which counts UTF-16."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


# --- colours ---------------------------------------------------------------------------------------------------------


def _pieces(code: str, lexer: Lexer | None) -> Iterator[_Piece]:
    if lexer is None or len(code) > _MOST_CHARS or any(len(line) > _LONGEST_LINE for line in code.split("\n")):
        yield "", code
        return
    found = [(_class_of(token), text) for _, token, text in lexer.get_tokens_unprocessed(code)]
    if "".join(text for _, text in found) != code:  # a lexer that skips or repeats something
        found = [("", code)]
    for kind, group in groupby(found, lambda piece: piece[0]):
        yield kind, "".join(text for _, text in group)


@cache
def _class_of(token: Any) -> str:
    return next((kind for kinds, kind in _KINDS if token in kinds), "")


@cache
def _by_name(language: str) -> Lexer | None:
    return _made(find_lexer_class_by_name, language)


@cache
def _by_file(name: str) -> Lexer | None:
    return _made(find_lexer_class_for_filename, name)


def _made(find: Any, name: str) -> Lexer | None:
    try:
        found = find(name)
    except ClassNotFound:
        return None
    # With its defaults Pygments changes newlines, and the pieces would not fit the text.
    lexer: Lexer | None = None if found is None else found(stripnl=False, ensurenl=False)
    return lexer


def _lines_of(pieces: Iterable[_Piece]) -> list[list[_Piece]]:
    lines: list[list[_Piece]] = [[]]
    for kind, text in pieces:
        first, *more = text.split("\n")
        lines[-1] += [(kind, first)] if first else []
        lines += [[(kind, one)] if one else [] for one in more]
    return lines


# --- words -----------------------------------------------------------------------------------------------------------


def _changed_words(lines: Sequence[list[Any]]) -> dict[int, list[tuple[int, int]]]:
    """Return the ranges that differ from the replaced lines: the first removed line is compared with the first added
    one, and so on.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    removed: list[list[Any]] = []
    for kind, group in groupby(lines, lambda line: line[0]):
        block = list(group)
        if kind == "add":
            for before, after in zip(removed, block, strict=False):
                # The sign is not part of the compared text.
                found[id(before)], found[id(after)] = _difference(before[1][1:], after[1][1:])
        removed = block if kind == "remove" else []
    return found


def _difference(before: str, after: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    if max(len(before), len(after)) > _COMPARED:
        return [], []
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    # `autojunk` would ignore frequent words in long lines.
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    # The quick upper bound spares most lines the slow comparison.
    if matcher.quick_ratio() < _ALIKE or matcher.ratio() < _ALIKE:
        return [], []
    changes = [(i, j, k, n) for tag, i, j, k, n in matcher.get_opcodes() if tag != "equal"]
    return (
        _ranges(old, [(begin, end) for begin, end, _, _ in changes]),
        _ranges(new, [(begin, end) for _, _, begin, end in changes]),
    )


def _ranges(words: Sequence[str], parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Convert ranges of words to ranges of characters."""
    places = [0]
    for word in words:
        places.append(places[-1] + len(word))
    return [(places[begin], places[end]) for begin, end in parts if end > begin]


def _marked(pieces: Iterable[_Piece], ranges: Sequence[tuple[int, int]]) -> list[_Piece]:
    """Yield the pieces with `CHANGED` added to the classes of text inside the ranges."""
    edges = sorted({edge for one in ranges for edge in one})
    shown: list[_Piece] = []
    place = 0
    for kind, text in pieces:
        cuts = [edge for edge in edges if place < edge < place + len(text)]
        for begin, end in zip([place, *cuts], [*cuts, place + len(text)], strict=True):
            is_changed = any(first <= begin < last for first, last in ranges)
            marked = f"{kind} {CHANGED}".strip() if is_changed else kind
            shown.append((marked, text[begin - place : end - place]))
        place += len(text)
    return shown
