"""Make text of models and programs safe to display.

A model's text may contain characters that a terminal, a form or a page interprets, or that are invisible: they move the
cursor, reverse the order of letters, break a line, or have no ink. A user who decides whether a command may run must
see the command that will run, so such characters are escaped (`\\x1b`, `\\u202e`). Unicode's categories decide which,
not a list of tricks: everything but letters, marks, numbers, punctuation and symbols, and those of them without ink.
The output of programs, which often contains colours and redrawn lines, loses some of these instead.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final
from unicodedata import category

_NOT_PLAIN: Final = re.compile(r"[^\n\t -~]+")
_NO_INK: Final = re.compile(
    # Marks and letters that Unicode calls "default ignorable" (joiners, fillers, vowels not written, variation selectors),
    # and symbols that are empty (the braille pattern without a dot, the note without a head).
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)
_PICTURE: Final = "\ufe0f"
_JOINER: Final = "\u200d"
_KEYCAP: Final = "\u20e3"
_MOST_MARKS: Final = 3
"""Real languages use up to this many marks on a letter. More would cover the lines above and below."""
_LONG_BLANK: Final = re.compile(r" {81,}|\t{11,}")
"""Wider than a screen: text behind it would be overlooked."""
_ESCAPE_SEQUENCE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # colours and cursor movements
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*+(?:\x07|\x1b\\|\x9c)?"  # titles, links, device strings
    r"|\x1b[ -/]*+[0-~]"
)
_OVERSTRUCK: Final = re.compile(r"[^\n\x08]\x08")

_SHELL: Final = re.compile(
    r"(?:/bin/|/usr/bin/|/usr/local/bin/|/opt/homebrew/bin/)?(?:bash|dash|sh|zsh) -l?c (?P<script>.+)", re.DOTALL
)
"""Match the usual shells only; a shell elsewhere may be any program."""
_QUOTED: Final = re.compile(r"""'([^']*)'|"((?:[^"\\$`]+|\\["\\$`])*+)"|([\w@%+=:,./-]+)|\\(['"\\ ])""", re.ASCII)
_IN_QUOTES: Final = re.compile(r'\\(["\\$`])')


def visible(text: str) -> str:
    """Return the text with everything that would not be seen written out. Lines and tabs stay."""
    # Plain text takes the fast path, a translation of single characters.
    if any(map(_depends_on_neighbours, set(text))):
        return _NOT_PLAIN.sub(_written_out, text)
    # A cache of single characters: `translate` is much faster than a substitution.
    return text.translate(_BY_ITSELF)


def one_line(text: str) -> str:
    """`visible`, on one line, for summaries: whatever parts words becomes one space."""
    return " ".join(visible(text).split())


def exact(text: str) -> str:
    """Return `visible` on one line, with line breaks, tabs, trailing spaces and long gaps written out."""
    # After `in_sight`, which leaves line breaks and tabs alone.
    shown = in_sight(text).replace("\n", "\\n").replace("\t", "\\t")
    return shown[:-1] + "\\x20" if shown.endswith(" ") else shown


def in_sight(text: str) -> str:
    """Return `visible`, with long gaps written out, so that no text hides behind them."""
    return _LONG_BLANK.sub(lambda found: f"\\x{ord(found[0][0]):02x}×{len(found[0])}", visible(text))


def named(name: object) -> str:
    """Return a path or name for use in a sentence, quoted if it could be read as several words."""
    shown = exact(str(name))
    return '"' + shown.replace('"', '\\"') + '"' if " " in shown or '"' in shown or not shown else shown


def plain_output(text: str) -> str:
    """Return a program's output as it would stand on a terminal at the end: without colours, lines drawn over only
    once.
    """
    text = _OVERSTRUCK.sub("", _ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n")))
    # A carriage return draws the line again, so the last version counts.
    return visible("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")))


def shell_script(command: str) -> str:
    """Return the script of a command: Codex wraps each command in `/bin/bash -lc '…'`.

    If the shell or the quoting is unclear, return the command unchanged.
    """
    shell = _SHELL.fullmatch(command)
    if shell is None:
        return command
    quoted, script, place = shell["script"], "", 0
    while place < len(quoted):
        piece = _QUOTED.match(quoted, place)
        if piece is None:
            # Unclear quoting is shown as it came.
            return command  # more words, or an expansion by the shell
        single, double, bare, escaped = piece.groups()
        script += single or bare or escaped or _IN_QUOTES.sub(r"\1", double or "")
        place = piece.end()
    return script


def _written_out(found: re.Match[str]) -> str:
    whole, shown, marks = found.string, list[str](), 0
    for place in range(found.start(), found.end()):
        char = whole[place]
        before, after = whole[place - 1 : place], whole[place + 1 : place + 2]
        is_seen = _has_ink(char)
        if is_seen and category(char)[0] == "M":
            # A mark needs a letter before it; a pile of marks covers other lines.
            marks += 1
            is_seen = marks <= _MOST_MARKS and before.strip() != "" and (not shown or len(shown[-1]) == 1)
        else:
            marks = 0
            is_seen = is_seen or _is_part_of_picture(char, before, after, whole[place - 2 : place - 1])
        shown.append(char if is_seen else _escape(char))
    return "".join(shown)


class _Written(dict[int, str]):
    """Cache of single characters in written form."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        written = self[code] = char if char in " \n\t" or _has_ink(char) else _escape(char)
        return written


_BY_ITSELF: Final = _Written()


@cache
def _depends_on_neighbours(char: str) -> bool:
    """Return whether visibility depends on neighbours: marks and emoji selectors."""
    return char in (_PICTURE, _JOINER) or category(char)[0] == "M"


@cache
def _has_ink(char: str) -> bool:
    return category(char)[0] not in "CZ" and not _NO_INK.match(char)


def _is_part_of_picture(char: str, before: str, after: str, earlier: str) -> bool:
    """Return whether a character only selects the form of an emoji: one selector after it, or one joiner between two."""
    if char == _PICTURE:
        return after == _KEYCAP or (before > "\x7f" and _has_ink(before) and category(before)[0] in "SP")
    return char == _JOINER and _is_picture(earlier if before == _PICTURE else before) and _is_picture(after)


def _is_picture(char: str) -> bool:
    return char != "" and category(char) in ("So", "Sk") and char > "\u2000"


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())
