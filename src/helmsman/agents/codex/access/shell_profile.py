"""Whether Codex takes a snapshot of the user's login shell, and what that shell costs.

Codex can run a login shell for every thread and keep its environment, so that the commands of that thread need not run the
profile again. A thread then waits for the profile before its first command, and fifty threads at once run fifty of them: a
profile that takes a lock (`pyenv init`) makes them wait for one another. Without snapshots only commands run the profile.
So they are off, unless the user turns them on here or in Codex's own configuration: that pays off for long sessions with a
slow profile (`docs/performance.md` has the figures).
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
import tomllib
from typing import TYPE_CHECKING, Final, Literal

import anyio.to_thread

from helmsman.agents.codex.features import Feature
from helmsman.base.programs import environment_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from helmsman.agents.codex.binary import CodexBinary

log = logging.getLogger(__name__)

SLOWEST: Final = 10.0
"""A profile that takes longer is not waited for; Codex itself gives up its snapshot after this time."""

_RUNS: Final = 3
"""The first run also reads the files from disk, and the machine may be busy; the best counts."""


async def snapshot_options(
    choice: Literal["auto", "on", "off"], binary: CodexBinary, *, codex_home: Path
) -> tuple[str, ...]:
    """Return the options for `codex app-server` that turn snapshots on or off; none if Codex's configuration decides."""
    if not binary.can(Feature.SHELL_SNAPSHOT):
        return ()
    if choice == "auto" and await anyio.to_thread.run_sync(_is_configured, codex_home):
        return ()
    return ("--enable" if choice == "on" else "--disable", "shell_snapshot")


def _is_configured(codex_home: Path) -> bool:
    """Whether the user has decided in Codex's own configuration."""
    try:
        config = tomllib.loads((codex_home / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    features = config.get("features")
    return isinstance(features, dict) and "shell_snapshot" in features


def login_shell(env: Mapping[str, str]) -> str | None:
    """The shell Codex uses: that of the user's account."""
    if sys.platform == "win32":
        return None
    import pwd

    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        shell = env.get("SHELL", "")
    return shell if os.path.isabs(shell) and os.access(shell, os.X_OK) else None  # noqa: PTH117


def measure_profile(shell: str, env: Mapping[str, str]) -> float | None:
    """Run the login shell, and see how long it takes."""
    taken: list[float] = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        try:
            process = subprocess.Popen(
                [shell, "-lc", ":"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment_for(env),
                start_new_session=True,
            )
        except OSError as error:
            log.info("the login shell %s could not be run: %s", shell, error)
            return None
        try:
            process.wait(SLOWEST)
        except subprocess.TimeoutExpired:
            # It is let finish: a profile that is killed may leave a lock that makes every later shell slow (pyenv).
            threading.Thread(target=process.wait, daemon=True).start()
            log.info("the login shell %s does not end within %g s", shell, SLOWEST)
            return None
        taken.append(time.perf_counter() - began)
        if taken[0] > 1:
            break  # slow is slow
    return min(taken)
