"""Recognize entries of a client's configuration: Helmsman, the old `codex mcp-server`, or another server."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Final

HELMSMAN_NAMES: Final = ("helmsman", "codex-helmsman")
DISTRIBUTION: Final = "codex-helmsman"

_CODEX_PACKAGE: Final = re.compile(r"@openai/codex(?:@[\w.^~-]+)?")
_PACKAGE_RUNNERS: Final = {
    "npx": frozenset[str](),
    "bunx": frozenset[str](),
    "pnpx": frozenset[str](),
    "pnpm": frozenset({"dlx"}),
    "bun": frozenset({"x"}),
    "npm": frozenset({"exec"}),
}
"""Programs that download and run a package, with the subcommand they need."""
_RUNNER_FLAGS: Final = frozenset({"-y", "--yes", "-q", "--quiet", "--"})
# The command was called `mcp` before it was `mcp-server`.
_OLD_SERVER: Final = (["mcp-server"], ["mcp"], ["mcp", "serve"])
_SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash"})


@dataclass(frozen=True, slots=True)
class OwnEntry:
    """Entry that runs `helmsman serve`: the words that start Helmsman, and the options of `serve`."""

    launch: tuple[str, ...]
    options: tuple[str, ...]

    @property
    def tools(self) -> str | None:
        """Configured toolsets, as written."""
        return _split_tools(self.options)[1]


@dataclass(frozen=True, slots=True)
class OldServer:
    """Entry that runs the MCP server built into Codex.

    `binary` is the full path of its Codex. `defaults` are equivalent options of `helmsman serve`; `options` have no
    equivalent.
    """

    binary: str | None = None
    defaults: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def words_of(entry: object) -> list[str]:
    """Return the command and arguments of an entry; empty for an entry without a command or an invalid one."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("command"), str):
        return []
    arguments = entry.get("args", [])
    # An invalid entry is left alone.
    if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
        return []
    return [entry["command"], *arguments]


def recognise(entry: object) -> OwnEntry | OldServer | None:
    """Classify an entry; None for entries of other servers, which must not be changed."""
    words = _unwrapped(words_of(entry))
    if not words:
        return None
    return _helmsman(words) or _old_server(words)


def with_tools(options: tuple[str, ...], tools: str) -> tuple[str, ...]:
    """Replace the toolsets in the options of `serve`."""
    return (*_split_tools(options)[0], "--tools", tools)


def _split_tools(options: tuple[str, ...]) -> tuple[list[str], str | None]:
    """Split the options of `serve` into other options and toolsets; the last toolsets count."""
    kept: list[str] = []
    tools = None
    words = iter(options)
    for word in words:
        if word == "--tools":
            tools = next(words, None)
        elif word.startswith("--tools="):
            tools = word.removeprefix("--tools=")
        else:
            kept.append(word)
    return kept, tools


def _unwrapped(words: list[str]) -> list[str]:
    """Remove a shell around a command, if the shell does nothing else."""
    if len(words) >= 3 and program_name(words[0]) == "cmd" and words[1].lower() == "/c":
        # `cmd /c` is how clients on Windows start npm's scripts.
        return words[2:]
    if len(words) == 3 and program_name(words[0]) in _SHELLS and words[1] in ("-c", "-lc"):
        try:
            inner = shlex.split(words[2])
        except ValueError:
            return words
        # `exec` changes nothing about the command.
        inner = inner[1:] if inner[:1] == ["exec"] else inner
        # A shell that does more than start the command has to stay.
        return words if set(words[2]) & set(";&|<>$`(){}\n") else inner
    return words


def _helmsman(words: list[str]) -> OwnEntry | None:
    for number, word in enumerate(words[:-1]):
        # As a program, or as a package with version or extras.
        runs = program_name(word) in HELMSMAN_NAMES or re.split(r"[@=\[]", word)[0] == DISTRIBUTION
        is_module = number > 0 and words[number - 1] == "-m" and word == "helmsman"
        # Other commands of Helmsman are no servers.
        if (runs or is_module) and words[number + 1] == "serve":
            return OwnEntry(tuple(words[: number + 1]), tuple(words[number + 2 :]))
    return None


def _old_server(words: list[str]) -> OldServer | None:
    name = program_name(words[0])
    # A name alone means the Codex that PATH finds, which need not be named.
    if name == "codex":
        return _codex_arguments(words[1:], words[0] if _is_absolute(words[0]) else None)
    if (
        name in ("node", "bun")
        and len(words) > 1
        and words[1].replace("\\", "/").endswith("/@openai/codex/bin/codex.js")
    ):
        return _codex_arguments(words[2:], None)
    if name not in _PACKAGE_RUNNERS:
        return None
    rest = words[1:]
    for number, word in enumerate(rest):
        if _CODEX_PACKAGE.fullmatch(word):
            after = rest[number + 1 :]
            # A package runner may repeat the program's name.
            after = after[1:] if after[:1] in (["codex"], ["--"]) else after
            return _codex_arguments(after, None)
        # An unknown flag may change what is run.
        if word not in _RUNNER_FLAGS | _PACKAGE_RUNNERS[name] | {"-p", "--package"}:
            return None
    return None


def _codex_arguments(arguments: list[str], binary: str | None) -> OldServer | None:
    """Parse Codex's arguments; options may precede or follow the command."""
    command: list[str] = []
    defaults: list[str] = []
    options: list[str] = []
    words = iter(arguments)
    for word in words:
        if not word.startswith("-"):
            command.append(word)
            continue
        name, value = _option(word, words)
        if value is not None and (default := _DEFAULTS.get(_SHORT.get(name, name))) is not None:
            written, form = default
            defaults += [written, form.format(value)]
        else:
            options += [name] if value is None else [name, value]
    # Another command of Codex, such as `exec`, is no server.
    if command not in _OLD_SERVER:
        return None
    return OldServer(binary, tuple(defaults), tuple(options))


def _option(word: str, following: Iterator[str]) -> tuple[str, str | None]:
    """Return an option and its value, from the same word (`--model=o3`, `-mo3`, `-m=o3`) or the next one."""
    is_long = word.startswith("--")
    name, equals, value = word.partition("=") if is_long else (word[:2], word[2:3], word[2:].removeprefix("="))
    if equals:
        return name, value
    # Without knowing its options, a value could be taken for a command.
    return name, next(following, None) if name in _OPTIONS_WITH_VALUE else None


_SHORT: Final = {"-m": "--model", "-p": "--profile", "-s": "--sandbox", "-a": "--ask-for-approval", "-c": "--config"}
_DEFAULTS: Final = {
    "--model": ("-m", "{}"),
    "--profile": ("--profile", "{}"),
    "--config": ("-c", "{}"),
    "--enable": ("-c", "features.{}=true"),
    "--disable": ("-c", "features.{}=false"),
}
"""Options of Codex that apply to every session, and the equivalent options of `helmsman serve`.

Sandbox and approval policy are missing: the old server ignored them, so applying them would grant more than before.
"""
_OPTIONS_WITH_VALUE: Final = frozenset(
    {*_SHORT, *_SHORT.values(), "-C", "--cd", "--enable", "--disable", "-i", "--image", "--add-dir", "--local-provider"}
)


def program_name(command: str) -> str:
    r"""Return the name of a program: `codex` for `/usr/bin/codex` and for `C:\x\codex.cmd`."""
    name = PureWindowsPath(command).name if "\\" in command else PurePosixPath(command).name
    return re.sub(r"\.(?:exe|cmd|bat|ps1)$", "", name, flags=re.IGNORECASE)


def _is_absolute(command: str) -> bool:
    return PurePosixPath(command).is_absolute() or PureWindowsPath(command).is_absolute()
