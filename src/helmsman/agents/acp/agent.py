"""Agent that speaks the Agent Client Protocol: program, engine and files.

Which program it is: `command` under `[agents.NAME]` in the user's own `helmsman.toml`, else what the PATH has. A name that
no profile knows is an agent of the user's own:

    [agents.mine]
    command = ["my-agent", "--acp"]
    title = "My agent"              # its name in sentences
    mode = "ask"                    # the mode in which it asks, if it has modes
    runs_repository_files = false   # it runs no files of a repository without approval
    writable = ["~/.mine"]          # directories it must write in a sandbox, besides the session's

A project's file is ignored: it comes with a repository, and could choose the program.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio.to_thread

from helmsman.agents.acp.copilot import Copilot
from helmsman.agents.acp.gemini import Gemini
from helmsman.agents.acp.kimi import Kimi
from helmsman.agents.acp.nanocoder import Nanocoder
from helmsman.agents.acp.opencode import Kilo, OpenCode
from helmsman.agents.acp.profile import OwnAgent
from helmsman.agents.acp.qwen import Qwen
from helmsman.agents.environment import digest_of, launch_environment
from helmsman.agents.found_programs import (
    Installed,
    agent_file,
    chosen_elsewhere,
    login_in,
    packaged_version,
    script_arguments,
)
from helmsman.agents.protocol import Capability
from helmsman.agents.supervised_agent import Prepared, SupervisedAgent
from helmsman.base.caller_context import expand_home
from helmsman.base.config_table import read_table, some_text, switch, words
from helmsman.base.json_values import mapping
from helmsman.base.programs import check_program, find_program, with_interpreter
from helmsman.base.structs import Value
from helmsman.errors import AgentNotFound, InvalidSetting, ProgramRefused
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from helmsman.agents.acp.profile import Profile
    from helmsman.agents.process_engine import AgentDialect
    from helmsman.agents.protocol import Capabilities, Engine
    from helmsman.agents.session_files import SessionReader
    from helmsman.agents.supervisor.client import Owner
    from helmsman.agents.transcripts import CarriedTranscripts
    from helmsman.settings import ConfigFile, Settings

KNOWN: Final[tuple[Profile, ...]] = (Gemini(), OpenCode(), Qwen(), Copilot(), Kilo(), Kimi(), Nanocoder())


def _directories(value: Any) -> tuple[Path, ...]:
    named = [expand_home(one) for one in value] if isinstance(value, list) and all(map(_is_text, value)) else None
    if named is None or not all(one.is_absolute() for one in named):
        raise ValueError('a list of directories, such as ["~/.my-agent"]')
    # Resolve links now: a sandbox is given real directories, and a command could change a link later.
    return tuple(one.resolve() for one in named)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


class OwnWords(Value, frozen=True):
    """Values of `[agents.NAME]`."""

    command: Annotated[tuple[str, ...], words('["my-agent", "--acp"]')]
    title: Annotated[str | None, some_text] = None
    mode: Annotated[str | None, some_text] = None
    runs_repository_files: Annotated[bool, switch] = True
    """False waives the check of the files from which the agent runs programs."""
    writable: Annotated[tuple[Path, ...], _directories] = ()

    def profile(self, name: str) -> OwnAgent:
        return OwnAgent(
            name,
            self.title or name.capitalize(),
            mode=self.mode,
            runs_repository_files=self.runs_repository_files,
            writable=self.writable,
        )


class AcpAgent(SupervisedAgent):
    """See `helmsman.agents.protocol.Agent`."""

    def __init__(
        self,
        profile: Profile,
        command: tuple[str, ...] = (),
        owner: Owner | None = None,
        engines: dict[str, Engine] | None = None,
    ) -> None:
        super().__init__(owner, engines)
        self._profile = profile
        self.able = profile.able
        self._command = command

    def said(self, name: str, words: OwnWords) -> AcpAgent:
        """Return the agent with the user's own settings, or a new agent of the user."""
        profile = self._profile if name == self.name else words.profile(name)
        return AcpAgent(profile, words.command, self._owner, self._engines)

    @property
    def name(self) -> str:
        return self._profile.name

    @property
    def title(self) -> str:
        return self._profile.title

    async def installed(self, settings: Settings, env: Mapping[str, str] | None) -> Installed:
        given = launch_environment(env)

        def look() -> Installed:
            path = self._program(given)
            variables, files = self._profile.logins(given)
            version = packaged_version(agent_file(self.find(given)))
            return Installed(version=version, path=path, login=login_in(given, variables, files))

        return await anyio.to_thread.run_sync(look)

    def is_here(self, settings: Settings, env: Mapping[str, str] | None) -> bool:
        with suppress(AgentNotFound, ProgramRefused):
            return bool(self.find(launch_environment(env)))
        return False

    async def capabilities(self, settings: Settings, env: Mapping[str, str] | None) -> Capabilities:
        return self._profile.capabilities

    async def try_sandbox(self, settings: Settings, env: Mapping[str, str] | None) -> str:
        """Start it in the sandbox, in a directory of no interest, and greet it."""
        from helmsman.agents.agent_process import open_child_agent
        from helmsman.agents.process_engine import AgentSession
        from helmsman.agents.sandbox import HELD
        from helmsman.base.concurrency import background_tasks
        from helmsman.model.options import SessionOptions

        self._profile.capabilities.require(Capability.SANDBOX)
        dialect, config, _ = await self.prepare(settings, env)
        assert config is not None
        with TemporaryDirectory(prefix="helmsman-try-") as directory:
            trusted = self._profile.trust.runs_repository_files  # there is nothing that it could run
            options = SessionOptions(agent=self.name, cwd=Path(directory), writes="nothing", trust_repository=trusted)
            session = AgentSession("", Path(directory), options)
            launch = await dialect.launch(config, session, options, None)
            async with background_tasks() as tasks, open_child_agent(dialect.greeting, launch, tasks) as process:
                version = mapping(process.answer.get("agentInfo")).get("version") or ""
                return f"{HELD} ({self.title} {version} started in it)".replace("  ", " ")

    async def prepare(self, settings: Settings, env: Mapping[str, str] | None) -> Prepared:
        from helmsman.agents.acp.dialect import AcpDialect
        from helmsman.agents.process_engine import LaunchConfig
        from helmsman.agents.sandbox import find_sandbox

        given = launch_environment(env)
        argv = await anyio.to_thread.run_sync(self.find, given)
        # Only the directories: the process record is on disk, and the environment also holds secrets.
        homes = {name: value for name, value in given.items() if name == "HOME" or name.endswith("_HOME")}
        return Prepared(
            AcpDialect(self._profile, given),
            LaunchConfig(
                argv=argv,
                env=given,
                state_dir=await anyio.to_thread.run_sync(ensure_state_dir, settings.state_dir),
                sandbox=partial(find_sandbox, settings, env),
            ),
            # Other settings of the user's own agent are another agent.
            {"digest": digest_of(given, argv, sorted(vars(self._profile).items())), "homes": homes},
        )

    def dialect_of(self, settings: Settings, about: Mapping[str, Any]) -> AgentDialect:
        from helmsman.agents.acp.dialect import AcpDialect

        return AcpDialect(self._profile, {name: str(value) for name, value in mapping(about.get("homes")).items()})

    async def transcripts(self, settings: Settings, env: Mapping[str, str] | None) -> CarriedTranscripts | None:
        return self._profile.transcripts(launch_environment(env))

    def find(self, env: Mapping[str, str]) -> list[str]:
        """Return the command that starts it.

        Raises:
            AgentNotFound: It is not there.
            ProgramRefused: It is only where a session could have put it, or the directory of a session would choose it.
        """
        arguments = self._command[1:] if self._command else self._profile.arguments
        program = self._program(env)
        return [*with_interpreter(program, env), *script_arguments(program, arguments)]

    def _program(self, env: Mapping[str, str]) -> str:
        program = self._command[0] if self._command else self._profile.program
        named = str(expand_home(program)) if program.startswith("~") else program
        # A bare name is searched on the PATH. Any other relative path would depend on the directory of a session.
        if Path(named).name == named:
            path = find_program(named, env, is_agent=True)
        elif not Path(named).is_absolute():
            raise chosen_elsewhere(named)
        else:
            path = check_program(named, env) if os.access(named, os.X_OK) and Path(named).is_file() else None
        if path is None:
            how = f"Install it: {self._profile.install}" if self._profile.install else "Check the command"
            raise AgentNotFound(
                f"{self._profile.title} is not installed: there is no program {program!r:.200} on the PATH. {how}, or set "
                f"`command` under [agents.{self.name}] in helmsman.toml.",
                agent=self.name,
            )
        return path

    def sessions(self, settings: Settings, env: Mapping[str, str] | None) -> SessionReader | None:
        return self._profile.reader(launch_environment(env))

    spending = sessions


def known_agents(owner: Owner | None = None) -> list[AcpAgent]:
    """Return the known agents. Variants with other settings (`said`) share their open engines."""
    engines: dict[str, Engine] = {}
    return [AcpAgent(profile, (), owner, engines) for profile in KNOWN]


def read_own_agents(files: Iterable[ConfigFile]) -> dict[str, OwnWords]:
    """Read `[agents]` of the user's own file, by agent name.

    Raises:
        InvalidSetting: A value under `[agents]` is invalid.
    """
    file = next((file for file in files if file.trusted and "agents" in file.content), None)
    if file is None:
        return {}
    tables = file.content["agents"]
    if not isinstance(tables, dict):
        raise InvalidSetting(f"agents in {file.path} is no table. Write [agents.NAME] with a command.")
    return {name: read_table(OwnWords, table, f"agents.{name}", file.path) for name, table in tables.items()}
