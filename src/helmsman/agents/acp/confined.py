"""An agent in a sandbox: what of its home is its own, what is shared, and what it cannot change.

An agent keeps its sessions beside its settings, hooks, extensions and lists of whom it trusts. What a command could write
there would run outside the sandbox later. So inside it has a home of its own, made anew for each process: files are copies,
directories are those of its real home and cannot be written, but for those that hold sessions, which are shared. No other
process can see it. Beside the home is written which process uses it: also whoever did not start that can tell when it is of
no use any more.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from helmsman.agents.sandbox import Confined, clear_up
from helmsman.base.files import replace_file
from helmsman.base.processes import Process
from helmsman.base.structs import replace
from helmsman.errors import EngineStartFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from helmsman.agents.acp.profile import AgentHome, Profile
    from helmsman.agents.sandbox import Sandbox
    from helmsman.model.options import SessionOptions

_HOMES: Final = "homes"
_HOME: Final = "home"
_USED_BY: Final = "used-by"
_FRESH_SECONDS: Final = 120.0
"""How long a home may be there without a process that uses it: that is about to be started."""
_COPIED_BYTES: Final = 16 * 1024 * 1024
"""What is larger is no setting: it is shown as it is, and cannot be written."""


class PrivateHome:
    """The home of one process in a sandbox, among these places in the state directory. Methods block, briefly."""

    def __init__(self, places: Path, name: str) -> None:
        self._place = (places / _HOMES).resolve() / name  # itself: what a link leads to is not ours to remove
        self._state_dir = places.parent
        self.path = self._place / _HOME

    def used_by(self, process: Process | None) -> None:
        """From now on it is there for as long as this process, None being one that has ended already."""
        replace_file(self._place / _USED_BY, json.dumps(process or Process(0, "")), durable=False)

    def is_of_use(self) -> bool:
        try:
            return Process(*json.loads((self._place / _USED_BY).read_bytes())).is_alive()
        except FileNotFoundError:
            return time.time() - self._place.stat().st_mtime < _FRESH_SECONDS
        except (OSError, ValueError, TypeError):
            return False

    def remove(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)
        clear_up(self._state_dir, self._place.name)


def put_inside(
    profile: Profile,
    options: SessionOptions,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    places: Path,
    sandbox: Sandbox,
) -> tuple[Sequence[str], dict[str, str], PrivateHome]:
    """How a process for such a session is started in a sandbox, and its home there. Blocks.

    Raises:
        EngineStartFailed: The agent could not be made ready for it.
    """
    try:
        profile.prepare(argv, env)
        clear_away(places)
        home = PrivateHome(places, secrets.token_hex(8))
        home.path.mkdir(mode=0o700, parents=True)
        try:
            line, used = _around(profile, options, argv, env, home.path, sandbox)
        except BaseException:
            home.remove()
            raise
    except OSError as error:
        raise EngineStartFailed(f"There is no room for a sandbox: {error}. Free some, then try again.") from error
    return line, used, home


def clear_away(places: Path) -> None:
    """Take away the homes that no process uses any more. Blocks."""
    homes = places / _HOMES
    for place in homes.iterdir() if homes.is_dir() else ():
        with suppress(FileNotFoundError):
            if not (home := PrivateHome(places, place.name)).is_of_use():
                home.remove()


def _around(
    profile: Profile,
    options: SessionOptions,
    argv: Sequence[str],
    env: Mapping[str, str],
    made: Path,
    sandbox: Sandbox,
) -> tuple[Sequence[str], dict[str, str]]:
    assert options.cwd is not None
    directory, home = options.cwd.resolve(), profile.home(env)
    roots = () if options.writes == "nothing" else (directory, *options.writable_roots)
    for path in profile.writable:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    used = profile.environment(env, options, made)
    confined = Confined(
        writable=(*roots, *profile.writable, made),
        own_home=made,
        scratch=made.parent.name,
        directory=directory,
        needs=profile.reads(env),
        variables=profile.variables,
    )
    if home is not None:
        _fill(home, made / home.below)
        used[home.variable] = str(made)
        shared = tuple((home.path / name).resolve() for name in home.shared)
        kept = tuple((home.path / name).resolve() for name in home.kept)
        project = profile.own_project(home.path, directory)
        if project is not None and not project.is_symlink():  # then the sessions of others cannot be written
            project.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not home.kept:  # below what is hidden nothing can be shown for reading
                confined = replace(confined, hides=shared)
            shared = (project.resolve(),)
            kept += () if home.mark is None else (shared[0] / home.mark,)
        needs = (*confined.needs, *(link.resolve() for link in (made / home.below).iterdir() if link.is_symlink()))
        confined = replace(confined, writable=(*confined.writable, *shared), kept=kept, needs=needs)
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
