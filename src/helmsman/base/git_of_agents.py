"""Environment for the git that agents run.

Agents run git on their own, and git runs the programs that a repository's configuration names. An agent works in the
repository itself, so it cannot be given a view (`git_view.py`). Instead, environment variables override each setting
that names a program, unless the user's own configuration names the same one. Hooks stay: they belong to commands that
change something, which need approval.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from helmsman.base.git import settings_around
from helmsman.base.git_view import FILTER, REFUSED_FILTER, REPOSITORYS, USERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from helmsman.base.git_view import Setting

_ALWAYS: Final = {
    "core.fsmonitor": "false",
    "log.showSignature": "false",
    "protocol.ext.allow": "never",
    "safe.bareRepository": "explicit",  # a directory that looks like a git directory may be files of the tree
}
"""Set always, also for repositories that the agent finds later."""
_SHOWING: Final = re.compile(r"(diff\..+\.textconv|core\.pager|pager\..+)\Z", re.DOTALL)
"""Programs that only display content. They are replaced by the plain content."""
_PROGRAM: Final = re.compile(
    r"""(
        alias\..+ | core\.(askpass|editor|gitproxy|sshcommand|alternaterefscommand)
        | diff\.external | credential\.(.+\.)?helper | gpg\.(.+\.)?(program|defaultkeycommand) | hook\..+\.command
        | remote\..+\.(uploadpack|receivepack|vcs) | (sequence|gui)\.editor | interactive\.difffilter
        | (web|help|instaweb)\.browser | man\.viewer | .+\.(cmd|command|driver|packobjectshook|tunnel)
    )\Z""",
    re.VERBOSE | re.DOTALL,
)
_NO_PROGRAM: Final = "false"
"""Program that always fails. Git then reports the setting."""
_LAZY: Final = re.compile(r"(extensions\.partialclone|remote\..+\.promisor)\Z", re.DOTALL)


def careful_environment(env: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return an environment in which git runs no program that the repository around a directory names.

    Blocks, briefly.
    """
    settings = settings_around(directory)
    pairs = _ALWAYS | _instead(settings)
    given = env.get("GIT_CONFIG_COUNT", "")
    first = int(given) if given.isdecimal() else 0
    made = {**env, "GIT_CONFIG_COUNT": str(first + len(pairs)), "GIT_OPTIONAL_LOCKS": "0"}
    for number, (name, value) in enumerate(pairs.items(), first):
        made |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    if any(_LAZY.match(setting.key) for setting in settings if setting.scope in REPOSITORYS):
        made["GIT_NO_LAZY_FETCH"] = "1"  # git would fetch missing objects with a program that the remote names
    return made


def _instead(settings: Iterable[Setting]) -> dict[str, str]:
    """Return replacements for the programs that a repository names: the user's own, or none."""
    own: dict[str, str] = {}
    named: dict[str, str] = {}
    for setting in settings:
        if setting.scope in USERS:
            own[setting.key] = setting.value or ""
        elif setting.scope in REPOSITORYS:
            if found := FILTER.match(setting.key):
                # One that is required and fails: without it files would silently get other content.
                named |= {f"filter.{found['name']}.{key}": value for key, value in REFUSED_FILTER.items()}
                named[f"filter.{found['name']}.process"] = ""
            elif _SHOWING.match(setting.key):
                named[setting.key] = "cat"
            elif _PROGRAM.match(setting.key):
                named[setting.key] = _NO_PROGRAM
    return {name: own.get(name, value) for name, value in named.items()}
