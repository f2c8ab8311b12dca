"""What a Codex is started in, why one did not come up, and when it is worth trying again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from helmsman.base.addresses import REMOTE_TOKEN
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
    """The environment Codex runs in: ours, with the home it is to use and, first on the PATH, its tools."""
    merged = dict(environment() if env is None else env)
    merged.pop(REMOTE_TOKEN, None)  # another Codex's, and none of the business of what runs in this one
    if codex_home.exists():  # Codex makes its default home itself, and exits when it is told of one that is not there
        merged["CODEX_HOME"] = str(codex_home)
    first = [str(place) for place in (binary.bubblewrap, binary.path_dir) if place is not None]
    if first:
        merged["PATH"] = os.pathsep.join(filter(None, (*first, merged.get("PATH"))))
    return merged


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
