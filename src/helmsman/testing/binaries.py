"""Find the Codex binaries to test with."""

from __future__ import annotations

import functools
import importlib
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

VersionNumbers = tuple[int, int, int]

BINARY_VARIABLE = "HELMSMAN_TEST_CODEX"
CACHE_VARIABLE = "HELMSMAN_CODEX_CACHE"
_VERSION_SECONDS = 30


def installed_codex() -> Path | None:
    """Return the binary under test: `HELMSMAN_TEST_CODEX`, or the one in the wheel `openai-codex-cli-bin`."""
    if named := os.environ.get(BINARY_VARIABLE):
        return Path(named).absolute()
    return wheel_codex()


def wheel_codex() -> Path | None:
    """Return the binary of the wheel `openai-codex-cli-bin`, if it is installed."""
    try:
        wheel = importlib.import_module("codex_cli_bin")
    except ImportError:
        return None
    return Path(wheel.bundled_codex_path())


def codex_versions() -> dict[str, Path]:
    """Return all Codex binaries for tests, oldest first: those fetched by `scripts/fetch_codex.py`, and the wheel's."""
    found: dict[str, Path] = {}
    cache = _cache()
    for folder in cache.iterdir() if cache.is_dir() else ():
        binary = next((path for path in folder.glob("vendor/*/*/codex") if os.access(path, os.X_OK)), None)
        if binary is not None:
            found[folder.name] = binary
    if (wheel := wheel_codex()) is not None:
        found.setdefault(".".join(map(str, codex_version(wheel))), wheel)
    return dict(sorted(found.items(), key=lambda entry: parse_version(entry[0])))


def _cache() -> Path:
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named).absolute()
    here = Path.cwd()
    candidates = [folder / ".cache" / "codex" for folder in (here, *here.parents)]
    # Upwards, so that tests in any folder of a clone find the cache.
    return next((folder for folder in candidates if folder.is_dir()), candidates[0])


@functools.cache
def codex_version(binary: Path) -> VersionNumbers:
    """Return the version that a binary reports, or (0, 0, 0)."""
    answer = subprocess.run(
        [binary, "--version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=_VERSION_SECONDS,
        check=False,
    )
    return parse_version(answer.stdout)


def parse_version(text: str) -> VersionNumbers:
    """Return the first `x.y.z` in a text, or (0, 0, 0)."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)


def versions_around(changes: Sequence[str], versions: dict[str, Path]) -> dict[str, Path]:
    """Return the oldest, the newest, and the versions on both sides of each change."""
    names = list(versions)
    chosen = {*names[:1], *names[-1:]}
    for change in map(parse_version, changes):
        chosen |= {*[name for name in names if parse_version(name) < change][-1:]}
        chosen |= {*[name for name in names if parse_version(name) >= change][:1]}
    return {name: versions[name] for name in names if name in chosen}
