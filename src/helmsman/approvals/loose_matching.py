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

from helmsman.approvals.option_effects import COMPUTED, Certainty, canonical_name, canonical_program, compare
from helmsman.approvals.shell_words import NEVER_UNDERSTOOD, innermost_script, may_run_text, program_name, runs_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from helmsman.approvals.shell_words import SimpleCommand

_CHARACTERS_SEARCHED: Final = 64 * 1024
_WORDS_COMPARED: Final = 64
"""How far behind a program its options and arguments are looked for, where each word may be a program."""
_COMPARISONS: Final = 200
"""How often the same program is looked at for one rule; whoever writes it more often is not understood."""

_VARIABLE: Final = re.compile(r"\$\{[^}\s]{0,100}\}|\$\w+")
_EXPANDED: Final = re.compile(r"\$\{[^}]{0,200}\}?|\$\w+|\$[@*#?!$-]")
_DEFINITION: Final = re.compile(r"\balias\b|\bfunction\b|\(\s*\)|\bhash\b|\benable\b|\$'")
"""With one of these any word may be another name of anything: `alias`, `name()`, $'\\x72m'."""
_SUBSTITUTION: Final = re.compile(r"\$\(|`")
_REDIRECTION: Final = re.compile(r"\d?(?:&>>|&>|>>|>\||>&|<&|>|<)[ \t]*[^\s;&|()<>`]+")
_BEFORE_COMMAND: Final = re.compile(r"[;&|\n\r()`<>]+")
_GLUE: Final = re.compile(r"=|::|(?<!\S)-\w(?=\w)")
"""Stands before a command in the same word: `--do=exec=CMD`, `ext::CMD`, `-OCMD`."""
_QUOTES: Final = re.compile(r"[\"'\\]")
_PATTERN: Final = re.compile(r"[*?\[]")
_IS_NO_PATTERN: Final = frozenset(["[", "[["])
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
            for words in dict.fromkeys([" ".join(each.words), _GLUE.sub(" ", " ".join(each.words))])
        ]
    if commands is None and _DEFINITION.search(text):
        guesses.append(PossibleCommand([COMPUTED]))
    return [*known, *guesses]


def may_run(prefix: Sequence[str], possible: Sequence[PossibleCommand]) -> Certainty:
    """Whether one of the commands is meant by a rule for commands that begin with `prefix`."""
    rule = canonical_program(prefix)
    best: Certainty = "no"
    compared = 0
    for command in possible:
        for at in range(int(command.unlikely), len(command.words) if command.runs_words else 1):
            name = canonical_name(command.words[at])[0]
            if name != rule[0] and (name != COMPUTED or at):  # of whatever follows a program most is no program
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
    for piece in _BEFORE_COMMAND.split(_REDIRECTION.sub(" ", script)):
        words = [each for word in piece.split() for each in _expanded(word, understood=understood)]
        start = 0
        while start < len(words) and (_ASSIGNMENT.match(words[start]) or words[start] == "!"):
            start += 1
        if start < len(words):
            words = words[start:]
            if program_name(words[0]) in ("xargs", "parallel"):
                words.append(COMPUTED)  # what it reads
            runner = words[0] in NEVER_UNDERSTOOD or runs_words(words)
            yield PossibleCommand(words, runs_words=runner, variables=variables)


def _expanded(word: str, *, understood: bool) -> list[str]:
    """What a shell makes of a word: other words, if there is a pattern or a list in it that is not quoted."""
    is_list = "{" in word and "," in word and "}" in word
    if not understood and (is_list or (_PATTERN.search(word) and word not in _IS_NO_PATTERN)):
        return [COMPUTED]
    return word.replace("$", " ").replace("{", " ").replace("}", " ").split()
