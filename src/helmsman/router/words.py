"""A request as words: typography made plain, courtesy taken off, typos corrected, task references marked.

What somebody pasted (code blocks, quoted lines) is material, not their own words: it is left out, and `material` says so.
Only a request of a few lines can be a command, so anything longer is not read at all (`read` returns None): a request
of 20 MB costs no more than a short one.
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
"""Stand-ins for what names a task. No word of a request can be one of them: its brackets would have been taken off."""

LONGEST_COMMAND: Final = 1500
"""Characters. A longer request is work, or a command with so much around it that nobody could be sure."""

_MOST_WORDS: Final = 40
_LONGEST_HEAD: Final = 120
SESSION_ID_FORM: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|ses_[a-z0-9]{8,}"
"""What agents call their sessions: a UUID, or as OpenCode does."""
_SESSION_ID: Final = re.compile(SESSION_ID_FORM, re.IGNORECASE)
_TASK_ID: Final = re.compile(
    rf"(?<![\w/.@-])(?:T-(?:local|cloud)-[a-z0-9]+(?:[-_][a-z0-9]+)*|{SESSION_ID_FORM})(?![\w/@-]|\.\w)", re.IGNORECASE
)
"""The id of a task, or of the session whose task is meant."""
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
"""Words struck out, not ticked, negated or commented out."""
_TAG: Final = re.compile(r"</?[a-z][^<>]*>", re.IGNORECASE)
_SLASH: Final = re.compile(r"^\s*[/!@](?=[a-z]+[,:]?(?:\s|$))", re.IGNORECASE)
"""As commands of chat programs begin."""
_AROUND: Final = "'\"()[]{}<>*_~`,.!?:;"
_CLAUSE_ENDS: Final = frozenset(",.!?:;")


@dataclass(slots=True)
class Words:
    """`clauses` are the positions in `words` at which a clause begins."""

    words: list[str] = field(default_factory=list)
    clauses: set[int] = field(default_factory=set)
    ids: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    slugs: list[str] = field(default_factory=list)
    duration_ms: int | None = None
    material: bool = False
    mind: bool = False
    asks: bool = False
    """It ends with a question mark."""
    pleasant: bool = False
    """It began with a kind word."""
    said_no: bool = False
    """It began with a no, or with a second thought."""
    unsure: bool = False
    """It wonders whether to do something ("can I …", "cancel it?"), or was struck out: no order, whatever the words are."""

    def drop_first(self, count: int) -> None:
        """Take words off the beginning."""
        del self.words[:count]
        self.clauses = {max(0, place - count) for place in self.clauses}


def read(request: str, called: Sequence[str] = ()) -> Words | None:
    """The words of a request that may be a command; None when it is too long to be one.

    `called` are the names of the agent that is spoken to, where it is another than Codex: the rules know one, `codex`.
    """
    if len(request) > LONGEST_COMMAND:
        return None
    text = _MATERIAL.sub(" , ", request)
    material = text != request
    text = text.replace("？", "? ")
    found = Words(material=material, asks=text.rstrip().endswith("?"))
    text = unicodedata.normalize("NFKC", text.translate(_PLAIN)).translate(_PLAIN)
    if not text.isascii():  # what is not seen cannot make another word of a word
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
    """Return a request without what was pasted into it; where all of it was pasted, without the marks of that."""
    rest = _MATERIAL.sub(" , ", request)
    return rest if any(map(str.isalnum, rest)) else _MARKS_OF_MATERIAL.sub(" ", request)


def split_at_colon(request: str) -> tuple[str, str] | None:
    """What stands before the first colon, and what after it; None where either is missing, or the first is no command."""
    head, colon, text = request[:LONGEST_COMMAND].replace("：", ":").partition(":")
    if not colon or not text.strip() or text.startswith("//") or len(head) > _LONGEST_HEAD or "```" in head:
        return None
    return head, request[len(head) + 1 :].strip()


def task_ids(request: str) -> tuple[str, ...]:
    """The ids of tasks that a request names in its own words, each once, as they are written."""
    text = _MATERIAL.sub(" ", request[:LONGEST_COMMAND]).translate(_PLAIN)
    return tuple(dict.fromkeys(_TASK_ID.findall(text)))


def is_task_id(text: str) -> bool:
    """Return whether a text is the id of a task, or of a session."""
    return _TASK_ID.fullmatch(text) is not None


def is_session_id(text: str) -> bool:
    """Return whether a text has the form of a session id. Other things have UUIDs as well."""
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
                word = chunk  # a call in some programming language, not "stop" with decoration
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
    """Take off what people say before they come to the point, over and over. Whether it asks somebody to do something."""
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
    """The word somebody meant to type, where it is one of ours and nothing else is likely."""
    if word in vocabulary.MISSPELT:
        return vocabulary.MISSPELT[word]
    if word in vocabulary.KNOWN or not 3 <= len(word) <= 12 or not word.isalpha():
        return word
    for meant in vocabulary.MENDABLE:
        if abs(len(meant) - len(word)) <= 1 and _is_slip(word, meant, careful=meant in vocabulary.CANCEL_VERBS):
            return meant
    return word


def _is_slip(word: str, meant: str, *, careful: bool) -> bool:
    """Two letters swapped, one left out, or one too many; a word that stops something must be nearer than others."""
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
