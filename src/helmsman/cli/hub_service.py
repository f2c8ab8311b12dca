"""Hub as a service of the user's system: systemd on Linux, launchd on macOS."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from helmsman.base.caller_context import environment
from helmsman.base.files import replace_file
from helmsman.base.programs import environment_for, find_program
from helmsman.errors import ProgramRefused, Unsupported
from helmsman.hub.launch import state_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNIT: Final = "helmsman-hub.service"
_LABEL: Final = "dev.helmsman.hub"
_SECONDS: Final = 30


@dataclass(frozen=True)
class Service:
    """Service file and the commands that load it."""

    path: Path
    text: str
    command: tuple[str, ...]  # command that the service runs
    start: tuple[tuple[str, ...], ...]
    stop: tuple[tuple[str, ...], ...]
    remark: str = ""  # further note for the user

    @property
    def is_installed(self) -> bool:
        return self.path.exists()

    def refuse_if_nobody_reads_it(self) -> None:
        """Check that this system has the service manager.

        Raises:
            Unsupported: It does not.
            ProgramRefused: A session could have written the program.
        """
        program = self.start[0][0]
        if find_program(program) is None:
            raise Unsupported(
                f"There is no {program} here, so nothing would read {self.path}; nothing was written. Have whatever starts "
                f"programs with this machine (runit, OpenRC, cron's @reboot, a container's entry point) run, as you: "
                f"{shlex.join(self.command)}"
            )

    def install(self) -> str | None:
        """Write the file and start the service; return the remaining manual step. Blocks."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, self.text.encode())
        for command in self.start:
            if (problem := _run(command)) is not None:
                return f"It could not be started ({problem}). Run: {' '.join(command)}"
        return self.remark or None

    def uninstall(self) -> bool:
        """Stop the service and remove the file; return whether it existed. Blocks."""
        if not self.is_installed:
            return False
        for command in self.stop:
            _run(command)
        self.path.unlink()
        return True


def service_of(state_dir: Path) -> Service:
    """Return the service that starts the hub of a state directory with the machine."""
    env = environment()
    home = Path(env.get("HOME") or Path.home())
    command = (sys.executable, "-P", "-m", "helmsman", "hub", "run")
    # Agents are found by PATH, and services have a different one.
    variables = {"PATH": env.get("PATH", os.defpath)}
    if state_directory({"HOME": str(home)}) != str(state_dir):
        variables["HELMSMAN_STATE_DIR"] = str(state_dir)
    if sys.platform == "darwin":
        return _launchd(home, command, variables)
    return _systemd(Path(env.get("XDG_CONFIG_HOME") or home / ".config"), command, variables)


def _systemd(configuration: Path, command: tuple[str, ...], variables: dict[str, str]) -> Service:
    lines = [f"Environment={_quoted(f'{name}={value}')}" for name, value in variables.items()]
    text = "\n".join(
        [
            "[Unit]",
            "Description=Helmsman: schedules, notices and sessions of coding agents",
            "",
            "[Service]",
            f"ExecStart={' '.join(map(_quoted, command)).replace('$', '$$')}",
            *lines,
            "Restart=on-failure",
            "# Agents at work outlive the hub.",
            "KillMode=process",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )
    systemctl = ("systemctl", "--user")
    return Service(
        path=configuration / "systemd" / "user" / _UNIT,
        text=text,
        command=command,
        start=((*systemctl, "daemon-reload"), (*systemctl, "enable", "--now", _UNIT)),
        stop=((*systemctl, "disable", "--now", _UNIT), (*systemctl, "daemon-reload")),
        remark="It runs while you are logged in; to have it run before that, too: loginctl enable-linger",
    )


def _quoted(word: str) -> str:
    """Quote a word for systemd."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _launchd(home: Path, command: tuple[str, ...], variables: dict[str, str]) -> Service:
    path = home / "Library" / "LaunchAgents" / f"{_LABEL}.plist"
    words = "".join(f"<string>{escape(word)}</string>" for word in command)
    given = "".join(f"<key>{escape(name)}</key><string>{escape(value)}</string>" for name, value in variables.items())
    text = f"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key><string>{_LABEL}</string>
  <key>ProgramArguments</key><array>{words}</array>
  <key>EnvironmentVariables</key><dict>{given}</dict>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>
  <key>AbandonProcessGroup</key><true/>
</dict>
</plist>
"""
    domain = f"gui/{os.getuid()}"
    return Service(
        path=path,
        text=text,
        command=command,
        start=(("launchctl", "bootstrap", domain, str(path)),),
        stop=(("launchctl", "bootout", f"{domain}/{_LABEL}"),),
    )


def _run(command: Sequence[str]) -> str | None:
    """Run a command and return its failure, or None."""
    try:
        program = find_program(command[0])
    except ProgramRefused as error:
        return error.message
    if program is None:
        return f"there is no {command[0]}"
    try:
        done = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            env=environment_for(),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"
