"""Whether a command might run what a deny or ask rule names: matched broadly, because missing one is worse.

Where a command was fully understood its words are compared, tolerantly: another path or spelling of the program,
options anywhere, options between the words. Where it was not, or where it hands words to another program (`sudo`,
`xargs`, `python -c`), the text is cut up at everything that could begin a command, and each piece is tried.

A hostile text can be long, and rules can be many: all of this takes time linear in the text, and only so much of it is
searched. Nothing is lost by that, for what is not understood is not allowed either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from helmsman.sessions.command_words import NEVER_UNDERSTOOD, program_name, runs_others
from helmsman.sessions.shell_words import innermost_script

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from helmsman.sessions.shell_words import SimpleCommand

_CHARACTERS_SEARCHED: Final = 64 * 1024
_WORDS_COMPARED: Final = 64
"""How far behind a program its options and arguments are looked for."""

_VARIABLE: Final = re.compile(r"\$\{[^}\s]{0,100}\}|\$\w+")
_BEFORE_COMMAND: Final = re.compile(r"[;&|\n\r()`<>]+")
_QUOTES: Final = re.compile(r"[\"'\\]")
_IGNORED: Final = re.compile(r"[${}]")
_ASSIGNMENT: Final = re.compile(r"\w+\+?=")


@dataclass(frozen=True, slots=True)
class PossibleCommand:
    """Words that may run. `runs_words`: each of them may be the program, not only the first."""

    words: Sequence[str]
    runs_words: bool


def possible_commands(text: str, commands: Sequence[SimpleCommand] | None) -> list[PossibleCommand]:
    """All that may run when `text` does; `commands` is what `parse_command` made of it."""
    known = [PossibleCommand(command.words, runs_words=False) for command in commands or ()]
    if commands is not None and not any(runs_others(command.words[0]) for command in commands):
        return known
    return [*known, *_guesses(text)]


def may_run(prefix: Sequence[str], possible: Sequence[PossibleCommand]) -> bool:
    """Whether one of the commands may be meant by a rule for commands that begin with `prefix`."""
    program = program_name(prefix[0])
    for command in possible:
        words = command.words
        for at in range(len(words) if command.runs_words else 1):
            if program_name(words[at]) == program and _fits(prefix[1:], words[at + 1 : at + 1 + _WORDS_COMPARED]):
                return True
    return False


def _guesses(text: str) -> Iterator[PossibleCommand]:
    script = _VARIABLE.sub(" ", innermost_script(text)[:_CHARACTERS_SEARCHED])
    for without_quotes in (_QUOTES.sub("", script), _QUOTES.sub(" ; ", script)):
        for piece in _BEFORE_COMMAND.split(_IGNORED.sub(" ", without_quotes)):
            words = piece.split()
            start = 0
            while start < len(words) and (_ASSIGNMENT.match(words[start]) or words[start] == "!"):
                start += 1
            if start < len(words):
                first = words[start]
                yield PossibleCommand(words[start:], runs_words=first in NEVER_UNDERSTOOD or runs_others(first))


def _fits(expected: Sequence[str], given: Sequence[str]) -> bool:
    """Whether the arguments are there: options anywhere, the others in order with nothing but options between them."""
    at = 0
    for word in expected:
        if word.startswith("-"):
            if not _has_option(word, given):
                return False
            continue
        while at < len(given) and given[at] != word and given[at].startswith("-"):
            at += 1
            if at < len(given) and given[at] != word and not given[at].startswith("-"):
                at += 1  # perhaps the option's value
        if at >= len(given) or given[at] != word:
            return False
        at += 1
    return True


def _has_option(option: str, given: Sequence[str]) -> bool:
    if any(word == option or word.startswith(option + "=") for word in given):
        return True
    if option.startswith("--"):
        return False
    letters = {letter for word in given if word[:1] == "-" and word[:2] != "--" for letter in word[1:]}
    return set(option[1:]) <= letters  # -rf is also -fr, and -r -f
