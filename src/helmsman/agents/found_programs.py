"""Facts about an agent's program without running it: its version, and whether it has a login."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.caller_context import expand_home
from helmsman.base.json_values import json_object_in, optional_text
from helmsman.base.programs import check_program
from helmsman.base.structs import Value
from helmsman.errors import ProgramRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_INTERPRETER: Final = re.compile(
    r"(?:node|nodejs|bun|deno|tsx|ts-node|python[\d.]*|pypy[\d.]*|ruby|perl|java|sh|bash|dash|zsh)(?:\.exe)?"
)
_CHOOSER: Final = re.compile(r"(?:npx|bunx|pnpx|npm|pnpm|yarn|env)(?:\.exe|\.cmd)?")
"""Programs that look for another one, most of them in the working directory first."""
_NOT_A_PATH: Final = re.compile(r"run|[a-z][a-z\d+.]+:.*")
"""Words before or instead of a script that name no file: `bun run`, `deno run npm:agent`."""
_PYTHON_CODE: Final = re.compile(r"-([A-Za-z]*?)[mc]")
"""Options with which Python searches the working directory, unless an option forbids it (`-I`, `-P`)."""
_LEVELS: Final = 4
"""Number of parent directories in which a package description is searched."""


class Installed(Value, frozen=True, kw_only=True):
    """Program of an agent. `version` is None if only the program itself knows it.

    `login` is the file or variable with the first login that was found.
    """

    version: str | None
    path: str
    login: str | None = None


def agent_file(argv: Sequence[str]) -> str:
    """Return the file of an agent among the words that start it: of `node script.js` it is the script."""
    interpreter = _INTERPRETER.fullmatch(Path(argv[0]).name)
    scripts = (word for word in argv[1:] if not word.startswith("-") and Path(word).is_file())
    return next(scripts, argv[0]) if interpreter else argv[0]


def script_arguments(program: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments of an agent's program with the script of an interpreter, if there is one, as an absolute path.

    The agent is started in the directory of its session. A relative script, or a Python module, would be taken from there.

    Raises:
        ProgramRefused: The working directory would choose what runs.
    """
    words = [str(expand_home(word)) if word.startswith("~/") else word for word in arguments]
    name = Path(program).name
    if _CHOOSER.fullmatch(name):
        raise chosen_elsewhere(program, *words)
    if not _INTERPRETER.fullmatch(name):
        return words
    flags = ""
    for word in words:
        if name.startswith("py") and (code := _PYTHON_CODE.match(word)):
            if {"I", "P"}.isdisjoint(flags + code[1]):
                raise chosen_elsewhere(program, word)
            break
        if word in ("-c", "-e"):  # the code is in the command itself
            break
        if word.startswith("-"):
            flags += word
            # An option may name a file, as in `--import=./loader.js`.
            if word.partition("=")[2].startswith("."):
                raise chosen_elsewhere(program, word)
        elif Path(word).is_absolute():
            break  # the script: what follows is for it
        elif not _NOT_A_PATH.fullmatch(word):
            raise chosen_elsewhere(program, word)
    return words


def chosen_elsewhere(*words: str) -> ProgramRefused:
    """Return the refusal of a command with which the directory of a session would choose what runs."""
    return ProgramRefused(
        f"Helmsman does not start {shlex.join(words)[:200]!r}: an agent starts in the directory of its session, and the "
        "files there would choose what runs. Name the program itself and its script, with absolute paths, in `command` "
        "under [agents] in helmsman.toml (for a Python module: -P before -m).",
        program=Path(words[0]).name,
        path=words[0],
    )


def check_command(argv: Sequence[str], env: Mapping[str, str] | None) -> None:
    """Check the program of an agent, and its script, before each start: a session that writes there may have begun since it
    was found.

    Raises:
        ProgramRefused: A known session may write it.
    """
    for file in {argv[0], agent_file(argv)}:
        check_program(file, env)


def packaged_version(path: str) -> str | None:
    """Return the version of a program that npm has installed, from its package; None for any other."""
    program = Path(os.path.realpath(path))
    for place in (*program.parents,)[:_LEVELS]:
        package = json_object_in(place / "package.json") or {}
        if (version := optional_text(package.get("version"))) is not None:
            return version
    return None


def login_in(env: Mapping[str, str], variables: Iterable[str], files: Iterable[Path]) -> str | None:
    """Return the first that exists: a variable that is set, or a file that is not empty."""
    for name in variables:
        if env.get(name):
            return name
    for file in files:
        try:
            # An empty JSON object is no login.
            if file.stat().st_size > len("{}\n"):
                return str(file)
        except OSError:
            continue
    return None
