"""Tests that settings, pipes and lists of hosts use the same directories, from the caller's environment."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from helmsman import load_settings
from helmsman.base import user_directories
from helmsman.base.user_directories import config_directory, usual_state_directory
from helmsman.errors import InvalidSetting
from helmsman.hub.hosts import hosts_file
from helmsman.hub.launch import state_directory
from helmsman.settings import own_file

MINE = {"HOME": "/home/me"}
XDG = {"XDG_CONFIG_HOME": "/else/config", "XDG_STATE_HOME": "/else/state"}
RELATIVE = {"XDG_CONFIG_HOME": "config", "XDG_STATE_HOME": "~/state"}
LIBRARY = "/home/me/Library/Application Support/helmsman"


@pytest.mark.parametrize(
    ("platform", "env", "config", "state"),
    [
        ("linux", MINE, "/home/me/.config/helmsman", "/home/me/.local/state/helmsman"),
        ("linux", MINE | XDG, "/else/config/helmsman", "/else/state/helmsman"),
        ("linux", MINE | RELATIVE, "/home/me/.config/helmsman", "/home/me/.local/state/helmsman"),
        ("darwin", MINE, LIBRARY, LIBRARY),
        ("darwin", MINE | XDG, "/else/config/helmsman", "/else/state/helmsman"),
        ("darwin", MINE | RELATIVE, LIBRARY, LIBRARY),
    ],
)
def test_all_programs_use_the_same_directories(
    platform: str, env: dict[str, str], config: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_directories, "sys", SimpleNamespace(platform=platform))
    for name, own in {"HOME": tmp_path, "XDG_CONFIG_HOME": tmp_path, "XDG_STATE_HOME": tmp_path}.items():
        monkeypatch.setenv(name, str(own))  # of the process, which asks for somebody else
    assert own_file(env) == Path(config, "helmsman.toml")
    assert hosts_file(env) == f"{config}/hosts"
    assert load_settings({}, env, tmp_path).state_dir == Path(state)
    assert state_directory(env) == state


def test_on_windows_both_are_local_to_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_directories, "sys", SimpleNamespace(platform="win32"))
    env = MINE | XDG | {"USERPROFILE": "C:/Users/me"}
    assert config_directory(env) == usual_state_directory(env) == "C:/Users/me/AppData/Local/helmsman"
    assert usual_state_directory(env | {"LOCALAPPDATA": "D:/Local"}) == "D:/Local/helmsman"


def test_a_missing_home_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(InvalidSetting, match="no home directory"):
        load_settings({}, {}, tmp_path)
