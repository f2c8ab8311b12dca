"""A place outside the allowed roots, and the file that Codex tries to write there."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.base.structs import replace
from helmsman.settings import Settings
from helmsman.testing import ScriptedModel, run, say


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A place outside the roots. It is below /tmp, where Codex's own sandbox would let everything write."""
    place = (tmp_path / "outside").resolve()
    place.mkdir()
    return place


@pytest.fixture
def made(outside: Path, git_repo: Path, model: ScriptedModel) -> Path:
    """The file that Codex tries to write, outside, whenever it is told to `touch`."""
    model.on("touch", run(f"touch {git_repo}/inside.txt; touch {outside}/made.txt"), say("tried"))
    model.otherwise(say("ok"))
    return outside / "made.txt"


@pytest.fixture
def narrow(settings: Settings, git_repo: Path) -> Settings:
    return replace(settings, allowed_roots=(git_repo.resolve(),))
