"""Find processes that are left behind where Helmsman was killed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from helmsman.testing.leaks import LeftProcess, command_of, marked_processes, status_of


def hub_processes(state_dir: Path) -> list[int]:
    """Return all hub processes of a state directory, including those that are still starting (Linux)."""
    found: list[int] = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - as in `leaks`
        if name.isdecimal():
            with contextlib.suppress(OSError):
                words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
                if b"helmsman.cli.hub_process" in words and os.fsencode(state_dir) in words:
                    found.append(int(name))
    return found


def stuck_sandboxes(marker: str) -> set[LeftProcess]:
    """Return sandboxes that hang because Codex was killed while starting them (Linux).

    The outer `bwrap` dies with Codex, and the inner one waits for it forever. Helmsman cannot prevent this if it was
    killed itself; tests that kill at random must end them.
    """
    return {process for process in marked_processes(marker) if _is_stuck_sandbox(Path("/proc", str(process.pid)))}


def _is_stuck_sandbox(folder: Path) -> bool:
    with contextlib.suppress(OSError, KeyError):
        parent = Path("/proc", status_of(folder)["PPid"])
        # Compare the first word: Codex runs it from an open file descriptor, so the process name is a number.
        names = [command_of(place).partition(" ")[0] for place in (folder, parent)]
        call = (folder / "syscall").read_text(encoding="utf-8").split()
        is_reading = (call[:1], call[3:4]) == (["0"], ["0x8"])  # eight bytes
        return names[0] == "bwrap" != names[1] and is_reading
    return False
