"""What the user's login shell costs, and whether Codex should take a snapshot of it.

Codex runs a login shell for every thread and keeps a picture of its environment, so that the commands of that thread need
not run the profile again. With a profile that takes its time this is a gain from the second command on; with one that is
quick it costs every thread more than it saves any command (`docs/performance.md` has the figures). So, unless the user
decides, a quick profile means no snapshots.

How long the profile takes is measured once and remembered as long as its files stay as they are. Nobody waits for a slow
one: the first engine then starts as Codex would by itself, and the next one knows.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio.to_thread

from helmsman.agents.codex.features import Feature
from helmsman.base.files import replace_file
from helmsman.base.json_values import json_object_in
from helmsman.base.programs import environment_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from helmsman.agents.codex.binary import CodexBinary

log = logging.getLogger(__name__)

QUICK: Final = 0.030
"""Up to this a profile is quick: with 30 ms, twelve commands took as long with a snapshot as without."""

SLOWEST: Final = 10.0
"""A profile that takes longer is not waited for; Codex itself gives up its snapshot after this time."""

_PATIENCE: Final = 0.1
"""How long the start of an engine may wait for the first measurement."""

_RUNS: Final = 3
"""The first run also reads the files from disk, and the machine may be busy; the best counts."""

_CACHE_NAME: Final = "shell-profile.json"
_SYSTEM_FILES: Final = (
    *("/etc/profile", "/etc/bash.bashrc", "/etc/zshenv", "/etc/zprofile", "/etc/zshrc"),
    "/etc/zsh/zshenv",
)
_SYSTEM_FOLDERS: Final = ("/etc/profile.d",)
_HOME_FILES: Final = (
    *(".profile", ".bash_profile", ".bash_login", ".bashrc", ".zshenv", ".zprofile", ".zshrc", ".zlogin"),
    ".config/fish/config.fish",
)


async def snapshot_options(
    choice: Literal["auto", "on", "off"],
    binary: CodexBinary,
    *,
    codex_home: Path,
    state_dir: Path,
    env: Mapping[str, str],
) -> tuple[str, ...]:
    """The options for `codex app-server` that say whether it takes snapshots; none where that is Codex's own business."""
    if not binary.can(Feature.SHELL_SNAPSHOT):
        return ()
    if choice != "auto":
        return ("--enable" if choice == "on" else "--disable", "shell_snapshot")
    if await anyio.to_thread.run_sync(_is_configured, codex_home):
        return ()
    seconds = await anyio.to_thread.run_sync(_seconds_without_waiting, env, state_dir)
    return ("--disable", "shell_snapshot") if seconds is not None and seconds <= QUICK else ()


def _seconds_without_waiting(env: Mapping[str, str], state_dir: Path) -> float | None:
    """What is known of the profile. What is not known yet is measured, on and on in the background if it takes long."""
    measured: list[float | None] = []
    # No thread that anybody joins: whoever has to end does not wait for a slow profile.
    measuring = threading.Thread(target=lambda: measured.append(profile_seconds(env, state_dir)), daemon=True)
    measuring.start()
    measuring.join(_PATIENCE)
    return measured[0] if measured else None


def _is_configured(codex_home: Path) -> bool:
    """Whether the user has decided in Codex's own configuration."""
    try:
        config = tomllib.loads((codex_home / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    features = config.get("features")
    return isinstance(features, dict) and "shell_snapshot" in features


def profile_seconds(env: Mapping[str, str], state_dir: Path) -> float | None:
    """How long the login shell takes, remembered from before or measured now; None if it cannot be run or does not end.

    Blocks for as long as the profile takes, a few times if it is quick.
    """
    shell = login_shell(env)
    if shell is None:
        return None
    key = _fingerprint(shell, env)
    cache = state_dir / _CACHE_NAME
    known = json_object_in(cache) or {}
    if known.get("key") == key and isinstance(known.get("seconds"), float):
        return float(known["seconds"])
    seconds = measure_profile(shell, env)
    if seconds is not None:
        _write(cache, {"key": key, "seconds": seconds})
    return seconds


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


def _fingerprint(shell: str, env: Mapping[str, str]) -> list[Any]:
    """What the time depends on, as far as one can see from outside."""
    home = env.get("HOME", "")
    return [shell, home, *([str(file), *_state(file)] for file in _profile_files(Path(home), env))]


def _profile_files(home: Path, env: Mapping[str, str]) -> Iterator[Path]:
    yield from map(Path, _SYSTEM_FILES)
    for folder in map(Path, _SYSTEM_FOLDERS):
        yield folder
        try:
            yield from sorted(folder.iterdir())
        except OSError:
            continue
    for place in {home, Path(env.get("ZDOTDIR") or home)}:
        yield from (place / name for name in _HOME_FILES)


def _state(file: Path) -> list[int]:
    try:
        found = file.stat()
    except OSError:
        return []
    return [found.st_mtime_ns, found.st_size]


def _write(cache: Path, content: Mapping[str, Any]) -> None:
    try:
        cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(cache, json.dumps(content))
    except OSError as error:
        log.info("what the login shell costs cannot be remembered: %s", error)
