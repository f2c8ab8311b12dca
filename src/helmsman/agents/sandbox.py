"""A sandbox for agents that have none: the whole agent runs in Codex's own, and with it every command that it starts.

`codex sandbox` runs any program under a permission profile (bubblewrap on Linux, Seatbelt on macOS). All may be read but
what is hidden; written may be what the session may write, what the agent keeps of its sessions, and a temporary directory.
The network is open for an agent, which has to reach its model. Nothing inside can ask for more. It has a Codex home of
its own, so that no configuration can widen the profile, and needs no login.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
import anyio.to_thread

from helmsman.agents.codex.agent import find_agent
from helmsman.agents.keeper.places import private_directory
from helmsman.base.concurrency import OnceEach
from helmsman.base.mount_points import MountPoints
from helmsman.base.surroundings import environment
from helmsman.errors import CodexNotFound, HelmsmanError, InvalidInput, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from helmsman.settings import Settings

NEEDED: Final = "0.145"
"""Older ones have no permission profiles."""
_INSTALL: Final = "Install one with `pip install openai-codex-cli-bin`"
HELD: Final = "Codex's sandbox"
NETWORK: Final = "A sandbox holds it; the network is open to it, since it has to reach its model."
_UNENFORCED: Final = "or say `unenforced` to start it without a sandbox: then what you approve can write anywhere."
_PROFILE: Final = "helmsman"
_PROBE_SECONDS: Final = 30.0
_SCRATCH_SECONDS: Final = 7 * 86400.0
_PROBE: Final = (
    'ls -A "$1" > "$1/in" && touch "$3/own/in" && echo in; touch "$2/out" 2>/dev/null && echo out; '
    'touch "$1/kept/out" 2>/dev/null && echo out; cat "$3/seen" 2>/dev/null; echo ran'
)
"""Writes where it may, also below what is hidden, and where it must not, also below what it may; reads what is hidden.

What it sees in a directory of ours, and nobody put there, is what the sandbox guards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confined:
    """What a program may write: these directories and what is below, but for `kept`, which need not be there.

    Those of its `own_home` are made where need be. Its temporary files are its own: those of others with another `scratch`
    it does not even see. An agent has to reach its model; a program that is none need not have the `network`.
    """

    writable: tuple[Path, ...]
    own_home: Path
    scratch: str
    kept: tuple[Path, ...] = ()
    network: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """Codex's sandbox, as `find_sandbox` found it to work. `hidden` can be neither read nor written in it.

    Nor can `sockets`, directories which are made if need be: one that is made later would be seen. `guarded` are the names
    under which nothing can be made at the top of what may be written.
    """

    codex: Path
    home: Path
    hidden: tuple[Path, ...]
    sockets: tuple[Path, ...] = ()
    guarded: tuple[str, ...] = ()

    def around(
        self, argv: Sequence[str], env: Mapping[str, str], confined: Confined
    ) -> tuple[list[str], dict[str, str]]:
        """The command line and the environment that run a program in it. Blocks, briefly.

        Raises:
            OSError: There is no place for what it may write.
        """
        for path in confined.writable:
            if path.is_relative_to(confined.own_home):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = scratch_of(confined.scratch)
        _clear_scratches()
        private_directory(private_directory(scratch.parent) / scratch.name)
        os.utime(scratch)
        files = {":root": "read", str(scratch.parent): "deny", str(scratch): "write"}
        files |= {str(path): "write" for path in confined.writable}
        files |= {str(path): "read" for path in confined.kept}
        for path in self.sockets:
            with suppress(OSError):
                path.mkdir(mode=0o700)
        files |= {str(path): "deny" for path in (*self.hidden, *self.sockets) if path.exists()}
        table = ",".join(f"{json.dumps(path)}={json.dumps(access)}" for path, access in files.items())
        if self.guarded:
            guarded = (path / name for path in (*confined.writable, scratch) for name in self.guarded)
            mount_points = MountPoints(self.home.parent)
            mount_points.clear()
            mount_points.expect(confined.scratch, guarded)
        own = [f"CODEX_HOME={env['CODEX_HOME']}"] if "CODEX_HOME" in env else ["-u", "CODEX_HOME"]
        line = [
            *(str(self.codex), "sandbox", "-c", f'default_permissions="{_PROFILE}"'),
            *("-c", f"permissions.{_PROFILE}.filesystem={{{table}}}"),
            *("-c", f"permissions.{_PROFILE}.network.enabled={str(confined.network).lower()}"),
            *("--", "/usr/bin/env", *own, *argv),
        ]
        temporary = {name: str(scratch) for name in ("TMPDIR", "CLAUDE_CODE_TMPDIR")}
        return line, {**env, **temporary, "CODEX_HOME": str(self.home)}


def spellings(path: Path) -> list[Path]:
    """A path as it was given, and as it is where links lead elsewhere."""
    return sorted({path.absolute(), path.resolve()})


def scratch_of(name: str) -> Path:
    """Where a program in a sandbox keeps its temporary files."""
    return Path(tempfile.gettempdir()).resolve() / f"helmsman-agents-{os.geteuid()}" / name


def remove_scratch(name: str) -> None:
    """Take away the temporary files of a program that has ended. Blocks."""
    shutil.rmtree(scratch_of(name), ignore_errors=True)


def clear_up(state_dir: Path, name: str) -> None:
    """Take away all that is left of a program that has ended: its temporary files, and what was mounted on. Blocks."""
    remove_scratch(name)
    MountPoints(state_dir).clear(name)


def _clear_scratches() -> None:
    """Take away the temporary files of what was last started long ago. Blocks."""
    long_ago = time.time() - _SCRATCH_SECONDS
    with suppress(OSError), os.scandir(scratch_of("")) as entries:  # others clear up, too
        for entry in entries:
            if entry.stat(follow_symlinks=False).st_mtime < long_ago:
                shutil.rmtree(entry.path, ignore_errors=True)


def _runtime_directories(env: Mapping[str, str]) -> list[Path]:
    """Where the sockets of the user's session are: who listens there, such as `systemd --user`, runs things outside."""
    named = {Path(place).resolve() for place in (env.get("XDG_RUNTIME_DIR") or "/", f"/run/user/{os.geteuid()}")}
    return sorted(place for place in named if _is_private(place) and not Path.home().is_relative_to(place))


def _sockets_of_agents() -> tuple[Path, ...]:
    """Where each Claude Code listens for others without an `XDG_RUNTIME_DIR`: one outside does what it is told there."""
    places = sorted({Path(place).resolve() for place in ("/tmp", tempfile.gettempdir())})  # noqa: S108 - theirs, not ours
    return tuple(place / name for place in places for name in ("cc-socks", f"cc-socks-{os.geteuid()}"))


def _is_private(place: Path) -> bool:
    try:
        status = place.stat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


def refuse_planted(title: str, directories: Iterable[Path]) -> None:
    """Refuse to start a program outside where one in the sandbox may have put links, which it would write through.

    `directories` are what is writable in the sandbox. A link from one into another of them leads to nothing more. Blocks.

    Raises:
        InvalidInput: There are such links.
    """
    inside = [directory.resolve() for directory in directories]
    links = (link for directory in inside for link in _links_below(directory))
    found = [link for link in links if not any(Path(os.path.realpath(link)).is_relative_to(one) for one in inside)]
    if found:
        listed = ", ".join(map(str, found[:10]))
        raise InvalidInput(
            f"Among the sessions of {title} there are links that lead elsewhere, as a command in the sandbox could have put "
            f"there: {listed}. Outside the sandbox it would write through them. Take them away, then try again.",
            files=[str(path) for path in found],
        )


def _links_below(directory: Path) -> Iterator[Path]:
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return
    for entry in entries:
        if entry.is_symlink():
            yield Path(entry.path)
        elif entry.is_dir(follow_symlinks=False):
            yield from _links_below(Path(entry.path))


_found: Final = OnceEach[Sandbox]()


async def find_sandbox(settings: Settings, env: Mapping[str, str] | None) -> Sandbox:
    """The sandbox of the Codex that these settings mean, once it was seen to hold on this machine.

    Raises:
        Unsupported: There is none that does. The message says how to get one, or how to do without.
    """
    if os.name != "posix":
        raise _refusal("On this system there is no sandbox for it", "Use the agent codex")
    try:
        binary = await find_agent(settings, env)
    except CodexNotFound as error:
        raise _refusal(f"The sandbox for it is Codex's own, of {NEEDED} or newer, and there is no Codex") from error
    status, used = binary.path.stat(), environment() if env is None else env
    sockets = _runtime_directories(used)
    places = (settings.state_dir, settings.codex_home, *sockets)
    key = " ".join(map(str, (binary.path, status.st_size, status.st_mtime_ns, *places)))

    async def make() -> Sandbox:
        home = await anyio.to_thread.run_sync(private_directory, settings.state_dir.resolve() / "sandbox")
        hidden = (settings.state_dir.resolve(), settings.codex_home.resolve(), *sockets)
        sandbox = Sandbox(codex=binary.path, home=home, hidden=hidden, sockets=_sockets_of_agents())
        trial = await anyio.to_thread.run_sync(_try, sandbox, used)
        if trial.reason is not None:
            raise _refusal(
                f"The sandbox of Codex {binary.version} does not hold here ({trial.reason})", "Try `helmsman doctor`"
            )
        return replace(sandbox, guarded=trial.guarded)

    return await _found.get(key, make)


def _refusal(reason: str, advice: str = _INSTALL) -> Unsupported:
    return Unsupported(
        f"{reason}, so neither read-only nor workspace-write could be enforced. {advice}, {_UNENFORCED}",
        capability="sandbox",
    )


class ProbeResult(NamedTuple):
    """Why a sandbox is of no use here, in a few words; None if it was seen to hold, and what it `guarded`."""

    reason: str | None
    guarded: tuple[str, ...] = ()


def _try(sandbox: Sandbox, env: Mapping[str, str]) -> ProbeResult:
    """Run something in it. Blocks."""
    import subprocess

    place = Path(tempfile.mkdtemp(prefix="helmsman-sandbox-")).resolve()
    try:
        inside, outside, hidden = (place / name for name in ("inside", "outside", "hidden"))
        own, kept = hidden / "own", inside / "kept"
        for directory in (inside, outside, hidden, own, kept):
            directory.mkdir()
        (hidden / "seen").write_text("seen\n", encoding="utf-8")
        tried = Sandbox(codex=sandbox.codex, home=sandbox.home, hidden=(hidden,))
        probe = ["/bin/sh", "-c", _PROBE, "sh", str(inside), str(outside), str(hidden)]
        confined = Confined(writable=(inside, own), own_home=place, kept=(kept,), scratch=place.name)
        argv, used = tried.around(probe, env, confined)
        done = subprocess.run(
            argv,
            env=used,
            cwd=inside,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PROBE_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        said = done.stdout.split()
        if said == ["in", "ran"]:
            seen = (inside / "in").read_text(encoding="utf-8").splitlines()
            return ProbeResult(None, tuple(name for name in seen if name not in ("in", kept.name)))
        if "ran" not in said:
            reason = next(iter(reversed(done.stderr.splitlines())), f"exit code {done.returncode}")
        elif "in" in said:
            reason = "a command could write or read what it must not"
        else:
            reason = "a command could not write where it may"
    except (OSError, subprocess.SubprocessError, HelmsmanError) as error:
        reason = str(error)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        remove_scratch(place.name)
    return ProbeResult(reason[:200])
