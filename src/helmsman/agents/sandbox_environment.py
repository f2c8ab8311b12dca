"""Variables for a program in a sandbox: none that lead to a socket outside, and no secrets but those it needs."""

from __future__ import annotations

import os
import re
import stat
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SOCKETS: Final = frozenset(
    {
        *(
            "CONTAINER_HOST",
            "DBUS_LAUNCHD_SESSION_BUS_SOCKET",
            "DISPLAY",
            "DOCKER_HOST",
            "GPG_AGENT_INFO",
            "ICEAUTHORITY",
        ),
        *(
            "GIT_ASKPASS",
            "GNOME_KEYRING_CONTROL",
            "INVOCATION_ID",
            "JOURNAL_STREAM",
            "KITTY_LISTEN_ON",
            "LISTEN_FDNAMES",
        ),
        *("LISTEN_FDS", "LISTEN_PID", "MANAGERPID", "NOTIFY_SOCKET", "NVIM", "NVIM_LISTEN_ADDRESS", "PULSE_SERVER"),
        *("SESSION_MANAGER", "SSH_AGENT_PID", "SSH_ASKPASS", "STY", "SUDO_ASKPASS", "SWAYSOCK", "I3SOCK", "TMUX"),
        *("TMUX_PANE", "VSCODE_GIT_ASKPASS_EXTRA_ARGS", "VSCODE_GIT_ASKPASS_MAIN", "VSCODE_GIT_ASKPASS_NODE"),
        *("WAYLAND_DISPLAY", "WSL_INTEROP", "XAUTHORITY", "XDG_RUNTIME_DIR", "ZELLIJ", "ZELLIJ_SESSION_NAME"),
    }
)
_SOCKET_NAME: Final = re.compile(r"(.*_)?(SOCK|SOCKET|SOCKET_PATH|BUS_ADDRESS|IPC_HANDLE|IPC_HOOK|IPC_HOOK_CLI)")
_SECRET_WORD: Final = re.compile(r"(.*_)?DSN")
"""Redaction leaves these in texts."""
_GIT_SETTING: Final = re.compile(r"GIT_CONFIG_(KEY|VALUE)_\d+")
"""Helmsman sets these itself: the names of settings, and harmless values."""


_CLOUD_PLACES: Final = {"aws": (".aws",), "google": (".config/gcloud",), "azure": (".azure",)}
_CLOUD_VARIABLES: Final = {"aws": ("AWS_*",), "google": ("GOOGLE_*", "VERTEX_*"), "azure": ("AZURE_*",)}
_GOOGLE_FILE: Final = "GOOGLE_APPLICATION_CREDENTIALS"


def cloud_logins(env: Mapping[str, str], clouds: Mapping[str, str]) -> tuple[Path, ...]:
    """Return where the logins are of the clouds through which an agent reaches its model.

    `clouds` says which variable, if it is set, means which cloud.
    """
    used = {cloud for name, cloud in clouds.items() if env.get(name)}
    home = Path(env.get("HOME") or Path.home())
    places = [home / place for cloud in sorted(used) for place in _CLOUD_PLACES[cloud]]
    named = [Path(env[_GOOGLE_FILE])] if "google" in used and env.get(_GOOGLE_FILE) else []
    return (*places, *named)


def cloud_variables(env: Mapping[str, str], clouds: Mapping[str, str]) -> tuple[str, ...]:
    """Return the patterns of the variables that hold those logins."""
    return tuple(name for variable, cloud in clouds.items() if env.get(variable) for name in _CLOUD_VARIABLES[cloud])


def sandbox_environment(env: Mapping[str, str], passed: Sequence[str]) -> dict[str, str]:
    """Return the variables that a program in a sandbox gets. Blocks, briefly.

    `passed` are patterns (`ANTHROPIC_*`) for secrets that it needs. Nothing makes a variable pass that names a socket.
    """
    return {
        name: value
        for name, value in env.items()
        if not _names_socket(name, value)
        and (not _is_secret(name, value) or any(fnmatchcase(name, pattern) for pattern in passed))
    }


def _names_socket(name: str, value: str) -> bool:
    if name in _SOCKETS or _SOCKET_NAME.fullmatch(name) or value.startswith(("unix:", "fd://", "npipe:")):
        return True
    if not value.startswith("/") or os.pathsep in value:
        return False
    try:
        return stat.S_ISSOCK(os.stat(value.partition(",")[0]).st_mode)  # noqa: PTH116 - tmux adds more after a comma
    except (OSError, ValueError):
        return False


def _is_secret(name: str, value: str) -> bool:
    if not value or _GIT_SETTING.fullmatch(name):
        return False
    return _SECRET_WORD.fullmatch(name) is not None or redact(f"{name}={value}") != f"{name}={value}"
