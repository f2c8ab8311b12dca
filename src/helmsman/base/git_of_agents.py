"""Git as agents run it: they ask it what it knows unasked, and it runs whatever a repository's configuration names.

An agent works with the repository itself, so it cannot be shown a view (`git_view.py`). It is started with variables that
beat the repository's configuration: programs that this names are not run, but for those that are the person's own settings
too. Hooks are left alone: they belong to commands that change something, and these are asked about.
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
"""Also for the repositories that it comes upon later."""
_SHOWING: Final = re.compile(r"(diff\..+\.textconv|core\.pager|pager\..+)\Z", re.DOTALL)
"""Programs that only show what is there: it is shown as it is."""
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
"""It fails, and git says which setting was of no use."""
_LAZY: Final = re.compile(r"(extensions\.partialclone|remote\..+\.promisor)\Z", re.DOTALL)


def careful_environment(env: Mapping[str, str], directory: Path) -> dict[str, str]:
    """An environment in which git runs no program that the repository around a directory names. Blocks, briefly."""
    settings = settings_around(directory)
    pairs = _ALWAYS | _instead(settings)
    given = env.get("GIT_CONFIG_COUNT", "")
    first = int(given) if given.isdecimal() else 0
    made = {**env, "GIT_CONFIG_COUNT": str(first + len(pairs)), "GIT_OPTIONAL_LOCKS": "0"}
    for number, (name, value) in enumerate(pairs.items(), first):
        made |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    if any(_LAZY.match(setting.key) for setting in settings if setting.scope in REPOSITORYS):
        made["GIT_NO_LAZY_FETCH"] = "1"  # what is missing would be fetched by whatever its remote names
    return made


def _instead(settings: Iterable[Setting]) -> dict[str, str]:
    """What holds in place of the programs that a repository names: the person's own, or none."""
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
