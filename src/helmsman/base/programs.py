"""Programs that Helmsman itself starts, resolved to absolute paths that no session can replace.

A session writes in its working directory, and a shell often has directories of a repository on its PATH (`.venv/bin`,
`node_modules/.bin`). A program that Helmsman starts by its name would then be chosen by the session and run outside its
sandbox. So every program is resolved here: on the user's PATH, outside

- the writable roots of known sessions (`remember_writable`),
- every git repository (a session may be opened in it later),
- places that other users can write,
- relative or empty entries of PATH, and shims, which choose a program by files of the working directory.

Every symbolic link on the way must be in such a place too. What a program starts in turn is found on the PATH that it is
given: `environment_for` gives it one without the refused entries. Codex starts programs itself, outside its sandbox (git,
MCP servers), so it gets the PATH of `path_out_of_reach`. The commands of agents keep the user's own PATH: they run in a
sandbox.

Imported by thin commands: only what costs nothing.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from contextlib import suppress

from helmsman.base.user_directories import home_directory, is_root, upwards, usual_state_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOTS_FILE = "writable-roots"
"""File in the state directory with the real paths that sessions may write, separated by NULs."""
_CHECKED_SECONDS = 5.0
"""PATH is examined again after this time: a repository may have been made around one of its entries."""
_MOST_LINKS = 40
_SHIMS = "shims"
"""Directory name of shims in pyenv, rbenv, nodenv, asdf and mise. Shims choose a program by the working directory."""
_CHOOSERS = frozenset({"volta-shim"})
_IS_SHIM = "it is a shim, which chooses a program by files of the working directory"
_SYSTEM_PLACES = frozenset({"/", "/etc", "/usr", "/usr/local", "/opt/homebrew", "/home/linuxbrew/.linuxbrew"})
"""Repositories of system tools (etckeeper, Homebrew), not projects."""
_ADMINISTRATORS = frozenset({0, 80} if sys.platform == "darwin" else {0})
"""Groups whose members can become root anyway. Homebrew's directories are writable for `admin`."""


def find_program(name: str, env: Mapping[str, str] | None = None, *, is_agent: bool = False) -> str | None:
    """Return the absolute path of a program on the PATH of `env` (by default the caller's), or None if it has none.

    The answer is kept for as long as it is safe. For an agent a session in the home, or above it, does not count: agents
    are installed in the home, and such a session could change what a login shell runs as well.

    Raises:
        ProgramRefused: PATH has the program only where a session or another user could have put it.
    """
    used = _environment(env)
    key = (name, used.get("PATH", os.defpath), home_directory(used))
    places = Places.of(used, is_agent=is_agent)
    known = _FOUND.get(key)
    # Checked again on every use, since a session may have been opened around it since.
    if known is not None and os.access(known, os.X_OK) and places.reason_against(known) is None:
        return known
    refused: tuple[str, str] | None = None
    for entry in key[1].split(os.pathsep):
        for path in _spellings(entry, name):
            if not os.path.isfile(path) or not os.access(path, os.X_OK):  # noqa: PTH113
                continue
            found = os.path.join(os.path.realpath(entry), os.path.basename(path))  # noqa: PTH118, PTH119
            reason = places.reason_against_entry(entry) or places.reason_against(found)
            if reason is None:
                _FOUND[key] = found
                return found
            # The first refusal is reported: later entries would not have been used.
            refused = refused or (path, reason)
    if refused is not None:
        _refuse(name, *refused)
    return None


def available(name: str, env: Mapping[str, str] | None = None) -> str | None:
    """Return what `find_program` finds, and None also for a program that is refused."""
    from helmsman.errors import ProgramRefused  # not for thin commands

    with suppress(ProgramRefused):
        return find_program(name, env)
    return None


def check_program(path: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> str:
    """Return the path of a program that the user named in their own configuration.

    The user's word counts for repositories and for places of other users. Directories that sessions write do not become
    safe by it.

    Raises:
        ProgramRefused: A known session may write it.
    """
    path = os.path.abspath(path)  # noqa: PTH100
    if (reason := Places.of(_environment(env), is_agent=True).reason_of_sessions(path)) is not None:
        _refuse(os.path.basename(path), path, reason)  # noqa: PTH119
    return path


def check_program_words(command: str, env: Mapping[str, str] | None = None) -> None:
    """Check the program of a command line that the user configured, such as a pager.

    A bare name is found on PATH; a path must not lead to where a session can write.

    Raises:
        ProgramRefused: It does.
    """
    # Variables before the program, as in `LESS=-R less`.
    words = (word for word in command.split() if "=" not in word)
    program = next(words, "").strip("\"'")
    if "/" not in program:
        return
    used = _environment(env)
    if program.startswith("~/"):
        program = home_directory(used) + program[1:]
    path = os.path.abspath(program)  # noqa: PTH100
    if (reason := Places.of(used).reason_against(path)) is not None:
        _refuse(os.path.basename(path), path, reason)  # noqa: PTH119


def reason_of_sessions(path: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> str | None:
    """Return which known sessions could replace a program, as a clause; None if none could."""
    return Places.of(_environment(env)).reason_of_sessions(os.fspath(path))


def python_places() -> list[str]:
    """Return where the Python that runs Helmsman is, with its installed packages, as real paths."""
    return list(dict.fromkeys(map(os.path.realpath, (sys.prefix, sys.base_prefix))))


def installation_places() -> list[str]:
    """Return the directories of the running code: the package, and Python with its installed packages."""
    return [os.path.dirname(os.path.dirname(os.path.realpath(__file__))), *python_places()]  # noqa: PTH120


def is_out_of_reach(path: str, env: Mapping[str, str] | None = None) -> bool:
    """Return whether a file named by a variable is outside of repositories and of all that known sessions may write."""
    return Places.of(_environment(env)).reason_of_sessions_or_repositories(path) is None


def with_interpreter(path: str, env: Mapping[str, str] | None = None) -> list[str]:
    """Return the words that start a program: a script for `/usr/bin/env` gets the interpreter that is safe to start.

    Raises:
        ProgramRefused: PATH has the interpreter only where a session or another user could have put it.
    """
    try:
        with open(path, "rb") as opened:  # noqa: PTH123
            first = opened.readline(256)
    except OSError:
        return [path]
    words = os.fsdecode(first).split()
    if not words or words[0] not in ("#!/usr/bin/env", "#!/bin/env"):
        return [path]
    # `env -S` splits the rest of the line into words.
    asked = [word for word in words[1:] if word != "-S"]
    # Other options of `env` change the environment; such a script is started as it is.
    if not asked or "=" in asked[0] or asked[0].startswith("-"):
        return [path]
    found = find_program(asked[0], env)
    return [path] if found is None else [found, *asked[1:], path]


def safe_path(env: Mapping[str, str] | None = None) -> str:
    """Return the PATH of `env` without the entries in which a session or another user could put a program."""
    used = _environment(env)
    places = Places.of(used)
    key = (used.get("PATH", os.defpath), home_directory(used), places.roots)
    at, known = _SAFE_PATHS.get(key, (-_CHECKED_SECONDS, ""))
    # Not kept for ever: a repository may be made around an entry.
    if time.monotonic() - at < _CHECKED_SECONDS:
        return known
    kept = (os.path.realpath(entry) for entry in key[0].split(os.pathsep) if not places.reason_against_entry(entry))
    safe = os.pathsep.join(dict.fromkeys(kept)) or os.defpath
    if len(_SAFE_PATHS) > 100:
        _SAFE_PATHS.clear()
    _SAFE_PATHS[key] = (time.monotonic(), safe)
    return safe


def path_out_of_reach(env: Mapping[str, str] | None = None) -> str:
    """Return the PATH of `env`, as it is written, without the entries that a session may write now or later.

    For agents: their tools may be shims, and may be in a home in which a session works.
    """
    used = _environment(env)
    places = Places.of(used, is_agent=True)
    entries = used.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(
        entry
        for entry in entries
        if os.path.isabs(entry) and places.reason_of_sessions_or_repositories(entry) is None  # noqa: PTH117
    )


def replaceable_entry(path: str, env: Mapping[str, str] | None = None) -> str | None:
    """Return the first entry of a PATH in which a known session could put a program, or None."""
    places = Places.of(_environment(env), is_agent=True)
    return next((entry for entry in path.split(os.pathsep) if entry and places.reason_of_sessions(entry)), None)


def environment_for(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment for a program that Helmsman starts: as the caller's, with the PATH of `safe_path`."""
    used = _environment(env)
    return {**used, "PATH": safe_path(used)}


def remember_writable(state_dir: str | os.PathLike[str], roots: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Record directories that a session may write, before it begins. No program is taken from them from now on.

    Return the real paths of those that were not known. Without a place for the record, only this process knows them.
    """
    file = os.path.join(state_dir, ROOTS_FILE)  # noqa: PTH118
    # All state directories that this process has seen count.
    _FILES.add(file)
    known = _roots_in(file) | _UNRECORDED
    fresh = [real for real in dict.fromkeys(map(os.path.realpath, roots)) if real not in known]
    if not fresh:
        return []
    try:
        # Separators on both sides, since a killed process may have left half an entry.
        _append(file, os.fsencode("".join(f"\0{real}\0" for real in fresh)))  # the last one may have been cut
    except OSError as error:
        import logging  # a full disk is rare

        _UNRECORDED.update(fresh)
        logging.getLogger(__name__).warning(
            "What sessions may write cannot be recorded, so other processes of Helmsman do not know it: %s", error
        )
    return fresh


def _append(file: str, lines: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        # One write, so that lines of several processes do not mix.
        if os.write(descriptor, lines) != len(lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)
    finally:
        os.close(descriptor)


class Places:
    """Places that programs must not come from, according to the user's home and the writable roots of known sessions."""

    __slots__ = ("_home", "roots")

    def __init__(self, home: str, roots: frozenset[str]) -> None:
        self._home = os.path.realpath(home)
        self.roots = roots

    @classmethod
    def of(cls, env: Mapping[str, str], *, is_agent: bool = False) -> Places:
        """Return the places for a user by their environment. For an agent, roots around the home do not count."""
        named = env.get("HELMSMAN_STATE_DIR", "")
        # The record of a state directory counts even if this process does not use it.
        usual = named if os.path.isabs(named) else usual_state_directory(env)  # noqa: PTH117
        files = _FILES | {os.path.join(usual, ROOTS_FILE)}  # noqa: PTH118
        home = home_directory(env)
        roots: frozenset[str] = frozenset(_UNRECORDED).union(*map(_roots_in, files))
        # Agents are installed in the home, so a session in it must not exclude them.
        return cls(home, roots.difference(upwards(os.path.realpath(home))) if is_agent else roots)

    def reason_against_entry(self, entry: str) -> str | None:
        """Return why no program is taken from an entry of PATH, as a clause; None if it is safe."""
        if not os.path.isabs(entry):  # noqa: PTH117
            return "PATH names its directory relative to the working directory"
        real = os.path.realpath(entry)
        if os.path.basename(real) == _SHIMS:  # noqa: PTH119
            return _IS_SHIM
        return self._reason_of_place(real) or _reason_of_others(real, is_place=True)

    def reason_against(self, path: str) -> str | None:
        """Return why a program may not be started, as a clause; None if it may. Every link on its path counts."""
        # Each link on the way could be replaced, not only the file itself.
        for place in _links_and_target(path):
            if os.path.basename(place) in _CHOOSERS:  # noqa: PTH119
                return _IS_SHIM
            if (reason := self._reason_of_place(place) or _reason_of_others(place)) is not None:
                return reason
        return None

    def reason_of_sessions(self, path: str) -> str | None:
        """Return which sessions could replace a program, as a clause; None if none could."""
        reasons = (self._reason_of_roots(place) for place in _links_and_target(path))
        return next((reason for reason in reasons if reason is not None), None)

    def reason_of_sessions_or_repositories(self, path: str) -> str | None:
        """Return how a session could replace a file, now or later, as a clause; None if none could."""
        reasons = (self._reason_of_place(place) for place in _links_and_target(os.path.abspath(path)))  # noqa: PTH100
        return next((reason for reason in reasons if reason is not None), None)

    def _reason_of_place(self, path: str) -> str | None:
        return self._reason_of_roots(path) or self._reason_of_repository(path)

    def _reason_of_roots(self, path: str) -> str | None:
        for place in upwards(path):
            # A root-owned directory inside a root cannot be changed by a session of this user.
            if place in self.roots and _can_change(path, place):
                return f"sessions may write in {place}"
        return None

    def _reason_of_repository(self, path: str) -> str | None:
        for place in upwards(path):
            if is_root(place) and not self._is_for_tools(place) and _can_change(path, place):
                return f"it is inside the repository {place}, where sessions may write"
        return None

    def _is_for_tools(self, repository: str) -> bool:
        """Return whether a repository belongs to a version manager (`~/.nvm`, `~/.pyenv`) or is the user's home."""
        above, name = os.path.split(repository)
        hidden = above == self._home and name.startswith(".")
        shared = above in (f"{self._home}/.config", f"{self._home}/.local/share")
        return repository in _SYSTEM_PLACES or repository == self._home or hidden or shared


_FOUND: dict[tuple[str, str, str], str] = {}
"""Programs found, by name, PATH and home. Each is checked again on use, so agents need no separate entry."""
_SAFE_PATHS: dict[tuple[str, str, frozenset[str]], tuple[float, str]] = {}
_FILES: set[str] = set()
_UNRECORDED: set[str] = set()
"""Directories that sessions of this process may write, and that are in no file."""
_ROOTS: dict[str, tuple[tuple[int, int, int], frozenset[str]]] = {}


def _environment(env: Mapping[str, str] | None) -> Mapping[str, str]:
    if env is not None:
        return env
    from helmsman.base.caller_context import environment  # not for thin commands

    return environment()


def _roots_in(file: str) -> frozenset[str]:
    try:
        status = os.stat(file)  # noqa: PTH116
        identity = (status.st_ino, status.st_size, status.st_mtime_ns)
        known, roots = _ROOTS.get(file, (None, frozenset[str]()))
        # The file only grows, so size and time tell a change.
        if known != identity:
            with open(file, "rb") as opened:  # noqa: PTH123
                lines = os.fsdecode(opened.read()).split("\0")
            # Half an entry, from a full disk, is no absolute path.
            roots = frozenset(line for line in lines if line.startswith("/") and not _is_everything(line))
            _ROOTS[file] = (identity, roots)
    except OSError:
        return frozenset()
    return roots


def _is_everything(root: str) -> bool:
    """Return whether a root covers everything. For root, a session in `/` could replace every program."""
    return root == "/" and hasattr(os, "geteuid") and os.geteuid() == 0


def _spellings(entry: str, name: str) -> list[str]:
    path = os.path.join(entry, name)  # noqa: PTH118
    return [path] if os.name == "posix" else [path, *(f"{path}{suffix}" for suffix in (".exe", ".cmd", ".bat"))]


def _links_and_target(path: str) -> Iterator[str]:
    """Yield the real location of every link that is followed on the way to a file, and then that of the file itself."""
    if os.name != "posix":
        yield os.path.realpath(path)
        return
    # Walked by hand: `realpath` does not tell the links on the way.
    rest, place, followed = path.split("/")[1:], "/", 0
    while rest:
        name = rest.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            place = os.path.dirname(place)  # noqa: PTH120
            continue
        here = os.path.join(place, name)  # noqa: PTH118
        try:
            target = os.readlink(here)  # noqa: PTH115
        except OSError:
            place = here
            continue
        yield here
        followed += 1
        # As the kernel does; a circle of links has no target.
        if followed > _MOST_LINKS:
            break
        rest[:0] = target.split("/")
        place = "/" if target.startswith("/") else place
    yield place


def _can_change(path: str, place: str) -> bool:
    """Return whether a process of this user could replace a path at or below a place."""
    for one in upwards(path):
        try:
            # The link itself matters, not its target.
            status = os.lstat(one)
        except OSError:
            return True
        if status.st_uid == _user() or (not stat.S_ISLNK(status.st_mode) and os.access(one, os.W_OK)):
            return True
        if one == place:
            return False
    return True


def _reason_of_others(path: str, *, is_place: bool = False) -> str | None:
    """Return how users other than this one and root could replace a path. A sticky parent does no harm."""
    if os.name != "posix":
        return None
    for one in upwards(path):
        try:
            status = os.lstat(one)
        except OSError:
            return f"{one} cannot be examined"
        if status.st_uid not in _owners():
            return f"{one} belongs to another user"
        if stat.S_ISLNK(status.st_mode):
            continue
        # In a sticky directory other users cannot replace entries that are not theirs.
        is_sticky = bool(status.st_mode & stat.S_ISVTX) and not (is_place and one == path)
        if status.st_mode & stat.S_IWOTH and not is_sticky:
            return f"other users can write {one}"
        if status.st_mode & stat.S_IWGRP and not is_sticky and not _is_own_group(status.st_gid):
            return f"the users of a group can write {one}"
    return None


def _user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else -1


def _owners() -> frozenset[int]:
    """Return who may own a program: root and this user. Without a root, as in a sandbox, root's files are `nobody`'s."""
    global _OWNERS
    if _OWNERS is None:
        # The owner can always change permissions.
        owners = {0, _user()}
        with suppress(OSError, ValueError):
            with open("/proc/self/uid_map", "rb") as opened:  # noqa: PTH123
                mapped = [line.split() for line in opened]
            # In a user namespace without root, files of root appear as the overflow user's.
            if not any(int(first) == 0 for first, *_ in mapped):
                with open("/proc/sys/kernel/overflowuid", "rb") as opened:  # noqa: PTH123
                    owners.add(int(opened.read()))
        _OWNERS = frozenset(owners)
    return _OWNERS


_OWNERS: frozenset[int] | None = None


def _is_own_group(group: int) -> bool:
    """Return whether a group contains only this user and administrators, like a user's private group."""
    if group in _ADMINISTRATORS:
        return True
    import grp
    import pwd  # a group that can write is rare

    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    # A primary group is not listed among its members, so compare the name as well.
    return found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name, "root"}


def _refuse(name: str, path: str, reason: str) -> None:
    from helmsman.errors import ProgramRefused  # not for thin commands

    raise ProgramRefused(
        f"Helmsman does not start {path}: {reason}, so what runs there need not be your {name}. Install {name} in a "
        "directory that only you or the system writes, and put that directory on PATH.",
        program=name,
        path=path,
    )
