"""Background process of the dashboard: `python -I -m helmsman.cli.dashboard_process`.

`helmsman dashboard` starts it and ends. The hub serves the pages; this process owns what a hub that is killed would lose:
the listening socket, so that no other program gets the port between two hubs, and the environment of the command, which is
never stored. It starts a hub whenever there is none, and the hub stays while it is connected. `dashboard.json` in the
state directory says where the dashboard is and with which options, also after a restart of the machine.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.files import file_lock, replace_file
from helmsman.base.processes import Process
from helmsman.base.structs import Value, pack, replace, unpack_if_valid
from helmsman.cli.consoles import PROCESS_LOG, log_to_stderr
from helmsman.cli.serve import listen_request, serve_in_hub
from helmsman.cli.tailscale import Tailnet
from helmsman.errors import HelmsmanError, InvalidInput, InvalidSetting
from helmsman.httpd.listening import MCP_PATH, HttpOptions, listen
from helmsman.hub.launch import LOG, isolation
from helmsman.settings import ensure_state_dir, load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from helmsman.settings import Settings

log = logging.getLogger(__name__)

USUAL_PORT: Final = 8645  # fixed if free, so that bookmarks and installed pages keep working
_FILE: Final = "dashboard.json"
_START_SECONDS: Final = 120.0
_END_SECONDS: Final = 15.0
_PORT_SECONDS: Final = 5.0
_LOOK_AGAIN: Final = 0.02


class DashboardOptions(Value, frozen=True, kw_only=True):
    """Where the dashboard listens. `tailnet` is this machine's name there, if Tailscale serves the dashboard too."""

    http: HttpOptions
    tailnet: str | None = None

    @property
    def port(self) -> int:
        return self.http.port

    def with_port(self, port: int) -> DashboardOptions:
        return replace(self, http=replace(self.http, port=port))

    def served(self) -> HttpOptions:
        """Return the options of the server.

        Raises:
            InvalidInput: Tailscale cannot serve it.
            InvalidSetting: It would be reachable without TLS, or the certificate cannot be used.
        """
        options = self.http
        if self.tailnet is not None:
            # Tailscale terminates TLS itself and forwards to loopback.
            if options.host not in ("127.0.0.1", "localhost") or options.scheme != "http":
                raise InvalidInput("--tailscale goes with neither --listen nor --tls-cert: Tailscale has its own.")
            # It forwards with its own name, which the server must accept.
            options = replace(options, other_names=options.other_names | {self.tailnet})
        options.check()
        return options


class StoredDashboard(Value, frozen=True, kw_only=True):
    """Dashboard that was turned on. `page` is its address for browsers on this machine."""

    options: DashboardOptions
    page: str
    pid: int
    started: str

    def is_running(self) -> bool:
        # With the start time, because a pid may be used again.
        return Process(self.pid, self.started).is_alive()

    @property
    def shown(self) -> str:
        """Address for people."""
        return self.page if self.options.tailnet is None else f"https://{self.options.tailnet}/"


def known_dashboard(state_dir: Path) -> StoredDashboard | None:
    """Return the dashboard that was turned on and not off, running or not."""
    try:
        return unpack_if_valid(json.loads((state_dir / _FILE).read_bytes()), StoredDashboard)
    except (OSError, ValueError):
        return None


@contextmanager
def changing(state_dir: Path) -> Iterator[None]:
    """Keep other commands from turning the dashboard on or off during the block."""
    # Longer than a start, so that a second command waits for the first.
    with file_lock(ensure_state_dir(state_dir) / f"{_FILE}.lock", timeout=2 * _START_SECONDS):
        yield


def listener_of(options: DashboardOptions, *, may_move: bool, was_ours: bool = False) -> socket.socket:
    """Return a socket that listens there; at any free port if that one is taken and the dashboard may move.

    A port that `was_ours` is waited for: the hub holds it for a moment after the dashboard's process was killed.
    """
    http = options.served()
    until = time.monotonic() + (_PORT_SECONDS if was_ours else 0)
    while True:
        try:
            return listen(http)
        except InvalidSetting:
            if time.monotonic() > until:
                if not may_move:
                    raise
                return listen(replace(http, port=0))
        time.sleep(_LOOK_AGAIN)


def start(settings: Settings, options: DashboardOptions, listener: socket.socket) -> StoredDashboard | None:
    """Turn the dashboard on, in a process of its own. Return None if no hub can be used.

    Raises:
        HelmsmanError: The hub cannot serve it.
    """
    # Without a hub there is nothing that could serve in the background.
    if not settings.detach or os.name != "posix":
        return None
    state_dir = ensure_state_dir(settings.state_dir)
    # The port that was really bound.
    options = options.with_port(listener.getsockname()[1])
    number = listener.fileno()
    with (state_dir / LOG).open("ab") as to_log:
        starting = subprocess.Popen(
            # Isolated, so that modules in the current directory are not imported.
            [sys.executable, *isolation(), "-m", __spec__.name, str(number), json.dumps(pack(options))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=to_log,
            # The socket is inherited: the port is never free between the two processes.
            pass_fds=[number],
            start_new_session=True,
        )
    with starting:
        # Until the process has reported or ended.
        said = starting.communicate()[0]
    told: dict[str, Any] = json.loads(said or b"{}")
    if "problem" in told:
        raise HelmsmanError(str(told["problem"]))
    if not told:
        raise HelmsmanError("The dashboard does not start. Look at it with `helmsman hub log`.")
    return known_dashboard(state_dir) if told["isServed"] else None


def stop(state_dir: Path) -> bool:
    """End the dashboard's process and wait for it. Return whether it was running.

    Raises:
        HelmsmanError: It does not end.
    """
    known = known_dashboard(state_dir)
    if known is None or not known.is_running():
        return False
    deadline = time.monotonic() + _END_SECONDS
    # It may already have ended.
    with suppress(ProcessLookupError):
        os.kill(known.pid, signal.SIGTERM)
    while known.is_running():
        if time.monotonic() > deadline:
            raise HelmsmanError(f"Process {known.pid}, which serves the dashboard, does not end.")
        time.sleep(_LOOK_AGAIN)
    return True


def forget(state_dir: Path) -> None:
    """Forget the dashboard, so that it is not turned on with the machine."""
    (state_dir / _FILE).unlink(missing_ok=True)


def resume(settings: Settings) -> None:
    """Turn the dashboard on again if it was on when the machine went down."""
    known = known_dashboard(settings.state_dir)
    if known is None or known.is_running():
        return
    try:
        # At the same address, or the bookmarks and the phone would not find it.
        with changing(settings.state_dir), listener_of(known.options, may_move=False) as listener:
            start(settings, known.options, listener)
    except (HelmsmanError, OSError) as error:
        log.error("the dashboard is not turned on: %s", error)  # noqa: TRY400 - the text is enough


def main() -> None:
    """Run as the background process. The report on stdout says whether the hub serves the dashboard."""
    from helmsman.hub.daemon import become_daemon

    number, options = int(sys.argv[1]), unpack_if_valid(json.loads(sys.argv[2]), DashboardOptions)
    assert options is not None
    settings = load_settings()
    asked = listen_request("dashboard", {}, options.served())  # with the directory and the umask of the command
    become_daemon(number)
    log_to_stderr(PROCESS_LOG, "info")
    try:
        os._exit(_hold(settings, options, socket.socket(fileno=number), asked))
    except Exception:
        log.exception("the dashboard ends")
        os._exit(1)


def _hold(settings: Settings, options: DashboardOptions, listener: socket.socket, asked: dict[str, Any]) -> int:
    page = options.served().address(listener).removesuffix(MCP_PATH) + "/"
    me = Process.me()
    known = StoredDashboard(options=options, page=page, pid=me.pid, started=me.started)

    def announce() -> None:
        # Written only when it is served, so that a failed start leaves nothing.
        replace_file(settings.state_dir / _FILE, json.dumps(pack(known)))
        _report(isServed=True)

    # Tailscale forwards as long as this process runs.
    tailnet = None if options.tailnet is None else Tailnet.known(options.tailnet)
    serving = nullcontext() if tailnet is None else tailnet.serving(options.port, settings.state_dir)
    try:
        with serving:
            code = serve_in_hub(settings, asked, listener, announce)
    except HelmsmanError as error:
        log.warning("the dashboard is not served: %s", error)
        _report(problem=error.message)
        return 1
    if code is None:
        log.warning("the dashboard is not served: its settings want no hub, or another one")
        _report(isServed=False)
    return code or 0


_reports = [True]


def _report(**said: object) -> None:
    """Tell the command that started this process, once."""
    # The command reads until the end of the pipe.
    while _reports:
        _reports.pop()
        with suppress(OSError):  # it was interrupted
            os.write(1, json.dumps(said).encode())
        # Closed, so that the command stops reading; later prints go nowhere.
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.close(nothing)


if __name__ == "__main__":
    main()
