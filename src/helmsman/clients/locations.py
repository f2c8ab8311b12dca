"""Supported clients: location and format of their server entries, and their time limits.

Paths depend only on the platform, the environment and two directories, so all platforms can be tested on any.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import PurePath

# --- Find the project directory that Claude Code uses as the key of a project's servers -------------------------------

# Observed with Claude Code 2.1: the nearest directory with a `.git` of any kind; for a worktree, its repository;
# otherwise the directory itself.

_WORKTREE: Final = re.compile(r"gitdir: *(?P<repository>.+)[/\\]\.git[/\\]worktrees[/\\][^/\\]+\s*")


def claude_project(directory: Path) -> Path:
    """Return the project's directory. Never raises."""
    for candidate in (directory, *directory.parents):
        mark = candidate / ".git"
        try:
            # A worktree and a submodule have a file with that name.
            if mark.is_file():
                worktree = _WORKTREE.fullmatch(mark.read_text(encoding="utf-8", errors="replace"))
                return candidate if worktree is None else Path(worktree["repository"])
            if mark.exists():
                return candidate
        except OSError:  # a directory without read access is not the project
            continue
    return directory


Scope = Literal["user", "local", "project"]
Format = Literal["json", "jsonc", "toml"]

BLOCKING_CALL_SECONDS: Final = 6 * 60 * 60
"""Time limit for calls of the compat toolset, if a client's entry can set one: such a call is a whole turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPlatform:
    """Inputs for paths. `project` is the current repository or directory; Claude Code determines it differently."""

    platform: str
    env: Mapping[str, str]
    home: PurePath
    project: PurePath
    claude_project: PurePath

    def path(self, template: str) -> PurePath:
        """Expand a template such as `{home}/.cursor/mcp.json`."""
        if self.platform == "darwin":
            programs = self.home / "Library" / "Application Support"
        elif self.platform == "win32":
            programs = self._from_env("APPDATA", self.home / "AppData" / "Roaming")
        else:
            programs = self._from_env("XDG_CONFIG_HOME", self.home / ".config")
        directories = {
            "home": self.home,
            "project": self.project,
            "programs": programs,  # configuration directory of desktop programs
            "claude": self._from_env("CLAUDE_CONFIG_DIR", self.home),
            "codex": self._from_env("CODEX_HOME", self.home / ".codex"),
        }
        # The type of the given home: paths of every platform can be made on any.
        return type(self.home)(template.format_map(directories))

    def _from_env(self, variable: str, default: PurePath) -> PurePath:
        given = self.env.get(variable)
        return type(self.home)(given) if given else default


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Configuration file of a client, and the keys of its servers in it."""

    client: Client
    scope: Scope
    path: PurePath
    servers: tuple[str, ...]

    @property
    def shared(self) -> bool:
        """Return whether the file is part of a project and so shared with others."""
        return self.scope == "project"


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """MCP client.

    Args:
        places: The file of each scope, the usual one first (`ClientPlatform.path`).
        servers: The key of the servers in a file.
        limits: Time limits of calls.
        after: Steps until the client uses the change.
        typed: Whether entries contain `"type": "stdio"`.
        timeout: The field of an entry that limits a call, and its units per second.
        notes: Remarks on a scope.
        has_plugins: Whether it can install Helmsman's plugin (`helmsman.clients.plugin`).
    """

    key: str
    title: str
    format: Format
    places: Mapping[Scope, str]
    servers: str
    limits: str
    after: str
    typed: bool = False
    timeout: tuple[str, int] | None = None
    notes: Mapping[Scope, str] = field(default_factory=dict)
    has_plugins: bool = False

    def location(self, scope: Scope, around: ClientPlatform) -> Location:
        """Return the location of its servers for a scope.

        Raises:
            InvalidInput: The client has no such scope.
        """
        if scope not in self.places:
            raise InvalidInput(f"{self.title} has no scope {scope}. Use one of: {', '.join(self.places)}.")
        # Claude Code keeps servers of scope `local` under the path of the project.
        project = ("projects", around.claude_project.as_posix()) if scope == "local" else ()
        path = around.path(self.places[scope])
        return Location(client=self, scope=scope, path=path, servers=(*project, self.servers))


_DESKTOP_PATH: Final = (
    "Desktop programs do not have your shell's PATH: if Codex is not found, install again with "
    "--env CODEX_CLI_PATH=/the/path/of/codex"
)

_CLIENTS: Final = (
    Client(
        key="claude",
        title="Claude Code",
        format="json",
        typed=True,
        timeout=("timeout", 1000),
        places={"user": "{claude}/.claude.json", "local": "{claude}/.claude.json", "project": "{project}/.mcp.json"},
        servers="mcpServers",
        limits="Calls time out after 28 hours (unless the entry's timeout or MCP_TOOL_TIMEOUT says otherwise), or after 30 "
        "minutes of silence.",
        after="Sessions that are open see it after /mcp, or when they are started again.",
        has_plugins=True,
        notes={"project": "Each user who opens the project is asked once whether to use it."},
    ),
    Client(
        key="claude-desktop",
        title="Claude Desktop",
        format="json",
        places={"user": "{programs}/Claude/claude_desktop_config.json"},
        servers="mcpServers",
        limits="Calls time out after one to four minutes, which no entry can change, so keep to the `sessions` tools.",
        after="Quit it and start it again.",
        notes={"user": _DESKTOP_PATH},
    ),
    Client(
        key="cursor",
        title="Cursor",
        format="jsonc",
        places={"user": "{home}/.cursor/mcp.json", "project": "{project}/.cursor/mcp.json"},
        servers="mcpServers",
        limits="Cursor's time limit is unknown, so keep to the `sessions` tools.",
        after="Switch it on under Settings, MCP.",
        notes={"user": _DESKTOP_PATH},
    ),
    Client(
        key="vscode",
        title="VS Code",
        format="jsonc",
        typed=True,
        places={"user": "{programs}/Code/User/mcp.json", "project": "{project}/.vscode/mcp.json"},
        servers="servers",
        limits="VS Code's time limit is unknown, so keep to the `sessions` tools.",
        after="Start it from the file, or with the command MCP: List Servers.",
        notes={"user": _DESKTOP_PATH},
    ),
    Client(
        key="codex",
        title="Codex",
        format="toml",
        timeout=("tool_timeout_sec", 1),
        places={"user": "{codex}/config.toml", "project": "{project}/.codex/config.toml"},
        servers="mcp_servers",
        limits="Calls time out after 300 seconds, or the entry's tool_timeout_sec.",
        after="It is there in the next session.",
        has_plugins=True,
        notes={"project": "Codex reads a project's file only where the project is trusted."},
    ),
)
CLIENTS: Final[Mapping[str, Client]] = {client.key: client for client in _CLIENTS}
