"""What a Codex is started in, why one did not come up, and when it is worth trying again."""

from __future__ import annotations

import os
import tomllib
from typing import TYPE_CHECKING, Final

from helmsman.base.addresses import REMOTE_TOKEN
from helmsman.base.config_values import as_toml
from helmsman.base.programs import path_out_of_reach
from helmsman.base.surroundings import environment
from helmsman.errors import EngineStartFailed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.errors import HelmsmanError


START_ATTEMPTS: Final = 4
START_RACE_PAUSE: Final = 0.2
_START_RACE: Final = "failed to initialize sqlite state runtime"
"""What Codex says when several processes start at once on a new home; the next try finds the databases made."""


def codex_environment(binary: CodexBinary, codex_home: Path, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for Codex: the caller's, with its home, and with a PATH to which no session can write.

    Codex itself starts git, MCP servers and hooks, outside of any sandbox. Its tools come first on the PATH.
    """
    merged = dict(environment() if env is None else env)
    merged.pop(REMOTE_TOKEN, None)  # another Codex's, and none of the business of what runs in this one
    if codex_home.exists():  # Codex makes its default home itself, and exits when it is told of one that is not there
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
    try:
        config = tomllib.loads((codex_home / "config.toml").read_text(encoding="utf-8"))
        return str(config["shell_environment_policy"]["set"]["PATH"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def is_start_race(error: HelmsmanError) -> bool:
    """Whether it failed because several came up at once; the details of the error hold what Codex said."""
    return _START_RACE in str(error.details.get("stderr", ""))


def start_failed(error: HelmsmanError) -> EngineStartFailed:
    """The error to give to whoever wanted an engine."""
    stderr = str(error.details.get("stderr") or "")
    lines = stderr.splitlines()
    # A panic ends in a backtrace; what went wrong is in the line that says so.
    said = next((f" It said: {line}" for line in [*(line for line in lines if "rror" in line[:12]), *lines[-1:]]), "")
    return EngineStartFailed(
        f"Codex did not come up: {error.message.partition('. ')[0]}.{said} Run `helmsman doctor` to find out why.",
        exit_code=error.details.get("exit_code"),
        stderr=stderr or None,
    )
