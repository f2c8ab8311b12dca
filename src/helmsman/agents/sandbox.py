"""Sandbox for agents that have none: the whole agent, with all its commands, runs in Codex's sandbox.

`codex sandbox` runs any program under a permission profile (bubblewrap on Linux, Seatbelt on macOS). `SandboxView`
decides which files are visible. Writable are the session's directories, the agent's files of its sessions, and a
temporary directory. The network is open, because an agent must reach its model. Nothing inside can request more access.
It has a separate Codex home, so that no configuration can widen the profile, and needs no login.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
import anyio.to_thread

from helmsman.agents import sandbox_launcher
from helmsman.agents.codex.binary import find_codex
from helmsman.agents.codex.sandbox import bubblewrap_directory
from helmsman.agents.sandbox_view import LISTS, TEMPORARY, SandboxView, sandbox_environment
from helmsman.agents.supervisor.directory import private_directory
from helmsman.base.caller_context import environment
from helmsman.base.concurrency import OnceEach
from helmsman.base.mount_points import MountPoints
from helmsman.base.structs import replace
from helmsman.errors import CodexNotFound, HelmsmanError, InvalidInput, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from helmsman.settings import Settings

NEEDED: Final = "0.145"
"""Older ones have no permission profiles."""
_INSTALL: Final = "Install one with `pip install openai-codex-cli-bin`"
HELD: Final = "Codex's sandbox"
NETWORK: Final = "A sandbox holds it; the network is open to it, since it has to reach its model."
_PROFILE: Final = "helmsman"
_PROBE_SECONDS: Final = 30.0
_SCRATCH_SECONDS: Final = 7 * 86400.0
_SCRATCHES: Final = "scratch"
_PROBE: Final = (
    'ls -A "$1" > "$1/in" && : > "$TMPDIR/in" && echo in; touch "$2/out" 2>/dev/null && echo out; '
    'touch "$1/kept/out" 2>/dev/null && echo out; cat "$2/seen" 2>/dev/null; echo ran'
)
"""Writes to allowed and forbidden places, including forbidden ones inside allowed ones; reads hidden ones.

Names that appear in a new directory are those that the sandbox protects.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confined:
    """Permissions of a program: it may write below these directories, except `kept`, which need not exist.

    Directories of its `own_home` are created. It reads what `SandboxView` shows, its working `directory`, and what it
    `needs` even if that is hidden from others, but nothing that it `hides`. Of variables with secrets it gets those
    that match `variables`. Its temporary files are in the directory `scratch`, which no other sandbox sees. An agent
    must reach its model; other programs need not have the `network`.
    """

    writable: tuple[Path, ...]
    own_home: Path
    scratch: str
    kept: tuple[Path, ...] = ()
    directory: Path | None = None
    needs: tuple[Path, ...] = ()
    hides: tuple[Path, ...] = ()
    variables: tuple[str, ...] = ()
    network: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """Codex's sandbox, as `find_sandbox` found it to work.

    `bubblewrap` is a directory with the one that Codex is to use. With `scoped` no abstract socket outside is reached.
    `variables` are those that the user lets all agents have. `guarded` are the names under which nothing can be made at the
    top of what may be written.
    """

    codex: Path
    home: Path
    view: SandboxView
    bubblewrap: Path | None = None
    variables: tuple[str, ...] = ()
    scoped: bool = False
    guarded: tuple[str, ...] = ()

    def around(
        self, argv: Sequence[str], env: Mapping[str, str], confined: Confined
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command line and the environment that run a program in it. Blocks briefly.

        Raises:
            OSError: A writable directory cannot be created.
        """
        # Only in the agent's own home: a missing directory elsewhere is the user's mistake.
        for path in confined.writable:
            if path.is_relative_to(confined.own_home):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        state_dir = self.home.parent
        scratch = scratch_of(state_dir, confined.scratch)
        # Programs that were killed leave their files behind.
        _clear_scratches(state_dir)
        private_directory(private_directory(scratch.parent) / scratch.name)
        # The age of the directory tells when it was last used.
        os.utime(scratch)
        table = self.view.table(
            argv=argv,
            env=env,
            directory=confined.directory,
            writable=(*confined.writable, scratch),
            kept=confined.kept,
            hides=confined.hides,
            needed=(*confined.needs, self.codex, *(_PYTHON if _is_root() else ())),
        )
        profile = ",".join(f"{json.dumps(path)}={json.dumps(access)}" for path, access in table.items())
        # The sandbox makes empty mount points under these names, on the real file system; note them for removal.
        if self.guarded:
            guarded = (path / name for path in (*confined.writable, scratch) for name in self.guarded)
            mount_points = MountPoints(state_dir)
            mount_points.clear()
            mount_points.expect(confined.scratch, guarded)
        inner = sandbox_environment(env, (*confined.variables, *self.variables))
        inner |= {name: str(scratch) for name in ("TMPDIR", "CLAUDE_CODE_TMPDIR")}
        # Codex finds its bubblewrap on its PATH, and nothing else: the program gets its own PATH and home back inside.
        changed = ("CODEX_HOME", "PATH")
        restored = [word for name in changed for word in ([f"{name}={inner[name]}"] if name in inner else ["-u", name])]
        restored.sort(key=lambda word: "=" in word)  # options of env come first
        return [
            # Landlock restricts a process and its descendants, so the launcher comes before Codex.
            *(_launcher("around") if self.scoped else ()),
            *(str(self.codex), "sandbox", "-c", f'default_permissions="{_PROFILE}"'),
            *("-c", f"permissions.{_PROFILE}.filesystem={{{profile}}}"),
            *("-c", f"permissions.{_PROFILE}.network.enabled={str(confined.network).lower()}"),
            *("--", *self._closing(table), *(_launcher("inside") if _is_root() else ())),
            # `env` inside the sandbox gives the program its own PATH and home back.
            *("/usr/bin/env", *restored, *argv),
        ], {**inner, "PATH": str(self.bubblewrap or self.home), "CODEX_HOME": str(self.home)}

    def _closing(self, table: Iterable[str]) -> tuple[str, ...]:
        """Return what makes a `/tmp` and closes the other directories that exist only in the sandbox for writing."""
        made = self.view.made_directories(table) if LISTS else []
        closed, temporary = (" ".join(map(shlex.quote, places)) for places in (made, TEMPORARY))
        script = f'/bin/mkdir -p -m 700 {temporary}; /bin/chmod a-w {closed} 2>/dev/null; exec "$@"'
        return ("/bin/sh", "-c", script, "sh") if made else ()


_PYTHON: Final = (Path(os.path.realpath(sys.executable)), Path(sys.base_prefix), Path(sandbox_launcher.__file__))
"""Files that the launcher needs inside."""


def _launcher(place: str) -> tuple[str, ...]:
    """Return what starts a program under Landlock, which a process has to set up for itself."""
    return (str(_PYTHON[0]), "-I", "-S", sandbox_launcher.__file__, place)


def _is_root() -> bool:
    return LISTS and os.geteuid() == 0


def scratch_of(state_dir: Path, name: str) -> Path:
    """Return where a program in a sandbox keeps its temporary files.

    In the state directory, where no other user can be first; by a short name, since sockets are made below it.
    """
    short = hashlib.sha256(name.encode()).hexdigest()[:12] if name else ""
    return state_dir.resolve() / _SCRATCHES / short


def remove_scratch(state_dir: Path, name: str) -> None:
    """Remove the temporary files of a program that has ended. Blocks."""
    shutil.rmtree(scratch_of(state_dir, name), ignore_errors=True)


def clear_up(state_dir: Path, name: str) -> None:
    """Remove temporary files and mount points of a program that has ended. Blocks."""
    remove_scratch(state_dir, name)
    MountPoints(state_dir).clear(name)


def _clear_scratches(state_dir: Path) -> None:
    """Remove the temporary files of programs that were started long ago. Blocks."""
    long_ago = time.time() - _SCRATCH_SECONDS
    with suppress(OSError), os.scandir(scratch_of(state_dir, "")) as entries:  # others clear up, too
        for entry in entries:
            if entry.stat(follow_symlinks=False).st_mtime < long_ago:
                shutil.rmtree(entry.path, ignore_errors=True)


def refuse_planted(title: str, directories: Iterable[Path]) -> None:
    """Refuse to start an unsandboxed program where a sandboxed one may have planted links, which it would write
    through.

    `directories` are writable in the sandbox. A link from one of them into another is harmless. Blocks.

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
    """Return the sandbox of these settings' Codex, after a test that it works on this machine.

    Raises:
        Unsupported: No sandbox works here. The message says how to get one.
    """
    if os.name != "posix":
        raise _refusal("On this system there is no sandbox for it", "Use the agent codex")
    try:
        binary = await find_codex(explicit=settings.codex_path, env=env, state_dir=settings.state_dir)
    except CodexNotFound as error:
        raise _refusal(f"The sandbox for it is Codex's own, of {NEEDED} or newer, and there is no Codex") from error
    used = environment() if env is None else env
    view = await anyio.to_thread.run_sync(SandboxView.of, settings, used)
    bubblewrap = await anyio.to_thread.run_sync(bubblewrap_directory, binary.path, settings.state_dir)
    status, home = binary.path.stat(), settings.state_dir.resolve() / "sandbox"
    # The result is kept as long as nothing it depends on changes.
    key = repr((binary.path, status.st_size, status.st_mtime_ns, bubblewrap, home, view, settings.sandbox_variables))

    def make() -> Sandbox:
        sandbox = Sandbox(
            codex=binary.path,
            home=private_directory(home),
            view=view,
            bubblewrap=bubblewrap,
            variables=settings.sandbox_variables,
            scoped=sandbox_launcher.can_scope(),
        )
        trial = _try(sandbox, used)
        if trial.reason is not None and sandbox.scoped:  # a bubblewrap with set-uid gains nothing under Landlock
            sandbox = replace(sandbox, scoped=False)
            trial = _try(sandbox, used)
        if trial.reason is not None:
            raise _refusal(
                f"The sandbox of Codex {binary.version} does not hold here ({trial.reason})",
                "`helmsman doctor` shows what is missing, and docs/troubleshooting.md how to get it",
            )
        return replace(sandbox, guarded=trial.guarded)

    return await _found.get(key, lambda: anyio.to_thread.run_sync(make))


def _refusal(reason: str, advice: str = _INSTALL) -> Unsupported:
    return Unsupported(
        f"{reason}, so neither read-only nor workspace-write could be enforced. {advice}.", capability="sandbox"
    )


class ProbeResult(NamedTuple):
    """Reason why a sandbox does not work; None if it does, with the names that it `guarded`."""

    reason: str | None
    guarded: tuple[str, ...] = ()


def _try(sandbox: Sandbox, env: Mapping[str, str]) -> ProbeResult:
    """Run something in it, in the state directory that it hides: it fails here if an agent could not start. Blocks."""
    import subprocess

    try:
        # Inside the state directory, so that the probe also shows whether a hidden place can be reopened.
        place = Path(tempfile.mkdtemp(prefix="temporary-probe-", dir=sandbox.home.parent))
    except OSError as error:
        return ProbeResult(str(error)[:200])
    try:
        inside, outside, kept = place / "inside", place / "outside", place / "inside" / "kept"
        for directory in (inside, outside, kept):
            directory.mkdir()
        # A file that must not be visible inside.
        (outside / "seen").write_text("seen\n", encoding="utf-8")
        probe = ["/bin/sh", "-c", _PROBE, "sh", str(inside), str(outside)]
        confined = Confined(writable=(inside,), own_home=place, kept=(kept,), scratch=place.name)
        argv, used = sandbox.around(probe, env, confined)
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
        # It wrote where it may, read nothing hidden, and nothing appeared outside.
        if said == ["in", "ran"] and not (outside / "out").exists():
            seen = (inside / "in").read_text(encoding="utf-8").splitlines()
            # Other names that appeared are those that the sandbox protects.
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
        remove_scratch(sandbox.home.parent, place.name)
    return ProbeResult(reason[:200])
