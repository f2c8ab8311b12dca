"""Codex's configuration for a directory, remembered for as long as none of its files changes.

Every start of a session asks for it (`access.plan`), and the answer takes Codex a good part of the time of the
start itself. Codex says which files it came from; together with those it would have read had they been there, they are
looked at again before an answer is used a second time. What does not come from files alone (a managed machine, a cloud
account) is never remembered.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from helmsman.agents.codex.wire.app_server import AppServer, ConfigurationAnswer

_REMEMBERED: Final = 100
"""Directories whose answers are kept; the oldest goes first."""

_SECONDS: Final = 300.0
"""However still its files are, an answer is asked for again after this time."""

_FILE_LAYERS: Final = frozenset({"project", "user", "system", "sessionFlags"})
_SYSTEM_FILES: Final = ("/etc/codex/config.toml", "/etc/codex/managed_config.toml", "/etc/codex/requirements.toml")
_HOME_FILES: Final = ("config.toml", "managed_config.toml", "requirements.toml")

FilesState = tuple[tuple[int, int, int, int] | None, ...]
"""Which files there are and which they are; two that are equal mean that none has changed."""


@dataclass(frozen=True, slots=True)
class RememberedConfiguration:
    """An answer of Codex, and the files it was made of as they were then."""

    config: Mapping[str, Any]
    files: tuple[str, ...]
    state: FilesState
    until: float


class Configuration:
    """What one engine says of its configuration."""

    def __init__(self, api: AppServer, codex_home: Path) -> None:
        self._api = api
        self.homes = (codex_home, codex_home.resolve())
        self._answers: dict[str, RememberedConfiguration] = {}
        self._asking = anyio.Lock()

    async def configuration(self, cwd: Path | None = None) -> Mapping[str, Any]:
        """The effective configuration for a directory: the keys of config.toml."""
        if (known := self.remembered(cwd)) is not None:
            return known.config
        async with self._asking:  # of many who ask at once, the first asks Codex
            known = self.remembered(cwd)
            return known.config if known is not None else await self._ask(cwd)

    def remembered(self, cwd: Path | None) -> RememberedConfiguration | None:
        """The answer that still holds, if there is one."""
        known = self._answers.get(str(cwd))
        if known is None or time.monotonic() > known.until or files_state(known.files) != known.state:
            return None
        return known

    async def _ask(self, cwd: Path | None) -> Mapping[str, Any]:
        self._answers.pop(str(cwd), None)
        at_home = (str(home / name) for home in self.homes for name in _HOME_FILES)
        watched = (*_SYSTEM_FILES, *at_home, *_project_files(cwd))
        before = files_state(watched)  # a file that changes while Codex reads it is then seen to have changed
        answer = await self._api.read_configuration(cwd)
        if cwd is not None and _comes_from(answer, watched):
            if len(self._answers) >= _REMEMBERED:
                del self._answers[next(iter(self._answers))]
            self._answers[str(cwd)] = RememberedConfiguration(
                answer.config, watched, before, time.monotonic() + _SECONDS
            )
        return answer.config


def _comes_from(answer: ConfigurationAnswer, watched: Iterable[str]) -> bool:
    """Whether all of it is in these files."""
    return answer.layers is not None and all(
        layer.kind in _FILE_LAYERS and (layer.file is None or layer.file in watched) for layer in answer.layers
    )


def _project_files(cwd: Path | None) -> Iterable[str]:
    """Where a repository's own configuration would be, and where the repository would begin."""
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
