"""Whether a command might run what a deny or ask rule names: matched broadly, because missing one is worse.

Where a command was fully understood its words are compared, tolerantly: another path or spelling of the program,
options anywhere, options between the words. Where it was not, or where it hands words to another program (`sudo`,
`xargs`, `python -c`), the text is cut up at everything that could begin a command, and each piece is tried.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from helmsman.sessions.command_words import NEVER_UNDERSTOOD, program_name, runs_others
from helmsman.sessions.shell_words import innermost_script

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from helmsman.sessions.shell_words import SimpleCommand

_VARIABLE: Final = re.compile(r"\$\{[^}]*\}|\$\w+")
_BEFORE_COMMAND: Final = re.compile(r"[;&|\n\r()`<>]+")
_QUOTES: Final = re.compile(r"[\"'\\]")
_IGNORED: Final = re.compile(r"[${}]")
_ASSIGNMENT: Final = re.compile(r"\w+\+?=")


def may_run(prefix: Sequence[str], text: str, commands: Sequence[SimpleCommand] | None) -> bool:
    """Whether a command beginning with the words of `prefix` may run when `text` does.

    `commands` is what `parse_command` made of the text.
    """
    understood = commands is not None and not any(runs_others(one.words[0]) for one in commands)
    if commands is not None and any(_is_meant(prefix, one.words) for one in commands):
        return True
    return not understood and any(_is_meant(prefix, words) for words in _possible_commands(text))


def _possible_commands(text: str) -> Iterator[list[str]]:
    script = _VARIABLE.sub(" ", innermost_script(text))
    for without_quotes in (_QUOTES.sub("", script), _QUOTES.sub(" ; ", script)):
        for piece in _BEFORE_COMMAND.split(_IGNORED.sub(" ", without_quotes)):
            words = piece.split()
            while words and (_ASSIGNMENT.match(words[0]) or words[0] == "!"):
                del words[0]
            if not words:
                continue
            yield words
            if words[0] in NEVER_UNDERSTOOD or runs_others(words[0]):
                yield from (words[start:] for start in range(1, len(words)))


def _is_meant(prefix: Sequence[str], words: Sequence[str]) -> bool:
    if program_name(words[0]) != program_name(prefix[0]):
        return False
    given = words[1:]
    at = 0
    for name in prefix[1:]:
        if name.startswith("-"):
            if not _has_option(name, given):
                return False
            continue
        while at < len(given) and given[at] != name and given[at].startswith("-"):
            at += 1
            if at < len(given) and given[at] != name and not given[at].startswith("-"):
                at += 1  # perhaps the option's value
        if at >= len(given) or given[at] != name:
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
