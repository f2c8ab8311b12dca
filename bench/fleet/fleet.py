"""Machines of a fleet without agents, as processes, and their tasks."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from helmsman.fleet.values import FleetDraft
from helmsman.tasks.model import TaskDraft

if TYPE_CHECKING:
    from collections.abc import Iterator

LEASE = 4.0


def draft(**spec: Any) -> FleetDraft:
    return FleetDraft(task=TaskDraft(agent="codex", instruction="bench", spec=spec))


@contextmanager
def machines(
    url: str, count: int, folder: Path, capacity: int = 4, lease: float = LEASE
) -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    for number in range(count):
        place = Path(tempfile.mkdtemp(dir=folder))
        arguments = [url, f"m{number}", str(place), str(lease), str(capacity)]
        started.append(
            subprocess.Popen([sys.executable, "-m", "bench.fleet.machine", *arguments], stdout=subprocess.PIPE)
        )
    try:
        for one in started:
            assert one.stdout is not None
            assert one.stdout.readline() == b"ready\n"
        yield started
    finally:
        for one in started:
            one.kill()
            one.wait()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("delete from helmsman.workers")
