"""Sandbox of Codex: the bubblewrap that builds it, and a check that it works here.

Codex runs the first `bwrap` on its PATH that is not below the working directory, outside of any sandbox, and its bundled
one otherwise. A session that can write a directory of PATH could put its own there. And before 0.9 bubblewrap has no
`--argv0`: Codex then looks for its helper in its home, which a sandbox of ours hides, and nothing starts. So Codex gets a
PATH that begins with a directory of ours with the bubblewrap that was chosen here: a link to the system's, or a copy of the
bundled one, which may itself be below the working directory.

For the commands of sessions there is a second directory, with a script in front of that bubblewrap. Codex's sandbox shows
all files to them. Codex can deny reading itself (`permissions.NAME.filesystem`), but with a single such entry 0.145 and
0.155 run an approved command inside the sandbox that was to leave it. So the script hides places: after each mount that
would show one, it puts an empty directory or file over it. What Codex decides (approvals, trust, writable roots) stays the
same. Codex ignores a bubblewrap below the directory of a command, which the model chooses, or below a writable root. So
there are two such directories on PATH, which have only `/` in common: one in the state directory, one for temporary files.
Where a hidden place is in a writable one, the directories around it are mounts, too: a mount cannot be renamed.
If root runs it, commands get no capabilities (before 0.155 Codex leaves them, and hidden places could be unmounted), and
cannot write `/proc/sys`, where `core_pattern` names a program that the kernel runs outside.

The check runs a harmless read-only command with `codex sandbox`, with a scratch directory as its home: the command must run,
and must not be able to write.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.agents.child_process import run_command
from helmsman.agents.codex.processes import codex_environment
from helmsman.agents.protocol import NothingBegun
from helmsman.agents.supervisor.directory import private_directory
from helmsman.base.programs import reason_of_sessions
from helmsman.errors import EngineStartFailed, InvalidSetting
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.sandbox_view import HiddenPlaces

# --- bubblewrap ------------------------------------------------------------------------------------------------------


_NAME: Final = "bwrap"
_SYSTEM: Final = Path("/usr/bin/bwrap")
"""Preferred, because the AppArmor profile of Ubuntu, which lets bubblewrap make namespaces, is attached to this path."""
_BUNDLED: Final = "codex-resources"
_PLACE: Final = "bubblewrap"
_ANSWER_SECONDS: Final = 10.0
_NO_ROOM: Final = (errno.ENOSPC, errno.EROFS, errno.EDQUOT)
_ELSEWHERE: Final = ("/var/tmp", "/dev/shm")  # noqa: S108 - for private directories


def bubblewrap_directory(codex: Path, state_dir: Path) -> Path | None:
    """Return a directory with the bubblewrap that this Codex is to use; None if it needs none. Blocks, briefly.

    Without room in the state directory that is where the bubblewrap is installed, unless a session can write there.

    Raises:
        InvalidSetting: The directory cannot be made in the state directory.
    """
    if sys.platform != "linux":
        return None
    chosen = choose_bubblewrap(codex)
    if chosen is None:  # a Codex from before 0.130: it has no use for one
        return None
    try:
        return _placed(ensure_state_dir(state_dir).resolve() / _PLACE, chosen)
    except OSError as error:
        if error.errno in _NO_ROOM and reason_of_sessions(chosen) is None:
            return chosen.parent
        raise InvalidSetting(
            f"{state_dir} has no place for the bubblewrap of Codex: {error}. Set HELMSMAN_STATE_DIR to "
            "a directory of your own."
        ) from error


def _placed(place: Path, chosen: Path) -> Path:
    directory = private_directory(private_directory(place) / hashlib.sha256(os.fsencode(chosen)).hexdigest()[:12])
    # A link to the system's program, since its AppArmor profile is attached to the path.
    return _with_program(directory, chosen if chosen == _SYSTEM else chosen.read_bytes())


def _with_program(directory: Path, program: Path | bytes) -> Path:
    """Return a directory after a program was put there as `bwrap`: a link to one, or its content."""
    own = directory / _NAME
    if not _is_same(own, program):
        # A private name, then a rename: Codex may start at any moment and must find a whole program.
        made = directory / f".{_NAME}-{os.getpid()}-{threading.get_ident()}"
        made.unlink(missing_ok=True)
        if isinstance(program, Path):
            made.symlink_to(program)
        else:
            try:
                made.write_bytes(program)
            except OSError:
                made.unlink(missing_ok=True)  # part of it would fill a small disk
                raise
            made.chmod(0o500)
        made.replace(own)
    return directory


def _is_same(own: Path, program: Path | bytes) -> bool:
    """Return whether the program in our directory is the intended one, by its content."""
    try:
        if isinstance(program, Path):
            return os.readlink(own) == str(program)  # noqa: PTH115 - as text
        return stat.S_ISREG(own.lstat().st_mode) and own.read_bytes() == program and os.access(own, os.X_OK)
    except OSError:
        return False


def hiding_directories(plain: Path, state_dir: Path, places: HiddenPlaces) -> tuple[Path, ...]:
    """Return directories with a script that runs the bubblewrap in `plain` and hides places. Blocks, briefly.

    There are two if there is room for both: no directory but `/` is above both.

    Raises:
        InvalidSetting: There is no place for any.
    """
    script = _hiding_script(plain / _NAME, places).encode()
    name = _script_name(script)
    first = state_dir.resolve() / _PLACE
    made: list[Path] = []
    refused: OSError | None = None
    # The second place may have no room; one of both is enough to hide places.
    for find in (private_directory, _second_place):
        try:
            made.append(_with_program(private_directory(find(first) / name), script))
        except OSError as error:
            refused = error
    if not made:
        raise InvalidSetting(
            f"There is no place for the bubblewrap of Codex, neither in {state_dir} nor in {' or '.join(_ELSEWHERE)}: "
            f"{refused}. Free some space, or set HELMSMAN_STATE_DIR to a directory of your own."
        ) from refused
    return tuple(made)


def keep_hiding(directories: Sequence[Path]) -> None:
    """Put back a script that was removed, as a cleaner of temporary files may do. Blocks, briefly.

    Codex says nothing when it finds none, and runs a bubblewrap that hides nothing.

    Raises:
        NothingBegun: It cannot be put back.
    """
    scripts: list[bytes] = []
    try:
        scripts += [script for place in directories if (script := _hiding_script_in(place)) is not None]
        if len(scripts) == len(directories):
            return
        for place in directories:
            _with_program(place, scripts[0])
    except (IndexError, OSError) as error:
        raise NothingBegun(
            "The script that hides places from the commands of this Codex engine was removed, and cannot be put back "
            f"({'no copy is left' if isinstance(error, IndexError) else error}). End the engine with "
            "`helmsman hub engines stop`, then send the message again."
        ) from error


def _hiding_script_in(directory: Path) -> bytes | None:
    """Return the script in its directory, which is made if it was removed; None if it is not there, or another one.

    Raises:
        PermissionError: Another user has made the directory in its place.
    """
    private_directory(directory.parent)
    own = private_directory(directory) / _NAME
    try:
        script = own.read_bytes() if os.access(own, os.X_OK) else b""
    except OSError:
        return None
    return script if _script_name(script) == directory.name else None


def _script_name(script: bytes) -> str:
    return hashlib.sha256(script).hexdigest()[:12]


def _second_place(first: Path) -> Path:
    """Return a private directory that has only `/` in common with another one, the same each time.

    A link in the first one records it. Its name is random, so that no other user can create it first.

    Raises:
        OSError: It does not exist.
    """
    link = first / "elsewhere"
    known = _UNRECORDED.get(first)
    with suppress(OSError):
        # The link must lead to a private directory, or another user could have planted it.
        return private_directory(known or link.readlink())
    for base in map(Path, _ELSEWHERE):
        is_writable = base == Path(tempfile.gettempdir())  # for commands of Codex
        # Codex ignores a bubblewrap below a writable root, and one that shares a directory with the first.
        if is_writable or base.parts[1] == first.parts[1] or not base.is_dir():
            continue
        # The script in it has to be executable.
        if os.statvfs(base).f_flag & os.ST_NOEXEC:
            continue
        with suppress(OSError):
            # Another mount namespace, such as a container's, may have other state directories at the same paths.
            prefix = f"{_PREFIX}{_MOUNTS.stat().st_ino}-"
            _clear_second_places(base, prefix)
            made = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
            try:
                (made / _OF).symlink_to(first)
                link.unlink(missing_ok=True)
                link.symlink_to(made)
            except OSError:  # a full disk
                _UNRECORDED[first] = made
            return made
    raise OSError(errno.ENOENT, "no second place for programs")


def _clear_second_places(base: Path, prefix: str) -> None:
    """Remove those with this prefix whose state directory is gone."""
    for place in base.glob(f"{prefix}*"):
        # One of another user must not prevent ours.
        with suppress(OSError):
            if (place / _OF).is_symlink() and not (place / _OF).exists():
                shutil.rmtree(place, ignore_errors=True)


_PREFIX: Final = "helmsman-bubblewrap-"
_MOUNTS: Final = Path("/proc/self/ns/mnt")
_OF: Final = "of"
_UNRECORDED: Final[dict[Path, Path]] = {}
"""Second places that only this process knows."""


def _hiding_script(bubblewrap: Path, places: HiddenPlaces) -> str:
    """Return the script. It looks for places when it runs, so that one which is made later is hidden too."""
    flags: list[str] = []
    hold: list[str] = []
    hide: list[str] = []
    close: list[str] = []
    # Bind mounts around a hidden place, so that no command can rename what contains it.
    for around in places.around:
        path = shlex.quote(str(around))
        hold.append(
            f"""        case {path} in "$below"/*) [ ! -d {path} ] || set -- "$@" --bind {path} {path} ;; esac"""
        )
    # Sorted, so that a directory comes before its content.
    for place in sorted(places.hidden):
        path, hidden = shlex.quote(str(place)), f"flag_{len(flags)}"
        flags.append(hidden)
        close.append(_closing(hidden, path))
        show = ""
        for one in map(shlex.quote, map(str, places.shown_in(place))):
            # Codex still creates mount points in visible places, so they become read-only at the end.
            shown = f"flag_{len(flags)}"
            flags.append(shown)
            hide.append(f'        [ "$below" != {one} ] || {shown}=')
            close.append(_closing(shown, one))
            show += f'\n                [ ! -e {one} ] || {{ set -- "$@" --bind {one} {one}; {shown}=1; }}'
        hide.append(
            f"""        case {path}/ in "$below"/*)
            if [ -d {path} ]; then
                set -- "$@" --perms 555 --tmpfs {path}; {hidden}=1{show}
            elif [ -e {path} ]; then set -- "$@" --ro-bind /dev/null {path}; fi ;;
        esac"""
        )
    return _SCRIPT.format(
        reset=" ".join(f"{flag}=" for flag in flags),
        hold="\n".join(hold) or "        :",
        hide="\n".join(hide),
        close="\n".join(close),
        bubblewrap=shlex.quote(str(bubblewrap)),
    )


def _closing(flag: str, path: str) -> str:
    return f'        [ -z "${{{flag}}}" ] || set -- "$@" --remount-ro {path}'


_SCRIPT: Final = """\
#!/bin/sh
# Runs bubblewrap for Codex, and hides places from the commands of its sessions. Made by Helmsman.
left=$# operands=0 options=1 writable=0 {reset}
while [ "$left" -gt 0 ]; do
    word=$1
    shift
    left=$((left - 1))
    if [ "$options$operands$word" = 10-- ]; then
        options=0
{close}
        set -- "$@" --cap-drop ALL
    fi
    set -- "$@" "$word"
    [ "$options" = 1 ] || continue
    if [ "$operands" = 2 ]; then
        operands=1
    elif [ "$operands" = 1 ]; then
        operands=0 below=${{word%/}}
        if [ "$writable" = 1 ]; then
{hold}
        fi
{hide}
    elif [ "$operands" = proc ]; then
        operands=0
        [ ! -w /proc/sys/kernel/core_pattern ] || set -- "$@" --ro-bind /proc/sys "$word/sys"
    else
        case $word in
        --bind | --bind-try | --bind-fd | --dev-bind | --dev-bind-try) operands=2 writable=1 ;;
        --ro-bind | --ro-bind-try | --ro-bind-fd) operands=2 writable=0 ;;
        --proc) operands=proc ;;
        esac
    fi
done
exec {bubblewrap} "$@"
"""


def choose_bubblewrap(codex: Path) -> Path | None:
    """Return the system's bubblewrap if it is new enough and only root can replace it, else the one beside Codex."""
    if _is_of_the_system(_SYSTEM):
        status = _SYSTEM.stat()
        # Before 0.9 bubblewrap has no `--argv0`, and Codex would look for its helper in a hidden place.
        if _knows_argv0(str(_SYSTEM), status.st_size, status.st_mtime_ns):
            return _SYSTEM
    bundled = codex.resolve().parent.parent / _BUNDLED / _NAME
    return bundled if os.access(bundled, os.X_OK) else None


def _is_of_the_system(program: Path) -> bool:
    """Return whether only root can replace a program."""
    try:
        # The link, its target and the directory: replacing any of them would replace the program.
        places = [program.resolve(strict=True), program, program.parent]
        statuses = [place.stat() for place in places]
    except OSError:
        return False
    return all(one.st_uid == 0 and not one.st_mode & (stat.S_IWGRP | stat.S_IWOTH) for one in statuses)


@lru_cache(maxsize=8)
def _knows_argv0(program: str, _size: int, _changed_ns: int) -> bool:
    try:
        answer = subprocess.run(
            [program, "--help"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_SECONDS,
            check=False,
            # An empty environment: nothing of the caller's may change what the program says.
            env={},
            cwd="/",
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return b"--argv0" in answer.stdout + answer.stderr


# --- check -----------------------------------------------------------------------------------------------------------


_SECONDS: Final = 20.0
_RAN, _WROTE = "ran", "wrote"
_PROBE: Final = f"echo {_RAN}; (echo x > probe) 2>/dev/null && echo {_WROTE}; :"
_PLATFORMS: Final = {"linux": "linux", "darwin": "macos"}

_ADVICE: Final = {
    "linux": "Install bubblewrap and allow unprivileged user namespaces (in a container: run it with them allowed).",
    "darwin": "Check that /usr/bin/sandbox-exec can be run.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCheck:
    """`works` is None where it could not be found out. `fix` says what to do when it does not."""

    works: bool | None
    detail: str
    fix: str = ""


async def check_sandbox(binary: CodexBinary, env: Mapping[str, str] | None = None) -> SandboxCheck:
    """Try the sandbox."""
    platform = _PLATFORMS.get(sys.platform)
    if platform is None:
        return SandboxCheck(works=None, detail=f"not checked on {sys.platform}")
    with tempfile.TemporaryDirectory(prefix="helmsman-sandbox-", ignore_cleanup_errors=True) as scratch:
        # Codex's sandbox leaves small directories wherever temporary files go.
        child_env = codex_environment(binary, Path(scratch), env) | {"TMPDIR": scratch}
        try:
            # Up to 0.130 the platform is a subcommand, afterwards only the command follows.
            run = partial(run_command, env=child_env, cwd=Path(scratch), seconds=_SECONDS)
            about = await run([binary.path, "sandbox", "--help"])
            named = [platform] if f"\n  {platform} " in about.stdout else []
            argv: list[str | Path] = [
                binary.path,
                "sandbox",
                *named,
                "-c",
                'sandbox_mode="read-only"',
                "--",
                "/bin/sh",
                "-c",
                _PROBE,
            ]
            answer = await run(argv)
        except EngineStartFailed as error:
            return SandboxCheck(works=False, detail=error.message)
    if answer.exit_code is None:
        return SandboxCheck(works=None, detail=f"no answer within {_SECONDS:g} s")
    said = answer.stdout.split()
    if _RAN not in said:
        last = next(reversed(answer.stderr.splitlines()), "") or f"exit code {answer.exit_code}"
        return SandboxCheck(works=False, detail=f"a command could not be run in it: {last}", fix=_ADVICE[sys.platform])
    if _WROTE in said:
        return SandboxCheck(
            works=False, detail="a command could write although it was read-only", fix=_ADVICE[sys.platform]
        )
    return SandboxCheck(works=True, detail="a command ran in it and could not write")
