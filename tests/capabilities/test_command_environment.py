"""Which variables reach a command of a repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.capabilities.repository_commands import command_environment
from helmsman.errors import InvalidSetting
from helmsman.settings import Settings, load_settings

USUAL = {"PATH": "/usr/bin", "HOME": "/home/u", "LC_ALL": "C", "VIRTUAL_ENV": "/v", "https_proxy": "http://proxy:3128"}
SECRET = {
    "GH_PAT": "p",
    "NPM_AUTH": "a",
    "DATABASE_URL": "postgres://u:p@h/d",
    "SENTRY_DSN": "https://k@sentry/1",
    "SSH_AUTH_SOCK": "/tmp/s",
    "GPG_AGENT_INFO": "s",
    "DOCKER_HOST": "unix:///docker.sock",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/bus",
    "XDG_RUNTIME_DIR": "/run/user/1",
    "AWS_PROFILE": "prod",
    "BASH_ENV": "/x",
    "PYTHONSTARTUP": "/x",
    "PIP_INDEX_URL": "https://user:password@index/simple",
    "HTTP_PROXY": "http://user:word@proxy:3128",
}


def _settings(tmp_path: Path, user: str, project: str = "") -> Settings:
    root = tmp_path / "project"
    root.mkdir(exist_ok=True)
    (root / "helmsman.toml").write_text(project, encoding="utf-8")
    (tmp_path / "user.toml").write_text(user, encoding="utf-8")
    return load_settings({}, {"HOME": str(tmp_path)}, root, user_file=tmp_path / "user.toml")


def test_only_the_usual_variables_reach_a_command(tmp_path: Path) -> None:
    settings = _settings(tmp_path, "")
    assert command_environment({**USUAL, **SECRET}, settings) == USUAL


def test_the_user_names_others_and_a_project_cannot(tmp_path: Path) -> None:
    named = _settings(tmp_path, '[checks]\nenv = ["DATABASE_URL", "PIP_INDEX_URL"]\n', '[checks]\nenv = ["GH_PAT"]\n')
    passed = command_environment({**USUAL, **SECRET}, named)
    assert passed == {**USUAL, **{name: SECRET[name] for name in ("DATABASE_URL", "PIP_INDEX_URL")}}
    alone = _settings(tmp_path, "", '[checks]\nenv = ["GH_PAT"]\n')
    assert "GH_PAT" not in command_environment(SECRET, alone)
    with pytest.raises(InvalidSetting, match="checks"):
        command_environment(SECRET, _settings(tmp_path, '[checks]\nenv = "DATABASE_URL"\n'))
