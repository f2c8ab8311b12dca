"""Codex's configuration: profiles and overrides of one session, and the effective configuration of a directory.

The app-server has no `--profile`. Older versions take the profile's name in a thread's `config`; newer ones keep each
profile in a file, `$CODEX_HOME/<name>.config.toml`, which the client has to read.

Codex applies the entries of a `config` map in no particular order, so `{"a": {"b": 1}, "a.b": 2}` is ambiguous.
`check_config` refuses such a map, and `merge_config` lays one map over another without making one.
"""

from __future__ import annotations

import math
import os
import re
import time
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.agents.codex.features import Feature
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
    from pathlib import Path

    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.protocol import AgentConfig, ConfigLayer

_PROFILE_SUFFIX: Final = ".config.toml"
_PROFILE_LIMIT: Final = 1024 * 1024
_MAX_DEPTH: Final = 50
_NOT_IN_KEYS: Final = "=#\"'"
"""Characters that end a key on the command line, or change its meaning."""
_HALF_A_PAIR: Final = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which cannot be encoded."""
_INTEGERS: Final = range(-(2**63), 2**63)
"""Integers of TOML. Codex changes larger numbers silently."""


def profile_config(binary: CodexBinary, codex_home: Path, name: str | None) -> dict[str, Any]:
    """Return the thread `config` for a profile; empty for None.

    Raises:
        InvalidInput: The name is not that of a profile, or its file cannot be used.
    """
    if name is None:
        return {}
    # The name becomes part of a path.
    if not name or name.startswith(".") or not name.isprintable() or any(char in name for char in "/\\:"):
        raise InvalidInput(f"{name!r} cannot be the name of a profile. Use a plain name, such as 'work'.")
    if binary.can(Feature.PROFILE_IN_CONFIG):
        return {"profile": name}
    path = codex_home / f"{name}{_PROFILE_SUFFIX}"
    try:
        with path.open("rb") as file:
            # One byte more than allowed tells that the file is too large.
            data = file.read(_PROFILE_LIMIT + 1)
        if len(data) > _PROFILE_LIMIT:
            raise InvalidInput(f"The profile {path} is larger than {_PROFILE_LIMIT} bytes. Make it smaller.")
        return check_config(tomllib.loads(data.decode("utf-8")), where=f"the profile {path}")
    except FileNotFoundError:
        raise InvalidInput(f"There is no profile {name!r}: {path} does not exist. {_others(codex_home)}") from None
    except OSError as error:
        raise InvalidInput(f"The profile {path} cannot be read: {error.strerror}. Check its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"The profile {path} is not valid TOML: {error}. Correct it.") from error


def _others(codex_home: Path) -> str:
    try:
        names = sorted(path.name.removesuffix(_PROFILE_SUFFIX) for path in codex_home.glob(f"?*{_PROFILE_SUFFIX}"))
    except OSError:
        names = []
    return f"Use one of: {', '.join(names)}." if names else "Create that file, or leave the profile out."


def user_config(codex_home: Path) -> Mapping[str, Any]:
    """Return the user's own configuration of Codex. It is empty if it is missing or invalid, which Codex reports."""
    try:
        return tomllib.loads((codex_home / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}


def check_config(config: Mapping[str, Any], *, where: str = "config") -> dict[str, Any]:
    """Return a copy of configuration values in plain JSON types, by keys as the caller wrote them (dotted or nested).

    Raises:
        InvalidInput: Codex would misread a key or value. The message begins with `where`.
    """
    checked = {_key(key, where): _value(value, f"{where}: {key}", 0) for key, value in config.items()}
    # A key and a longer key below it: Codex applies the two in no certain order.
    for key in checked:
        segments = key.split(".")
        for length in range(1, len(segments)):
            outer = ".".join(segments[:length])
            if outer in checked:
                raise InvalidInput(
                    f"{where} has both {outer!r} and {key!r}, and Codex applies them in no certain order. Use one form."
                )
    return checked


def merge_config(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Put checked maps over each other, the last one on top, value by value. The result is nested, without dotted keys."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            nested = value
            for segment in reversed(key.split(".")):
                nested = {segment: nested}
            _merge_into(merged, nested)
    return merged


def _merge_into(target: dict[str, Any], source: Mapping[str, Any]) -> None:
    for key, value in source.items():
        existing = target.get(key)
        if isinstance(existing, dict) and isinstance(value, dict):
            _merge_into(existing, value)
        else:
            target[key] = deepcopy(value)


def _key(key: object, where: str) -> str:
    if not isinstance(key, str) or not key.isprintable() or any(char in key for char in _NOT_IN_KEYS):
        raise InvalidInput(
            f"{where} has the key {key!r}. Use a key of config.toml, without control characters, quotes, = or #."
        )
    if not all(segment and segment == segment.strip() for segment in key.split(".")):
        raise InvalidInput(
            f"{where} has the key {key!r}. Write names separated by single dots, without spaces around them."
        )
    return key


def _value(value: Any, where: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise InvalidInput(f"{where} is nested too deeply. Use at most {_MAX_DEPTH} levels.")
    if isinstance(value, Mapping):
        return {_name(key, where): _value(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_value(item, where, depth + 1) for item in value]
    # `bool` before `int`, which it is a subclass of.
    if isinstance(value, bool) or (isinstance(value, str) and not _HALF_A_PAIR.search(value)):
        return value
    if isinstance(value, int) and value in _INTEGERS:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if value is None:
        raise InvalidInput(f"{where} is null, which Codex takes for an empty text. Leave it out.")
    raise InvalidInput(
        f"{where} is {value!r:.100}, which is no configuration value. Use a text, a 64-bit number, true or false, "
        "or a list or table of these."
    )


def _name(key: object, where: str) -> str:
    """Return a key inside a table. It is not split, so it may contain dots, like the path of a project."""
    if not isinstance(key, str) or not key or not key.isprintable():
        raise InvalidInput(f"{where} has the key {key!r}. Use a name without control characters.")
    return key


# --- the effective configuration, cached ---------------------------------------------------------------------------

_REMEMBERED: Final = 100
"""Limit of directories whose answers are cached; the oldest is dropped first."""

_SECONDS: Final = 300.0
"""However still its files are, an answer is asked for again after this time."""

_FILE_LAYERS: Final = frozenset({"project", "user", "system", "sessionFlags"})
_SYSTEM_FILES: Final = ("/etc/codex/config.toml", "/etc/codex/managed_config.toml", "/etc/codex/requirements.toml")
_HOME_FILES: Final = ("config.toml", "managed_config.toml", "requirements.toml")

FilesState = tuple[tuple[int, int, int, int] | None, ...]
"""Existing files with their identities. Equal values mean that none has changed."""


@dataclass(frozen=True, slots=True)
class CachedConfiguration:
    """Answer of Codex, and the state of the files that it was made from."""

    config: Mapping[str, Any]
    files: tuple[str, ...]
    state: FilesState
    until: float


class Configuration:
    """Effective configuration of one engine, by directory. Answers are cached while their files are unchanged."""

    def __init__(
        self, read: Callable[[Path | None], Awaitable[AgentConfig]], codex_home: Path, *, is_local: bool
    ) -> None:
        """`read` asks Codex for the configuration of a directory. If it is not local, its files cannot be watched."""
        self._read = read
        self.is_local = is_local
        self.homes = tuple(dict.fromkeys((codex_home, codex_home.resolve())))
        self._answers: dict[str, CachedConfiguration] = {}
        self._asking = anyio.Lock()

    async def effective(self, cwd: Path | None = None) -> Mapping[str, Any]:
        """Return the effective configuration for a directory: the keys of config.toml."""
        if (known := self.cached(cwd)) is not None:
            return known.config
        async with self._asking:  # of concurrent callers, only the first asks Codex
            known = self.cached(cwd)
            return known.config if known is not None else await self._ask(cwd)

    def cached(self, cwd: Path | None) -> CachedConfiguration | None:
        """Return a cached answer that is still valid, if any."""
        known = self._answers.get(str(cwd))
        if known is None or time.monotonic() > known.until or files_state(known.files) != known.state:
            return None
        return known

    async def _ask(self, cwd: Path | None) -> Mapping[str, Any]:
        # Before asking: an answer that fails must not leave the old one in place.
        self._answers.pop(str(cwd), None)
        at_home = (str(home / name) for home in self.homes for name in _HOME_FILES)
        watched = (*_SYSTEM_FILES, *at_home, *_project_files(cwd))
        before = files_state(watched)  # a file that changes while Codex reads it is then seen to have changed
        answer = await self._read(cwd)
        # Without a directory, or with layers that are not files, no change could be noticed.
        if cwd is not None and self.is_local and _comes_from(answer.layers, watched):
            if len(self._answers) >= _REMEMBERED:
                del self._answers[next(iter(self._answers))]
            self._answers[str(cwd)] = CachedConfiguration(answer.values, watched, before, time.monotonic() + _SECONDS)
        return answer.values


def _comes_from(layers: Sequence[ConfigLayer], watched: Collection[str]) -> bool:
    """Return whether all layers come from these files; False if Codex does not name its sources."""
    return bool(layers) and all(
        layer.kind in _FILE_LAYERS and (layer.file is None or layer.file in watched) for layer in layers
    )


def _project_files(cwd: Path | None) -> Iterable[str]:
    """Yield possible configuration files of a repository, and markers of a repository's root."""
    for place in () if cwd is None else (cwd, *cwd.parents):
        yield str(place / ".codex" / "config.toml")
        yield str(place / ".git")


def files_state(files: Iterable[str]) -> FilesState:
    return tuple(_state_of(file) for file in files)


def _state_of(file: str) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - some ninety at every start, and a Path takes longer than the look
    except OSError:
        return None
    if file.endswith(".git"):  # only whether it is there, and which: git itself writes into it all the time
        return (found.st_dev, found.st_ino, 0, 0)
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
