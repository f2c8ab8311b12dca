"""An agent that speaks the Agent Client Protocol: where it is, how its engine is opened, what it keeps on disk.

Which program it is: `command` under `[agents.NAME]` in the user's own `helmsman.toml`, else what the PATH has. A name that
no profile knows is an agent of the user's own:

    [agents.mine]
    command = ["my-agent", "--acp"]
    title = "My agent"              # what it is called in sentences
    mode = "ask"                    # the mode in which it asks, if it has modes
    runs_repository_files = false   # it runs nothing of a repository before anybody is asked
    writable = ["~/.mine"]          # what it must write in a sandbox besides the session's directory

A project's file counts for nothing here: it came with a repository, and would say what is run.
"""

from __future__ import annotations

import shutil
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from helmsman.agents.acp.profiles import KNOWN, OwnAgent
from helmsman.agents.protocol import Agent, Capability, Installed
from helmsman.agents.sandbox import HELD, find_sandbox
from helmsman.base.concurrency import background_tasks
from helmsman.base.surroundings import environment, expand_home
from helmsman.errors import AgentNotFound, InvalidSetting
from helmsman.model.options import SessionOptions
from helmsman.settings import REMOTE_TOKEN, ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from helmsman.agents.acp.profile import Profile
    from helmsman.agents.protocol import Capabilities, Engine, SessionIndex
    from helmsman.settings import ConfigFile, Settings

_KEYS: Final = frozenset({"command", "title", "mode", "runs_repository_files", "writable"})
_PLACES: Final = "agents"
"""Where in the state directory files for agents are."""


@dataclass(frozen=True, slots=True)
class _Own:
    """What `[agents.NAME]` says."""

    command: tuple[str, ...]
    title: str
    mode: str | None
    runs_repository_files: bool
    writable: tuple[Path, ...]


class AcpAgent(Agent):
    """See `helmsman.agents.protocol.Agent`."""

    def __init__(self, profile: Profile, command: tuple[str, ...] = ()) -> None:
        self._profile = profile
        self._command = command

    @property
    def name(self) -> str:
        return self._profile.name

    @property
    def title(self) -> str:
        return self._profile.title

    @property
    def profile(self) -> Profile:
        return self._profile

    async def capabilities(self, settings: Settings, env: Mapping[str, str] | None) -> Capabilities:
        return self._profile.capabilities(has_history=self._profile.reader(_env(env)) is not None)

    async def installed(self, settings: Settings, env: Mapping[str, str] | None) -> Installed:
        argv = await anyio.to_thread.run_sync(self.find, _env(env))
        return Installed(version="", path=argv[0])  # only a running one tells its version

    async def try_sandbox(self, settings: Settings, env: Mapping[str, str] | None) -> str:
        """It is started in the sandbox, in a directory of no interest, and greeted."""
        from helmsman.agents.acp.confined import command_line
        from helmsman.agents.acp.process import open_agent

        if self._profile.not_confined:
            raise self._profile.capabilities(has_history=False).refusal(Capability.SANDBOX)
        given = _env(env)
        given.pop(REMOTE_TOKEN, None)
        argv = await anyio.to_thread.run_sync(self.find, given)
        places = await anyio.to_thread.run_sync(_places, settings)
        with TemporaryDirectory(prefix="helmsman-try-") as directory:
            options = SessionOptions(agent=self.name, cwd=Path(directory), writes="nothing")
            line, used = await command_line(
                self._profile, options, argv, given, places=places, find=partial(find_sandbox, settings, env)
            )
            async with (
                background_tasks() as tasks,
                open_agent(
                    self._profile,
                    line,
                    env=used,
                    directory=Path(directory),
                    on_notification=lambda _method, _params: None,
                    on_request=lambda _request: False,
                    on_close=lambda _reason: None,
                    tasks=tasks,
                ) as process,
            ):
                return f"{HELD}, in which {self.title} {process.version or ''} came up".replace("  ", " ")

    @asynccontextmanager
    async def open_engine(self, settings: Settings, env: Mapping[str, str] | None) -> AsyncIterator[Engine]:
        from helmsman.agents.acp.engine import open_acp_engine

        given = _env(env)
        given.pop(REMOTE_TOKEN, None)  # of a Codex elsewhere, and none of the business of what runs here
        argv = await anyio.to_thread.run_sync(self.find, given)
        places = await anyio.to_thread.run_sync(_places, settings)
        opening = open_acp_engine(
            self._profile,
            argv,
            env=given,
            places=places,
            idle=settings.engine_idle,
            sandbox=partial(find_sandbox, settings, env),
        )
        async with opening as engine:
            yield engine

    def find(self, env: Mapping[str, str]) -> list[str]:
        """The command that starts it.

        Raises:
            AgentNotFound: It is not there.
        """
        program, *arguments = self._command or (self._profile.program, *self._profile.arguments)
        path = shutil.which(str(expand_home(program)) if program.startswith("~") else program, path=env.get("PATH"))
        if path is None:
            how = f"Install it: {self._profile.install}" if self._profile.install else "Check the command"
            raise AgentNotFound(
                f"{self._profile.title} is not there: no program {program!r:.200} is on the PATH. {how}, or set `command` "
                f"under [agents.{self.name}] in helmsman.toml.",
                agent=self.name,
            )
        return [path, *arguments]

    def sessions(self, settings: Settings) -> SessionIndex | None:
        from helmsman.agents.acp.storage.index import AgentSessions

        reader = self._profile.reader(environment())
        return None if reader is None else AgentSessions(self.name, reader)


def acp_agents(files: Iterable[ConfigFile]) -> list[AcpAgent]:
    """The agents that are known, and those of the user's own file.

    Raises:
        InvalidSetting: Something under `[agents]` makes no sense.
    """
    own = dict(_own_agents(files))
    agents = [AcpAgent(profile, own.pop(profile.name).command if profile.name in own else ()) for profile in KNOWN]
    for name, said in own.items():
        profile = OwnAgent(
            name,
            said.title,
            mode=said.mode,
            runs_repository_files=said.runs_repository_files,
            writable=said.writable,
        )
        agents.append(AcpAgent(profile, said.command))
    return agents


def _own_agents(files: Iterable[ConfigFile]) -> Iterable[tuple[str, _Own]]:
    file = next((file for file in files if file.trusted and "agents" in file.content), None)
    if file is None:
        return
    tables = file.content["agents"]
    for name, table in tables.items() if isinstance(tables, dict) else [("", None)]:
        where = f"agents.{name}" if name else "agents"
        if not isinstance(table, dict):
            raise InvalidSetting(f"{where} in {file.path} is no table. Write [agents.NAME] with a command.")
        if unknown := sorted(set(table) - _KEYS):
            known = ", ".join(sorted(_KEYS))
            raise InvalidSetting(f"{where}.{unknown[0]} in {file.path} is unknown. Use one of: {known}.")
        command = table.get("command")
        if not isinstance(command, list) or not command or not all(isinstance(word, str) and word for word in command):
            raise InvalidSetting(f'{where}.command in {file.path} must be a list of words: ["my-agent", "--acp"].')
        yield (
            name,
            _Own(
                tuple(command),
                _text(table, "title", where, file.path) or name.capitalize(),
                _text(table, "mode", where, file.path),
                table.get("runs_repository_files") is not False,
                _directories(table, where, file.path),
            ),
        )


def _text(table: Mapping[str, Any], key: str, where: str, path: Path) -> str | None:
    value = table.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidSetting(f"{where}.{key} in {path} must be a text.")
    return value


def _directories(table: Mapping[str, Any], where: str, path: Path) -> tuple[Path, ...]:
    value = table.get("writable", [])
    named = [expand_home(one) for one in value] if isinstance(value, list) and all(map(_is_text, value)) else None
    if named is None or not all(one.is_absolute() for one in named):
        raise InvalidSetting(f'{where}.writable in {path} must be a list of directories: ["~/.my-agent"].')
    return tuple(one.resolve() for one in named)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _env(env: Mapping[str, str] | None) -> dict[str, str]:
    return dict(environment() if env is None else env)


def _places(settings: Settings) -> Path:
    places = ensure_state_dir(settings.state_dir) / _PLACES
    places.mkdir(mode=0o700, exist_ok=True)
    return places
