"""Nanocoder: its profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from helmsman.agents.acp.opencode import PLACES, PlacePerSession
from helmsman.agents.acp.profile import AgentHome, files_in, home_in, with_all_above
from helmsman.agents.protocol import Trust

if TYPE_CHECKING:
    from collections.abc import Mapping


class Nanocoder(PlacePerSession):
    """Nanocoder. It begins in a mode that changes files unasked, and obeys the tools and servers of a repository."""

    name = "nanocoder"
    title = "Nanocoder"
    program = "nanocoder"
    arguments = ("--acp",)
    install = "npm install -g @nanocollective/nanocoder"
    trust = Trust(
        asking_mode="normal",
        reading_mode="plan",
        asking_options={},
        acts_unasked=True,
        memory=(),
        runs_repository_files=False,
        variables=("NANOCODER_*", "*_API_KEY"),
        shared=(PLACES,),
    )
    counting = "process"

    _FILES = ("agents.config.json", ".mcp.json")
    _HARMLESS = ("tasks.json", "checkpoints")
    """What it writes itself into the directory of a session."""

    def dangerous_files(self, directory: Path) -> list[Path]:
        found: list[Path] = []
        for above in with_all_above(directory):
            found += [path for name in self._FILES if (path := above / name).exists()]
            found += [path for path in files_in(above / ".nanocoder") if path.name not in self._HARMLESS]
        return found

    def home(self, env: Mapping[str, str]) -> AgentHome:
        data = Path(env.get("XDG_DATA_HOME") or home_in(env) / ".local/share") / self.name
        path = Path(env.get("NANOCODER_DATA_DIR") or data)
        return AgentHome(path=path, variable="NANOCODER_DATA_DIR", shared=self.trust.shared, empty=("sessions",))

    def more_homes(self, env: Mapping[str, str]) -> tuple[AgentHome, ...]:
        configuration = Path(env.get("XDG_CONFIG_HOME") or home_in(env) / ".config") / self.name
        path = Path(env.get("NANOCODER_CONFIG_DIR") or configuration)
        return (AgentHome(path=path, variable="NANOCODER_CONFIG_DIR", shared=(), inside="config"),)

    def place_environment(self, place: Path) -> Mapping[str, str]:
        return {"NANOCODER_DATA_DIR": str(place)}
