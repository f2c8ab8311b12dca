"""Where a user's settings and state are, by the environment of whoever asks: doors and hub have to agree on it.

Imported by pipes and thin commands, which are to start in no time: only what costs nothing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NOBODY_KNOWS = "~"
"""The home of a user who has none."""


def home_directory(env: Mapping[str, str]) -> str:
    named = env.get("USERPROFILE" if sys.platform == "win32" else "HOME")
    return named or os.path.expanduser("~")  # noqa: PTH111 - pathlib costs more than a whole pipe


def config_directory(env: Mapping[str, str]) -> str:
    """Where the user's own `helmsman.toml` is, and what is beside it."""
    return _usual(env, "XDG_CONFIG_HOME", ".config")


def usual_state_directory(env: Mapping[str, str]) -> str:
    """Where state is kept unless a setting says otherwise."""
    return _usual(env, "XDG_STATE_HOME", ".local/state")


def _usual(env: Mapping[str, str], variable: str, below_home: str) -> str:
    if sys.platform == "win32":
        return f"{env.get('LOCALAPPDATA') or home_directory(env) + '/AppData/Local'}/helmsman"
    if (named := env.get(variable, "")).startswith("/"):  # a relative one is to be ignored, says its specification
        return f"{named}/helmsman"
    if sys.platform == "darwin":
        below_home = "Library/Application Support"
    return f"{home_directory(env)}/{below_home}/helmsman"
