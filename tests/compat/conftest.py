"""Both servers, each with a separate home and repository."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from helmsman.testing import CodexHome, ScriptedModel
from helmsman.testing.binaries import codex_version, codex_versions
from helmsman.testing.home import HomeTemplates
from helmsman.testing.repository import make_repository
from tests.compat.servers import Server

LAST_WITH_SERVER = "0.145.0"


BINARY = codex_versions().get(LAST_WITH_SERVER)


WRITES = {"sandbox": "workspace-write", "approval-policy": "on-request"}


READS = {"sandbox": "read-only", "approval-policy": "on-request"}


@dataclass
class Bench:
    """Run both servers, each with a separate home and repository, on one model."""

    original: Server
    helmsman: Server
    homes: dict[str, CodexHome] = field(default_factory=dict)

    @property
    def both(self) -> tuple[Server, Server]:
        return self.original, self.helmsman


@pytest.fixture
def bench(tmp_path: Path, model: ScriptedModel, codex_home_templates: HomeTemplates) -> Bench:
    assert BINARY is not None
    homes: dict[str, CodexHome] = {}
    places: dict[str, Path] = {}
    for name in ("original", "helmsman"):
        homes[name] = codex_home_templates.new_home(BINARY, tmp_path / name / "home")
        homes[name].use_model(model.base_url, codex_version(BINARY))
        homes[name].keep_quiet(codex_version(BINARY))
        places[name] = make_repository(tmp_path / name / "repository")
    return Bench(
        Server.original(BINARY, homes["original"], places["original"]),
        Server.helmsman(BINARY, homes["helmsman"], places["helmsman"], APPROVAL_TIMEOUT_MS="1500"),
        homes,
    )
