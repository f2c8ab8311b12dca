"""A thread opened in advance: after two starts that were alike, the next one like them finds its thread ready.

Opening a thread is a third of what Codex does for a short turn, and callers that start one session often start many.
Before its first turn a thread is nothing yet: it has no file, is listed nowhere, and Codex looks at git and the skills when
the turn begins. What it does take in when it is opened are the configuration, the rules and `AGENTS.md`: all of these are
looked at again before the spare thread is used, and if anything is not as it was, it is not used. There is none where
opening a thread does more than read them (MCP servers, hooks), where it cannot be told what was read, and while anything
is running.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.agents.codex.connection import Configuration, files_state
from helmsman.agents.codex.features import Feature
from helmsman.base.files import file_identity
from helmsman.base.git_view import repository_root
from helmsman.base.repositories import upwards
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from anyio.abc import TaskGroup

    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.codex.connection import AppServer, Thread, ThreadSettings

log = logging.getLogger(__name__)

SPARE_SECONDS: Final = 60.0
"""How long a spare thread is kept. A session's file is named after the time its thread was opened, so not for long."""

_INSTRUCTIONS: Final = ("AGENTS.override.md", "AGENTS.md")
_WITH_EFFECTS: Final = ("mcp_servers", "plugins", "hooks")
_OTHER_FILES: Final = ("_file", "_json")
"""How the keys end that name further files, which Codex reads when it opens a thread."""


@dataclass(slots=True)
class _Spare:
    settings: ThreadSettings
    context: object
    opened: anyio.Event = field(default_factory=anyio.Event)
    gone: anyio.Event = field(default_factory=anyio.Event)
    thread: Thread | None = None
    is_used: bool = False


class SpareThread:
    """The one of an engine, if there is one."""

    def __init__(self, tasks: TaskGroup, api: AppServer, binary: CodexBinary, configuration: Configuration) -> None:
        self._tasks = tasks
        self._api = api
        self._can = binary.can(Feature.TRACELESS_THREADS) and binary.can(Feature.UNSUBSCRIBE)
        self._configuration = configuration
        self._spare: _Spare | None = None
        self._last: ThreadSettings | None = None
        self._wanted: ThreadSettings | None = None

    async def open(self, settings: ThreadSettings) -> Thread:
        """A new thread with these settings: the spare one where it is no different, else one that is opened now."""
        self._wanted = settings if self._can and settings == self._last else None
        self._last = settings
        spare = self._spare
        if spare is not None and spare.settings == settings:
            self._spare = None
            try:
                await spare.opened.wait()
                if spare.thread is not None and spare.context == self._context_of(settings):
                    spare.is_used = True
                    return spare.thread
            finally:
                spare.gone.set()
        return await self._api.start_thread(settings)

    def turn_ended(self, is_busy: Callable[[], bool]) -> None:
        """When nothing runs any more, it is time to open one for the next start, if that is likely to be like the last."""
        if self._wanted is None or is_busy():
            return
        wanted, self._wanted = self._wanted, None
        context = self._context_of(wanted)
        if context is None:
            return
        if self._spare is not None:
            self._spare.gone.set()
        self._spare = _Spare(wanted, context)
        self._tasks.start_soon(self._keep, self._spare)

    async def _keep(self, spare: _Spare) -> None:
        try:
            spare.thread = await self._api.start_thread(spare.settings)
        except HelmsmanError as error:
            log.debug("no thread could be opened in advance: %s", error)
            return
        finally:
            spare.opened.set()
        with anyio.move_on_after(SPARE_SECONDS):
            await spare.gone.wait()
        if self._spare is spare:
            self._spare = None
        if not spare.is_used:
            try:
                await self._api.unsubscribe(spare.thread.id)
            except HelmsmanError as error:
                log.debug("a thread opened in advance could not be let go of: %s", error)

    def _context_of(self, settings: ThreadSettings) -> object | None:
        """All that a thread opened now would be made of, beside what is sent; None where there must be no spare one."""
        known = self._configuration.cached(settings.cwd)
        if known is None or settings.cwd is None or not all(map(_is_plain, (settings.config or {}).items())):
            return None
        if any(known.config.get(key) for key in _WITH_EFFECTS) or _names_files(known.config):
            return None
        fallbacks = known.config.get("project_doc_fallback_filenames")
        names = (*_INSTRUCTIONS, *(map(str, fallbacks) if isinstance(fallbacks, list) else ()))
        homes = tuple(map(os.fspath, self._configuration.homes))
        hooks, instructions, folders = _files(homes, _places(settings.cwd, known.config), names)
        if any(files_state(hooks)):
            return None
        rules = tuple(_rules(folders))
        today = time.strftime("%Y-%m-%d %Z")
        return known.state, files_state(instructions), rules, files_state(rules), file_identity(settings.cwd), today


def _places(directory: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Where Codex looks for a project's own files: from the directory up to the root of its repository."""
    places = tuple(upwards(os.fspath(directory)))
    root = repository_root(directory) if config.get("project_root_markers") in (None, [".git"]) else None
    return places[: places.index(str(root)) + 1] if str(root) in places else places


@lru_cache(16)
def _files(homes: tuple[str, ...], places: tuple[str, ...], names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Where hooks, instructions and folders of rules would be. Every turn ends and begins with this: paths take longer than
    the look at them.
    """
    settings = (*homes, *_inside(places, (".codex",)))
    return _inside(settings, ("hooks.json",)), _inside((*homes, *places), names), _inside(settings, ("rules",))


def _inside(places: Iterable[str], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(os.path.join(place, name) for place in places for name in names)  # noqa: PTH118


def _is_plain(override: tuple[str, Any]) -> bool:
    """Whether an override is a plain value: tables, paths and profiles can bring in servers, trust and further files."""
    key, value = override
    is_value = isinstance(value, str | int | float) and "." not in key
    return is_value and key != "profile" and not key.endswith(_OTHER_FILES)


def _names_files(config: Mapping[str, Any]) -> bool:
    return any(
        _names_files(value) if isinstance(value, dict) else isinstance(value, str) and key.endswith(_OTHER_FILES)
        for key, value in config.items()
    )


def _rules(folders: Iterable[str]) -> Iterator[str]:
    for place in folders:
        try:
            yield from sorted(entry.path for entry in os.scandir(place))
        except OSError:  # there are none
            continue
