"""Short names for tasks, made from what they are to do: "Fix the failing login test" is `fix-failing-login-test`.

An alias is for people to say and type. It always has a hyphen, so that it is no word of ordinary speech, begins with a
letter, so that it is no number of a list, and can never be taken for the id of a task or a session.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import dropwhile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_WORDS_KEPT: Final = 4
_LONGEST_WORD: Final = 20
_LONGEST: Final = 40
_LOOKED_AT: Final = 2000
"""The name comes from the first words; a prompt may be a whole book."""

_WORD: Final = re.compile(r"[a-z0-9]{2,}")
_ID: Final = re.compile(r"\bt-(?:local|cloud)-[0-9a-f]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HASH: Final = re.compile(r"(?=[a-f]*[0-9])[0-9a-f]{6,}")
_FILLERS: Final = frozenset(
    [
        *("an", "and", "are", "as", "at", "be", "but", "by", "can", "could", "do", "for", "from", "have", "hello"),
        *("hey", "hi", "if", "in", "into", "is", "it", "its", "just", "kindly", "lets", "me", "my", "need", "now"),
        *("of", "on", "or", "our", "please", "redacted", "should", "so", "some", "that", "the", "their", "them"),
        *("then", "there", "these", "this", "those", "to", "us", "want", "was", "we", "will", "with", "would", "you"),
        "your",
    ]
)
_NO_WORDS: Final = "task"


def make_alias(instruction: str, is_taken: Callable[[str], bool]) -> str:
    """A name for a task with this instruction that is not taken.

    A thousand tasks may say the same, so the number that makes them different is searched for in ever larger steps and then
    halved in: one that is free, and the one before it is not.
    """
    stem = alias_stem(instruction)
    if stem != _NO_WORDS and not is_taken(stem):
        return stem
    taken, free = (0, 1) if stem == _NO_WORDS else (1, 2)
    while is_taken(f"{stem}-{free}"):
        taken, free = free, free * 2
    while free - taken > 1:
        middle = (taken + free) // 2
        taken, free = (middle, free) if is_taken(f"{stem}-{middle}") else (taken, middle)
    return f"{stem}-{free}"


def alias_stem(instruction: str) -> str:
    """What every alias for this instruction begins with."""
    plain = unicodedata.normalize("NFKD", instruction[:_LOOKED_AT]).lower()
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter) and letter not in "'’")
    telling = (word for word in _WORD.findall(_ID.sub(" ", plain)) if _is_telling(word))
    words = list(dropwhile(lambda word: word[0].isdigit(), telling))
    if not words:
        return _NO_WORDS
    words = words[:_WORDS_KEPT] if len(words) > 1 else [*words, "task"]
    while len("-".join(words)) > _LONGEST:
        words.pop()
    return "-".join(words)


def _is_telling(word: str) -> bool:
    return word not in _FILLERS and len(word) <= _LONGEST_WORD and _HASH.fullmatch(word) is None
