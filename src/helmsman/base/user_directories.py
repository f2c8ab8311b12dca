"""Directories of a user's settings and state, from the environment of the caller. Front ends and the hub must agree.

Imported by fast commands: standard library only.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NOBODY_KNOWS = "~"
"""Home of a user without one."""


def home_directory(env: Mapping[str, str]) -> str:
    named = env.get("USERPROFILE" if sys.platform == "win32" else "HOME")
    return named or os.path.expanduser("~")  # noqa: PTH111 - pathlib costs more than a whole pipe


def config_directory(env: Mapping[str, str]) -> str:
    """Return the directory of the user's own `helmsman.toml`."""
    return _usual(env, "XDG_CONFIG_HOME", ".config")


def usual_state_directory(env: Mapping[str, str]) -> str:
    """Return the default state directory."""
    return _usual(env, "XDG_STATE_HOME", ".local/state")


def _usual(env: Mapping[str, str], variable: str, below_home: str) -> str:
    if sys.platform == "win32":
        return f"{env.get('LOCALAPPDATA') or home_directory(env) + '/AppData/Local'}/helmsman"
    if (named := env.get(variable, "")).startswith("/"):  # the XDG specification says to ignore relative paths
        return f"{named}/helmsman"
    if sys.platform == "darwin":
        below_home = "Library/Application Support"
    return f"{home_directory(env)}/{below_home}/helmsman"
