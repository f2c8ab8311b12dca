"""Compare a command with a rule by the effects of their options, not by their spelling.

Rule and command are parsed the same way: subcommand, effects of the options, remaining words. A rule matches if its
effects are among those of the command. For programs in the table, the effects of each option are known; for all others,
possible spellings are compared.

The answers `yes` and `no` mean that the command is understood. The answer is `perhaps` if the command contains
something that could be the missing effect: an unknown option, a word that a shell computes, a file of options.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final, Literal

from helmsman.approvals.shell_words import git_runs_others, is_harmless_git_setting, names, program_name, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Certainty = Literal["yes", "perhaps", "no"]

COMPUTED: Final = "\x00"
"""Placeholder for a part of a command that only a shell can compute: any number of words, or part of a word."""

_ALIASES_FOLLOWED: Final = 3
_OWN_PROGRAM: Final = re.compile(r"(git|mkfs)[-.](.+)")
_VERSION: Final = re.compile(r"(pip|python)[\d.]+")
_PACKAGE: Final = re.compile(r"(@[^@]+|[^@=<>!~\[;]+)")
_OPENS: Final = re.compile("[+=][rwxXst]*[wugo]")
"""Symbolic mode that can result in any numeric mode."""
_VALUES_OF_SWITCHES: Final = frozenset(["true", "false", "null", "always"])
_PATHSPEC: Final = re.compile(r":|.*[*?\[]", re.DOTALL)
"""Operand that git treats as a pathspec pattern."""
_ABSTRACT_REFS: Final = frozenset(["HEAD", "@"])


@lru_cache(maxsize=1024)
def canonical_name(word: str) -> tuple[str, ...]:
    """Return the program's canonical name and the words it implies: `git push` for `/usr/lib/git-core/git-push`."""
    name = program_name(word)
    if COMPUTED in name:
        return (COMPUTED,)
    if match := _VERSION.fullmatch(name):
        name = match[1]
    if match := _OWN_PROGRAM.fullmatch(name):
        return (match[1], *(["-t"] if match[1] == "mkfs" else []), match[2])
    return PROGRAMS.get(name, (name,))


def canonical_program(words: Sequence[str]) -> tuple[str, ...]:
    """Return the command with its program's canonical name."""
    return (*canonical_name(words[0]), *words[1:])


def compare(rule: tuple[str, ...], command: tuple[str, ...], variables: Iterable[str] = ()) -> Certainty:
    """Return whether a rule covers a command; both begin with a `canonical_program`."""
    # The name of the program can only be known after the shell has computed it.
    if command[0] == COMPUTED:
        return "perhaps"
    if rule[0] != command[0]:
        return "no"
    wanted, given = _read_rule(rule), _read(command)
    begin = VARIABLES.get(command[0], command[0].upper() + "_")
    # A variable such as `GIT_CONFIG_KEY_0` may change what the command does.
    if any(name.startswith(begin) for name in variables):
        given.unclear = given.any_subcommand = True
    return _compare_readings(wanted, given)


# --- parsing ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Reading:
    """Parsed words. `rest` holds words without a known grammar; `any_subcommand` means that the subcommand is unknown."""

    program: str
    subcommand: str = ""
    any_subcommand: bool = False
    grammar: Grammar | None = None
    effects: dict[str, set[str | None]] = field(default_factory=dict[str, "set[str | None]"])
    possible: set[str] = field(default_factory=set[str])
    operands: list[str] = field(default_factory=list[str])
    rest: list[str] = field(default_factory=list[str])
    unclear: bool = False
    aliases: dict[str, list[str]] = field(default_factory=dict[str, "list[str]"])

    def add(self, option: Option, value: str | None) -> None:
        for name, fixed in option.effects:
            self.effects.setdefault(name, set()).add(value if name == option.name and fixed is None else fixed)
        self.possible.update(option.possible)
        self.unclear |= option.opaque or (value is not None and COMPUTED in value)


@lru_cache(maxsize=256)
def _read_rule(words: tuple[str, ...]) -> _Reading:
    return _read(words)


def _read(words: Sequence[str]) -> _Reading:
    reading = _Reading(words[0])
    rest = list(words[1:])
    if words[0] in WITH_SUBCOMMANDS:
        rest = _read_subcommand(reading, rest)
    name = f"{reading.program} {reading.subcommand}" if reading.subcommand else reading.program
    reading.grammar = grammar_of(name) if reading.subcommand or words[0] not in WITH_SUBCOMMANDS else Grammar()
    if reading.grammar is None:
        reading.rest = rest
    else:
        if name == "tar" and rest and rest[0][:1] not in ("-", ""):
            rest[0] = f"-{rest[0]}"  # tar xzf
        _read_options(reading, reading.grammar, rest)
    if reading.grammar is not None and reading.grammar.operands == "refspecs":
        _read_refspecs(reading, reading.grammar)
    return reading


def _read_subcommand(reading: _Reading, words: list[str]) -> list[str]:
    """Find the subcommand, resolving aliases, and return the words after it."""
    program = reading.program
    for _ in range(_ALIASES_FOLLOWED):
        # Options before the subcommand belong to the program itself.
        words = _read_options(reading, grammar_of(program) or Grammar(), words, only_before_operands=True)
        if not words:
            return []
        if program in ("npm", "pnpm") and words[0] in _VALUES_OF_SWITCHES:
            words = words[1:]  # `npm --dry-run false publish`
            continue
        name = words[0] if program != "npm" else _npm_command(words[0])
        if COMPUTED in name:
            reading.any_subcommand = True
            return words[1:]
        # Only an alias that the command itself defines. One in a file may be anything, and is handled below.
        if program == "git" and name not in GIT_COMMANDS and name.lower() in reading.aliases:
            words = [*reading.aliases.pop(name.lower()), *words[1:]]
            continue
        if f"{program} {name}" in GROUPS and len(words) > 1:
            inner = _read_options(
                reading, grammar_of(f"{program} {name}") or Grammar(), words[1:], only_before_operands=True
            )
            if inner and f"{program} {name} {inner[0]}" in SUBCOMMANDS:
                words = [*SUBCOMMANDS[f"{program} {name} {inner[0]}"], *inner[1:]]
                name = words[0]
            if inner and grammar_of(f"{program} {name} {inner[0]}"):
                reading.subcommand = f"{name} {inner[0]}"
                return inner[1:]
        if f"{program} {name}" in SUBCOMMANDS:
            words = [*SUBCOMMANDS[f"{program} {name}"], *words[1:]]
            continue
        reading.subcommand = name
        if program == "git" and git_runs_others(name, words[1:]):  # a git command of the user's, or an alias
            reading.any_subcommand = True
        return words[1:]
    reading.any_subcommand = True
    # Aliases that refer to each other must not be followed for ever.
    return words


def _npm_command(word: str) -> str:
    """Expand a name as npm does: camelCase and unique prefixes are accepted."""
    name = re.sub("[A-Z]", lambda letter: "-" + letter[0].lower(), word)
    if name in SUBCOMMANDS_OF_NPM or COMPUTED in name:
        return name
    meant = {full for full in SUBCOMMANDS_OF_NPM if full.startswith(name)}
    return meant.pop() if len(meant) == 1 else name


def _read_options(
    reading: _Reading, grammar: Grammar, words: list[str], *, only_before_operands: bool = False
) -> list[str]:
    """Parse options and operands; with `only_before_operands`, stop at the first operand and return the rest."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        # After `--` nothing is an option.
        if word == "--" and not only_before_operands:
            reading.operands += words[at:]
            reading.unclear |= any(COMPUTED in other for other in words[at:])
            return []
        if word[:1] == "-" and len(word) > 1:
            at += _read_option(reading, grammar, word, words[at] if at < len(words) else None)
            continue
        if only_before_operands:
            return words[at - 1 :]
        reading.operands.append(word)
        reading.unclear |= COMPUTED in word
        if grammar.stops and COMPUTED not in word:
            reading.operands += words[at:]
            return []
    return []


def _read_option(reading: _Reading, grammar: Grammar, word: str, following: str | None) -> int:
    """Parse one word with options; return the number of following words that it uses."""
    if COMPUTED in word:
        reading.unclear = True
    name, equals, attached = word.partition("=")
    bundled = word[1] != "-" and not (grammar.one_dash and _named(grammar, name))
    # A bundle of letters, unless the program reads `-name` as one option.
    if bundled and (not grammar.one_dash or all(f"-{letter}" in grammar.options for letter in name[1:])):
        return _read_bundle(reading, grammar, word[1:], following)
    meant = _named(grammar, name)
    if len(meant) == 1:
        return _take(reading, grammar, meant[0], attached if equals else None, following)
    if not meant and _negates(grammar, name):
        return 0
    reading.unclear = True
    # A rule may name the same unknown option.
    reading.effects.setdefault(name.lstrip("-"), set()).add(attached if equals else None)
    for option in meant:
        reading.possible |= {effect for effect, _ in option.effects}
    may_have_value = not equals and following is not None and following[:1] != "-"
    reading.any_subcommand |= may_have_value and reading.grammar is None  # value or subcommand?
    return int(may_have_value and grammar.stops)


def _read_bundle(reading: _Reading, grammar: Grammar, letters: str, following: str | None) -> int:
    for at, letter in enumerate(letters):
        option = grammar.options.get(f"-{letter}")
        if option is None:
            reading.unclear = True
            reading.effects.setdefault(letter, set()).add(None)
        elif option.value:
            rest = letters[at + 1 :]
            if reading.program == "tar" and rest and option.value == "=":  # in `xfz`, the value is the next word
                reading.add(option, following)
                continue
            # An optional value is attached, so the rest may also be more letters.
            if option.value == "?":
                reading.possible |= _effects_of(reading, grammar, f"-{rest}")
            return _take(reading, grammar, option, rest.removeprefix("=") or None, following)
        else:
            reading.add(option, None)
    return 0


def _take(reading: _Reading, grammar: Grammar, option: Option, attached: str | None, following: str | None) -> int:
    takes_next = option.value == "=" and attached is None and following is not None
    value = following if takes_next else attached
    reading.add(option, value)
    if takes_next and value is not None:  # versions of a program differ in which options take a value
        reading.possible |= _effects_of(reading, grammar, value)
    if reading.program == "git" and option.opaque and reading.grammar is None:
        reading.any_subcommand = True  # another directory of commands, or settings that are not visible here
    if reading.program == "git" and option.name == "c":
        _read_setting(reading, value or "")
    return int(takes_next)


def _effects_of(reading: _Reading, grammar: Grammar, word: str) -> set[str]:
    """Return the effects that a word would have if it were an option."""
    other = _Reading(reading.program, grammar=grammar)
    if word[:1] == "-" and len(word) > 1:
        _read_option(other, grammar, word, None)
    return {*other.effects, *other.possible}


def _read_setting(reading: _Reading, setting: str) -> None:
    key, _, value = setting.partition("=")
    section, _, name = key.partition(".")
    if section.lower() == "alias" and value[:1] not in ("!", "") and COMPUTED not in value:
        reading.aliases[name.lower()] = value.replace('"', "").replace("'", "").split()
    # Other settings may define aliases, pagers or hooks.
    elif not is_harmless_git_setting(setting):
        reading.unclear = reading.any_subcommand = True


def _named(grammar: Grammar, name: str) -> list[Option]:
    """Return the options that a word may name: an exact match, or all that begin with it."""
    bare = name.lstrip("-")
    # An exact name comes before an abbreviation.
    for spelling in [f"--{bare}", f"-{bare}"] if grammar.one_dash else [name]:
        if spelling in grammar.options:
            return [grammar.options[spelling]]
    if len(bare) < 2 and grammar.one_dash:
        return []
    # Programs accept any unambiguous beginning of a long option.
    found = {
        id(option): option
        for spelling, option in grammar.options.items()
        if spelling.startswith("--" if not grammar.one_dash else "-") and spelling.lstrip("-").startswith(bare)
    }
    return list(found.values()) if bare else []


def _negates(grammar: Grammar, name: str) -> bool:
    return name.startswith("--no-") and bool(_named(grammar, f"--{name[5:]}"))


def _read_refspecs(reading: _Reading, grammar: Grammar) -> None:
    """Add the effects of refspecs: `+main` forces an update, `:main` deletes a branch."""
    refspecs = reading.operands if "repo" in reading.effects else reading.operands[1:]
    for refspec in refspecs:
        # A plus sign forces the update, as `--force` does.
        if refspec.startswith("+"):
            reading.add(grammar.options["--force"], None)
        if refspec.startswith((":", "+:")) and refspec not in (":", "+:"):
            reading.add(grammar.options["--delete"], None)


# --- comparing -------------------------------------------------------------------------------------------------------


def _compare_readings(rule: _Reading, command: _Reading) -> Certainty:
    # The same work may be done by another git command.
    if rule.subcommand not in ("", command.subcommand):
        within = (
            rule.program == "git" and not rule.effects and rule.subcommand in WITHIN_GIT.get(command.subcommand, ())
        )
        return "perhaps" if command.any_subcommand or within else "no"
    missing = [(name, value) for name, values in rule.effects.items() for value in values]
    missing = [(name, value) for name, value in missing if not _has(command, name, value)]
    # A missing effect may hide behind something that only a shell can compute.
    if missing and not command.unclear and not all(name in command.possible for name, _ in missing):
        return "no"
    others = _compare_others(rule, command)
    return "perhaps" if missing and others == "yes" else others


def _has(command: _Reading, name: str, value: str | None) -> bool:
    values = command.effects.get(name, set())
    return bool(values) if value is None else any(other is not None and _is_same(value, other) for other in values)


def _compare_others(rule: _Reading, command: _Reading) -> Certainty:
    """Compare the words that are not options."""
    if rule.grammar is None or command.grammar is None:
        if rule.subcommand == "" and rule.program in WITH_SUBCOMMANDS:
            return "yes"
        answer = compare_spelling(rule.rest, command.rest)
        # An unknown grammar knows nothing about the words, so uncertainty stays.
        return "perhaps" if answer == "no" and command.unclear else answer
    kind = command.grammar.operands
    if command.grammar.stops:
        pairs = list(zip(rule.operands, command.operands, strict=False))
        found = len(pairs) == len(rule.operands) and all(_is_operand(kind, *pair) for pair in pairs)
        missing = [] if found else rule.operands
    else:
        missing = [
            word for word in rule.operands if not any(_is_operand(kind, word, other) for other in command.operands)
        ]
    if not missing:
        return "yes"
    if command.unclear or (kind == "refspecs" and _may_push(rule.operands, command)):
        return "perhaps"
    # A symbolic mode may give the same rights as the numeric mode of the rule.
    if kind == "modes" and any(_OPENS.search(other) for other in command.operands[:1]):
        return "perhaps"
    # A pathspec may match the file that the rule names.
    if command.program == "git" and any(map(_PATHSPEC.match, command.operands)):
        return "perhaps"
    # A path with `..` may lead to an absolute path of the rule.
    leads_up = any(".." in other.split("/") for other in command.operands)
    return "perhaps" if leads_up and any(word.startswith(("/", "~")) for word in missing) else "no"


def _may_push(wanted: Sequence[str], command: _Reading) -> bool:
    """Return whether a push without these refs in its words may push them nevertheless."""
    remote, refspecs = command.operands[:1], command.operands[1:]
    if remote and "/" not in remote[0] and ":" not in remote[0] and remote[0] != wanted[0]:
        return False
    names_all = "all" in command.effects or any(
        "*" in refspec or _branch(refspec) in _ABSTRACT_REFS for refspec in refspecs
    )
    other_remote = bool(remote) and remote[0] != wanted[0]
    # Without refspecs git pushes what its configuration says.
    return names_all or not refspecs or (other_remote and {*map(_branch, wanted[1:])} <= {*map(_branch, refspecs)})


def _is_operand(kind: str, word: str, other: str) -> bool:
    """Return whether the command's word names the rule's word, possibly among others."""
    if _is_same(word, other):
        return True
    match kind:
        case "refspecs":
            return _branch(word) == _branch(other)
        case "modes":
            return word.isdigit() and word.lstrip("0") in (other.lstrip("0"), other[-3:] if other.isdigit() else "")
        case "hosts":
            return "@" not in word and word == other.removeprefix("ssh://").rpartition("@")[2].partition(":")[0]
        case "packages":
            match = _PACKAGE.match(other)
            return match is not None and _package(word) == _package(match[1])
        case "images":
            return ":" not in word and word == other.partition(":")[0]
        case "resources":
            return _resource(word) in (_resource(other), *map(_resource, re.split("[/,]", other)))
        case _:
            return False


def _is_same(word: str, other: str) -> bool:
    return (
        word == other
        or word.casefold() == other.casefold()
        # Case and redundant dots do not make another file.
        or ("/" in word + other and posixpath.normpath(word) == posixpath.normpath(other).replace("//", "/"))
    )


def _branch(refspec: str) -> str:
    return refspec.removeprefix("+").rpartition(":")[2].removeprefix("refs/heads/").removeprefix("heads/")


def _package(word: str) -> str:
    return re.sub("[-_.]+", "-", word).casefold()


def _resource(word: str) -> str:
    return RESOURCES.get(word.casefold(), (word.casefold(),))[0]


# --- programs without a known grammar
# ----------------------------------------------------------------------------------


def compare_spelling(expected: Sequence[str], given: Sequence[str]) -> Certainty:
    """Compare by spelling: options may be anywhere; operands must be in order, with only options between them."""
    worst: Certainty = "yes" if _in_order([word for word in expected if word[:1] != "-"], given) else "no"
    # A shell may compute the missing words.
    if worst == "no" and any(COMPUTED in word for word in given):
        worst = "perhaps"
    for option in expected:
        if option[:1] != "-" or worst == "no" or _has_option(option, given):
            continue
        worst = "perhaps" if any(_may_be(option, word) for word in given) else "no"
    return worst


def _in_order(expected: Sequence[str], given: Sequence[str]) -> bool:
    at = 0
    for word in expected:
        while at < len(given) and given[at] != word and given[at].startswith("-"):
            at += 1
            if at < len(given) and given[at] != word and not given[at].startswith("-"):
                at += 1  # may be the option's value
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
    return set(option[1:]) <= letters  # -rf equals -fr and -r -f


def _may_be(option: str, word: str) -> bool:
    """Return whether the word may be another spelling of the option: abbreviated, a short form, or in a file."""
    if COMPUTED in word or (word.startswith("@") and "/" not in word):
        # A word `@file` may name a file with further options.
        return True
    if word[:1] != "-" or word in ("-", "--"):
        return False
    # A long option may have a short form that is not known here.
    if option.startswith("--") != word.startswith("--"):
        return True
    long, short = sorted([option.partition("=")[0], word.partition("=")[0]], key=len, reverse=True)
    return option.startswith("--") and long.startswith(short)


# --- the table --------------------------------------------------------------------------------------------------------

# Options of programs that are often denied: which spellings are the same option, and what else it implies.
# `programs.ini` contains the table and explains its notation.


@dataclass(frozen=True, slots=True)
class Option:
    """Option of a program. `effects` lists the options it implies, including itself, each with the value it sets."""

    name: str
    value: str
    effects: tuple[tuple[str, str | None], ...]
    possible: tuple[str, ...]
    opaque: bool


@dataclass(frozen=True, slots=True)
class Grammar:
    """Command line grammar of a program.

    `one_dash`: -name equals --name. `stops`: options end at the first operand. `operands`: the kind of the operands, if
    these have several spellings.
    """

    options: dict[str, Option] = field(default_factory=dict[str, Option])
    one_dash: bool = False
    stops: bool = False
    operands: str = ""


_TOKEN: Final = re.compile(
    r"(?P<names>[^=?:>~!]+)(?P<value>[=?]?)(?::(?P<short_for>[^>~!]+))?(?:>(?P<sure>[^~!]+))?(?:~(?P<maybe>[^!]+))?(?P<opaque>!?)"
)


def _options(text: str) -> dict[str, Option]:
    found: dict[str, Option] = {}
    for token in text.split():
        match = _TOKEN.fullmatch(token)
        assert match is not None, token
        spellings = match["names"].split(",")
        name = spellings[-1].lstrip("-")
        amounts_to = match["short_for"].split(",") if match["short_for"] else [name]
        amounts_to += match["sure"].split(",") if match["sure"] else []
        effects = [(effect.partition("=")[0], effect.partition("=")[2] or None) for effect in amounts_to]
        possible = tuple(match["maybe"].split(",")) if match["maybe"] else ()
        option = Option(name, match["value"], tuple(effects), possible, bool(match["opaque"]))
        found.update(dict.fromkeys(spellings, option))
    return found


_TABLE: Final = table("options")
_OPERANDS: Final = table("operands")


@cache
def grammar_of(name: str) -> Grammar | None:
    """Return the grammar of a program (`rm`) or subcommand (`git push`), if known. Parsed on first use."""
    if name not in _TABLE:
        return None
    one_dash = name.partition(" ")[0] in names("one dash")
    stops = name.replace(" ", "/") in names("stops")
    return Grammar(_options(_TABLE[name]), one_dash, stops, _OPERANDS.get(name, ""))


def _pairs(section: str) -> dict[str, tuple[str, ...]]:
    return {alias: tuple(words.split()) for alias, words in table(section).items()}


WITH_SUBCOMMANDS: Final = frozenset(name.partition(" ")[0] for name in _TABLE if " " in name)
GROUPS: Final = frozenset(name.rpartition(" ")[0] for name in _TABLE if name.count(" ") == 2) | frozenset(
    group.replace("/", " ") for group in names("groups")
)
PROGRAMS: Final = _pairs("programs")
SUBCOMMANDS: Final = _pairs("subcommands")
SUBCOMMANDS_OF_NPM: Final = frozenset(
    word for key in (*_TABLE, *SUBCOMMANDS) if key.startswith("npm ") for word in key.split()[1:]
)
RESOURCES: Final = _pairs("resources")
VARIABLES: Final = table("variables")
WITHIN_GIT: Final = _pairs("git commands within")
GIT_COMMANDS: Final = names("git commands")
