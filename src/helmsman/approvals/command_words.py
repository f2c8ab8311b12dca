"""What Helmsman knows of single programs: which are the shell's own, which can run anything.

The names stand in `programs.ini`. They cannot be complete, and are used only to be more careful: what is not listed is not
thereby safe, for a rule for the first words of a command covers whatever the program does with further arguments.
"""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


def program_name(word: str) -> str:
    """A program as one would call it: without its directory, and as a file system that ignores case sees it."""
    return word.replace("\\", "/").rpartition("/")[2].casefold().removesuffix(".exe")


_FILE: Final = ConfigParser(delimiters="=", interpolation=None)
_FILE.optionxform = str  # type: ignore[assignment, method-assign]
_FILE.read_string(Path(__file__).with_name("programs.ini").read_text(encoding="utf-8"))


def table(section: str) -> dict[str, str]:
    """What a section of `programs.ini` says of each that it names."""
    found: dict[str, str] = {}
    for keys, text in _FILE[section].items():
        for key in map(str.strip, keys.split(",")):
            found[key] = f"{found[key]} {text}" if key in found else text
    return found


_WORDS: Final = {key: frozenset(text.split()) for key, text in table("words").items()}


def names(key: str) -> frozenset[str]:
    """A list of names in `programs.ini`."""
    return _WORDS[key]


SHELLS: Final = names("shells")
NEVER_UNDERSTOOD: Final = names("shell language") | names("builtins")
"""First words with which a whole command is not understood."""
_RUNNERS: Final = SHELLS | names("runners")
_ONLY_WHOLE: Final = _RUNNERS | names("only whole")
_CODE_IN_OPTIONS_OF_GIT: Final = ("-c", "--c", "-u", "--u", "--rec", "--exe", "-x", "--ext")
_SUBCOMMAND: Final = re.compile(r"[a-z][a-z0-9:_-]*")
_PYTHON: Final = re.compile(r"python[0-9.]*")


def runs_words(words: Sequence[str]) -> bool:
    """Whether a program runs what its arguments say: a denied command may stand anywhere behind it."""
    if _is_listed(words[0], _RUNNERS):
        return True
    program = program_name(words[0])
    return any(f"{program}/{word}" in names("running subcommands") for word in words[1:])


def may_run_text(words: Sequence[str]) -> bool:
    """Whether a program may run what stands somewhere in its words, or what another program tells it."""
    program = program_name(words[0])
    if program == "git":
        return any(word.startswith(_CODE_IN_OPTIONS_OF_GIT) for word in words[1:])
    is_told = program in SHELLS and all(word[:1] == "-" for word in words[1:])
    return program in names("code in words") or is_told


def _is_listed(word: str, names: frozenset[str]) -> bool:
    name = program_name(word)
    return name in names or name.rstrip("0123456789.") in names  # python3.12


def sensible_prefix(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """The beginning of a command that one might allow for good, or None when only the whole command will do."""
    program = words[0]
    if "/" in program:
        return None
    if _PYTHON.fullmatch(program) and words[1:2] == ("-m",) and words[2:3] and words[2] in names("python checkers"):
        return words[:3]
    if program in names("read only"):
        return (program,)
    if _is_listed(program, _ONLY_WHOLE):
        return None
    if not words[1:] or not _SUBCOMMAND.fullmatch(words[1]) or "/".join(words[:2]) in names("anything goes"):
        return None
    if "/".join(words[:2]) not in names("runs by name"):
        return words[:2]
    named = words[2:] and _SUBCOMMAND.fullmatch(words[2]) and not _is_listed(words[2], _ONLY_WHOLE)
    return words[:3] if named else None
