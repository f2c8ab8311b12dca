"""Folder in memory for measurements, with homes for Codex, a repository and a scripted model.

On a disk, the disk would be measured.
"""

from __future__ import annotations

import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.model import model_process
from helmsman.testing.binaries import codex_version, codex_versions, installed_codex
from helmsman.testing.home import HomeTemplates
from helmsman.testing.repository import make_repository

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from helmsman.testing import CodexHome

LAST_WITH_SERVER = "0.145.0"
"""Last Codex with a built-in MCP server."""

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class NothingToMeasure(Exception):
    """Something is missing; the text says what, and how to get it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Codex with everything that it needs to run turns."""

    binary: Path
    folder: Path
    repository: Path
    model_url: str
    _templates: HomeTemplates

    def home(self, name: str) -> CodexHome:
        """Return a fresh home, set up for the scripted model."""
        home = self._templates.new_home(self.binary, self.folder / name)
        home.use_model(self.model_url, codex_version(self.binary))
        return home


@asynccontextmanager
async def open_place(version: str | None = None) -> AsyncIterator[Place]:
    """Open a place for the installed Codex, or for one of the fetched versions."""
    binary = installed_codex() if version is None else codex_versions().get(version)
    if binary is None:
        raise NothingToMeasure(
            "There is no Codex here. Install openai-codex-cli-bin."
            if version is None
            else f"There is no Codex {version} here. Run: python scripts/fetch_codex.py {version}"
        )
    with tempfile.TemporaryDirectory(prefix="helmsman-bench-", dir=MEMORY) as name:
        folder = Path(name)
        async with model_process() as url:
            yield Place(binary, folder, make_repository(folder / "repository"), url, HomeTemplates(folder / "template"))
