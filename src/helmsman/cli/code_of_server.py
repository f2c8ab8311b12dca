"""Get a login code from a running server, after it has proved that it is this user's server."""

from __future__ import annotations

import http.client
import json
from typing import Any, Final
from urllib.parse import urlsplit

from helmsman.errors import InvalidInput
from helmsman.web.login import PAGE_HEADER
from helmsman.web.proof import CODE_PATH, PROOF_PATH, client_proof, is_proof, new_nonce, place, server_proof

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
