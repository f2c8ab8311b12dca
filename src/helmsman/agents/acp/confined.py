"""An agent in a sandbox: what of its home is its own, what is shared, and what it cannot change.

An agent keeps its sessions beside its settings, hooks, extensions and lists of whom it trusts. What a command could write
there would run outside the sandbox later. So inside it has a home of its own, made anew for each process and taken away
afterwards: files are copies, directories are those of its real home and cannot be written, but for those that hold sessions,
which are shared. No other process can see it.
"""

from __future__ import annotations

import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from helmsman.agents.acp.profile import is_enforced
from helmsman.agents.sandbox import Confined
from helmsman.base.processes import with_variable
from helmsman.errors import EngineStartFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from helmsman.agents.acp.profile import AgentHome, Profile
    from helmsman.agents.sandbox import Sandbox
    from helmsman.model.options import SessionOptions

_HOMES: Final = "homes"
_VARIABLE: Final = "HELMSMAN_AGENT_HOME"
"""Tells a process that uses a home from others."""
_FRESH_SECONDS: Final = 120.0
"""How long a home may be there without a process that uses it: that is about to be started."""
_COPIED_BYTES: Final = 16 * 1024 * 1024
"""What is larger is no setting: it is shown as it is, and cannot be written."""


async def command_line(
    profile: Profile,
    options: SessionOptions,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    places: Path,
    find: Callable[[], Awaitable[Sandbox]],
) -> tuple[Sequence[str], dict[str, str]]:
    """How a process for such a session is started: in a sandbox, unless it is to have none.

    Raises:
        Unsupported: There is no sandbox that holds.
        EngineStartFailed: The agent could not be made ready for it.
    """
    if not is_enforced(options):
        return argv, await anyio.to_thread.run_sync(profile.environment, env, options, places)
    sandbox = await find()
    try:
        return await anyio.to_thread.run_sync(_around, profile, options, argv, env, places, sandbox)
    except OSError as error:
        raise EngineStartFailed(f"There is no room for a sandbox: {error}. Free some, then try again.") from error


def _around(
    profile: Profile,
    options: SessionOptions,
    argv: Sequence[str],
    env: Mapping[str, str],
    places: Path,
    sandbox: Sandbox,
) -> tuple[Sequence[str], dict[str, str]]:
    assert options.cwd is not None
    profile.prepare(argv, env)
    directory, home = options.cwd.resolve(), profile.home(env)
    roots = () if options.writes == "nothing" else (directory, *options.writable_roots)
    homes = places / _HOMES
    homes.mkdir(mode=0o700, exist_ok=True)
    _clear_away(homes)
    made = (homes / secrets.token_hex(8)).resolve()
    made.mkdir(mode=0o700)
    for path in profile.writable:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    used = {**profile.environment(env, options, made), _VARIABLE: str(made)}
    confined = Confined(writable=(*roots, *profile.writable, made), own_home=made)
    if home is not None:
        _fill(home, made / home.below)
        used[home.variable] = str(made)
        shared = tuple((home.path / name).resolve() for name in home.shared)
        kept = tuple((home.path / name).resolve() for name in home.kept)
        confined = replace(confined, writable=(*confined.writable, *shared), kept=kept)
    return sandbox.around(argv, used, confined)


def _fill(home: AgentHome, inside: Path) -> None:
    """Make a home in which an agent finds all that its own has."""
    inside.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (*home.shared, *home.kept):
        (home.path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    for entry in home.path.iterdir():
        if entry.name not in home.empty:
            with suppress(FileNotFoundError):  # one that is just being replaced
                _show(entry.resolve(), inside / entry.name, copied=entry.name in home.copied)


def _show(real: Path, shown: Path, *, copied: bool) -> None:
    if real.is_dir() and copied:
        shutil.copytree(real, shown, symlinks=True)
    elif real.is_file() and real.stat().st_size <= _COPIED_BYTES:
        shutil.copyfile(real, shown)
        shown.chmod(0o600)
    elif real.is_file() or real.is_dir():
        shown.symlink_to(real)


def _clear_away(homes: Path) -> None:
    """Take away those that no process uses any more."""
    for old in homes.iterdir():
        with suppress(FileNotFoundError):
            is_fresh = time.time() - old.stat().st_mtime < _FRESH_SECONDS
            if not is_fresh and not with_variable(_VARIABLE, str(old.resolve())):
                shutil.rmtree(old, ignore_errors=True)
