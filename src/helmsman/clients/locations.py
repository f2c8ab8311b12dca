"""The clients Helmsman can be installed in: where each keeps its servers, in which format, and how long it waits for them.

Paths are a function of the platform, the environment and two directories, so that those of every platform are tested on any.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import PurePath

Scope = Literal["user", "local", "project"]
Format = Literal["json", "jsonc", "toml"]

BLOCKING_CALL_SECONDS: Final = 6 * 60 * 60
"""What a call of the compat toolset may take where a client's entry can say so: such a call is a whole turn of Codex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What paths depend on. `project` is the repository (or directory) one is in; Claude Code has its own idea of it."""

    platform: str
    env: Mapping[str, str]
    home: PurePath
    project: PurePath
    claude_project: PurePath

    @property
    def programs_config(self) -> PurePath:
        """Where desktop programs keep their configuration."""
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        if self.platform == "win32":
            return self._from_env("APPDATA", self.home / "AppData" / "Roaming")
        return self._from_env("XDG_CONFIG_HOME", self.home / ".config")

    def _from_env(self, variable: str, default: PurePath) -> PurePath:
        given = self.env.get(variable)
        return type(self.home)(given) if given else default

    def claude_file(self) -> PurePath:
        return self._from_env("CLAUDE_CONFIG_DIR", self.home) / ".claude.json"

    def codex_home(self) -> PurePath:
        return self._from_env("CODEX_HOME", self.home / ".codex")


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """One file of one client, and under which keys its servers stand in it."""

    client: Client
    scope: Scope
    path: PurePath
    servers: tuple[str, ...]

    @property
    def shared(self) -> bool:
        """Whether the file is part of a project, and so of other people's too."""
        return self.scope == "project"


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client. `places` gives the file and the keys of each scope it has, the usual one first.

    `timeout` is the field of an entry that limits a call, and what it counts in a second.
    """

    key: str
    title: str
    format: Format
    places: Mapping[Scope, Callable[[Surroundings], tuple[PurePath, tuple[str, ...]]]]
    limits: str
    typed: bool = False
    """Whether entries say `"type": "stdio"`."""
    timeout: tuple[str, int] | None = None
    after: str = ""
    """What one has to do for the client to see the change."""
    notes: Mapping[Scope, str] = field(default_factory=dict)

    def location(self, scope: Scope, around: Surroundings) -> Location:
        """Where its servers of a scope are.

        Raises:
            InvalidInput: It has no such scope.
        """
        if scope not in self.places:
            raise InvalidInput(f"{self.title} has no scope {scope}. Use one of: {', '.join(self.places)}.")
        path, servers = self.places[scope](around)
        return Location(client=self, scope=scope, path=path, servers=servers)


_DESKTOP_PATH: Final = (
    "Desktop programs do not have your shell's PATH: if Codex is not found, install again with "
    "--env CODEX_CLI_PATH=/the/path/of/codex"
)

CLIENTS: Final[Mapping[str, Client]] = {
    client.key: client
    for client in (
        Client(
            key="claude",
            title="Claude Code",
            format="json",
            typed=True,
            timeout=("timeout", 1000),
            places={
                "user": lambda around: (around.claude_file(), ("mcpServers",)),
                "local": lambda around: (
                    around.claude_file(),
                    ("projects", around.claude_project.as_posix(), "mcpServers"),
                ),
                "project": lambda around: (around.project / ".mcp.json", ("mcpServers",)),
            },
            limits="A call may take as long as the entry's timeout (else MCP_TOOL_TIMEOUT, by default about 28 hours) and "
            "be silent for 30 minutes.",
            after="Sessions that are open see it after /mcp, or when they are started again.",
            notes={"project": "Everybody who opens the project is asked once whether to use it."},
        ),
        Client(
            key="claude-desktop",
            title="Claude Desktop",
            format="json",
            places={
                "user": lambda around: (
                    around.programs_config / "Claude" / "claude_desktop_config.json",
                    ("mcpServers",),
                )
            },
            limits="A call may take one to four minutes, and no entry can change that: prefer the toolset sessions.",
            after="Quit it and start it again.",
            notes={"user": _DESKTOP_PATH},
        ),
        Client(
            key="cursor",
            title="Cursor",
            format="jsonc",
            places={
                "user": lambda around: (around.home / ".cursor" / "mcp.json", ("mcpServers",)),
                "project": lambda around: (around.project / ".cursor" / "mcp.json", ("mcpServers",)),
            },
            limits="How long a call may take is not known: prefer the toolset sessions.",
            after="Switch it on under Settings, MCP.",
            notes={"user": _DESKTOP_PATH},
        ),
        Client(
            key="vscode",
            title="VS Code",
            format="jsonc",
            typed=True,
            places={
                "user": lambda around: (around.programs_config / "Code" / "User" / "mcp.json", ("servers",)),
                "project": lambda around: (around.project / ".vscode" / "mcp.json", ("servers",)),
            },
            limits="How long a call may take is not known: prefer the toolset sessions.",
            after="Start it from the file, or with the command MCP: List Servers.",
            notes={"user": _DESKTOP_PATH},
        ),
        Client(
            key="codex",
            title="Codex",
            format="toml",
            timeout=("tool_timeout_sec", 1),
            places={
                "user": lambda around: (around.codex_home() / "config.toml", ("mcp_servers",)),
                "project": lambda around: (around.project / ".codex" / "config.toml", ("mcp_servers",)),
            },
            limits="A call may take as long as the entry's tool_timeout_sec, by default 300 seconds.",
            after="It is there in the next session.",
            notes={"project": "Codex reads a project's file only where the project is trusted."},
        ),
    )
}
