"""Why a turn failed, or why Codex tries again, as stable codes.

The app-server names the cause in `codexErrorInfo` (a string, or an object with one key). exec gives only a sentence,
from which the same codes are read as far as the wording of real versions allows.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.json_values import integer, mapping, optional_text, snake_case, text
from helmsman.base.redaction import redact
from helmsman.model.events import USAGE_LIMIT, Failure, NoticeKind

if TYPE_CHECKING:
    from collections.abc import Mapping


OTHER: Final = "other"

_RETRYABLE: Final = frozenset(
    {
        "flex_unavailable",
        "http_connection_failed",
        "internal_server_error",
        "model_cap",
        "policy_capacity_unavailable",
        "rate_limit_exceeded",
        "response_stream_connection_failed",
        "response_stream_disconnected",
        "response_too_many_failed_attempts",
        "server_overloaded",
    }
)
_RATE_LIMITS: Final = frozenset({"model_cap", "rate_limit_exceeded", USAGE_LIMIT})
_TOO_MANY_REQUESTS: Final = 429
_NEEDS_LOGIN: Final = frozenset({401, 403})
"""Codex retries these, but nobody else's retry helps until a person has logged in."""

_STREAM_LOST: Final = "stream disconnected"
_UNREACHABLE: Final = ("waiting for network", "error sending request")

_SENTENCES: Final = (
    ("hit your usage limit", USAGE_LIMIT),
    ("Quota exceeded", USAGE_LIMIT),
    ("exceeded retry limit", "response_too_many_failed_attempts"),
    ("experiencing high demand", "internal_server_error"),
    ("unexpected status", "http_connection_failed"),
    ("ran out of room in the model's context window", "context_window_exceeded"),
    ("rate limit exceeded", "rate_limit_exceeded"),
)
_AGAIN_AT: Final = re.compile(
    r"[Tt]ry again at (?:(?P<month>[A-Z][a-z]{2}) (?P<day>\d{1,2})(?:st|nd|rd|th), (?P<year>\d{4}) )?"
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})\s?(?P<half>AM|PM)"
)
"""When a limit is there again, as Codex (0.93 to 0.166) tells people: the clock on the wall, and the day if not today."""
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MINUTE: Final = timedelta(minutes=1)
_STATUS: Final = re.compile(r"(?:last status: |unexpected status )([0-9]{3})")


def turn_failure(error: Any) -> Failure:
    """The `error` of a failed turn, as the app-server or a session's file spells it."""
    fields = mapping(error)
    code, http_status = _error_info(fields.get("codexErrorInfo", fields.get("codex_error_info")))
    return _failure(code, _message(fields), http_status)


def failure_from_sentence(message: str) -> Failure:
    """The failure that exec describes in a sentence."""
    code = next((code for fragment, code in _SENTENCES if fragment in message), OTHER)
    status = _STATUS.search(message)
    return _failure(code, message, None if status is None else int(status[1]))


def _failure(code: str, message: str, http_status: int | None) -> Failure:
    retryable = (code in _RETRYABLE or (code == OTHER and _STREAM_LOST in message)) and http_status not in _NEEDS_LOGIN
    return Failure(
        code=code,
        message=redact(message) or "Codex ended the turn as failed and did not say why.",
        retryable=retryable,
        http_status=http_status,
    )


def resets_at(message: str, now: datetime) -> datetime | None:
    """When a limit is there again, as a sentence says it on the clock that shows `now`; None where it does not say.

    It names a minute and no seconds, so it is the end of that minute.
    """
    found = _AGAIN_AT.search(message)
    if found is None:
        return None
    hour = int(found["hour"]) % 12 + (12 if found["half"] == "PM" else 0)
    try:
        at = now.replace(hour=hour, minute=int(found["minute"]), second=0, microsecond=0)
        if found["month"] is not None:
            at = at.replace(year=int(found["year"]), month=_MONTHS.index(found["month"]) + 1, day=int(found["day"]))
        elif at < now - _MINUTE:  # said just before midnight
            at += timedelta(days=1)
        return (at + _MINUTE).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def notice_kind(failure: Failure) -> NoticeKind:
    """What sort of wait a failed attempt means, when Codex says that it tries again."""
    if any(fragment in failure.message for fragment in _UNREACHABLE):
        return "network"
    if failure.code in _RATE_LIMITS or failure.http_status == _TOO_MANY_REQUESTS:
        return "rate_limit"
    return "retry"


def _message(fields: Mapping[str, Any]) -> str:
    """The message of an app-server error, with its details in brackets where they add something."""
    message, details = text(fields.get("message")), optional_text(fields.get("additionalDetails"))
    return f"{message} ({details})" if details and details not in message else message


def _error_info(info: Any) -> tuple[str, int | None]:
    if isinstance(info, str):
        return snake_case(info) or OTHER, None
    for name, details in mapping(info).items():
        about = mapping(details)
        return snake_case(text(name)) or OTHER, integer(about.get("httpStatusCode", about.get("http_status_code")))
    return OTHER, None
