"""Whether a command might run what a deny or ask rule names: matched broadly, because missing one is worse.

Where a command was fully understood its words are compared, by what they do (`option_effects`). Where it was not, or where
it hands words to another program (`sudo`, `xargs`, `python -c`), the text is cut up at everything that could begin a
command, and each piece is tried. What a shell would compute there stands for anything.

A hostile text can be long, and rules can be many: all of this takes time linear in the text, and only so much of it is
searched. Nothing is lost by that, for what is not understood is not allowed either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from helmsman.sessions.command_words import NEVER_UNDERSTOOD, may_run_text, program_name, runs_words
from helmsman.sessions.option_effects import COMPUTED, canonical_program, compare
from helmsman.sessions.shell_words import innermost_script

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from helmsman.sessions.option_effects import Answer
    from helmsman.sessions.shell_words import SimpleCommand

_CHARACTERS_SEARCHED: Final = 64 * 1024
_WORDS_COMPARED: Final = 64
"""How far behind a program its options and arguments are looked for, where each word may be a program."""

_VARIABLE: Final = re.compile(r"\$\{[^}\s]{0,100}\}|\$\w+")
_EXPANDED: Final = re.compile(r"\$\{[^}]{0,200}\}?|\$\w+|\$[@*#?!$-]|\$'[^'\\]*\\(?:[^'\\]|\\.)*'")
_DEFINITION: Final = re.compile(r"\balias\b|\bfunction\b|\(\s*\)|\bhash\b|\benable\b")
_SUBSTITUTION: Final = re.compile(r"\$\(|`")
_EXPANSION: Final = re.compile(r"[^\s{};&|()<>]*\{[^\s{};&|()<>]*,[^\s{};&|()<>]*\}[^\s{};&|()<>]*")
_PATTERN: Final = re.compile(r"[^\s;&|()<>{}]*[*?\[][^\s;&|()<>{}]*")
_REDIRECTION: Final = re.compile(r"\d?(?:&>>|&>|>>|>\||>&|<&|>|<)[ \t]*[^\s;&|()<>`]+")
_BEFORE_COMMAND: Final = re.compile(r"[;&|\n\r()`<>]+")
_QUOTES: Final = re.compile(r"[\"'\\]")
_IGNORED: Final = re.compile(r"[${}]")
_ASSIGNMENT: Final = re.compile(r"(\w+)\+?=")


@dataclass(frozen=True, slots=True)
class PossibleCommand:
    """Words that may run.

    `runs_words`: each of them may be the program, not only the first. `unlikely`: they are words of something that runs
    what it is told, and nobody knows which.
    """

    words: Sequence[str]
    runs_words: bool = False
    unlikely: bool = False
    variables: tuple[str, ...] = ()


def possible_commands(text: str, commands: Sequence[SimpleCommand] | None) -> list[PossibleCommand]:
    """All that may run when `text` does; `commands` is what `parse_command` made of it."""
    known = [PossibleCommand(command.words, variables=command.env) for command in commands or ()]
    if commands is not None and not any(runs_words(each.words) or may_run_text(each.words) for each in commands):
        return known
    guesses = list(_guesses(text, understood=commands is not None))
    if any(may_run_text(each.words) for each in (*known, *guesses)):
        guesses += [
            PossibleCommand(words.split(), runs_words=True, unlikely=True, variables=each.variables)
            for each in guesses
            for words in dict.fromkeys(
                [" ".join(each.words), " ".join(each.words).replace("=", " ")]
            )  # --action=exec=CMD
        ]
    if commands is None and _DEFINITION.search(text):  # any word may be another name of anything
        guesses.append(PossibleCommand([COMPUTED]))
    return [*known, *guesses]


def may_run(prefix: Sequence[str], possible: Sequence[PossibleCommand]) -> Answer:
    """Whether one of the commands is meant by a rule for commands that begin with `prefix`."""
    rule = canonical_program(prefix)
    best: Answer = "no"
    for command in possible:
        for at in range(int(command.unlikely), len(command.words) if command.runs_words else 1):
            words = command.words[at:]
            if at and COMPUTED in words[0]:
                continue  # of whatever follows a program most is no program
            if command.runs_words and len(words) > _WORDS_COMPARED:
                words = [*words[:_WORDS_COMPARED], COMPUTED]
            answer = compare(rule, canonical_program(words), command.variables)
            if answer == "yes" and not command.unlikely:
                return "yes"
            best = "perhaps" if answer != "no" else best
    return best


def runs_literally(prefix: Sequence[str], possible: Sequence[PossibleCommand]) -> bool:
    """Whether one of the commands begins with just these words, as they are written."""
    expected = list(prefix)
    return any(
        list(command.words[at : at + len(expected)]) == expected
        for command in possible
        for at in range(len(command.words) if command.runs_words else 1)
    )


def _guesses(text: str, *, understood: bool) -> Iterator[PossibleCommand]:
    script = innermost_script(text)[:_CHARACTERS_SEARCHED].replace(COMPUTED, " ").replace("\\\n", "")
    variants = [
        _EXPANDED.sub(f" {COMPUTED} ", script),
        _VARIABLE.sub(f" {COMPUTED} ", script),
        _VARIABLE.sub("", script),
    ]
    for variant in dict.fromkeys(variants):
        for without_quotes in (_QUOTES.sub("", variant), _QUOTES.sub(" ; ", variant)):
            yield from _pieces(without_quotes, understood=understood)


def _pieces(script: str, *, understood: bool) -> Iterator[PossibleCommand]:
    variables = tuple({match[1] for word in script.split() if (match := _ASSIGNMENT.match(word))})
    script = _SUBSTITUTION.sub(f" {COMPUTED} ;", script)
    if not understood:  # otherwise these characters were quoted
        script = _PATTERN.sub(f" {COMPUTED} ", _EXPANSION.sub(f" {COMPUTED} ", script))
    for piece in _BEFORE_COMMAND.split(_IGNORED.sub(" ", _REDIRECTION.sub(" ", script))):
        words = piece.split()
        start = 0
        while start < len(words) and (_ASSIGNMENT.match(words[start]) or words[start] == "!"):
            start += 1
        if start < len(words):
            words = words[start:]
            if program_name(words[0]) in ("xargs", "parallel"):
                words.append(COMPUTED)  # what it reads
            runner = words[0] in NEVER_UNDERSTOOD or runs_words(words)
            yield PossibleCommand(words, runs_words=runner, variables=variables)
