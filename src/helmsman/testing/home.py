"""Home for a Codex under test: its own CODEX_HOME and HOME, configured for a scripted model.

Codex creates databases at its first start in a home, and concurrent first starts can fail. Each binary therefore starts
once in a template, and homes are copies of it.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helmsman.testing.leaks import MARKER_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.testing.binaries import VersionNumbers

_FIRST_START_SECONDS = 60
_MCP_SERVER = Path(__file__).with_name("mcp_test_server.py")
"""Started by its path, so that it imports nothing else."""
_INHERITED = (
    *("PATH", "SYSTEMROOT", "TMPDIR", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "HELMSMAN_SNAPSHOTS"),
    MARKER_VARIABLE,
)


class CodexHome:
    """Directory with everything that a Codex process needs in a test, separate from the user's Codex."""

    def __init__(self, folder: Path) -> None:
        self.home = folder
        """HOME: login shells read their profiles from here, and there are none."""
        self.path = folder / ".codex"
        """CODEX_HOME."""
        self.path.mkdir(parents=True, exist_ok=True)

    @property
    def config_path(self) -> Path:
        return self.path / "config.toml"

    @property
    def env(self) -> dict[str, str]:
        """Complete environment for a process under test."""
        # Nothing else of the developer's environment may change a test.
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        return inherited | {
            "HOME": str(self.home),
            "CODEX_HOME": str(self.path),
            "HELMSMAN_STATE_DIR": str(self.home / "helmsman"),
            "HELMSMAN_DETACH": "0",  # processes end with the test, unless it uses `detached_engines`
        }

    @property
    def config(self) -> dict[str, Any]:
        """Current configuration, including changes by Codex."""
        return tomllib.loads(self.config_path.read_text(encoding="utf-8")) if self.config_path.exists() else {}

    def configure(self, **settings: Any) -> None:
        """Add settings to config.toml; tables are merged: `home.configure(features={"goals": False})`."""
        import tomlkit

        self.config_path.write_text(tomlkit.dumps(_merged(self.config, settings)), encoding="utf-8")

    def use_model(self, base_url: str, version: VersionNumbers) -> None:
        """Use a scripted model as provider, with a model name for which this Codex offers classic tools."""
        provider = {"name": "scripted", "base_url": base_url, "wire_api": "responses"}
        self.configure(
            model=classic_model(version),
            model_provider="scripted",
            # Report failures immediately; tests of retries set these themselves.
            model_providers={"scripted": {**provider, "request_max_retries": 0, "stream_max_retries": 0}},
        )
        if version < (0, 115, 0):  # this version would wait seconds for a list of models from the internet
            known: dict[str, Any] = {"fetched_at": datetime.now(UTC).isoformat(), "etag": None, "models": []}
            (self.path / "models_cache.json").write_text(json.dumps(known), encoding="utf-8")

    def keep_quiet(self, version: VersionNumbers) -> None:
        """Disable Codex's work at start-up: fetching plugins from the internet and inspecting the login shell.

        This saves a seventh of the work of a test. The bundled skills, most of the files in a home, are also disabled.
        """
        if version >= (0, 115, 0):
            plugins = {"plugins": False} if version >= (0, 130, 0) else {}
            self.configure(features={"shell_snapshot": False, **plugins}, skills={"bundled": {"enabled": False}})


class HomeTemplates:
    """Homes in which a binary has already started, ready to be copied."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[Path, Path] = {}

    def new_home(self, binary: Path, folder: Path) -> CodexHome:
        """Return a fresh home for `binary` in `folder`."""
        if binary not in self._made:
            template = CodexHome(self._folder / f"codex-{len(self._made)}")
            first_start(binary, template)
            # Skip fifty files per copy; a Codex with bundled skills enabled writes them again.
            shutil.rmtree(template.path / "skills" / ".system", ignore_errors=True)
            self._made[binary] = template.home
        shutil.copytree(self._made[binary], folder, dirs_exist_ok=True, symlinks=True)
        return CodexHome(folder)


def first_start(binary: Path, home: CodexHome) -> None:
    """Start a Codex once, so that it creates its databases."""
    client = {"name": "helmsman-testing", "title": "Helmsman test kit", "version": "1"}
    initialize = {"id": 1, "method": "initialize", "params": {"clientInfo": client}}
    started = subprocess.run(
        [binary, "app-server"],
        input=json.dumps(initialize) + "\n",
        env=home.env,
        cwd=home.home,
        capture_output=True,
        encoding="utf-8",
        timeout=_FIRST_START_SECONDS,
        check=False,
    )
    if started.returncode:
        raise RuntimeError(f"{binary} does not start: {started.stderr[-2000:]}. Is it a Codex for this machine?")
    for database in home.path.glob("*.sqlite"):
        _tidy(database)


def _tidy(database: Path) -> None:
    """Merge the write-ahead log, several megabytes after the first start, so that copies are smaller."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def classic_model(version: VersionNumbers) -> str:
    """Return a model for which this Codex offers classic tools. Unknown models get fewer, newer ones get code mode."""
    if version < (0, 115, 0):
        return "gpt-5.2-codex"
    return "gpt-5.4" if version < (0, 130, 0) else "gpt-5.5"


def mcp_server(notes: Path) -> dict[str, Any]:
    """Return the test kit's MCP server as an entry for `mcp_servers`; its tools write to the file `notes`."""
    environment = {"HELMSMAN_TEST_NOTES": str(notes)}
    if MARKER_VARIABLE in os.environ:  # Codex passes few variables to MCP servers
        environment[MARKER_VARIABLE] = os.environ[MARKER_VARIABLE]
    return {"command": sys.executable, "args": [str(_MCP_SERVER)], "env": environment}


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for key, value in new.items():
        known = merged.get(key)
        merged[key] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged
