"""Temporary directories in the state directory. If a process is killed, the next one removes its directories."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from typing import TYPE_CHECKING, Final

from helmsman.base.processes import running_process

if TYPE_CHECKING:
    from pathlib import Path

_PREFIX: Final = "temporary-"


def temporary_directory(place: Path, what: str) -> tempfile.TemporaryDirectory[str]:
    """Return a temporary directory whose name contains the process, so that others can remove it after a crash."""
    return tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-{what}-", dir=place, ignore_cleanup_errors=True)


def clear_abandoned(place: Path) -> None:
    """Remove those of processes that are gone. Blocks."""
    for folder in place.glob(f"{_PREFIX}*"):
        found = re.match(r"\d+", folder.name.removeprefix(_PREFIX))
        if found and running_process(int(found[0])) is None:
            shutil.rmtree(folder, ignore_errors=True)
