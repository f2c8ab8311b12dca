"""Parse a shell command into simple commands, or reject it.

A rule may allow a command only if it is certain what will run. So this is not a shell, but a strict parser for the part
of the language in which nothing is computed: plain or quoted words, commands joined by `&&`, `||`, `|`, `;`, `&` and
newlines, and redirections. Expansions, substitutions, definitions and loops are rejected, and so is syntax that bash,
zsh and plain `sh` read differently. Only a person can allow a rejected command.

Codex shows a command as its words joined by spaces, quoted where needed, nearly always a shell with a script
(`/bin/bash -lc 'git status && ls'`). Such shells are unwrapped, and the script is parsed.
"""

from __future__ import annotations

import re
import string
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, Literal

from helmsman.base.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_LIMIT: Final = 32 * 1024
"""Longer than any command a rule is meant for."""
_MAX_DEPTH: Final = 3
"""Nesting of shells."""

_Dialect = Literal["bash", "sh"]
"""`bash` is the common subset of bash and zsh, `sh` the syntax that every shell reads the same way."""

_DIALECTS: Final[dict[str, _Dialect]] = {"bash": "bash", "zsh": "bash", "sh": "sh", "dash": "sh"}
_SHELL_PLACES: Final = frozenset(
    [
        *("/bin", "/usr/bin", "/usr/local/bin"),
        *("/opt/homebrew/bin", "/opt/local/bin", "/run/current-system/sw/bin"),
    ]
)
"""Directories of real shells; a program called bash elsewhere may be anything."""
_SCRIPT_OPTION: Final = re.compile(r"-[leux]*c[leux]*")
_BEFORE_SCRIPT_OPTION: Final = frozenset(["-l", "-e", "-u", "-x", "--login"])

_PLAIN: Final = frozenset(string.ascii_letters + string.digits + "_./:@%+,=-")
_PLAIN_AFTER_A_NAME: Final = frozenset("~^")
"""Ordinary in `HEAD~1` and `HEAD^`; elsewhere a home directory or a pattern."""
_ANSI_ESCAPES: Final = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=")
_REDIRECTION: Final = re.compile(r"&>>|&>|<>|<&|>>|>&|>\||<|>")


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """One program with its arguments.

    `env` holds variables set for it alone (`FOO=1 git status`). `writes` means that it is redirected to a file other
    than `/dev/null`, `reads` that it is redirected from a file. Equality compares all fields.
    """

    words: tuple[str, ...]
    env: tuple[str, ...] = ()
    writes: bool = False
    reads: bool = False


def parse_command(text: str) -> tuple[SimpleCommand, ...] | None:
    """Return every simple command that `text` can run, in order; None if it is not fully understood."""
    try:
        return tuple(_parse(text, "sh", 0))
    except _NotUnderstoodError:
        return None


def quoted(words: Iterable[str]) -> str:
    """Quote words so that every shell, and `parse_command`, reads exactly these words."""
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)


def innermost_script(text: str) -> str:
    """Remove the shells around a script, as far as possible."""
    for _ in range(_MAX_DEPTH):
        try:
            commands = _Reader(text, "sh").commands()
            if len(commands) != 1 or (script := _script_of(commands[0])) is None:
                break
            text = script[1]
        except _NotUnderstoodError:
            break
    return text


class _NotUnderstoodError(Exception):
    """Unsupported shell syntax."""


def _parse(text: str, dialect: _Dialect, depth: int) -> list[SimpleCommand]:
    if depth > _MAX_DEPTH:
        raise _NotUnderstoodError
    found: list[SimpleCommand] = []
    for command in _Reader(text, dialect).commands():
        script = _script_of(command)
        # Only a script is looked into; a shell that runs a file stays a program.
        if script is None:
            _check_program(command.words)
            found.append(command)
        else:
            found += _parse(script[1], script[0], depth + 1)
    if not found:
        raise _NotUnderstoodError
    return found


def _script_of(command: SimpleCommand) -> tuple[_Dialect, str] | None:
    """Return the script of a shell; None for any other program and for a shell that runs a file."""
    path = PurePosixPath(command.words[0])
    options = command.words[1:]
    # A shell with a file as its argument runs that file.
    if path.name not in SHELLS or not options or options[0][:1] not in ("-", "+"):
        return None
    while options and options[0] in _BEFORE_SCRIPT_OPTION:
        options = options[1:]
    place = command.words[0][: -len(path.name)]
    understood = (
        path.name in _DIALECTS
        and (place == "" or place.rstrip("/") in _SHELL_PLACES)
        and len(options) == 2  # further words would be arguments of the script
        and _SCRIPT_OPTION.fullmatch(options[0])
        and options[1][:1] not in ("-", "+", "")
        and command == SimpleCommand(command.words)
    )
    if not understood:
        raise _NotUnderstoodError
    return _DIALECTS[path.name], options[1]


def _check_program(words: tuple[str, ...]) -> None:
    program = words[0]
    # An assignment, a job or an option instead of a program.
    if program in NEVER_UNDERSTOOD or not program.isascii() or program[:1] in ("", "-", "+", "%") or "=" in program:
        raise _NotUnderstoodError
    if program == "printf" and any(word.startswith("-v") for word in words):  # sets a variable, such as PATH
        raise _NotUnderstoodError


class _Reader:
    """Parser for one text, from left to right."""

    def __init__(self, text: str, dialect: _Dialect) -> None:
        if len(text) > _LIMIT or not all(char.isprintable() or char in "\n\t" for char in text):
            raise _NotUnderstoodError  # control and invisible characters, and those that change the reading order
        self._text = text
        self._at = 0
        self._dialect = dialect

    def commands(self) -> list[SimpleCommand]:
        found: list[SimpleCommand] = []
        another_must_follow = False
        while True:
            self._skip(" \t\n")
            if not self._rest():
                if another_must_follow:
                    raise _NotUnderstoodError
                return found
            found.append(self._simple_command())
            # An operator without a command after it continues in the next line.
            operator = self._operator()
            another_must_follow = operator in ("&&", "||", "|", "|&")

    # --- pieces ------------------------------------------------------------------------------------------------------

    def _simple_command(self) -> SimpleCommand:
        command = SimpleCommand(())
        while True:
            self._skip(" \t")
            if self._redirection_begins():
                command = self._redirect(command)
            elif self._rest()[:1] in ("", "\n", ";", "&", "|"):
                break
            else:
                start = self._at
                word, unquoted = self._word()
                # A number directly before `<` or `>` names a descriptor.
                if self._rest()[:1] in ("<", ">") and word.isdigit() and unquoted == len(word):
                    # Shells disagree on which numbers are descriptors, and one with empty quotes (2''>) is a word.
                    if len(word) > 1 or self._text[start : self._at] != word:
                        raise _NotUnderstoodError
                    command = self._redirect(command)
                    continue
                assigned = _ASSIGNMENT.match(word)
                # Only an unquoted name before any word is an assignment.
                if assigned and assigned.end() <= unquoted and not command.words:
                    command = replace(command, env=(*command.env, assigned[1]))
                else:
                    command = replace(command, words=(*command.words, word))
        if not command.words:  # empty, or an assignment that affects all following commands
            raise _NotUnderstoodError
        return command

    def _operator(self) -> str:
        for operator in ("&&", "||", "|&", "|", "&", ";", "\n"):
            # The longer operators come first.
            if self._rest().startswith(operator):
                self._at += len(operator)
                if operator == "|&" and self._dialect == "sh":
                    raise _NotUnderstoodError
                return operator
        return ""

    def _redirection_begins(self) -> bool:
        if self._rest().startswith("&>"):
            if self._dialect == "sh":  # in sh, `&` ends the command here
                raise _NotUnderstoodError
            return True
        return self._rest()[:1] in ("<", ">")

    def _redirect(self, command: SimpleCommand) -> SimpleCommand:
        match = _REDIRECTION.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        self._skip(" \t")
        target, _ = self._word()
        if match[0] in ("<&", ">&"):
            # Only a descriptor, or closing one; anything else would be a file.
            if target != "-" and not (len(target) == 1 and target.isdigit()):
                raise _NotUnderstoodError
            return command
        if match[0] == "<":
            if target.startswith("/dev/") and target != "/dev/null":  # /dev/tcp/host/port is a connection
                raise _NotUnderstoodError
            return replace(command, reads=True)
        # Discarded output changes nothing.
        return replace(command, writes=command.writes or target != "/dev/null")

    def _word(self) -> tuple[str, int]:
        """Return the next word without its quotes, and the number of unquoted characters at its beginning."""
        pieces: list[str] = []
        unquoted = 0
        quoted = False
        start = self._at
        while char := self._rest()[:1]:
            # These characters are ordinary only within a word.
            if char in _PLAIN or (char in _PLAIN_AFTER_A_NAME and self._text[self._at - 1 : self._at].isalnum()):
                if char == "=" and self._at == start:  # zsh expands =name to the path of a program
                    raise _NotUnderstoodError
                pieces.append(char)
                unquoted += not quoted
                self._at += 1
            # A backslash at the end of a line continues it.
            elif self._rest().startswith("\\\n"):
                self._at += 2
            elif char in "'\"\\$":
                quoted = True
                pieces.append(self._quoted(char))
            elif char in " \t\n;&|<>":
                break
            else:
                raise _NotUnderstoodError
        if self._at == start:
            raise _NotUnderstoodError
        return "".join(pieces), unquoted

    def _quoted(self, opening: str) -> str:
        self._at += 1
        if opening == "\\":
            return self._take()
        if opening == "'":
            return self._until_single_quote()
        if opening == '"':
            return self._until_double_quote()
        # `$'…'` exists in bash and zsh only.
        if self._dialect == "bash" and self._rest().startswith("'"):
            self._at += 1
            return self._until_ansi_quote()
        raise _NotUnderstoodError

    def _until_single_quote(self) -> str:
        end = self._text.find("'", self._at)
        if end < 0:
            raise _NotUnderstoodError
        inside = self._text[self._at : end]
        self._at = end + 1
        return inside

    def _until_double_quote(self) -> str:
        pieces: list[str] = []
        while (char := self._take()) != '"':
            # Expansions also work between double quotes.
            if char in "$`!":
                raise _NotUnderstoodError
            if char == "\\":
                escaped = self._take()
                if escaped == "\n":
                    continue
                # Between double quotes a backslash escapes only these; otherwise it stays.
                char = escaped if escaped in '$`"\\' else "\\" + escaped
                if escaped == "!":
                    raise _NotUnderstoodError
            pieces.append(char)
        return "".join(pieces)

    def _until_ansi_quote(self) -> str:
        pieces: list[str] = []
        while (char := self._take()) != "'":
            if char == "\\":
                # Other escapes can spell any character, and shells disagree on them.
                escaped = _ANSI_ESCAPES.get(self._take())
                if escaped is None:
                    raise _NotUnderstoodError
                char = escaped
            pieces.append(char)
        return "".join(pieces)

    # --- characters --------------------------------------------------------------------------------------------------

    def _rest(self) -> str:
        """Return the next characters, enough for the longest operator."""
        return self._text[self._at : self._at + 3]

    def _take(self) -> str:
        char = self._text[self._at : self._at + 1]
        if not char:
            raise _NotUnderstoodError
        self._at += 1
        return char

    def _skip(self, blanks: str) -> None:
        while True:
            if self._rest().startswith("\\\n"):
                self._at += 2
            elif (char := self._rest()[:1]) and char in blanks:
                self._at += 1
            else:
                return


# --- known programs ---------------------------------------------------------------------------------------------------

# Known programs: shell builtins, and programs that can run others.
#
# The names are listed in `programs.ini`. The list cannot be complete and is used only to be more careful: an unlisted
# program is not safe, because a prefix rule covers whatever the program does with further arguments.


def program_name(word: str) -> str:
    """Return the name of a program without its directory, casefolded for file systems that ignore case."""
    return word.replace("\\", "/").rpartition("/")[2].casefold().removesuffix(".exe")


_FILE: Final = ConfigParser(delimiters="=", interpolation=None)
_FILE.optionxform = str  # type: ignore[assignment, method-assign]
_FILE.read_string(Path(__file__).with_name("programs.ini").read_text(encoding="utf-8"))


def table(section: str) -> dict[str, str]:
    """Return a section of `programs.ini`, with one entry per name."""
    found: dict[str, str] = {}
    for keys, text in _FILE[section].items():
        for key in map(str.strip, keys.split(",")):
            # A name may have several lines in the file.
            found[key] = f"{found[key]} {text}" if key in found else text
    return found


_WORDS: Final = {key: frozenset(text.split()) for key, text in table("words").items()}


def names(key: str) -> frozenset[str]:
    """Return a list of names from `programs.ini`."""
    return _WORDS[key]


SHELLS: Final = names("shells")
NEVER_UNDERSTOOD: Final = names("shell language") | names("builtins")
"""First words that make a whole command unparseable."""
_RUNNERS: Final = SHELLS | names("runners")
_ONLY_WHOLE: Final = _RUNNERS | names("only whole")
_CODE_IN_OPTIONS_OF_GIT: Final = ("-c", "--c", "-u", "--u", "--rec", "--exe", "-x", "--ext", "-O", "--op")
_GIT_OPTIONS_WITH_VALUE: Final = frozenset(
    ["-C", "-c", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--attr-source", "--config-env"]
)
_NAMED_PROGRAMS: Final = {key: frozenset(text.split()) for key, text in table("named programs").items()}
_TALKS_TO_REMOTES: Final = frozenset(
    [
        *("archive", "clone", "fetch", "fetch-pack", "http-push", "ls-remote", "pull", "push", "remote"),
        *("request-pull", "send-pack", "submodule"),
    ]
)
"""Git commands that take `transport::address`, for which git runs the program `git-remote-transport`."""
_TAKES_STRATEGY: Final = frozenset(["merge", "pull", "rebase", "cherry-pick", "revert"])
_READS_SETTING: Final = frozenset(["get", "list", "--list", "-l", "--name-only"])
_SUBCOMMAND: Final = re.compile(r"[a-z][a-z0-9:_-]*")
_PYTHON: Final = re.compile(r"python[0-9.]*")


def runs_words(words: Sequence[str]) -> bool:
    """Return whether a program runs its arguments, so that a denied command may follow anywhere."""
    if _is_listed(words[0], _RUNNERS) or names_program(words):
        return True
    program = program_name(words[0])
    return any(f"{program}/{word}" in names("running subcommands") for word in words[1:])


def may_run_text(words: Sequence[str]) -> bool:
    """Return whether a program may run text in its words, or text from its standard input."""
    program = program_name(words[0])
    if program == "git":
        # Options that name programs may be abbreviated and attached.
        return any(word.startswith(_CODE_IN_OPTIONS_OF_GIT) for word in words[1:]) or names_program(words)
    is_told = program in SHELLS and all(word[:1] == "-" for word in words[1:])
    return program in names("code in words") or is_told


def names_program(words: Sequence[str]) -> bool:
    """Return whether the words of a command may name another program, or another git command, that it runs."""
    program = program_name(words[0])
    if program != "git":
        return _has_word(words[1:], _NAMED_PROGRAMS.get(program, frozenset()))
    at = 1
    while at < len(words) and words[at].startswith("-"):
        option, _, value = words[at].partition("=")
        takes_next = option in _GIT_OPTIONS_WITH_VALUE and not value
        if option in ("--config-env", "--exec-path") and (value or takes_next):
            return True
        if words[at][:2] == "-c" and not is_harmless_git_setting(words[at][2:] or "".join(words[at + 1 : at + 2])):
            return True
        at += 1 + takes_next
    return at < len(words) and git_runs_others(words[at], words[at + 1 :])


def git_runs_others(subcommand: str, words: Sequence[str]) -> bool:
    """Return whether `git SUBCOMMAND` may run another command, by itself or because of its words."""
    # Commands of the user, and aliases, which may be anything.
    if subcommand not in names("git own work"):
        return True
    if subcommand in _TALKS_TO_REMOTES and any("::" in word for word in words):
        return True
    if subcommand == "config":
        return _changes_git(words)
    if subcommand in _TAKES_STRATEGY and not {*_strategies(subcommand, words)} <= names("git strategies"):
        return True
    named = _NAMED_PROGRAMS["git *"] | _NAMED_PROGRAMS.get(f"git {subcommand}", frozenset())
    return _has_word(words, named)


def is_harmless_git_setting(setting: str) -> bool:
    """Return whether `section.key=value` affects no rule and names no program."""
    key, _, value = setting.partition("=")
    key = key.lower()
    harmless = names("harmless git settings")
    return key in harmless or key.partition(".")[0] in harmless or (key == "core.pager" and value in ("", "cat"))


def _changes_git(words: Sequence[str]) -> bool:
    """Return whether `git config` may set a value that names a program or changes the effect of a command."""
    if any(word in _READS_SETTING or word.startswith("--get") for word in words):
        return False
    operands = [word for word in words if word[:1] != "-"]
    if operands[:1] in (["set"], ["unset"]):
        operands = operands[1:]
    # One operand reads a setting, two write one.
    writes = len(operands) > 1 or any(word.startswith(("-e", "--e", "--r", "--a")) for word in words)
    return writes and not (operands and is_harmless_git_setting("=".join(operands[:2])))


def _strategies(subcommand: str, words: Sequence[str]) -> Iterator[str]:
    """Yield the named strategies. For `cherry-pick` and `revert`, `-s` signs off a commit."""
    has_letter = subcommand not in ("cherry-pick", "revert")
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        following = words[at + 1] if at + 1 < len(words) else ""
        # Git accepts any unambiguous beginning.
        if len(name) > 3 and "--strategy".startswith(name):
            yield value if equals else following
        elif has_letter and word[:1] == "-" and word[:2] != "--" and "s" in word:
            yield word.partition("s")[2] or following


def _has_word(words: Sequence[str], named: frozenset[str]) -> bool:
    """Return whether a word is in `named`: exactly, as an abbreviated option, or as a letter in a bundle."""
    letters = {word[1] for word in named if len(word) == 2 and word[0] == "-"}
    longer = [word for word in named if word.startswith("--")]
    for word in words:
        name = word.partition("=")[0]
        if word in named or (word[:1] == "-" and word[:2] != "--" and not letters.isdisjoint(word[1:])):
            # Letters may be bundled, so each counts alone.
            return True
        if len(name) > 2 and name.startswith("--") and any(option.startswith(name) for option in longer):
            return True
    return False


def _is_listed(word: str, names: frozenset[str]) -> bool:
    name = program_name(word)
    return name in names or name.rstrip("0123456789.") in names  # python3.12


def sensible_prefix(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return a prefix of the command that may sensibly be allowed permanently; None if only the whole command may."""
    program = words[0]
    # A program with a path may be anything.
    if "/" in program:
        return None
    if _PYTHON.fullmatch(program) and words[1:2] == ("-m",) and words[2:3] and words[2] in names("python checkers"):
        return words[:3]
    if program in names("read only"):
        return (program,)
    # Programs that run their arguments are allowed only as a whole command.
    if _is_listed(program, _ONLY_WHOLE):
        return None
    if not words[1:] or not _SUBCOMMAND.fullmatch(words[1]) or "/".join(words[:2]) in names("anything goes"):
        return None
    if names_program(words):
        return None
    # `npm run` and the like name what runs in the next word.
    if "/".join(words[:2]) not in names("runs by name"):
        return words[:2]
    named = words[2:] and _SUBCOMMAND.fullmatch(words[2]) and not _is_listed(words[2], _ONLY_WHOLE)
    return words[:3] if named else None
