"""`helmsman dashboard`: open the dashboard in the browser, with a login code."""

from __future__ import annotations

import html
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from helmsman.base.json_values import iso_time
from helmsman.base.programs import environment_for, find_program
from helmsman.base.sanitize import one_line
from helmsman.base.structs import replace
from helmsman.cli.command import cli_command, cli_group, option
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.dashboard_process import (
    USUAL_PORT,
    DashboardOptions,
    changing,
    forget,
    known_dashboard,
    listener_of,
    start,
    stop,
)
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.output import Column, ago, print_json, print_list, print_result, the_only_one
from helmsman.cli.serve import listening_options, serve_until_signal
from helmsman.cli.tailscale import Tailnet
from helmsman.errors import InvalidInput, ProgramRefused
from helmsman.httpd.listening import MCP_PATH, HttpOptions, http_token
from helmsman.notices.devices import DeviceBook
from helmsman.web.login import FRAGMENT, PAGE_HEADER
from helmsman.web.proof import CODE_PATH, PROOF_PATH, client_proof, is_proof, new_nonce, place, server_proof

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from socket import socket

    from helmsman.cli.dashboard_process import StoredDashboard
    from helmsman.notices.devices import Device
    from helmsman.settings import Settings

# --- Get a login code from a running server, after it has proved that it is this user's server ------------------------

_SECONDS: Final = 10
_ANSWER_BYTES: Final = 65536


def code_of_server(base: str, token: str) -> str:
    """Return a one-time code of the server at `base`. Neither the token nor a value derived from it is sent before the
    server has proved that it has the same token.

    Raises:
        InvalidInput: No server answers, or it is not this user's server.
    """
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(f"{base!r} is not the address of a server. Give one such as http://127.0.0.1:8765.")
    # A fresh nonce, so that an old proof cannot be replayed.
    nonce = new_nonce()
    try:
        answer, where = _post(base, PROOF_PATH, nonce=nonce)
        challenge, proof = str(answer["challenge"]), str(answer["proof"])
        # Compared in constant time (`is_proof`). A stranger on this port learns nothing.
        if not is_proof(proof, server_proof(token, nonce, challenge, where)):
            raise InvalidInput(
                f"The server at {base} is not your Helmsman, or not directly reached: its proof is wrong. Nothing secret "
                "was sent. Use the address that `helmsman serve --transport http` printed, with the same HELMSMAN_STATE_DIR."
            )
        # Proves this side, in turn, without sending the token.
        proof = client_proof(token, nonce, challenge, where)
        answer, _ = _post(base, CODE_PATH, nonce=nonce, challenge=challenge, proof=proof)
        return str(answer["code"])
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
        raise InvalidInput(
            f"{base} gives no code: {error}. Check that `helmsman serve --transport http` runs there, with the same "
            "HELMSMAN_STATE_DIR."
        ) from error


def _post(base: str, path: str, **fields: str) -> tuple[dict[str, Any], str]:
    """Post JSON; return the server's answer and the address of the connected peer."""
    parts = urlsplit(base)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_SECONDS)
    try:
        connection.connect()
        # The address that was really reached: a proof for another one is worth nothing.
        host, port = connection.sock.getpeername()[:2]
        # The header marks a request of Helmsman's own pages, which a form of another site cannot send.
        headers = {"Content-Type": "application/json", PAGE_HEADER: "1"}
        connection.request("POST", parts.path.rstrip("/") + path, json.dumps(fields), headers)
        response = connection.getresponse()
        # Bounded: any program may listen there.
        content = response.read(_ANSWER_BYTES)
        if response.status != http.client.OK:
            raise ValueError(f"HTTP {response.status}")
        return dict(json.loads(content)), place(host, port)
    finally:
        connection.close()


# --- Open the dashboard in the user's browser, logged in, without secrets in a command line ---------------------------

# Every user of a machine can read the arguments of all processes. The browser is therefore opened on a private file
# that redirects to the page with the code. The file is deleted when the code is used. Some browsers cannot read that
# file, for example in a snap or outside WSL. They are opened on the plain address, and the user types the printed
# code.

_FILE_SECONDS: Final = 20
"""Time for a browser to start and read the file. Afterwards the user can type the printed code."""
_LOOK_AGAIN: Final = 0.2
_ASK_SECONDS: Final = 5
_PREFIX, _SUFFIX = "login-", ".html"

_REDIRECT: Final = """\
<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>Helmsman</title>
<p>Opening the dashboard. If nothing happens, run <code>helmsman dashboard</code> again.</p>
"""


def open_in_background(
    page: str, code: str, state_dir: Path, *, is_waiting: Callable[[], bool] = lambda: True
) -> threading.Thread | None:
    """Open the page and log in with the code, if there is a local desktop. Return the thread that does it.

    `is_waiting` returns whether the code is still unused.
    """
    if not is_desktop():
        return None
    # Use a thread: a browser that blocks must not delay the server it connects to.
    opening = threading.Thread(target=_open, args=(page, code, state_dir, is_waiting), daemon=True)
    opening.start()
    return opening


def _open(page: str, code: str, state_dir: Path, is_waiting: Callable[[], bool]) -> None:
    if not reads_files():
        # Without the file: the user types the code.
        _show_page(page)
        return
    file = write_redirect(page, code, state_dir)
    try:
        _show_page(file.absolute().as_uri())
        deadline = time.monotonic() + _FILE_SECONDS
        while is_waiting() and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN)
    finally:
        file.unlink(missing_ok=True)


def _show_page(address: str) -> None:
    """Open an address with Python's `webbrowser`, using a PATH that sessions cannot write to."""
    with suppress(OSError, subprocess.TimeoutExpired):
        # In an isolated process: `webbrowser` prints and may block.
        subprocess.run(
            [sys.executable, "-I", "-m", "webbrowser", address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_FILE_SECONDS,
            env=environment_for(),
            cwd="/",
            check=False,
        )


def write_redirect(page: str, code: str, state_dir: Path) -> Path:
    """Write a private file that redirects a browser to the page with the code. Delete files of interrupted runs."""
    import secrets

    from helmsman.settings import ensure_state_dir
    from helmsman.web.login import CODE_SECONDS

    folder = ensure_state_dir(state_dir)
    for old in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        # Files of another run may still be waiting for their browser.
        if old.lstat().st_mtime < time.time() - CODE_SECONDS:
            old.unlink(missing_ok=True)
    file = folder / f"{_PREFIX}{secrets.token_hex(16)}{_SUFFIX}"
    # Exclusive and 0600 from the beginning: another user must not read it, or plant one.
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        # In the fragment, which browsers do not send to servers or log.
        opened.write(_REDIRECT.format(address=html.escape(f"{page}{FRAGMENT}{code}")))
    return file


def is_desktop() -> bool:
    """Return whether the user has a local terminal and a graphical display."""
    # Over SSH, DISPLAY would open a browser on the wrong screen, if any.
    if not (sys.stdin.isatty() and sys.stderr.isatty()) or os.environ.get("SSH_CONNECTION"):
        return False
    has_screen = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return has_screen or sys.platform in ("darwin", "win32")


def reads_files() -> bool:
    """Return whether the user's browser can read files in the state directory."""
    if os.environ.get("WSL_DISTRO_NAME"):
        return False  # the browser runs on Windows, where the file has a different path
    if os.environ.get("BROWSER"):
        return True
    try:
        asking = find_program("xdg-settings")
        if asking is None:
            # Unknown: the usual browser can read it, and otherwise the printed code helps.
            return True
        told = subprocess.run(
            [asking, "get", "default-web-browser"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_ASK_SECONDS,
            env=environment_for(),
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired, ProgramRefused):
        return True
    return "_" not in told  # snaps are named `firefox_firefox.desktop` and cannot read hidden directories


@cli_group(
    "dashboard",
    "Show sessions, tasks and questions in the browser.",
    "helmsman dashboard",
    "helmsman dashboard --tailscale",
    "helmsman dashboard stop",
    "helmsman dashboard --server http://127.0.0.1:8765",
    itself=None,
)
@option(
    "--port", "The port to listen on.", type=click.IntRange(0, 65535), show_default=f"{USUAL_PORT}, or any free one"
)
@option("--no-open", "Print the address and code, and open no browser.")
@option("--server URL", "Get a code for a server that is already running (serve --transport http).")
@option("--qr", "Show a QR code for a phone, which opens the page logged in.")
@option("--tailscale", "Serve it to the devices of your tailnet over HTTPS, with a QR code.")
@listening_options("browsers")
def command(
    port: int | None, no_open: bool, server: str | None, qr: bool, tailscale: bool, as_json: bool, **listening: Any
) -> int:
    """Show sessions, tasks and questions in the browser, live; approve, deny, steer and start from there.

    The hub serves it, at one address, until `helmsman dashboard stop`: you can close the terminal. Run the command again to
    open it again. The code it prints works once, for ten minutes; a browser that it opens needs none. A browser that has
    logged in is remembered (`helmsman dashboard devices`). MCP clients can use the same server, at /mcp.
    """
    settings = settings_of_command()
    if server is not None:
        # The address of the MCP endpoint is what users have at hand.
        _show_server(server.rstrip("/").removesuffix(MCP_PATH), settings, open_it=not no_open, qr=qr, as_json=as_json)
        return ExitCode.OK
    context = click.get_current_context()
    # Only what was typed changes a running dashboard.
    is_given = any(
        context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in ("port", "tailscale", *listening)
    )
    with ExitStack() as opened:
        listener = None
        # Two commands at a time would start two servers.
        with changing(settings.state_dir):
            known = known_dashboard(settings.state_dir)
            options = _options(known, port, is_given=is_given, tailscale=tailscale, **listening)
            if known is None or not known.is_running() or not _is_same(options, known.options):
                # Checked first, so that a mistake does not end the one that runs.
                options.served()
                stop(settings.state_dir)
                # Looked up only when it is needed, because it asks Tailscale.
                if options.tailnet == _ANY_TAILNET:
                    options = replace(options, tailnet=Tailnet.found().name)
                # Listening here, before the old one's port could go to another program.
                was_ours = known is not None and known.options.port == options.port
                listener = opened.enter_context(listener_of(options, may_move=port is None, was_ours=was_ours))
                known = start(settings, options, listener)
            if known is not None and known.options.tailnet is not None:
                _wait_for_tailnet(known.options.tailnet, settings.state_dir)
        # Without a hub, the command itself serves until Ctrl-C.
        if known is None:
            assert listener is not None
            return _serve_here(settings, options, listener, open_it=not no_open, qr=qr, as_json=as_json)
    click.echo("The dashboard stays on until `helmsman dashboard stop`.", err=True)
    if known.options.tailnet is None:
        _show_server(known.page.rstrip("/"), settings, open_it=not no_open, qr=qr, as_json=as_json)
    else:
        _show(known.shown, code_of_server(known.page, http_token(settings.state_dir)), qr=True, as_json=as_json)
    return ExitCode.OK


_ANY_TAILNET: Final = "?"


def _options(
    known: StoredDashboard | None,
    port: int | None,
    *,
    is_given: bool,
    tailscale: bool,
    **listening: Any,
) -> DashboardOptions:
    """Return the options of the command line; without any, those with which the dashboard was turned on."""
    # A plain `helmsman dashboard` must not change what an earlier one chose.
    if known is not None and not is_given:
        return known.options
    if port is None:
        port = USUAL_PORT if known is None else known.options.port
    return DashboardOptions(http=HttpOptions(port=port, **listening), tailnet=_ANY_TAILNET if tailscale else None)


def _is_same(wanted: DashboardOptions, known: DashboardOptions) -> bool:
    """Return whether the dashboard that runs is as wanted: port 0 is any port."""
    is_any = wanted.tailnet == _ANY_TAILNET and known.tailnet is not None
    # Any name of this tailnet is as good as the one in use.
    tailnet = known.tailnet if is_any else wanted.tailnet
    return replace(wanted.with_port(wanted.port or known.port), tailnet=tailnet) == known


def _wait_for_tailnet(name: str, state_dir: Path) -> None:
    try:
        Tailnet.known(name).wait_until_serving(state_dir)
    except BaseException:
        # Cleaned up also after Ctrl-C: what cannot be reached must not stay on.
        stop(state_dir)
        forget(state_dir)
        raise


@cli_command("stop", "Turn the dashboard off.", "helmsman dashboard stop", group=command)
def _stop(as_json: bool) -> None:
    """Turn the dashboard off. Sessions keep running; browsers that were logged in are known again when it is on."""
    state_dir = settings_of_command().state_dir
    with changing(state_dir):
        was_running = stop(state_dir)
        forget(state_dir)
    said = "The dashboard is off." if was_running else "The dashboard was off."
    print_result(said, {"stopped": was_running}, as_json=as_json)


_DEVICE_COLUMNS: Final = (
    Column("ID", "cyan"),
    Column("NAME"),
    Column("ADDRESS", "dim", left_out=2),
    Column("SEEN"),
    Column("NOTIFICATIONS", left_out=1),
)


@cli_command(
    "devices",
    "List the browsers that are logged in, or revoke one.",
    "helmsman dashboard devices",
    "helmsman dashboard devices --revoke 3f2a9c1e",
    group=command,
)
@option("--revoke NAME", "Log this one out: its id, or a part of its id or name.")
def _devices(revoke: str | None, as_json: bool) -> None:
    """List the browsers that have logged in to the dashboard and are remembered.

    A browser that is revoked needs a code from now on, answers nothing and gets no more notifications.
    """
    book = DeviceBook(settings_of_command().state_dir)
    devices = book.all()
    if revoke is not None:
        device = book.revoke(_device(revoke, devices).id)
        print_result(f"{one_line(device.name)} is logged out.", {"revoked": device.id}, as_json=as_json)
        return
    listed = [
        {
            "id": one.id,
            "name": one.name,
            "address": one.origin,
            "addedAt": iso_time(one.added_at),
            "seenAt": iso_time(one.seen_at),
            "push": one.push is not None,
        }
        for one in devices
    ]
    rows = [
        (one.id, one_line(one.name), one.origin, ago(one.seen_at), "" if one.push is None else "pushed")
        for one in devices
    ]
    print_list(
        {"devices": listed},
        rows,
        _DEVICE_COLUMNS,
        nothing="No browser is logged in.",
        as_json=as_json,
    )


def _device(named: str, devices: Sequence[Device]) -> Device:
    """Return the device that is meant."""
    # An exact id goes before parts of names.
    found = [one for one in devices if one.id == named] or [
        one for one in devices if named in one.id or named.lower() in one.name.lower()
    ]
    return the_only_one(found, "browser", named, "helmsman dashboard devices")


# --- Without a hub: serve it in the command's own process -------------------------------------------------------------


def _serve_here(
    settings: Settings, options: DashboardOptions, listener: socket, *, open_it: bool, qr: bool, as_json: bool
) -> int:
    import anyio

    from helmsman.httpd.server import serve_http
    from helmsman.web.login import Logins

    http, tailnet = options.served(), None if options.tailnet is None else Tailnet.known(options.tailnet)
    logins = Logins(secure=http.scheme == "https", devices=DeviceBook(settings.state_dir))

    def announce(address: str, _token_file: Path) -> None:
        page, code = address.removesuffix(MCP_PATH) + "/", logins.new_code()
        click.echo("The dashboard runs until Ctrl-C.", err=True)
        _show(page if tailnet is None else tailnet.address, code.value, qr=qr or tailnet is not None, as_json=as_json)
        if open_it and tailnet is None:
            open_in_background(page, code.value, settings.state_dir, is_waiting=lambda: logins.is_waiting(code))

    port = listener.getsockname()[1]
    with nullcontext() if tailnet is None else tailnet.serving(port, settings.state_dir):
        return anyio.run(serve_until_signal, settings, lambda helm: serve_http(helm, http, announce, logins, listener))


def _show_server(base: str, settings: Settings, *, open_it: bool, qr: bool, as_json: bool) -> None:
    code = code_of_server(base, http_token(settings.state_dir))
    _show(f"{base}/", code, qr=qr, as_json=as_json)
    opened = open_in_background(f"{base}/", code, settings.state_dir) if open_it else None
    if opened is not None:
        click.echo("Opening the browser …", err=True)
        # The file with the code has to stay until the browser has read it.
        opened.join()


def _show(page: str, code: str, *, qr: bool, as_json: bool) -> None:
    """Print the address and the code separately: a code in the address would appear in the browser's command line."""
    if as_json:
        print_json({"address": page, "code": code})
    else:
        click.echo(f"{page}\nCode: {code} (once, for ten minutes)")
        if qr:
            import segno

            segno.make(f"{page}{FRAGMENT}{code}").terminal(sys.stdout, border=2, compact=True)
    sys.stdout.flush()
