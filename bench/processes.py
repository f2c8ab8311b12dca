"""Resource usage of processes, from `/proc` on Linux or `ps` elsewhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, with the threads it has, without its children."""
    tasks = Path(f"/proc/{pid}/task")
    if tasks.is_dir():
        nanoseconds = sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks.iterdir())
        return nanoseconds / 1e9
    minutes, seconds = _ps(pid, "time").rsplit(":", 1)
    return int(minutes.rsplit(":", 1)[-1]) * 60 + float(seconds)


def cpu_seconds_with_ended(pid: int) -> float:
    """Return the processor time including ended threads, in hundredths, for long observations."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        user, system = stat.read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return cpu_seconds(pid)


def memory_mb(pid: int) -> float:
    """Resident memory of a process, in MB."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024
    return int(_ps(pid, "rss")) / 1024


def proportional_memory_mb(pid: int) -> float:
    """Memory of a process in MB, in which a page shared by several counts in parts; 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    except (FileNotFoundError, ProcessLookupError):
        return memory_mb(pid) if Path(f"/proc/{pid}").exists() else 0.0


def _ps(pid: int, field: str) -> str:
    done = subprocess.run(["ps", "-o", f"{field}=", "-p", str(pid)], capture_output=True, encoding="utf-8", check=True)
    return done.stdout.strip()
