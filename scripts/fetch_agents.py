"""Fetches from npm the coding agents that Helmsman is tested with beside Codex, and a Node that is new enough for them.

They go to `.cache/agents/` in the repository (or to $HELMSMAN_AGENTS_CACHE), in the versions named here: on an older Node
npm would silently choose older ones. What is there already is left alone. About 2 GB. Needs npm (see `fetch_codex.py`).

    python scripts/fetch_agents.py
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from fetch_codex import REPOSITORY, CannotFetch, npm, this_platform

PACKAGES = {
    "@google/gemini-cli": "0.61.0",
    "@qwen-code/qwen-code": "0.24.4",
    "@agentclientprotocol/claude-agent-acp": "0.99.1",
    "@agentclientprotocol/codex-acp": "2.6.0",
    "@moonshot-ai/kimi-code": "2.1.0",
    "@nanocollective/nanocoder": "1.30.0",
}
NATIVE = {
    "opencode-{platform}": "1.18.33",
    "@github/copilot-{platform}": "1.0.102",
    "@kilocode/cli-{platform}": "7.7.7",
    "node-{platform}": "24.9.0",
}
"""Packages that hold a program for one platform; those without it are only loaders."""
CACHE = Path(os.environ.get("HELMSMAN_AGENTS_CACHE") or REPOSITORY / ".cache" / "agents").absolute()
INSTALLED = CACHE / "installed.json"
"""Marks a complete installation; written last, so that an interrupted one is repeated."""


def main() -> int:
    try:
        wanted = packages()
        if installed() != wanted:
            install(wanted)
    except CannotFetch as problem:
        print(f"The agents cannot be had, so the tests with them are skipped: {problem}", file=sys.stderr)
        return 1
    INSTALLED.touch()  # make compares its time with that of this script
    for name, version in wanted.items():
        print(name, version, sep="\t")
    return 0


def packages() -> dict[str, str]:
    """Return the packages for this machine."""
    system, processor, _ = this_platform()
    platform = f"{system.lower()}-{processor}"
    return PACKAGES | {name.format(platform=platform): version for name, version in NATIVE.items()}


def installed() -> object:
    try:
        return json.loads(INSTALLED.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def install(wanted: dict[str, str]) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    INSTALLED.unlink(missing_ok=True)
    # A separate project, because npm otherwise looks for one in the directories above. Install scripts do not run.
    (CACHE / "package.json").write_text('{"private": true}\n', encoding="utf-8")
    quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
    patience = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]  # fail soon if offline
    options = ["--no-package-lock", "--ignore-scripts", "--force", *quiet, *patience]
    npm("install", "--prefix", str(CACHE), *options, *(f"{name}@{version}" for name, version in wanted.items()))
    INSTALLED.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
