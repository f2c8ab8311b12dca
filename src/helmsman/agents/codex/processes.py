"""Environment, PATH and options of Codex processes, start failures, and commands that sessions leave running.

Shell snapshots: Codex can run a login shell per thread and reuse its environment for the commands of that thread. A thread
then waits for the user's profile, and fifty threads run fifty of them; a profile that takes a lock (`pyenv init`) makes them
wait for each other. So snapshots are off, unless the user turns them on here or in Codex's configuration
(`docs/performance.md` has the figures).

Commands left: Codex 0.115 and newer names its thread in the environment of every command, and daemons inherit it. So they
are found for every owner of the engine, and no other process is.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import anyio
import anyio.to_thread

from helmsman.agents.agent_process import not_up
from helmsman.agents.codex.binary import TITLE
from helmsman.agents.codex.configuration import user_config
from helmsman.agents.codex.features import Feature
from helmsman.agents.environment import launch_environment
from helmsman.base.caller_context import environment
from helmsman.base.config_values import as_toml
from helmsman.base.json_values import mapping
from helmsman.base.process_ending import end_processes
from helmsman.base.processes import Process, parents_of, running_process
from helmsman.base.programs import path_out_of_reach
from helmsman.base.redaction import redact
from helmsman.errors import EngineLost, EngineStartFailed, EngineTimeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.errors import HelmsmanError

StartedT = TypeVar("StartedT")

DOCTOR_ADVICE: Final = "Run `helmsman doctor` to find out why."
START_ATTEMPTS: Final = 4
START_RACE_PAUSE: Final = 0.2
_START_RACE: Final = "failed to initialize sqlite state runtime"
"""Error of Codex if several processes start in a new home concurrently. The next attempt finds the databases."""


def codex_environment(binary: CodexBinary, codex_home: Path, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for Codex: the caller's, with its home, and with a PATH to which no session can write.

    Codex itself starts git, MCP servers and hooks, outside of any sandbox. Its tools come first on the PATH.
    """
    merged = launch_environment(env)
    if codex_home.exists():  # Codex creates its default home, but exits if a given home does not exist
        merged["CODEX_HOME"] = str(codex_home)
    merged["PATH"] = _after_its_tools(binary, path_out_of_reach(merged))
    return merged


def command_path(binary: CodexBinary, env: Mapping[str, str] | None = None) -> str:
    """Return the PATH for the commands of Codex, which run in its sandbox: the caller's, after Codex's tools."""
    return _after_its_tools(binary, (environment() if env is None else env).get("PATH", os.defpath))


def command_path_options(
    binary: CodexBinary, codex_home: Path, env: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the options with which the commands of Codex have another PATH than Codex itself; none if it is the same.

    Codex looks on the PATH of a command for the bubblewrap of its sandbox. So a PATH in the user's own configuration of
    Codex is kept, after Codex's tools.
    """
    configured = _configured_path(codex_home)
    wanted = command_path(binary, env) if configured is None else _after_its_tools(binary, configured)
    # Without a difference no option is given, so that Codex's own default stays in force.
    if wanted == (configured or codex_environment(binary, codex_home, env)["PATH"]):
        return ()
    return (f"--config=shell_environment_policy.set.PATH={as_toml(wanted)}",)


def path_without_tools(binary: CodexBinary, path: str) -> str:
    """Return a PATH of Codex without its own tools: every engine has those, and they are compared when one starts."""
    own = _tools(binary)
    return os.pathsep.join(entry for entry in path.split(os.pathsep) if entry not in own)


def _after_its_tools(binary: CodexBinary, path: str) -> str:
    return os.pathsep.join(filter(None, (*_tools(binary), path)))


def _tools(binary: CodexBinary) -> list[str]:
    bubblewraps = binary.hiding_bubblewraps or (binary.bubblewrap,)
    return [str(place) for place in (*bubblewraps, binary.path_dir) if place is not None]


def _configured_path(codex_home: Path) -> str | None:
    """Return the PATH of commands that the user's own configuration of Codex sets."""
    path = mapping(mapping(user_config(codex_home).get("shell_environment_policy")).get("set")).get("PATH")
    return None if path is None else str(path)


async def start_codex(start: Callable[[], Awaitable[StartedT]]) -> StartedT:
    """Start a Codex, and again if several that start at the same time on a new home get in each other's way.

    Raises:
        EngineStartFailed: Codex did not come up.
    """
    attempt = 1
    while True:
        try:
            return await start()
        except EngineStartFailed as error:
            failed = error
        except (EngineLost, EngineTimeout) as error:
            failed = start_failed(error)
        # Any other failure would come again.
        if attempt == START_ATTEMPTS or _START_RACE not in str(failed.details.get("stderr")):
            raise failed
        # Longer each time, as more processes may be waiting for the same database.
        await anyio.sleep(START_RACE_PAUSE * attempt)
        attempt += 1


def start_failed(error: HelmsmanError) -> EngineStartFailed:
    """Return the error for the client that needs an engine."""
    stderr = str(error.details.get("stderr") or "")
    return not_up(TITLE, DOCTOR_ADVICE, error, error.details.get("exit_code"), stderr)


# --- shell snapshots -------------------------------------------------------------------------------------------------


async def snapshot_options(
    choice: Literal["auto", "on", "off"], binary: CodexBinary, *, codex_home: Path
) -> tuple[str, ...]:
    """Return the options for `codex app-server` that turn snapshots on or off; none if Codex's configuration decides."""
    if not binary.can(Feature.SHELL_SNAPSHOT):
        return ()
    # The user's own choice in Codex wins over the default, not over a setting of Helmsman.
    if choice == "auto" and await anyio.to_thread.run_sync(_is_configured, codex_home):
        return ()
    return ("--enable" if choice == "on" else "--disable", "shell_snapshot")


def _is_configured(codex_home: Path) -> bool:
    """Return whether the user has decided in Codex's own configuration."""
    return "shell_snapshot" in mapping(user_config(codex_home).get("features"))


# --- commands left running -------------------------------------------------------------------------------------------


_MARK: Final = b"CODEX_THREAD_ID="
_WRAPPERS: Final = ("codex-linux-sandbox", "bwrap")
"""Programs with which Codex wraps commands. They are left out of descriptions."""
_SHOWN_CHARS: Final = 200


def commands_left(session_ids: Collection[str], directory: Path) -> tuple[str, ...]:
    """Describe the commands that these sessions, or any session in this directory, have left running. Blocks.

    Without /proc there is no information, so the result is empty.
    """
    found = _left_running(session_ids, directory)
    return tuple(found[process] for process in sorted(found) if not _is_wrapper(found[process]))


def end_commands(session_ids: Collection[str], directory: Path | None = None) -> None:
    """End them, and wait until they are gone; without a directory only those of these sessions. Blocks."""
    end_processes(lambda: _left_running(session_ids, directory).keys())


def _left_running(session_ids: Collection[str], directory: Path | None) -> dict[Process, str]:
    places = () if directory is None else (directory.absolute(), directory.resolve())
    sessions = {session_id.encode() for session_id in session_ids}
    ourselves = parents_of(os.getpid())  # a command of Codex may be what runs us
    found: dict[Process, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            session = _session_of(entry)
            # Ancestors of this process are never ended.
            if session is None or int(entry.name) in ourselves:
                continue
            if session in sessions or _works_in(entry, places):
                process = running_process(int(entry.name))
                if process is not None:
                    found[process] = _in_words(entry)
    return found


def _session_of(entry: Path) -> bytes | None:
    variables = (entry / "environ").read_bytes().split(b"\0")
    return next((one.removeprefix(_MARK) for one in variables if one.startswith(_MARK)), None)


def _works_in(entry: Path, places: Collection[Path]) -> bool:
    where = (entry / "cwd").readlink()
    return any(where.is_relative_to(place) for place in places)


def _is_wrapper(words: str) -> bool:
    return words.partition(" ")[0].rpartition("/")[2] in _WRAPPERS


def _in_words(entry: Path) -> str:
    words = (entry / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    return f"{redact(words)[:_SHOWN_CHARS]} (pid {entry.name})"
