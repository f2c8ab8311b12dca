"""Why a turn of an agent failed, as stable codes. Agents say it in four different ways, and never in the same words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from helmsman.base.json_values import integer, mapping, optional_text, text
from helmsman.base.redaction import redact
from helmsman.model.events import Failure

if TYPE_CHECKING:
    from helmsman.errors import EngineRefused

_NEEDS_LOGIN: Final = -32000
_STATUS: Final = re.compile(r"(?<!\d)([45]\d\d)(?!\d)")
_CODES: Final = {401: "unauthorized", 403: "unauthorized", 429: "rate_limit_exceeded"}
_SERVER_ERROR: Final = 500
_SHOWN_CHARS: Final = 500


def turn_failure(error: EngineRefused) -> Failure:
    """The error that a prompt was answered with."""
    code, said = integer(error.details.get("rpc_code")), text(error.details.get("rpc_message"))
    data = mapping(error.details.get("rpc_data"))
    said = " ".join(filter(None, (said, optional_text(data.get("details")))))
    status = _http_status(code, said)
    if code == _NEEDS_LOGIN:
        name = "unauthorized"
    elif status is not None:
        name = _CODES.get(status, "internal_server_error" if status >= _SERVER_ERROR else "bad_request")
    else:
        name = optional_text(data.get("errorKind")) or "agent_error"
    retryable = name in ("rate_limit_exceeded", "internal_server_error", "server_error", "rate_limit")
    return Failure(code=name, message=redact(said)[:_SHOWN_CHARS], retryable=retryable, http_status=status)


def _http_status(code: int | None, said: str) -> int | None:
    if code is not None and 400 <= code < 600:
        return code
    found = _STATUS.search(said)
    return None if found is None else int(found[1])
