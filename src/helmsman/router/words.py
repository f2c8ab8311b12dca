"""Tokenize a request: normalize typography, remove courtesy, correct typos, mark references to tasks.

Pasted text (code blocks, quoted lines) is material and is left out; `material` records that. Only a request of a few
lines can be a command, so a longer one is not parsed (`read` returns None): a request of 20 MB costs no more than a
short one.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from helmsman.router import vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

ID: Final = "<id>"
NUMBER: Final = "<number>"
SLUG: Final = "<slug>"
DURATION: Final = "<duration>"
REFERENCES: Final = frozenset([ID, NUMBER, SLUG])
"""Placeholders for references to tasks. No word of a request can be equal to one, because brackets are removed."""

LONGEST_COMMAND: Final = 1500
"""Longest command, in characters. A longer request is work, or too long to be certain."""

_MOST_WORDS: Final = 40
_LONGEST_HEAD: Final = 120
SESSION_ID_FORM: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|ses_[a-z0-9]{8,}"
"""Session ids of agents: a UUID, or the format of OpenCode."""
_SESSION_ID: Final = re.compile(SESSION_ID_FORM, re.IGNORECASE)
_TASK_ID: Final = re.compile(
    rf"(?<![\w/.@-])(?:T-(?:local|cloud)-[a-z0-9]+(?:[-_][a-z0-9]+)*|{SESSION_ID_FORM})(?![\w/@-]|\.\w)", re.IGNORECASE
)
"""Id of a task or of its session."""
_MATERIAL: Final = re.compile(r"```.*?(?:```|\Z)|^[ \t]*>[^\n]*", re.DOTALL | re.MULTILINE)
_MARKS_OF_MATERIAL: Final = re.compile(r"```(?:\w*$)?|^[ \t]*>+", re.MULTILINE)
_DURATION: Final = re.compile(
    r"\b(\d{1,6}) ?(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?)\b", re.IGNORECASE
)
_AT_ONCE: Final = re.compile(
    r"\b(?:right (?:now|away)|at once|for me|as soon as possible|at the moment|any more)\b", re.IGNORECASE
)
_MILLISECONDS: Final = {"m": 60_000, "s": 1_000, "h": 3_600_000}
_SLUG: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)+")
_SMALL_NUMBER: Final = re.compile(r"#?([1-9]\d?)")

_DASHES: Final = "‐‑‒–−"
_PLAIN: Final = str.maketrans(
    {
        **dict.fromkeys(_DASHES, "-"),
        **dict.fromkeys("’‘ʼ´", "'"),
        **dict.fromkeys("「」『』【】〈〉《》«»‹›„“”‚¿¡|", " "),
        **dict.fromkeys("。、！？：；…—", ", "),
    }
)
_STRUCK: Final = re.compile(r"~~|\[ ?\]|^\s*(?:!|//|#(?!\d))", re.MULTILINE)
"""Text that is struck out, unticked, negated or commented out."""
_TAG: Final = re.compile(r"</?[a-z][^<>]*>", re.IGNORECASE)
_SLASH: Final = re.compile(r"^\s*[/!@](?=[a-z]+[,:]?(?:\s|$))", re.IGNORECASE)
"""Prefix of commands in chat programs."""
_AROUND: Final = "'\"()[]{}<>*_~`,.!?:;"
_CLAUSE_ENDS: Final = frozenset(",.!?:;")


@dataclass(slots=True)
class Words:
    """Tokenized request. `clauses` are positions in `words` at which a clause begins."""

    words: list[str] = field(default_factory=list)
    clauses: set[int] = field(default_factory=set)
    ids: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    slugs: list[str] = field(default_factory=list)
    duration_ms: int | None = None
    material: bool = False
    mind: bool = False
    asks: bool = False
    """Ends with a question mark."""
    pleasant: bool = False
    """Begins with a pleasantry."""
    said_no: bool = False
    """Begins with a no or a second thought."""
    unsure: bool = False
    """Considers an order ("can I …", "cancel it?") or is struck out, so it must not be executed."""

    def drop_first(self, count: int) -> None:
        """Remove words from the beginning."""
        del self.words[:count]
        self.clauses = {max(0, place - count) for place in self.clauses}


def read(request: str, called: Sequence[str] = ()) -> Words | None:
    """Tokenize a request that may be a command; None if it is too long.

    `called` lists names of the addressed agent, if it is not Codex; they are replaced by `codex`, the only name in the
    rules.
    """
    if len(request) > LONGEST_COMMAND:
        return None
    text = _MATERIAL.sub(" , ", request)
    material = text != request
    text = text.replace("？", "? ")
    found = Words(material=material, asks=text.rstrip().endswith("?"))
    text = unicodedata.normalize("NFKC", text.translate(_PLAIN)).translate(_PLAIN)
    if not text.isascii():  # invisible characters must not turn a word into another one
        text = "".join(char for char in text if unicodedata.category(char) not in ("Cf", "Mn", "Me"))
    text = _take_ids(_SLASH.sub(" ", _TAG.sub(" ", text)), found)
    for name in called:
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "codex", text, flags=re.IGNORECASE)
    text = _AT_ONCE.sub("now", _take_duration(text, found))
    _split(text, found)
    if len(found.words) > _MOST_WORDS:
        return None
    asked_to = _drop_openers(found)
    found.unsure = found.unsure or bool(_STRUCK.search(request)) or (not asked_to and "?" in text)
    return found


def own_words(request: str) -> str:
    """Return a request without pasted text; if all of it is pasted, without the quote marks."""
    rest = _MATERIAL.sub(" , ", request)
    return rest if any(map(str.isalnum, rest)) else _MARKS_OF_MATERIAL.sub(" ", request)


def split_at_colon(request: str) -> tuple[str, str] | None:
    """Split at the first colon; None if a part is missing, or the first one cannot be a command."""
    head, colon, text = request[:LONGEST_COMMAND].replace("：", ":").partition(":")
    if not colon or not text.strip() or text.startswith("//") or len(head) > _LONGEST_HEAD or "```" in head:
        return None
    return head, request[len(head) + 1 :].strip()


def task_ids(request: str) -> tuple[str, ...]:
    """Return the distinct task ids in a request, without those in pasted text."""
    text = _MATERIAL.sub(" ", request[:LONGEST_COMMAND]).translate(_PLAIN)
    return tuple(dict.fromkeys(_TASK_ID.findall(text)))


def is_task_id(text: str) -> bool:
    """Return whether a text is the id of a task, or of a session."""
    return _TASK_ID.fullmatch(text) is not None


def is_session_id(text: str) -> bool:
    """Return whether a text has the form of a session id. It may be any other UUID."""
    return _SESSION_ID.fullmatch(text) is not None


def _take_ids(text: str, found: Words) -> str:
    def take(match: re.Match[str]) -> str:
        found.ids.append(match[0])
        return f" {ID} "

    return _TASK_ID.sub(take, text)


def _take_duration(text: str, found: Words) -> str:
    def take(match: re.Match[str]) -> str:
        unit = match[2].lower()
        found.duration_ms = int(match[1]) * (1 if unit.startswith(("ms", "mil")) else _MILLISECONDS[unit[0]])
        return f" {DURATION} "

    return _DURATION.sub(take, text, count=1)


def _split(text: str, found: Words) -> None:
    begins = True  # the next word begins a clause
    for line in text.lower().splitlines():
        begins = True
        for chunk in line.split():
            if chunk in (ID, DURATION):
                word = chunk
            elif "()" in chunk:
                word = chunk  # a function call, not "stop" with punctuation
            else:
                word = chunk.strip(_AROUND)
            if not any(char.isalnum() for char in word):
                begins = True
                continue
            begins = begins or chunk[0] in _CLAUSE_ENDS
            if word and word not in vocabulary.FILLERS:
                if begins:
                    found.clauses.add(len(found.words))
                begins = False
                _add(word, found)
            begins = begins or chunk[-1] in _CLAUSE_ENDS


def _add(word: str, found: Words) -> None:
    if word in (ID, DURATION):
        found.words.append(word)
    elif number := _SMALL_NUMBER.fullmatch(word):
        if found.words[-1:] == ["no"]:  # "no. 2"
            found.words.pop()
        found.numbers.append(number[1])
        found.words.append(NUMBER)
    elif word in vocabulary.ORDINALS:
        found.numbers.append(vocabulary.ORDINALS[word])
        found.words.append(NUMBER)
    elif _SLUG.fullmatch(word):
        found.slugs.append(word)
        found.words.append(SLUG)
    elif word in vocabulary.PLURALS and found.words[-1:] == [NUMBER]:
        found.numbers.pop()
        found.words[-1] = word
    elif word == "up" and found.words[-1:] == ["set"]:
        found.words[-1] = "setup"
    else:
        found.words.append(corrected(word))


def _drop_openers(found: Words) -> bool:
    """Remove all introductory phrases; return whether one of them asks the agent to do something."""
    asked_to = False
    while found.words:
        said = found.words
        opener = next(
            (opener for opener in vocabulary.OPENERS.get(said[0], ()) if tuple(said[: len(opener)]) == opener), ()
        )
        if opener:
            found.mind = found.mind or opener[-1] == "mind"
            found.pleasant = found.pleasant or opener[0] in vocabulary.PLEASANT
            found.said_no = found.said_no or opener[0] in vocabulary.SECOND_THOUGHTS
            found.unsure = found.unsure or opener[-1] in vocabulary.WONDERING
            asked_to = asked_to or not {"you", "u"}.isdisjoint(opener)
            found.drop_first(len(opener))
        elif said[0] == "wait" and said[1:2] and said[1] in {"no", *vocabulary.CANCEL_ALONE} and 1 in found.clauses:
            found.drop_first(1)  # an interjection
        elif said[:2] == ["tell", "me"] and said[2:3] and said[2] in vocabulary.ASKED:
            found.drop_first(2)
        elif said[:3] == ["let", "me", "know"] and said[3:4] and said[3] in vocabulary.ASKED:
            found.drop_first(3)
        else:
            break
    return asked_to


# --- typing errors ---------------------------------------------------------------------------------------------------


def corrected(word: str) -> str:
    """Return the intended word, if it is a likely typo of a word in the vocabulary."""
    if word in vocabulary.MISSPELT:
        return vocabulary.MISSPELT[word]
    if word in vocabulary.KNOWN or not 3 <= len(word) <= 12 or not word.isalpha():
        return word
    for meant in vocabulary.MENDABLE:
        if abs(len(meant) - len(word)) <= 1 and _is_slip(word, meant, careful=meant in vocabulary.CANCEL_VERBS):
            return meant
    return word


def _is_slip(word: str, meant: str, *, careful: bool) -> bool:
    """Return whether two letters are swapped, one is missing, or one is extra; cancel verbs must match more closely."""
    if len(word) == len(meant):
        differing = [place for place in range(len(word)) if word[place] != meant[place]]
        return (
            len(differing) == 2
            and differing[1] == differing[0] + 1
            and (word[differing[0]], word[differing[1]]) == (meant[differing[1]], meant[differing[0]])
        )
    short, long = sorted((word, meant), key=len)
    places = [place for place in range(len(long)) if long[:place] + long[place + 1 :] == short]
    if not places:
        return False
    if len(word) < len(meant):  # a letter left out
        return len(meant) >= (6 if careful else 5)
    doubled = any(long[place] in (long[place - 1 : place], long[place + 1 : place + 2]) for place in places)
    return len(meant) >= 5 and (doubled or not careful)
