"""Helmsman's plugin for Claude Code and Codex: skills, slash commands and the MCP server in one package.

The client's own program installs it, from a copy in the state directory that names the full path of this Helmsman: clients
are often started without the shell's PATH.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.programs import environment_for, find_program
from helmsman.base.redaction import redact
from helmsman.errors import ConfigurationUnusable, InvalidInput, ProgramRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

_SOURCE: Final = Path(__file__).parents[1] / "plugin"
_MARKETPLACE: Final = "helmsman"
_PLUGIN: Final = f"helmsman@{_MARKETPLACE}"
_SECONDS: Final = 120.0
_TOOLS: Final = "agents"

_VERBS: Final = {"claude": ("install", "uninstall"), "codex": ("add", "remove")}
"""Words of each client for adding and removing a plugin."""


@dataclass(frozen=True, slots=True)
class PluginOf:
    """Plugin in one client, and the copy that the client installs it from."""

    client: str
    folder: Path

    @classmethod
    def of(cls, client: str, state_dir: Path) -> PluginOf:
        """Return the plugin of a client.

        Raises:
            InvalidInput: The client has no plugins.
        """
        if client not in _VERBS:
            raise InvalidInput(f"{client} has no plugins. Use --plugin with one of: {', '.join(_VERBS)}.")
        return cls(client, state_dir / "plugin")

    def installing(self) -> list[list[str]]:
        """Return the commands that install it, or update what was installed before."""
        add, remove = _VERBS[self.client]
        # Removed first, which also updates what an earlier version installed.
        return [
            *(["plugin", remove, _PLUGIN], ["plugin", "marketplace", "remove", _MARKETPLACE]),
            *(["plugin", "marketplace", "add", str(self.folder)], ["plugin", add, _PLUGIN]),
        ]

    def removing(self) -> list[list[str]]:
        _, remove = _VERBS[self.client]
        return [["plugin", remove, _PLUGIN], ["plugin", "marketplace", "remove", _MARKETPLACE]]

    def install(self, launch: Sequence[str], tools: str | None) -> None:
        """Copy the plugin, and let the client install it.

        Raises:
            ConfigurationUnusable: The client refuses.
        """
        # A copy of an older version may have files that are gone.
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(_SOURCE, self.folder)
        servers = self.folder / "helmsman" / ".mcp.json"
        entry = {"command": launch[0], "args": [*launch[1:], "serve", "--tools", tools or _TOOLS]}
        servers.write_text(json.dumps({"mcpServers": {"helmsman": entry}}, indent=2) + "\n", encoding="utf-8")
        commands = self.installing()
        for command in commands[:-2]:
            self._run(command, must=False)  # of an earlier version; fails if there is none
        for command in commands[-2:]:
            self._run(command)

    def remove(self) -> None:
        """Remove the plugin from the client. The copy stays, because another client may use it.

        Raises:
            ConfigurationUnusable: The client refuses.
        """
        for command in self.removing():
            self._run(command)

    def _run(self, arguments: Sequence[str], *, must: bool = True) -> None:
        shown = f"{self.client} {' '.join(arguments)}"
        try:
            program = find_program(self.client)
        except ProgramRefused as error:
            raise ConfigurationUnusable(error.message) from error
        if program is None:
            raise ConfigurationUnusable(
                f"`{self.client}` is not on your PATH, and it installs plugins itself: `{shown}`."
            )
        try:
            done = subprocess.run(
                [program, *arguments],
                env=environment_for(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigurationUnusable(f"`{shown}` did not end well: {error}") from error
        if must and done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise ConfigurationUnusable(f"`{shown}` failed. It said: {redact(said[-1]) if said else 'nothing'}")
