"""Finds what a process has started, and what those have started.

Codex runs commands in process groups of their own. When it is terminated or killed they live on, and no signal to its
group reaches them: who wants to end them has to have looked before.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_PS_SECONDS: Final = 5.0


def descendants(pid: int) -> tuple[int, ...]:
    """The processes below `pid`, parents before their children; none where the system does not tell."""
    children: dict[int, list[int]] = {}
    for child, parent in _from_proc() if Path("/proc/self/stat").exists() else _from_ps():
        children.setdefault(parent, []).append(child)
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return tuple(found[1:])


def _from_proc() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended meanwhile
                # pid (name) state ppid …, and the name may contain anything
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                yield int(entry.name), int(fields[1])


def _from_ps() -> Iterator[tuple[int, int]]:
    with suppress(OSError, subprocess.SubprocessError):
        listing = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, encoding="ascii", timeout=_PS_SECONDS, check=True
        )
        for line in listing.stdout.splitlines():
            pid, parent = line.split()
            yield int(pid), int(parent)
