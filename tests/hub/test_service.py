"""`helmsman hub install`: what it shows is what it writes, and what it cannot do it says."""

from __future__ import annotations

import configparser
import json
import plistlib
import sys
from pathlib import Path

import pytest

from helmsman.base.structs import replace
from helmsman.cli.hub import service_of
from helmsman.errors import Unsupported
from tests.hub.commands import done, whole
from tests.hub.conftest import Place

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="systemd")]


def with_systemctl(place: Place, script: str) -> tuple[Place, Path]:
    """A stand-in: no machine of tests has a systemd for its user. It notes what it is told in a file."""
    told = place.directory / "told"
    program = place.directory / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> "{told}"\n{script}\n', encoding="utf-8")
    program.chmod(0o755)
    return replace(place, env={**place.env, "PATH": f"{program.parent}:{place.env['PATH']}"}), told


async def test_the_unit_is_shown_written_and_started_and_taken_away_again(bare_place: Place) -> None:
    place, told = with_systemctl(bare_place, "exit 0")
    refused = await done(whole("hub", "install"), place)
    assert refused.code != 0
    assert "--yes" in refused.stderr
    installed = await done(whole("hub", "install", "--yes"), place)
    assert installed.code == 0, installed.stderr
    path = Path(place.env["HOME"]) / ".config/systemd/user/helmsman-hub.service"
    text = path.read_text(encoding="utf-8")
    assert text in installed.stderr, "what is shown is what is written"
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    assert unit["Service"]["ExecStart"].endswith('"-m" "helmsman" "hub" "run"')
    assert (unit["Service"]["KillMode"], unit["Install"]["WantedBy"]) == ("process", "default.target")
    assert f"HELMSMAN_STATE_DIR={place.state_dir}" in text
    assert "loginctl enable-linger" in installed.stderr
    removed = await done(whole("hub", "uninstall", "--json"), place)
    assert json.loads(removed.stdout) == {"uninstalled": str(path)}
    assert not path.exists()
    assert told.read_text(encoding="utf-8").splitlines() == [
        "--user daemon-reload",
        "--user enable --now helmsman-hub.service",
        "--user disable --now helmsman-hub.service",
        "--user daemon-reload",
    ]
    again = await done(whole("hub", "uninstall", "--json"), place)
    assert json.loads(again.stdout) == {"uninstalled": None}


async def test_where_the_service_cannot_be_started_the_command_to_run_is_named(bare_place: Place) -> None:
    place, _ = with_systemctl(bare_place, 'echo "Failed to connect to bus" >&2; exit 1')
    installed = await done(whole("hub", "install", "--yes"), place)
    assert "Failed to connect to bus" in installed.stderr
    assert "Run: systemctl --user daemon-reload" in installed.stderr


def test_without_systemd_nothing_is_written_and_the_command_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unsupported, match=r"no systemctl here.* nothing was written.* -m helmsman hub run"):
        service_of(tmp_path / "state").refuse_if_nobody_reads_it()


def test_the_launchd_file_says_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/opt/a&b/bin:/bin")
    service = service_of(tmp_path / "state")
    content = plistlib.loads(service.text.encode())
    assert content["ProgramArguments"][1:] == ["-P", "-m", "helmsman", "hub", "run"]
    assert content["EnvironmentVariables"]["PATH"] == "/opt/a&b/bin:/bin"
    assert content["RunAtLoad"]
    assert content["KeepAlive"] == {"SuccessfulExit": False}
