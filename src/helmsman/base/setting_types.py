"""Parsers for values of settings. Each parser accepts one type, and its error says what is allowed."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.config_values import pair, read_value
from helmsman.base.structs import Value, replace
from helmsman.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")


class Given(Value, frozen=True):
    """Raw value of a setting. `name` is the setting's name for the user; relative paths start at `base`."""

    key: str
    name: str
    value: object
    base: Path
    home: Path

    def refuse(self, allowed: str) -> InvalidSetting:
        return InvalidSetting(f"{self.name} is {self.value!r}, which makes no sense. Set it to {allowed}.")


def whole_number(least: int, most: int) -> Callable[[Given], int]:
    def parse(given: Given) -> int:
        value = given.value
        if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < 20:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise given.refuse(f"a whole number from {least} to {most}")
        return value

    return parse


def one_of(*choices: str) -> Callable[[Given], str]:
    def parse(given: Given) -> str:
        value = given.value.strip().lower() if isinstance(given.value, str) else None
        if value not in choices:
            raise given.refuse(f"one of {', '.join(choices)}")
        return value

    return parse


def switch(given: Given) -> bool:
    value = given.value
    if isinstance(value, str):
        value = {"1": 1, "true": 1, "yes": 1, "on": 1, "0": 0, "false": 0, "no": 0, "off": 0}.get(value.strip().lower())
    if not isinstance(value, int) or value not in (0, 1):
        raise given.refuse("1 or 0 (also true or false, yes or no, on or off)")
    return bool(value)


def agent_name(given: Given) -> str:
    """Check only the form: the registry of agents is in a higher package."""
    value = given.value.strip().lower() if isinstance(given.value, str) else ""
    if not _NAME.fullmatch(value):
        raise given.refuse("the name of an agent, such as codex")
    return value


def plain_name(given: Given) -> str:
    value = given.value.strip() if isinstance(given.value, str) else ""
    if not value or not value.isprintable():
        raise given.refuse("a name, as Codex knows it")
    return value


def config_table(given: Given) -> dict[str, Any]:
    """Several `KEY=VALUE` of a command line, a table, or the text of one."""
    value = given.value
    try:
        if isinstance(value, list | tuple):
            return {key: read_value(key, text) for key, text in map(pair, value)}
        table = tomllib.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):  # the table may hold a secret, so the message does not repeat it
        raise InvalidSetting(
            f'{given.name} cannot be read. Set it to NAME=VALUE, with the value in TOML, such as model_verbosity="low".'
        )
    return table


def exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # directory without read permission
        return False


def any_path(given: Given) -> Path:
    value = given.value
    if not isinstance(value, str | Path) or not str(value).strip() or any(char < " " for char in str(value)):
        raise given.refuse("a path")
    path = Path(value)
    if path.parts[:1] == ("~",):
        path = given.home.joinpath(*path.parts[1:])
    return given.base / path


def program(given: Given) -> Path:
    """Return a path, or a bare name that is looked up on PATH."""
    path = any_path(given)
    has_directory = any(separator in str(given.value) for separator in (os.sep, os.altsep) if separator)
    return path if has_directory else Path(path.name)


def existing_directory(given: Given) -> Path:
    path = any_path(given)
    if not exists(path) or not path.is_dir():
        raise given.refuse("a directory that exists")  # Codex itself refuses to start with another
    return path


def directories(given: Given) -> tuple[Path, ...]:
    """Directories in a list, or in one text as PATH has them; links resolved."""
    parts = given.value.split(os.pathsep) if isinstance(given.value, str) else given.value
    if not isinstance(parts, list) or not parts:
        raise given.refuse("directories that exist")
    return tuple(existing_directory(replace(given, value=part)).resolve() for part in parts)


def paths(given: Given) -> tuple[Path, ...]:
    """Files and directories in a list, or in one text as PATH has them. They need not exist."""
    parts = given.value.split(os.pathsep) if isinstance(given.value, str) else given.value
    if not isinstance(parts, list) or not parts:
        raise given.refuse("a list of paths")
    return tuple(any_path(replace(given, value=part)) for part in parts)


def variable_names(given: Given) -> tuple[str, ...]:
    """Names of variables in a list, or in one text with commas. They may end in `*`, and not be only that."""
    parts = given.value.split(",") if isinstance(given.value, str) else given.value
    if not isinstance(parts, list) or not parts:
        raise given.refuse("a list of names of variables")
    names = tuple(part.strip() if isinstance(part, str) else "" for part in parts)
    if not all(map(_VARIABLE.fullmatch, names)):
        raise given.refuse("a list of names of variables, such as GH_TOKEN or NPM_*")
    return names


def database_address(given: Given) -> str:
    """Return the address of a database. Errors never show it: it may contain a password."""
    value = given.value.strip() if isinstance(given.value, str) else ""
    if not value.startswith(("postgresql://", "postgres://")):
        raise InvalidSetting(f"{given.name} is no address of a database. Use postgresql://USER@HOST/DATABASE.")
    return value
