"""Parse lines as messages of JSON-RPC, and make the errors that answer invalid ones."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from mcp_types import (
    CLIENT_INFO_META_KEY,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    jsonrpc_message_adapter,
)

log = logging.getLogger(__name__)

CLAUDE_CODE: Final = "claude-code"
"""Name by which Claude Code introduces itself."""
_ID: Final = '"id"'
_ANSWER_KEYS: Final = frozenset({"result", "error"})


class NoMessage(Exception):
    """Raised for a line that is not a JSON-RPC message. `answer` is the error for the client, if any."""

    def __init__(self, answer: JSONRPCError | None) -> None:
        super().__init__()
        self.answer = answer


def parse_message(line: bytes, *, has_channel: bool = False) -> JSONRPCMessage:
    """Parse the message in a line.

    Raises:
        NoMessage: It is not a message. A blank line and a malformed response get no error: an error with the id of a
            response would look like the reply to a request of the client. With a channel, Claude Code's probe for the
            protocol of 2026-07-28 is refused too: that protocol has no channels, and the first request decides.
    """
    # Lines are UTF-8. A wrong byte must not end the connection.
    text = line.decode("utf-8", "replace")
    if not text.strip():
        raise NoMessage(None)
    try:
        message = jsonrpc_message_adapter.validate_json(text, by_name=False)
    except Exception as error:
        # Any failure of the parser means the same: the line is no message.
        log.info("a client sent a line that is no message of JSON-RPC: %s", type(error).__name__)
        raise NoMessage(_error_for(text)) from error
    if has_channel and isinstance(message, JSONRPCRequest) and _is_probe_of_claude(message):
        raise NoMessage(_error(message.id, METHOD_NOT_FOUND, "Method not found"))
    # The SDK takes a request with an invalid id for a notification, which it would never answer.
    if isinstance(message, JSONRPCNotification) and _ID in text and "id" in json.loads(text):
        raise NoMessage(_error(None, INVALID_REQUEST, "The id of a request is a text or a whole number."))
    return message


def _is_probe_of_claude(request: JSONRPCRequest) -> bool:
    meta = (request.params or {}).get("_meta")
    client = meta.get(CLIENT_INFO_META_KEY) if isinstance(meta, dict) else None
    return request.method == "server/discover" and isinstance(client, dict) and client.get("name") == CLAUDE_CODE


def _error_for(text: str) -> JSONRPCError | None:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        # Deep nesting raises RecursionError.
        return _error(None, PARSE_ERROR, "This line is not JSON. Send one message of JSON-RPC 2.0 per line.")
    known = value if isinstance(value, dict) else {}
    if "method" not in known and _ANSWER_KEYS & known.keys():
        return None
    request_id = known.get("id") if "method" in known else None
    # JSON's true and false are ints in Python, and no ids.
    is_id = isinstance(request_id, str | int) and not isinstance(request_id, bool)
    text = "This is no request of JSON-RPC 2.0. Send one object per line, with jsonrpc, id, method and params."
    return _error(request_id if is_id else None, INVALID_REQUEST, text)


def duplicate_error(request_id: str | int) -> JSONRPCError:
    """Return the error for a request whose id is in use."""
    return _error(request_id, INVALID_REQUEST, f"Another request with the id {request_id!r} is open. Use each id once.")


def _error(request_id: str | int | None, code: int, message: str) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=message))
