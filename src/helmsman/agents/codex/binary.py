"""Find Codex on this machine: its path, version and features.

`find_codex` tries the configured path, `codex` on PATH, and the wheel `openai-codex-cli-bin`, and takes the first that
answers like Codex. The `codex` of npm is a Node script around the real program. Running that program directly starts
faster and leaves no process between Helmsman and the process that it must be able to end.

Only `--version` is asked, with a scratch directory as the home so that none of the user's files is touched. The version says
what that Codex can do (`features`).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import platform
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import anyio
import anyio.to_thread

from helmsman.agents.child_process import run_command
from helmsman.agents.codex.features import Feature, Version
from helmsman.agents.protocol import Capabilities, Capability
from helmsman.base.caller_context import environment
from helmsman.base.files import file_lock, replace_file
from helmsman.base.json_values import json_object_in
from helmsman.base.programs import Places, find_program
from helmsman.base.redaction import redact
from helmsman.base.structs import Value
from helmsman.errors import CodexNotFound, EngineStartFailed, ProgramRefused, Unsupported
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

logger = logging.getLogger(__name__)

_INSTALL: Final = "Install Codex with `pip install openai-codex-cli-bin` or `npm install -g @openai/codex`"
_PATH_ADVICE: Final = "CODEX_CLI_PATH (or codex_path in helmsman.toml) names it: correct that, or leave it out."
_ANSWER_SECONDS: Final = 20.0
"""Timeout for the version. A cold Codex answers within a second; a busy machine may need a few."""


class CodexBinary(Value, frozen=True, kw_only=True):
    """Codex program and its features.

    `path` is the program to run. `path_dir` holds the tools that come with it (ripgrep) and must come first on its PATH,
    preceded by the directories with bubblewrap: `bubblewrap` for other programs in its sandbox, and
    `hiding_bubblewraps`, which hide places, for the commands of its sessions. `remote` is a server of another owner,
    which may require a token; its files may be on another machine.
    """

    path: Path
    version: Version
    path_dir: Path | None = None
    remote: Literal["with token", "open"] | None = None
    bubblewrap: Path | None = None
    hiding_bubblewraps: tuple[Path, ...] = ()

    def can(self, feature: Feature) -> bool:
        """Return whether this Codex has the feature."""
        if feature is Feature.GUARDED_SOCKET and self.remote is not None:
            return self.remote == "with token"  # which its commands do not have
        return feature.is_in(self.version)

    def require(self, feature: Feature, *, doing: str | None = None) -> None:
        """Raise if this Codex lacks the feature. `doing` completes "this Codex cannot …".

        Raises:
            Unsupported: This Codex does not have it; the message names the versions that have.
        """
        if not self.can(feature):
            raise Unsupported(
                f"Codex {self.version} cannot {doing or feature.text}; {feature.versions} can. "
                f"Install such a version, or set CODEX_CLI_PATH to one (in use: {self.path}).",
                feature=feature.name.lower(),
                version=str(self.version),
            )


async def find_codex(
    *, explicit: Path | None = None, env: Mapping[str, str] | None = None, state_dir: Path | None = None
) -> CodexBinary:
    """Find Codex and its features.

    Args:
        explicit: The path the user set (or a bare name to look up on PATH); nothing else is tried then.
        env: The environment with the PATH to search, in which Codex runs; the process's own by default.
        state_dir: Where to put a copy of a program that sessions could replace; None makes no copies.

    Raises:
        CodexNotFound: No program was found, or it is not Codex or does not run.
        ProgramRefused: It is only where a session could have put it.
    """
    env = environment() if env is None else env
    reasons: list[str] = []
    refused: ProgramRefused | None = None
    try:
        candidates = await anyio.to_thread.run_sync(_candidates, explicit, env)
    except ProgramRefused as error:
        # The wheel is outside of PATH, and not affected by the refusal.
        candidates, refused = [path for path in (_in_wheel(),) if path is not None and explicit is None], error
    for candidate in candidates:
        try:
            safe = await anyio.to_thread.run_sync(_out_of_reach, candidate, explicit is not None, env, state_dir)
            return await _learn(safe, env)
        except ProgramRefused as error:
            refused = refused or error
        except _NotUsableError as error:
            logger.warning("%s %s", candidate, error)
            reasons.append(f"{candidate} {error}.")
    if refused is not None:
        raise refused
    if explicit is not None:
        reasons = reasons or [f"There is no program {explicit} on PATH."]
    else:
        reasons = reasons or ["There is no codex on PATH, and the package openai-codex-cli-bin is not installed."]
    advice = f"{_INSTALL}, or set CODEX_CLI_PATH to its binary." if explicit is None else f"{_PATH_ADVICE} {_INSTALL}."
    raise CodexNotFound(f"{' '.join(reasons)} {advice}")


def codex_is_here(explicit: Path | None, env: Mapping[str, str] | None) -> bool:
    """Return whether `find_codex` would find a program. The program is not run. Blocks, briefly."""
    try:
        return any(path.is_file() for path in _candidates(explicit, environment() if env is None else env))
    except ProgramRefused:
        return _in_wheel() is not None and explicit is None


class _NotUsableError(Exception):
    """Why a candidate is not the Codex to use, as the rest of a sentence that begins with its path."""


# --- where it may be -------------------------------------------------------------------------------------------------


def _candidates(explicit: Path | None, env: Mapping[str, str]) -> list[Path]:
    if explicit is not None:
        # A bare name is searched on PATH, also when the user has set it.
        if explicit.name != str(explicit):
            return [explicit]
        named = _on_path(str(explicit), env)
        return [] if named is None else [named]
    return [path for path in (_on_path("codex", env), _in_wheel()) if path is not None]


def _on_path(name: str, env: Mapping[str, str]) -> Path | None:
    found = find_program(name, {**env, "PATH": env.get("PATH", "")}, is_agent=True)
    return None if found is None else Path(found)


def _out_of_reach(found: Path, is_named: bool, env: Mapping[str, str], state_dir: Path | None) -> Path:
    """Return a Codex that no session can replace: the one that was found, or a copy in the state directory.

    A path that the user has named may be in a repository as long as no session writes there.
    """
    program, is_launcher = _program(found)
    places = Places.of(env)
    # A path that the user named may be in a repository; one found on PATH may not.
    of_sessions = places.reason_of_sessions if is_named else places.reason_of_sessions_or_repositories
    reason = of_sessions(str(program)) or (of_sessions(str(found.absolute())) if is_launcher else None)
    if reason is None or state_dir is None:
        return found
    # A copied script would still start its child from the original place.
    if is_launcher:
        raise ProgramRefused(
            f"Helmsman does not start {found}: {reason}, and it is a script that starts Codex, so a copy would not be "
            "safe. Install Codex in a directory that only you or the system writes.",
            program="codex",
            path=str(found),
        )
    try:
        return private_copy(program, state_dir, reason)
    except OSError as error:
        raise _NotUsableError(f"cannot be copied out of the reach of sessions ({error})") from error


def _in_wheel() -> Path | None:
    try:
        return Path(importlib.import_module("codex_cli_bin").bundled_codex_path())
    except (ImportError, OSError):
        return None


def _program(found: Path) -> tuple[Path, bool]:
    """Return the program to run for a path that was found, and whether it is a launcher that starts Codex as a child."""
    try:
        real = found.resolve(strict=True)
        if real.is_dir():
            raise _NotUsableError("is a directory")
    except (OSError, RuntimeError):
        raise _NotUsableError("does not exist") from None
    if not os.access(real, os.X_OK):
        raise _NotUsableError("is not executable")
    # npm's `codex` is a script. SIGKILL on it would leave the real program running.
    script = _codex_script(real)
    if script is not None:
        native = _native_program(script.parent.parent)
        return (found, True) if native is None else (native, False)
    # Version managers link every name to one program, which goes by the name it is called with.
    is_codex = real.stem.startswith("codex") and not _is_script(real)
    return (real, False) if is_codex else (found, True)


def _is_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:  # executable, but not readable
        return False


def _codex_script(path: Path) -> Path | None:
    """Return the `codex.js` of the npm package if the path is it, or a package manager's launcher for it."""
    if path.name == "codex.js":
        return path
    if not _is_script(path) and path.suffix.lower() not in (".cmd", ".ps1"):
        return None
    with suppress(OSError):
        text = path.read_bytes()[:65536].decode("utf-8", "replace")
        for named in re.findall(r"[^\s\"'=]*[\\/]@openai[\\/]codex[\\/]bin[\\/]codex\.js", text):
            # Launchers of Windows name their directory by a variable.
            relative = re.sub(r"^(?:\$basedir|%~?dp0%?)[\\/]?", "", named).replace("\\", "/")
            script = path.parent / relative
            if script.is_file():
                return script.resolve()
    return None


def _native_program(package: Path) -> Path | None:
    """Return the real program of the npm package: in this platform's package, as Node would find it, or in its own."""
    target = _target()
    if target is None:
        return None
    triple, platform_package = target
    # Package managers hoist dependencies into a directory further up.
    places = [place / "node_modules" / "@openai" / platform_package for place in (package, *package.parents)]
    name = "codex.exe" if os.name == "nt" else "codex"
    for place in (*places, package):
        for layout in ("bin", "codex"):  # newer packages, older packages
            program = place / "vendor" / triple / layout / name
            if os.access(program, os.X_OK):
                return program.resolve()
    return None


def _target() -> tuple[str, str] | None:
    """Return the platform's names in Rust and in npm."""
    cpu = {"x86_64": ("x86_64", "x64"), "amd64": ("x86_64", "x64"), "aarch64": ("aarch64", "arm64")}
    cpu["arm64"] = cpu["aarch64"]
    system = {
        "linux": ("unknown-linux-musl", "linux"),
        "darwin": ("apple-darwin", "darwin"),
        "windows": ("pc-windows-msvc", "win32"),
    }
    machine, kind = cpu.get(platform.machine().lower()), system.get(platform.system().lower())
    if machine is None or kind is None:
        return None
    return f"{machine[0]}-{kind[0]}", f"codex-{kind[1]}-{machine[1]}"


def _tools_beside(program: Path) -> Path | None:
    for name in ("codex-path", "path"):  # newer packages, older packages
        directory = program.parent.parent / name
        if any((directory / tool).is_file() for tool in ("rg", "rg.exe")):
            return directory
    return None


# --- a private copy --------------------------------------------------------------------------------------------------

# The wheel `openai-codex-cli-bin` in a project's `.venv` is inside the working directory of sessions in that project. Such a
# session could replace the program, which runs outside the sandbox the next time. So it is copied once, before it is first
# run, and only the copy is run. The original is recognised by its inode, size and times of change; a changed one is refused
# until the user says that the change is theirs, by removing the copy. Hard links would share the inode, and its content.

COPIES: Final = "programs"
"""Directory of the copies, in the state directory."""
_RECORD: Final = "source.json"
_BESIDE: Final = ("codex-path", "path", "codex-resources", "codex-package.json")
"""Files that come with Codex, next to its program's directory: ripgrep, bubblewrap."""
_LOCK_SECONDS: Final = 120.0


def private_copy(program: Path, state_dir: Path, reason: str) -> Path:
    """Return a copy of a program that no session can replace, and make it if needed. Blocks.

    Raises:
        ProgramRefused: The original was changed since it was copied.
        OSError: It cannot be copied.
    """
    copies = ensure_state_dir(state_dir) / COPIES
    copies.mkdir(mode=0o700, exist_ok=True)
    place = copies / hashlib.sha256(os.fsencode(program)).hexdigest()[:16]
    copied = place / program.parent.name / program.name
    # Two processes that start at the same time must not copy into the same place.
    with file_lock(copies / f"{place.name}.lock", timeout=_LOCK_SECONDS):
        record, now = json_object_in(place / _RECORD), _identity(program)
        if record is None:
            _copy(program, place)
        elif record.get("identity") != now:
            # Another identity with the same content: copied or restored, not replaced.
            if _digest(program) != record.get("sha256"):
                raise ProgramRefused(
                    f"{program} was changed since Helmsman first used it, and {reason}, so it need not be your Codex. If "
                    f"you changed it yourself, remove {place} and try again. Better, install Codex in a directory that "
                    "only you or the system writes.",
                    program=program.name,
                    path=str(program),
                )
            _write_record(place, program, now, str(record["sha256"]))
    return copied


def _copy(program: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)  # of one that was cut off
    target = place / program.parent.name
    target.mkdir(mode=0o700, parents=True)
    try:
        # Read before copying: a change during the copy then shows as a changed original.
        before = _identity(program)
        shutil.copyfile(program, target / program.name)
        (target / program.name).chmod(0o700)
        for source, path in _beside(program.parent.parent):
            (place / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(source, place / path)
            (place / path).chmod(0o700)
        _write_record(place, program, before, _digest(target / program.name))  # last: a copy without a record is none
    except BaseException:
        # A partial copy has no record; without this it would only waste space until the next try.
        with suppress(OSError):
            shutil.rmtree(place)
        raise


def _beside(package: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the regular files that come with a program, each with its place in the package. Links are not followed."""
    for name in _BESIDE:
        found = [package / name]
        for directory, _, files in os.walk(package / name):
            found += [Path(directory, file) for file in files]
        for path in found:
            with suppress(OSError):
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path, path.relative_to(package)


def _write_record(place: Path, program: Path, identity: list[int], digest: str) -> None:
    about = {"source": os.fsdecode(program), "identity": identity, "sha256": digest}
    replace_file(place / _RECORD, json.dumps(about))


def _identity(program: Path) -> list[int]:
    """Return what changes whenever a file is replaced or written. No program can set the time of the last change."""
    status = program.stat()
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _digest(program: Path) -> str:
    with program.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- version ---------------------------------------------------------------------------------------------------------

_VERSION_LINE: Final = re.compile(r"^codex-cli[ \t]+(\S+)[ \t]*$", re.MULTILINE)


class ProgramFile(Value, frozen=True):
    """A program. Another size or time of change at the same path is another program."""

    path: str
    size: int
    changed_ns: int

    @classmethod
    def of(cls, program: Path) -> ProgramFile:
        status = program.stat()
        return cls(str(program), status.st_size, status.st_mtime_ns)


_KNOWN: Final[dict[ProgramFile, CodexBinary]] = {}


async def _learn(found: Path, env: Mapping[str, str]) -> CodexBinary:
    program, is_launcher = await anyio.to_thread.run_sync(_program, found)
    try:
        key = ProgramFile.of(program)
    except OSError:
        raise _NotUsableError("does not exist") from None
    # Asking costs a process start, and the same file always gives the same answer.
    if key not in _KNOWN:
        version = await _version(program, env, is_launcher=is_launcher)
        _KNOWN[key] = CodexBinary(path=program, version=version, path_dir=_tools_beside(program))
    return _KNOWN[key]


async def _version(program: Path, env: Mapping[str, str], *, is_launcher: bool) -> Version:
    with tempfile.TemporaryDirectory(prefix="helmsman-probe-", ignore_cleanup_errors=True) as scratch:
        # A launcher needs its own home to find its program; CODEX_HOME alone keeps Codex away from the user's.
        home = {} if is_launcher else {"HOME": scratch, "USERPROFILE": scratch}
        asked_env = {**env, **home, "CODEX_HOME": scratch, "NO_COLOR": "1"}
        said = await _answer([str(program), "--version"], asked_env, scratch)
    version = _VERSION_LINE.search(said)
    if version is None:
        raise _NotUsableError(f"is not Codex (--version printed {said.strip().partition(chr(10))[0][:100]!r})")
    return Version.parse(version[1])


async def _answer(argv: list[str], env: Mapping[str, str], cwd: str) -> str:
    """Return the output of a program, errors included."""
    try:
        answer = await run_command(argv, env=env, cwd=Path(cwd), seconds=_ANSWER_SECONDS)
    except EngineStartFailed as error:
        raise _NotUsableError(f"cannot be run ({error.message})") from error
    # Some versions print warnings first, and on either stream.
    said = answer.stdout + answer.stderr
    if answer.exit_code is None:
        raise _NotUsableError(f"gave no complete answer to {argv[1]} within {_ANSWER_SECONDS:g} seconds")
    if answer.exit_code:
        shown = redact(said.strip()[-300:]) or "it printed nothing"
        raise _NotUsableError(f"failed with exit code {answer.exit_code} ({shown})")
    return said


# --- what the engines can do ------------------------------------------------------------------------------------------

# What the engines of Codex can do, version by version, as Helmsman's own list has it (`helmsman.agents.protocol`).


CODEX: Final = "codex"
TITLE: Final = "Codex"

_NOT_IN_EVERY_VERSION: Final = {
    Capability.STEER: Feature.STEER,
    Capability.FORK_AT_TURN: Feature.FORK_AT_TURN,
    Capability.COMPACT: Feature.COMPACT,
    Capability.GOALS: Feature.GOALS,
}

_OF_EXEC: Final = frozenset(
    {
        Capability.IMAGES,
        Capability.OUTPUT_SCHEMA,
        Capability.INSTRUCTIONS,
        Capability.SESSION_CONFIG,
        Capability.MODEL,
        Capability.SANDBOX,
        Capability.USAGE,
        Capability.RESUME,
    }
)


def app_server_capabilities(binary: CodexBinary, *, detached: bool) -> Capabilities:
    """Return the capabilities of `codex app-server`."""
    lacking = {
        capability: f"{feature.versions} can: install such a version, or set CODEX_CLI_PATH to one (in use: {binary.path})."
        for capability, feature in _NOT_IN_EVERY_VERSION.items()
        if not binary.can(feature)
    }
    if binary.remote is not None:
        lacking[Capability.MOVE] = "Use a Codex on this machine."
    if not detached or binary.remote is not None:
        lacking[Capability.ATTACH] = "Use the hub (HELMSMAN_DETACH=1) and a Codex on this machine."
    elif not binary.can(Feature.GUARDED_SOCKET):
        lacking[Capability.ATTACH] = (
            f"{Feature.GUARDED_SOCKET.versions} can. When no other program has it loaded, `codex resume ID` opens it."
        )
    return Capabilities(CODEX, f"Codex {binary.version}", lacking)


def exec_capabilities() -> Capabilities:
    """Return the capabilities of `codex exec`."""
    lacking = {capability: "Use the engine app-server." for capability in Capability if capability not in _OF_EXEC}
    return Capabilities(CODEX, "`codex exec`", lacking)
