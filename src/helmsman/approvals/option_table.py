"""The options of the programs that people deny: which spellings are one option, and what else an option does.

They stand in `programs.ini`, in a notation that is explained there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from helmsman.approvals.command_words import names, table


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `effects` are the options it amounts to, each with a value if it sets one; itself among them."""

    name: str
    value: str
    effects: tuple[tuple[str, str | None], ...]
    possible: tuple[str, ...]
    opaque: bool


@dataclass(frozen=True, slots=True)
class Grammar:
    """How a program reads its words.

    `one_dash`: -name is --name. `stops`: options end at the first word that is none. `operands`: what kind of things the
    other words are, where these have several spellings too.
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
    """The grammar of a program (`rm`) or a subcommand (`git push`), if it is known. Read when it is first needed."""
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
HARMLESS_GIT_SETTINGS: Final = names("harmless git settings")
GIT_COMMANDS: Final = names("git commands")
