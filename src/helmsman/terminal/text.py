"""Text that came from Codex, made safe to look at.

A command, a message or a program's output may hold characters that a terminal obeys instead of showing: they move the
cursor, erase what was written, or reverse the order of letters. Somebody who is asked "may this run?" must see what
will run, so such characters are written out (`\\x1b`) wherever text is to be judged, and taken away only from the
output of programs, where colours and redrawn lines are ordinary.
"""

from __future__ import annotations

import re
import shlex
from pathlib import PurePath
from typing import Final

_HIDDEN: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, except tab and newline
    r"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e0fff]"  # invisible or turning the text around; halves of characters; tags
    r"|[\u200b\u200c\u200e\u200f]"
    r"|(?<![\u2600-\u27bf\ufe0f\U0001f300-\U0001faff])\u200d"  # a joiner that joins no pictures
)
_ESCAPE_SEQUENCE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # colours and cursor movements
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*+(?:\x07|\x1b\\|\x9c)?"  # titles, links, device strings
    r"|\x1b[ -/]*+[0-~]"
)
_OVERSTRUCK: Final = re.compile(r"[^\n\x08]\x08")
_SHELLS: Final = frozenset({"bash", "dash", "fish", "ksh", "sh", "zsh"})


def visible(text: str) -> str:
    """The text with everything that would not be seen written out. Lines and tabs stay."""
    return _HIDDEN.sub(lambda found: _escape(found[0]), text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """`visible`, on one line."""
    return " ".join(visible(text).split())


def plain_output(text: str) -> str:
    """A program's output as it would stand on a terminal at the end: without colours, lines drawn over only once."""
    text = _OVERSTRUCK.sub("", _ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n")))
    return visible("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")))


def shell_script(command: str) -> str:
    """What a command does: Codex wraps each in `/bin/bash -lc '…'`, and only the inside says something."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    if len(words) == 3 and PurePath(words[0]).name in _SHELLS and words[1] in ("-c", "-lc"):
        return words[2]
    return command


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
