"""Match commands against deny and ask rules, erring on the side of a match.

The words of a parsed command are compared by their effects (`option_effects`). If a command cannot be parsed, or passes
words to another program (`sudo`, `xargs`, `python -c`), its text is split wherever a command could begin, and each
piece is tried. Parts that a shell would compute match anything.

A hostile text can be long and rules can be many, so the time is linear in the text and the search is limited. That is
safe, because a command that is not understood is not allowed either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from helmsman.approvals.option_effects import COMPUTED, Certainty, canonical_name, canonical_program, compare
from helmsman.approvals.shell_words import NEVER_UNDERSTOOD, innermost_script, may_run_text, program_name, runs_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from helmsman.approvals.shell_words import SimpleCommand

_CHARACTERS_SEARCHED: Final = 64 * 1024
_WORDS_COMPARED: Final = 64
"""Number of words searched for options and arguments, where each word may be a program."""
_COMPARISONS: Final = 200
"""Comparisons of one program for one rule; beyond that, the command counts as not understood."""

_VARIABLE: Final = re.compile(r"\$\{[^}\s]{0,100}\}|\$\w+")
_EXPANDED: Final = re.compile(r"\$\{[^}]{0,200}\}?|\$\w+|\$[@*#?!$-]")
_DEFINITION: Final = re.compile(r"\balias\b|\bfunction\b|\(\s*\)|\bhash\b|\benable\b|\$'")
r"""Definitions after which any word may be a name for anything: `alias`, `name()`, $'\x72m'."""
_SUBSTITUTION: Final = re.compile(r"\$\(|`")
_REDIRECTION: Final = re.compile(r"\d?(?:&>>|&>|>>|>\||>&|<&|>|<)[ \t]*[^\s;&|()<>`]+")
_BEFORE_COMMAND: Final = re.compile(r"[;&|\n\r()`<>]+")
_GLUE: Final = re.compile(r"=|::|(?<!\S)-\w(?=\w)")
"""Separators before a command within a word: `--do=exec=CMD`, `ext::CMD`, `-OCMD`."""
_QUOTES: Final = re.compile(r"[\"'\\]")
_PATTERN: Final = re.compile(r"[*?\[]")
_IS_NO_PATTERN: Final = frozenset(["[", "[["])
_ASSIGNMENT: Final = re.compile(r"(\w+)\+?=")


@dataclass(frozen=True, slots=True)
class PossibleCommand:
    """Words that may run as a command.

    `runs_words`: every word may be the program, not only the first. `unlikely`: the words may be text that a program
    such as `python -c` runs.
    """

    words: Sequence[str]
    runs_words: bool = False
    unlikely: bool = False
    variables: tuple[str, ...] = ()


def possible_commands(text: str, commands: Sequence[SimpleCommand] | None) -> list[PossibleCommand]:
    """Return all commands that `text` may run; `commands` is the result of `parse_command`."""
    known = [PossibleCommand(command.words, variables=command.env) for command in commands or ()]
    if commands is not None and not any(runs_words(each.words) or may_run_text(each.words) for each in commands):
        return known
    guesses = list(_guesses(text, understood=commands is not None))
    if any(may_run_text(each.words) for each in (*known, *guesses)):
        guesses += [
            PossibleCommand(words.split(), runs_words=True, unlikely=True, variables=each.variables)
            for each in guesses
            for words in dict.fromkeys([" ".join(each.words), _GLUE.sub(" ", " ".join(each.words))])
        ]
    if commands is None and _DEFINITION.search(text):
        guesses.append(PossibleCommand([COMPUTED]))
    return [*known, *guesses]


def may_run(prefix: Sequence[str], possible: Sequence[PossibleCommand]) -> Certainty:
    """Return whether a rule for commands that begin with `prefix` covers one of the commands."""
    rule = canonical_program(prefix)
    best: Certainty = "no"
    compared = 0
    for command in possible:
        for at in range(int(command.unlikely), len(command.words) if command.runs_words else 1):
            name = canonical_name(command.words[at])[0]
            if name != rule[0] and (name != COMPUTED or at):  # most words after a program are not programs
                continue
            compared += 1
            if compared > _COMPARISONS:
                return "perhaps"
            words = list(command.words[at : at + _WORDS_COMPARED] if command.runs_words else command.words)
            if at + len(words) < len(command.words):
                words.append(COMPUTED)
            answer = compare(rule, canonical_program(words), command.variables)
            if answer == "yes" and not command.unlikely:
                return "yes"
            best = "perhaps" if answer != "no" else best
    return best


def runs_literally(prefix: Sequence[str], possible: Sequence[PossibleCommand]) -> bool:
    """Return whether one of the commands begins with exactly these words."""
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
    for piece in _BEFORE_COMMAND.split(_REDIRECTION.sub(" ", script)):
        words = [each for word in piece.split() for each in _expanded(word, understood=understood)]
        start = 0
        while start < len(words) and (_ASSIGNMENT.match(words[start]) or words[start] == "!"):
            start += 1
        if start < len(words):
            words = words[start:]
            if program_name(words[0]) in ("xargs", "parallel"):
                words.append(COMPUTED)  # standard input
            runner = words[0] in NEVER_UNDERSTOOD or runs_words(words)
            yield PossibleCommand(words, runs_words=runner, variables=variables)


def _expanded(word: str, *, understood: bool) -> list[str]:
    """Split a word as a shell may expand it: unquoted patterns and brace lists become `COMPUTED`."""
    is_list = "{" in word and "," in word and "}" in word
    if not understood and (is_list or (_PATTERN.search(word) and word not in _IS_NO_PATTERN)):
        return [COMPUTED]
    return word.replace("$", " ").replace("{", " ").replace("}", " ").split()
