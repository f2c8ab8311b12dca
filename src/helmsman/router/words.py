"""Words of a request, for `helmsman.router.intent`: without courtesy, with placeholders for ids, numbers and durations."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from helmsman.router.vocabulary import GERUNDS, OPENERS, ORDINALS, SLIPS, v

if TYPE_CHECKING:
    from collections.abc import Sequence

ID: Final = "<id>"
NUMBER: Final = "<number>"
SLUG: Final = "<slug>"
DURATION: Final = "<duration>"
# Placeholders for references to tasks. No word of a request can be equal to one, because brackets are removed.

LONGEST_COMMAND: Final = 1500
"""Longest command, in characters. A longer request is work, or too long to be certain."""

_MOST_WORDS: Final = 40
_LONGEST_HEAD: Final = 120
SESSION_ID_FORM: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|ses_[a-z0-9]{8,}"
"""Session ids of agents: a UUID, or the format of OpenCode."""
_SESSION_ID: Final = re.compile(SESSION_ID_FORM, re.IGNORECASE)
# An id inside a path or a longer word does not count.
_TASK_ID: Final = re.compile(
    rf"(?<![\w/.@-])(?:T-(?:local|cloud)-[a-z0-9]+(?:[-_][a-z0-9]+)*|{SESSION_ID_FORM})(?![\w/@-]|\.\w)", re.IGNORECASE
)
"""Id of a task or of its session."""
_MATERIAL: Final = re.compile(r"```.*?(?:```|\Z)|^[ \t]*>[^\n]*", re.DOTALL | re.MULTILINE)
_MARKS_OF_MATERIAL: Final = re.compile(r"```(?:\w*$)?|^[ \t]*>+", re.MULTILINE)
_DURATION: Final = re.compile(
    r"\b(\d{1,6}) ?(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?)\b", re.IGNORECASE
)
# In this order, because `ms` and `milliseconds` begin with an m, too.
_MILLISECONDS: Final = {"ms": 1, "mil": 1, "m": 60_000, "s": 1_000, "h": 3_600_000}
_AT_ONCE: Final = re.compile(
    r"\b(?:right (?:now|away)|at once|for me|as soon as possible|at the moment|any more)\b", re.IGNORECASE
)
_SLUG: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)+")
_SMALL_NUMBER: Final = re.compile(r"#?([1-9]\d?)")

_PLAIN: Final = str.maketrans(
    {
        **dict.fromkeys("‐‑‒–−", "-"),
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
    # The comma ends the clause that the pasted text interrupts.
    text = _MATERIAL.sub(" , ", request)
    found = Words(material=text != request, asks=text.replace("？", "?").rstrip().endswith("?"))
    # Translated twice: NFKC would change some of these marks (´), and makes others of small forms (﹘).
    text = unicodedata.normalize("NFKC", text.replace("？", "? ").translate(_PLAIN)).translate(_PLAIN)
    if not text.isascii():  # invisible characters must not turn a word into another one
        text = "".join(char for char in text if unicodedata.category(char) not in ("Cf", "Mn", "Me"))
    found.ids = _TASK_ID.findall(text := _SLASH.sub(" ", _TAG.sub(" ", text)))
    text = _TASK_ID.sub(f" {ID} ", text)
    for name in called:
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "codex", text, flags=re.IGNORECASE)
    if lasting := _DURATION.search(text):
        unit = lasting[2].lower()
        found.duration_ms = int(lasting[1]) * next(_MILLISECONDS[one] for one in _MILLISECONDS if unit.startswith(one))
        text = _DURATION.sub(f" {DURATION} ", text, count=1)
    text = _AT_ONCE.sub("now", text)
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
    # A text that begins with slashes follows the colon of an address.
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


def _split(text: str, found: Words) -> None:
    for line in text.lower().splitlines():
        begins = True  # the next word begins a clause
        for chunk in line.split():
            # "stop()" is a function call, not "stop" with punctuation
            word = chunk if chunk in (ID, DURATION) or "()" in chunk else chunk.strip(_AROUND).partition("!")[0]
            if not any(char.isalnum() for char in word):
                begins = True
                continue
            begins = begins or chunk[0] in _CLAUSE_ENDS
            if word not in v.fillers:
                if begins:
                    found.clauses.add(len(found.words))
                begins = False
                _add(word, found)
            begins = begins or chunk[-1] in _CLAUSE_ENDS


def _add(word: str, found: Words) -> None:
    before = found.words[-1:]
    if number := ORDINALS.get(word) or ((small := _SMALL_NUMBER.fullmatch(word)) and small[1]):
        if before == ["no"]:  # "no. 2"
            found.words.pop()
        found.numbers.append(number)
        found.words.append(NUMBER)
    elif _SLUG.fullmatch(word):
        found.slugs.append(word)
        found.words.append(SLUG)
    elif word in v.plurals and before == [NUMBER]:  # a count, not an index
        found.numbers.pop()
        found.words[-1] = word
    elif word == "up" and before == ["set"]:
        found.words[-1] = "setup"
    else:
        found.words.append(SLIPS.get(word, word))


def _drop_openers(found: Words) -> bool:
    """Remove all introductory phrases; return whether one of them asks the agent to do something."""
    asked_to = False
    while found.words:
        said = found.words
        opener = next((opener for opener in OPENERS.get(said[0], ()) if tuple(said[: len(opener)]) == opener), ())
        if opener:
            found.pleasant = found.pleasant or opener[0] in v.closers
            found.said_no = found.said_no or opener[0] in v.second_thoughts
            found.unsure = found.unsure or opener[-1] in v.wondering
            asked_to = asked_to or not {"you", "u"}.isdisjoint(opener)
            found.drop_first(len(opener))
            if opener[-1] == "mind" and found.words:
                found.words[0] = GERUNDS.get(found.words[0], found.words[0])
        elif said[0] == "wait" and said[1:2] and said[1] in {"no", *v.cancel_alone} and 1 in found.clauses:
            found.drop_first(1)  # an interjection
        elif said[:2] == ["tell", "me"] and said[2:3] and said[2] in v.asked:
            found.drop_first(2)
        elif said[:3] == ["let", "me", "know"] and said[3:4] and said[3] in v.asked:
            found.drop_first(3)
        else:
            break
    return asked_to
