"""Install the programs for comparison from the registries into `.cache/bench`."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

from scripts.fetch_codex import CannotFetch, npm

from bench.place import NothingToMeasure

NPM_SERVER = "codex-mcp-server@1.4.10"
PYTHON_SDK = "openai-codex==0.163.0"
FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "bench"
_SECONDS = 600


@cache
def npm_server() -> Path:
    """Return the program of `codex-mcp-server`, which runs `codex exec` for every call."""
    program = FOLDER / "npm" / "node_modules" / "codex-mcp-server" / "dist" / "index.js"
    if not program.exists():
        program.parents[3].mkdir(parents=True, exist_ok=True)
        try:
            npm("install", NPM_SERVER, "--prefix", str(FOLDER / "npm"), "--no-audit", "--no-fund", "--loglevel=error")
        except CannotFetch as problem:
            raise NothingToMeasure(f"{NPM_SERVER} cannot be had: {problem}") from problem
    return program


@cache
def sdk_python() -> Path:
    """Return a Python with the `openai-codex` SDK."""
    python = FOLDER / "sdk" / "bin" / "python"
    if not (FOLDER / "sdk" / "installed").exists():
        for command in (
            [sys.executable, "-m", "venv", str(FOLDER / "sdk")],
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PYTHON_SDK],
        ):
            done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=_SECONDS, check=False)
            if done.returncode:
                raise NothingToMeasure(f"{PYTHON_SDK} cannot be had: {done.stderr[-1000:]}")
        (FOLDER / "sdk" / "installed").touch()
    return python
