"""Vocabulary of the router: sets of words, phrases and the table of commands, from `vocabulary.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RouterVerb = Literal["run", "check", "wait", "cancel", "results", "respond", "apply", "environments", "setup"]

_TABLES: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("vocabulary.toml").read_text(encoding="utf-8"))


class _Vocabulary:
    """Sets of words by name, each resolved when it is first used."""

    def of(self, text: str) -> frozenset[str]:
        """Return the words of a text, in which `@name` stands for the words of a set."""
        found = (getattr(self, word[1:]) if word[0] == "@" else {word} for word in text.split())
        return frozenset().union(*found)

    def __getattr__(self, name: str) -> frozenset[str]:
        if name not in _TABLES["words"]:
            raise AttributeError(name)
        words = self.__dict__[name] = self.of(_TABLES["words"][name])
        return words


v: Final = _Vocabulary()


def phrases(text: str) -> tuple[str, ...]:
    """Return the phrases of a text, which slashes separate."""
    return tuple(" ".join(phrase.split()) for phrase in text.split("/"))


def _by_first_word(text: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for phrase in phrases(text):
        found.setdefault(phrase.split()[0], []).append(tuple(phrase.split()))
    return {first: tuple(sorted(several, key=len, reverse=True)) for first, several in found.items()}


OPENERS: Final = _by_first_word(_TABLES["phrases"]["openers"])
"""Introductory phrases by first word, the longest first."""
HELP: Final = phrases(_TABLES["phrases"]["help"])
ORDINALS: Final[Mapping[str, str]] = _TABLES["same"]["ordinals"]
PLACES: Final[Mapping[str, str]] = _TABLES["same"]["places"]
GERUNDS: Final[Mapping[str, str]] = _TABLES["same"]["gerunds"]
ABROAD: Final[Mapping[str, RouterVerb]] = {
    phrase: operation for operation, text in _TABLES["abroad"].items() for phrase in phrases(text)
}


@dataclass(frozen=True, slots=True)
class Form:
    """Form of a command: first words, words that may follow, and sets that must each occur."""

    first: frozenset[str]
    rest: frozenset[str]
    needs: tuple[frozenset[str], ...]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Form:
        return cls(v.of(row["first"]), v.of(row["rest"]), tuple(map(v.of, row["needs"])))

    def fits(self, said: Sequence[str]) -> bool:
        needed = all(any(word in need for word in said) for need in self.needs)
        return bool(said) and said[0] in self.first and is_only(said[1:], self.rest) and needed


def is_only(said: Sequence[str], allowed: frozenset[str]) -> bool:
    """Return whether all words are allowed ones or name tasks, at most one by an alias."""
    return all(word in allowed or word in v.references for word in said) and said.count("<slug>") <= 1


COMMANDS: Final[tuple[tuple[RouterVerb, Form, str], ...]] = tuple(
    (row["action"], Form.of(row), row["why"]) for row in _TABLES["command"]
)
FORMS: Final = {name: Form.of(row) for name, row in _TABLES["forms"].items()}


def _slips() -> dict[str, str]:
    """Return likely typos of these words: two letters swapped, one left out of a long word, or one doubled there."""
    found: dict[str, str] = {}
    for word in sorted(v.mendable):
        places = range(len(word))
        found |= {word[:at] + word[at + 1 : at + 2] + word[at] + word[at + 2 :]: word for at in places}
        if len(word) >= (6 if word in v.cancel_verbs else 5):
            found |= {word[:at] + word[at + 1 :]: word for at in places}
        if len(word) >= 5:
            found |= {word[:at] + word[at] + word[at:]: word for at in places}
    return found


# The four excluded slips are words themselves.
SLIPS: Final = {
    slip: word for slip, word in _slips().items() if slip not in v.known | {"heck", "stats", "gong", "tack"}
}
