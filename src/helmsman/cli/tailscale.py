"""Serve the dashboard to the devices of a tailnet, by the Tailscale that is installed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.json_values import json_object
from helmsman.base.programs import environment_for, find_program
from helmsman.base.sanitize import one_line
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SECONDS: Final = 30
_END_SECONDS: Final = 5
_LOOK_AGAIN: Final = 0.1
_HTTPS_PORT: Final = 443
_LOG: Final = "tailscale.log"
_LOG_BYTES: Final = 600

# Tailscale ends what a command in the foreground serves as soon as that command ends. The shell ends it when its input
# closes, thus also when the process that started the shell is killed. Tailscale may be restarted, or start later than we do.
_SERVE: Final = """
(while :; do "$@"; sleep 10; done) < /dev/null &
read -r _
kill -TERM 0
"""


@dataclass(frozen=True)
class Tailnet:
    """Tailscale on this machine, and the machine's name in its network."""

    program: str
    name: str

    @classmethod
    def found(cls) -> Tailnet:
        """Ask Tailscale for the name of this machine.

        Raises:
            InvalidInput: It is not installed or not connected, or serves something else already.
        """
        program = _program()
        status = cls(program, "").run("status", "--json")
        own = status.get("Self") or {}
        name = str(own.get("DNSName") or "").rstrip(".")
        if status.get("BackendState") != "Running" or not name:
            raise InvalidInput("Tailscale is not connected, or has no name for this machine. Run `tailscale up`.")
        tailnet = cls(program, name)
        # Overwriting another service of the user would be silent.
        if tailnet._is_serving():
            raise InvalidInput(
                f"Tailscale serves something else on port {_HTTPS_PORT}. End it with `tailscale serve --https=443 off`."
            )
        return tailnet

    @classmethod
    def known(cls, name: str) -> Tailnet:
        """Return Tailscale and the name that this machine had."""
        return cls(_program(), name)

    @property
    def address(self) -> str:
        return f"https://{self.name}/"

    @contextmanager
    def serving(self, port: int, state_dir: Path) -> Iterator[None]:
        """Serve a port of this machine during the block, or until this process is killed."""
        words = (self.program, "serve", f"--https={_HTTPS_PORT}", f"http://127.0.0.1:{port}")
        log = os.open(state_dir / _LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            serving = subprocess.Popen(
                ["/bin/sh", "-c", _SERVE, "sh", *words],
                stdin=subprocess.PIPE,
                stdout=log,
                # Its output tells why it does not serve.
                stderr=log,
                env=environment_for(),
                cwd="/",
                # In its own process group, which the shell ends as a whole.
                start_new_session=True,
            )
        finally:
            os.close(log)
        assert serving.stdin is not None
        try:
            yield
        finally:
            # The shell waits for the end of its input.
            serving.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                serving.wait(_END_SECONDS)
            if serving.returncode is None:
                # The whole group: a Tailscale that ignores SIGTERM must not keep the port.
                os.killpg(serving.pid, signal.SIGKILL)
                serving.wait()

    def wait_until_serving(self, state_dir: Path) -> None:
        """Wait until Tailscale serves the dashboard.

        Raises:
            InvalidInput: It does not begin to. The message has its output.
        """
        deadline = time.monotonic() + _SECONDS
        while not self._is_serving():
            if time.monotonic() > deadline:
                with suppress(OSError):
                    said = (state_dir / _LOG).read_bytes()[-_LOG_BYTES:].decode("utf-8", "replace")
                    raise InvalidInput(f"Tailscale does not serve the dashboard. It says: {one_line(said)}")
            time.sleep(_LOOK_AGAIN)

    def _is_serving(self) -> bool:
        """Return whether something has the port, served in the background or by a command in the foreground."""
        served = self.run("serve", "status", "--json")
        # Commands in the foreground are listed apart from the configuration.
        everything = (served, *(served.get("Foreground") or {}).values())
        return any(str(_HTTPS_PORT) in (one.get("TCP") or {}) for one in everything)

    def run(self, *words: str) -> dict[str, Any]:
        """Run a command of Tailscale. Return the JSON that it prints, if any.

        Raises:
            InvalidInput: It fails.
        """
        try:
            done = subprocess.run(
                [self.program, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_SECONDS,
                env=environment_for(),
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InvalidInput(f"Tailscale does not answer: {error}") from None
        if done.returncode != 0:
            raise InvalidInput(f"`tailscale {' '.join(words)}` failed: {one_line(done.stderr or done.stdout)[:300]}")
        return json_object(done.stdout.encode()) or {}


def _program() -> str:
    program = find_program("tailscale")
    if program is None:
        raise InvalidInput("Tailscale is not installed here. Install it, or use an SSH tunnel.")
    return program
