"""A program in the place of Tailscale: it writes down what it is asked, and serves for as long as it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

_PROGRAM = """#!/bin/sh
echo "$*" >> {log}
case "$*" in
"status --json") echo '{{"BackendState": "Running", "Self": {{"DNSName": "box.tail.ts.net."}}}}' ;;
"serve status --json") cat {served} ;;
"serve --https=443 "*)
    trap 'echo "{{}}" > {served}; exit' TERM
    echo '{{"Foreground": {{"1": {{"TCP": {{"443": {{"HTTPS": true}}}}}}}}}}' > {served}
    sleep 600 & wait ;;
esac
"""


@dataclass(frozen=True)
class FakeTailscale:
    """`log` has the arguments of each call, `served` what it serves, as JSON."""

    folder: Path
    log: Path
    served: Path


@pytest.fixture
def tailscale(tmp_path: Path) -> FakeTailscale:
    folder = tmp_path / "programs"
    folder.mkdir()
    fake = FakeTailscale(folder, folder / "log", folder / "served")
    fake.served.write_text("{}")
    program = folder / "tailscale"
    program.write_text(_PROGRAM.format(log=fake.log, served=fake.served))
    program.chmod(0o755)
    return fake
