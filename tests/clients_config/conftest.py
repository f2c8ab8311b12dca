"""A person's home and project for the tests, and Helmsman installed in them by plan and apply."""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from helmsman.cli.installing import locations_of, read_files
from helmsman.clients.changes import Change, Record, Wish, plan_install, plan_uninstall
from helmsman.clients.locations import CLIENTS, ClientPlatform, Location, Scope

LAUNCH = ("/opt/helmsman/bin/helmsman",)
SHARED_LAUNCH = ("helmsman",)


@dataclass(frozen=True)
class Person:
    """User with MCP clients. Planned changes of `install` and `uninstall` can be inspected before they are applied."""

    home: Path
    project: Path
    state: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def around(self) -> ClientPlatform:
        project = self.project
        return ClientPlatform(
            platform=sys.platform, env=self.env, home=self.home, project=project, claude_project=project
        )

    @property
    def record(self) -> Record:
        return Record(self.state)

    def place(self, client: str, scope: Scope = "user") -> Location:
        return CLIENTS[client].location(scope, self.around)

    def file(self, client: str, scope: Scope = "user") -> Path:
        return Path(self.place(client, scope).path)

    def write(self, client: str, text: str, scope: Scope = "user") -> Path:
        path = self.file(client, scope)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return path

    def servers(self, client: str, scope: Scope = "user") -> dict[str, Any]:
        place = self.place(client, scope)
        text = Path(place.path).read_text(encoding="utf-8")
        value: Any = tomllib.loads(text) if client == "codex" else json.loads(text)
        for key in place.servers:
            value = value[key]
        found: dict[str, Any] = value
        return found

    def plan(self, client: str, scope: Scope | None = None, **wish: Any) -> list[Change]:
        places = locations_of(CLIENTS[client], scope, self.around)
        wanted = Wish(launch=wish.pop("launch", LAUNCH), shared_launch=SHARED_LAUNCH, **wish)
        return plan_install(read_files(places), places[0], wanted, self.record)

    def install(self, client: str, scope: Scope | None = None, **wish: Any) -> list[str]:
        """Install it; what happened to which entry."""
        return self._apply(self.plan(client, scope, **wish))

    def uninstall(self, client: str, scope: Scope | None = None, name: str | None = None) -> list[str]:
        places = locations_of(CLIENTS[client], scope, self.around)
        return self._apply(plan_uninstall(read_files(places), name, self.record))

    def _apply(self, changes: list[Change]) -> list[str]:
        for change in changes:
            change.apply(self.record)
        return [f"{entry.action} {entry.name}" for change in changes for entry in change.entries]


@pytest.fixture
def person(tmp_path: Path) -> Person:
    for name in ("home", "project"):
        (tmp_path / name).mkdir()
    return Person(tmp_path / "home", tmp_path / "project", tmp_path / "state")
