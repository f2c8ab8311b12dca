"""`scripts/fetch_clients.py` with an npm made for the test, and without the network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "fetch_clients.py"
NPM = """\
#!{python}
import pathlib, sys

with open({log!r}, "a", encoding="utf-8") as log:
    print(*sys.argv[1:], file=log)
sys.exit({failure!r})
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the npm of the test is a script")


def fetch(tmp_path: Path, *, failure: str | None = None) -> subprocess.CompletedProcess[str]:
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir(exist_ok=True)
    npm.write_text(NPM.format(python=sys.executable, log=str(tmp_path / "npm.log"), failure=failure), encoding="utf-8")
    npm.chmod(0o755)
    environment = {"PATH": str(npm.parent), "HELMSMAN_CLIENTS_CACHE": str(tmp_path / "cache")}
    return subprocess.run(
        [sys.executable, SCRIPT],
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def npm_calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "npm.log").read_text(encoding="utf-8").splitlines()


def test_the_clients_are_installed_in_their_versions_and_then_left_alone(tmp_path: Path) -> None:
    first = fetch(tmp_path)
    again = fetch(tmp_path)

    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert first.stdout == again.stdout
    (call,) = npm_calls(tmp_path)
    for line in first.stdout.splitlines():
        assert line.replace("\t", "@") in call
    assert "--ignore-scripts" in call
    assert "--no-package-lock" in call


def test_other_versions_are_installed_again(tmp_path: Path) -> None:
    fetch(tmp_path)
    (tmp_path / "cache" / "installed.json").write_text(json.dumps({"@some/client": "1.0.0"}), encoding="utf-8")
    fetch(tmp_path)

    assert len(npm_calls(tmp_path)) == 2


def test_without_the_registry_it_says_what_that_means_and_nothing_counts_as_installed(tmp_path: Path) -> None:
    fetch(tmp_path)
    (tmp_path / "cache" / "installed.json").write_text("{}", encoding="utf-8")
    done = fetch(tmp_path, failure="npm error network ENOTFOUND")

    assert done.returncode == 1
    assert "The MCP clients cannot be had, so the tests with them are skipped: " in done.stderr
    assert "ENOTFOUND" in done.stderr
    assert not (tmp_path / "cache" / "installed.json").exists()
