"""Logins that outlive a hub: the key of cookies, and cookies that were given back, in the state directory.

They end with the process for which the hub listens. Browsers send a cookie to every port of its host, also to another
program that takes the port after that process: the cookie must be worthless by then.
"""

from __future__ import annotations

import json
import logging
import secrets
from typing import TYPE_CHECKING, Any

from helmsman.base.files import replace_file
from helmsman.base.json_values import json_object
from helmsman.web.login import Logins

if TYPE_CHECKING:
    from pathlib import Path
    from socket import socket

    from helmsman.base.processes import Process

log = logging.getLogger(__name__)


def stored_logins(state_dir: Path, listener: socket, holder: Process, *, secure: bool) -> Logins:
    """Return the logins of a listener. They are new if another process than `holder` had the port."""
    path = state_dir / f"http-logins-{listener.getsockname()[1]}.json"
    known = _read(path)
    if not holder.started or known.get("holder") != list(holder):
        known = {"holder": list(holder), "key": secrets.token_hex(32), "takenBack": []}
        _write(path, known)

    def take_back(cookie: str) -> None:
        known["takenBack"].append(cookie)
        _write(path, known)

    key, taken_back = bytes.fromhex(known["key"]), tuple(known["takenBack"])
    return Logins(secure=secure, key=key, taken_back=taken_back, on_taken_back=take_back)


def _read(path: Path) -> dict[str, Any]:
    try:
        return json_object(path.read_bytes()) or {}
    except OSError:
        return {}


def _write(path: Path, known: dict[str, Any]) -> None:
    try:
        replace_file(path, json.dumps(known))
    except OSError as error:
        log.warning("logins of the dashboard end with this hub: %s", error)
