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
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from helmsman.base.json_values import json_object
from helmsman.base.programs import environment_for, find_program
from helmsman.base.sanitize import one_line
from helmsman.cli.command import cli_command
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.output import print_json
from helmsman.cli.serve import http_options, listening_options, serve_until_signal
from helmsman.errors import InvalidInput, ProgramRefused
from helmsman.web.login import FRAGMENT, PAGE_HEADER
from helmsman.web.proof import CODE_PATH, PROOF_PATH, client_proof, is_proof, new_nonce, place, server_proof

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from socket import socket

    from helmsman.httpd.listening import HttpOptions
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
    nonce = new_nonce()
    try:
        answer, where = _post(base, PROOF_PATH, nonce=nonce)
        challenge, proof = str(answer["challenge"]), str(answer["proof"])
        if not is_proof(proof, server_proof(token, nonce, challenge, where)):
            raise InvalidInput(
                f"The server at {base} is not your Helmsman, or not directly reached: its proof is wrong. Nothing secret "
                "was sent. Use the address that `helmsman serve --transport http` printed, with the same HELMSMAN_STATE_DIR."
            )
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
        host, port = connection.sock.getpeername()[:2]
        headers = {"Content-Type": "application/json", PAGE_HEADER: "1"}
        connection.request("POST", parts.path.rstrip("/") + path, json.dumps(fields), headers)
        response = connection.getresponse()
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
        if old.lstat().st_mtime < time.time() - CODE_SECONDS:
            old.unlink(missing_ok=True)
    file = folder / f"{_PREFIX}{secrets.token_hex(16)}{_SUFFIX}"
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        opened.write(_REDIRECT.format(address=html.escape(f"{page}{FRAGMENT}{code}")))
    return file


def is_desktop() -> bool:
    """Return whether the user has a local terminal and a graphical display."""
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


_PORT: Final = 8645  # fixed if free, so that bookmarks and installed pages keep working


@cli_command(
    "dashboard",
    "Show sessions, tasks and questions in the browser.",
    "helmsman dashboard",
    "helmsman dashboard --port 9000 --no-open",
    "helmsman dashboard --server http://127.0.0.1:8765",
    "helmsman dashboard --tailscale",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), show_default=f"{_PORT}, or any free one", help="The port to listen on."
)
@click.option("--no-open", is_flag=True, help="Print the address and code, and open no browser.")
@click.option(
    "--server", metavar="URL", help="Get a code for a server that is already running (serve --transport http)."
)
@click.option("--qr", is_flag=True, help="Show a QR code for a phone, which opens the page logged in.")
@click.option("--tailscale", is_flag=True, help="Serve it to the devices of your tailnet over HTTPS, with a QR code.")
@listening_options("browsers")
def command(
    port: int | None, no_open: bool, server: str | None, qr: bool, tailscale: bool, as_json: bool, **listening: Any
) -> int:
    """Show sessions, tasks and questions in the browser, live; approve, deny, steer and start from there.

    The code it prints works once, for ten minutes; a browser that it opens needs none. MCP clients can use the same
    server, at /mcp. Ctrl-C ends it; agents in their own engines keep working. A browser that has logged in is remembered;
    revoke it on the page Engines.
    """
    from helmsman.cli.serve import serve_in_hub
    from helmsman.httpd.listening import MCP_PATH, http_token, listen

    settings = settings_of_command()
    if server is not None:
        _for_running_server(server, settings, open_it=not no_open, qr=qr, as_json=as_json, wait=True)
        return ExitCode.OK
    if (
        port is None
        and not tailscale
        and _opens_running(listening["host"], settings, open_it=not no_open, qr=qr, as_json=as_json)
    ):
        return ExitCode.OK
    tailnet = Tailnet.found() if tailscale else None
    if tailnet is not None:
        listening["allow_host"] = (*listening["allow_host"], tailnet.name)
    options = http_options(_free_port(listening["host"]) if port is None else port, **listening)
    options.check()
    with listen(options) as listener, nullcontext() if tailnet is None else tailnet.serving(options, listener):
        page = options.address(listener).removesuffix(MCP_PATH)

        def show() -> None:
            click.echo("The dashboard runs until Ctrl-C.", err=True)
            if tailnet is not None:
                code = code_of_server(page, http_token(settings.state_dir))
                _show(tailnet.address, code, qr=True, as_json=as_json)
                return
            _for_running_server(page, settings, open_it=not no_open, qr=qr, as_json=as_json, wait=False)

        code = serve_in_hub("dashboard", settings, {}, options, listener, show)
        if code is not None:
            return code
        import anyio

        shown = None if tailnet is None else tailnet.address
        return anyio.run(_serve, settings, options, listener, not no_open, shown, qr, as_json)


_TAILSCALE_SECONDS: Final = 30
_HTTPS_PORT: Final = 443


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
        program = find_program("tailscale")
        if program is None:
            raise InvalidInput("Tailscale is not installed here. Install it, or use an SSH tunnel.")
        status = cls(program, "").run("status", "--json")
        own = status.get("Self") or {}
        name = str(own.get("DNSName") or "").rstrip(".")
        if status.get("BackendState") != "Running" or not name:
            raise InvalidInput("Tailscale is not connected, or has no name for this machine. Run `tailscale up`.")
        served = cls(program, name).run("serve", "status", "--json")
        if str(_HTTPS_PORT) in (served.get("TCP") or {}):
            raise InvalidInput(
                f"Tailscale serves something else on port {_HTTPS_PORT}. End it with `tailscale serve --https=443 off`."
            )
        return cls(program, name)

    @property
    def address(self) -> str:
        return f"https://{self.name}/"

    @contextmanager
    def serving(self, options: HttpOptions, listener: socket) -> Iterator[None]:
        """Serve this listener in the tailnet during the block."""
        https = f"--https={_HTTPS_PORT}"
        target = f"http://127.0.0.1:{listener.getsockname()[1]}"
        if options.host not in ("127.0.0.1", "localhost") or options.scheme != "http":
            raise InvalidInput("--tailscale goes with neither --host nor --tls-cert: Tailscale has its own.")
        self.run("serve", "--bg", https, target)
        try:
            yield
        finally:
            with suppress(InvalidInput):
                self.run("serve", https, "off")

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
                timeout=_TAILSCALE_SECONDS,
                env=environment_for(),
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InvalidInput(f"Tailscale does not answer: {error}") from None
        if done.returncode != 0:
            raise InvalidInput(f"`tailscale {' '.join(words)}` failed: {one_line(done.stderr or done.stdout)[:300]}")
        return json_object(done.stdout.encode()) or {}


def _opens_running(address: str, settings: Settings, *, open_it: bool, qr: bool, as_json: bool) -> bool:
    """Open the dashboard that runs at the usual address; return whether one of this user does."""
    from helmsman.errors import HelmsmanError

    if _free_port(address):
        return False
    shown = f"[{address}]" if ":" in address else address
    try:
        _for_running_server(f"http://{shown}:{_PORT}", settings, open_it=open_it, qr=qr, as_json=as_json, wait=True)
    except HelmsmanError:  # another program has the port
        return False
    click.echo("The dashboard runs already; this opened it.", err=True)
    return True


async def _serve(
    settings: Settings,
    options: HttpOptions,
    listener: socket,
    open_it: bool,
    shown: str | None,
    qr: bool,
    as_json: bool,
) -> int:
    from helmsman.httpd.listening import MCP_PATH
    from helmsman.httpd.server import serve_http
    from helmsman.notices.devices import DeviceBook
    from helmsman.web.login import Logins

    logins = Logins(secure=options.scheme == "https", devices=DeviceBook(settings.state_dir))

    def announce(address: str, _token_file: Path) -> None:
        page, code = address.removesuffix(MCP_PATH) + "/", logins.new_code()
        click.echo("The dashboard runs until Ctrl-C.", err=True)
        _show(shown or page, code.value, qr=qr or shown is not None, as_json=as_json)
        if open_it and shown is None:
            open_in_background(page, code.value, settings.state_dir, is_waiting=lambda: logins.is_waiting(code))

    return await serve_until_signal(settings, lambda helm: serve_http(helm, options, announce, logins, listener))


def _for_running_server(server: str, settings: Settings, *, open_it: bool, qr: bool, as_json: bool, wait: bool) -> None:
    from helmsman.httpd.listening import MCP_PATH, http_token

    base = server.rstrip("/").removesuffix(MCP_PATH)
    code = code_of_server(base, http_token(settings.state_dir))
    _show(f"{base}/", code, qr=qr, as_json=as_json)
    opened = open_in_background(f"{base}/", code, settings.state_dir) if open_it else None
    if opened is not None and wait:
        click.echo("Opening the browser …", err=True)
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


def _free_port(host: str) -> int:
    """Return the usual port, or 0 if it is taken."""
    import socket

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            if os.name == "posix":  # the server does the same: a recently released port counts as free
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, _PORT))
        except OSError:
            return 0
    return _PORT
