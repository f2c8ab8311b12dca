"""A place where a real shell may run anything: the only programs there are write down how they were called."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

_SECONDS: Final = 20
_RECORD: Final = 'for word in "${0##*/}" "$@"; do printf "%s\\0" "$word"; done > "$CALLS/$$"'


class Ran(NamedTuple):
    """Effects of a script: the programs it called, with their arguments, and its files."""

    calls: list[list[str]]
    files: set[str]


class ShellLaboratory:
    """Runs scripts in empty directories. Names that are no program here are recorded too (bash tells of them)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._programs = folder / "programs"
        self._programs.mkdir()
        for name in ("git", "ls", "rm", "sudo", "env", "xargs", "cat"):
            program = self._programs / name
            program.write_text(f"#!/bin/sh\n{_RECORD}\n", encoding="utf-8")
            program.chmod(0o755)
        self._startup = folder / "startup"
        record = 'printf "%s\\0" "$@" > "$CALLS/$BASHPID.$RANDOM"'
        self._startup.write_text(f"command_not_found_handle() {{ {record}; }}\n", encoding="utf-8")

    def run(self, shell: str, script: str) -> Ran:
        """Run it, and wait for whatever it put into the background."""
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            work, calls = Path(name, "work"), Path(name, "calls")
            work.mkdir()
            calls.mkdir()
            env = {"PATH": str(self._programs), "CALLS": str(calls), "BASH_ENV": str(self._startup), "HOME": name}
            read_end, write_end = os.pipe()  # the system closes it when the last process that was started has ended
            with os.fdopen(read_end, "rb") as ended:
                with os.fdopen(write_end, "wb"):
                    subprocess.run(
                        [shutil.which(shell) or shell, "-c", script],
                        cwd=work,
                        env={**env, "LC_ALL": "C.UTF-8"},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        pass_fds=[write_end],
                        timeout=_SECONDS,
                        check=False,
                    )
                ended.read()
            found = [file.read_text(encoding="utf-8").removesuffix("\0").split("\0") for file in calls.iterdir()]
            return Ran(found, {path.name for path in work.rglob("*")})
