"""Text of models and programs, made safe to show to somebody who judges it.

A model's text may hold what a terminal, a form or a page obeys instead of showing, and what nobody sees: it moves the
cursor, reverses the order of letters, breaks a line, or is no ink at all. Somebody who is asked "may this run?" must see
what will run, so such characters are written out (`\\x1b`, `\\u202e`). Which they are is decided by what Unicode says of
a character, not by a list of tricks: whatever is no letter, mark, number, punctuation or symbol, and what of those leaves
no ink. Only the output of programs, where colours and redrawn lines are ordinary, loses some of them instead.
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
"""So many marks on a letter are somebody's language; a tower of them covers the lines above and below."""
_LONG_BLANK: Final = re.compile(r" {81,}|\t{11,}")
"""Wider than a screen: nobody looks for what stands behind it."""
_ESCAPE_SEQUENCE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # colours and cursor movements
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*+(?:\x07|\x1b\\|\x9c)?"  # titles, links, device strings
    r"|\x1b[ -/]*+[0-~]"
)
_OVERSTRUCK: Final = re.compile(r"[^\n\x08]\x08")

_SHELL: Final = re.compile(
    r"(?:/bin/|/usr/bin/|/usr/local/bin/|/opt/homebrew/bin/)?(?:bash|dash|sh|zsh) -l?c (?P<script>.+)", re.DOTALL
)
"""A shell that lies elsewhere may be anything."""
_QUOTED: Final = re.compile(r"""'([^']*)'|"((?:[^"\\$`]+|\\["\\$`])*+)"|([\w@%+=:,./-]+)|\\(['"\\ ])""", re.ASCII)
_IN_QUOTES: Final = re.compile(r'\\(["\\$`])')


def visible(text: str) -> str:
    """The text with everything that would not be seen written out. Lines and tabs stay."""
    if any(map(_depends_on_neighbours, set(text))):
        return _NOT_PLAIN.sub(_written_out, text)
    return text.translate(_BY_ITSELF)


def one_line(text: str) -> str:
    """`visible`, on one line, for summaries: whatever parts words becomes one space."""
    return " ".join(visible(text).split())


def exact(text: str) -> str:
    """`visible`, on one line, with every blank told: line breaks, tabs, a space at the end and long stretches of them."""
    shown = in_sight(text).replace("\n", "\\n").replace("\t", "\\t")
    return shown[:-1] + "\\x20" if shown.endswith(" ") else shown


def in_sight(text: str) -> str:
    """`visible`, with nothing behind a screen full of spaces."""
    return _LONG_BLANK.sub(lambda found: f"\\x{ord(found[0][0]):02x}×{len(found[0])}", visible(text))


def named(name: object) -> str:
    """A path or a name among words of ours: in quotes where it could be taken for more than one."""
    shown = exact(str(name))
    return '"' + shown.replace('"', '\\"') + '"' if " " in shown or '"' in shown or not shown else shown


def plain_output(text: str) -> str:
    """A program's output as it would stand on a terminal at the end: without colours, lines drawn over only once."""
    text = _OVERSTRUCK.sub("", _ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n")))
    return visible("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")))


def shell_script(command: str) -> str:
    """What a command does: Codex wraps each in `/bin/bash -lc '…'`, and only the inside says something.

    Where it is not certain what the inside is, or which shell that is, it is the command as it stands.
    """
    shell = _SHELL.fullmatch(command)
    if shell is None:
        return command
    quoted, script, place = shell["script"], "", 0
    while place < len(quoted):
        piece = _QUOTED.match(quoted, place)
        if piece is None:
            return command  # more words, or something that a shell would work out first
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
            marks += 1
            is_seen = marks <= _MOST_MARKS and before.strip() != "" and (not shown or len(shown[-1]) == 1)
        else:
            marks = 0
            is_seen = is_seen or _is_part_of_picture(char, before, after, whole[place - 2 : place - 1])
        shown.append(char if is_seen else _escape(char))
    return "".join(shown)


class _Written(dict[int, str]):
    """Each character as it is written where it stands by itself, worked out once."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        written = self[code] = char if char in " \n\t" or _has_ink(char) else _escape(char)
        return written


_BY_ITSELF: Final = _Written()


@cache
def _depends_on_neighbours(char: str) -> bool:
    """Return whether it is seen in some places and not in others: marks, and what says how a picture looks."""
    return char in (_PICTURE, _JOINER) or category(char)[0] == "M"


@cache
def _has_ink(char: str) -> bool:
    return category(char)[0] not in "CZ" and not _NO_INK.match(char)


def _is_part_of_picture(char: str, before: str, after: str, earlier: str) -> bool:
    """Return whether it only says how a picture looks: one selector after it, one joiner between two."""
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
