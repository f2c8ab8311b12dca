"""Open the dashboard in the user's browser, logged in, without secrets in a command line.

Every user of a machine can read the arguments of all processes. The browser is therefore opened on a private file that
redirects to the page with the code. The file is deleted when the code is used.

Some browsers cannot read that file, for example in a snap or outside WSL. They are opened on the plain address, and the
user types the printed code.
"""

from __future__ import annotations

import html
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from helmsman.base.programs import environment_for, find_program
from helmsman.errors import ProgramRefused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
        _show(page)
        return
    file = write_redirect(page, code, state_dir)
    try:
        _show(file.absolute().as_uri())
        deadline = time.monotonic() + _FILE_SECONDS
        while is_waiting() and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN)
    finally:
        file.unlink(missing_ok=True)


def _show(address: str) -> None:
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
    from helmsman.web.login import CODE_SECONDS, FRAGMENT

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
