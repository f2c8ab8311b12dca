"""`scripts/fetch_codex.py` with an npm made for the test, and without the network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "fetch_codex.py"
NPM = """\
#!{python}
import io, json, pathlib, sys, tarfile

command, package, *rest = sys.argv[1:]
if command == "view":
    print(json.dumps("0.2.0"))
    sys.exit()
contents = json.loads(pathlib.Path({packages!r}).read_text())
if package not in contents:
    sys.exit("npm error notarget No matching version found")
with tarfile.open(pathlib.Path(rest[rest.index("--pack-destination") + 1]) / "package.tgz", "w:gz") as archive:
    for name in contents[package]:
        member = tarfile.TarInfo("package/" + name)
        member.mode, member.size = 0o755, 5
        archive.addfile(member, io.BytesIO(b"codex"))
"""
ALL_PLATFORMS = [
    f"vendor/{triple}/codex/codex"
    for triple in (
        "x86_64-unknown-linux-musl",
        "aarch64-unknown-linux-musl",
        "x86_64-apple-darwin",
        "aarch64-apple-darwin",
    )
]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no Codex for the matrix on Windows")


def fetch(tmp_path: Path, *versions: str, packages: dict[str, list[str]]) -> subprocess.CompletedProcess[str]:
    listing, npm = tmp_path / "packages.json", tmp_path / "bin" / "npm"
    listing.write_text(json.dumps(packages), encoding="utf-8")
    npm.parent.mkdir(exist_ok=True)
    npm.write_text(NPM.format(python=sys.executable, packages=str(listing)), encoding="utf-8")
    npm.chmod(0o755)
    environment = {"PATH": str(npm.parent), "HELMSMAN_CODEX_CACHE": str(tmp_path / "cache")}
    return subprocess.run(
        [sys.executable, SCRIPT, *versions],
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def test_a_version_is_unpacked_for_this_platform_and_then_left_alone(tmp_path: Path) -> None:
    first = fetch(tmp_path, "0.1.0", packages={"@openai/codex@0.1.0": ALL_PLATFORMS})
    again = fetch(tmp_path, "0.1.0", packages={})

    version, path = first.stdout.strip().split("\t")
    assert (version, first.returncode) == ("0.1.0", 0), first.stderr
    assert Path(path).read_bytes() == b"codex"
    assert os.access(path, os.X_OK)
    assert again.stdout == first.stdout
    unpacked = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    assert unpacked == [Path(path)]


def test_the_package_of_the_platform_comes_first(tmp_path: Path) -> None:
    listed = {
        f"@openai/codex@0.1.0-{system}-{processor}": [
            name.replace("codex/codex", "bin/codex") for name in ALL_PLATFORMS
        ]
        for system in ("linux", "darwin")
        for processor in ("x64", "arm64")
    }

    done = fetch(tmp_path, "0.1.0", packages=listed | {"@openai/codex@0.1.0": ALL_PLATFORMS})

    assert done.stdout.strip().endswith("bin/codex")


def test_the_newest_version_is_asked_for(tmp_path: Path) -> None:
    done = fetch(tmp_path, "latest", packages={"@openai/codex@0.2.0": ALL_PLATFORMS})

    assert done.stdout.startswith("0.2.0\t")


def test_missing_versions_are_reported_and_the_rest_is_fetched(tmp_path: Path) -> None:
    packages = {"@openai/codex@0.1.0": ALL_PLATFORMS, "@openai/codex@0.3.0": ["README.md"]}

    done = fetch(tmp_path, "9.9.9", "0.3.0", "0.1.0", packages=packages)

    assert done.returncode == 1
    assert "Codex 9.9.9 cannot be had: " in done.stderr
    assert "No matching version found" in done.stderr
    assert "@openai/codex@0.3.0 holds no binary for " in done.stderr
    assert done.stdout.startswith("0.1.0\t")
    assert [folder.name for folder in (tmp_path / "cache").iterdir()] == ["0.1.0"]


def test_the_whole_matrix_ends_with_the_wheel(tmp_path: Path) -> None:
    versions = ("0.93.0", "0.115.0", "0.130.0", "0.145.0", "0.155.0", "0.2.0")

    done = fetch(tmp_path, packages={f"@openai/codex@{version}": ALL_PLATFORMS for version in versions})

    listed = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert listed[:6] == list(versions), done.stderr
    assert len(listed) in {6, 7}
