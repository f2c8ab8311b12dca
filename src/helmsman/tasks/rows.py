"""Tasks as rows of the store.

Everything that is stored passes `clean`: secrets are redacted, texts are bounded, other data becomes plain JSON; an
idempotency key, which is only ever compared, is stored as its digest. Reading is tolerant: a value that makes no sense
counts as absent.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final, get_args

from msgspec import structs

from helmsman.base.json_values import json_object, mapping
from helmsman.base.processes import Process
from helmsman.base.redaction import redact, redact_value
from helmsman.base.structs import replace
from helmsman.base.truncate import TEXT_CHARS, within
from helmsman.model.events import Usage
from helmsman.store.database import encodable, from_microseconds, microseconds
from helmsman.tasks.model import Task, TaskOrigin, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

INSTRUCTION_LIMIT: Final = 20_000
RESULT_LIMIT: Final = 1_000_000
"""Maximum number of characters of a result. Codex's own storage has the whole texts; a listing and an answer need less."""

_SHORT_LIMIT: Final = 10_000
_LIMITS: Final = {
    "instruction": INSTRUCTION_LIMIT,
    "result": RESULT_LIMIT,
    **dict.fromkeys(("note", "model", "cancel_reason"), _SHORT_LIMIT),
}
_JSON_LIMIT: Final = 100_000
_DIGEST: Final = "sha256:"
_LONGEST_SECRET: Final = 8192
_NEVER_NULL: Final = ("granted", "uncounted")  # as fields: their columns are
_OBJECTS: Final = (
    *("progress", "error", "spec", "stored_options", "policy", "reviewed", "tree_before"),
    *_NEVER_NULL,
)
_LISTS: Final = ("timed_out", "job_sessions", "chosen")
_JSON: Final = (*_OBJECTS, *_LISTS)
_WAITS: Final = ("resumes_at", "limit_reached_at", "asked_at")
_TIMES: Final = ("created_at", "updated_at", "completed_at", "last_event_at", "expires_at", *_WAITS)
_USAGE: Final = Usage.__struct_fields__
_PLAIN: Final = tuple(name for name in Task.__struct_fields__ if name not in ("owner", "usage", "metadata"))
"""Fields of a task that are stored in a column of the same name."""


# --- before anything is stored ---------------------------------------------------------------------------------------


def clean(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields, sanitized for the store."""
    cleaned = {name: _clean(name, value) for name, value in values.items() if name != "spec"}
    if "spec" in values:
        cleaned["spec"] = _whole(values["spec"], cleaned.get("instruction"))
    return cleaned


def _whole(spec: Mapping[str, Any] | None, instruction: str | None) -> Mapping[str, Any] | None:
    """Return the spec if it holds no secrets, else None: a redacted spec could not run. Its text is the instruction, which
    is checked separately.
    """
    if spec is None:
        return None
    turn = mapping(spec.get("turn"))
    rest = spec if turn.get("text") != instruction else {**spec, "turn": {**turn, "text": ""}}
    return spec if redact_value(rest) == rest else None


def _clean(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _JSON:
        text = json.dumps(redact_value(value), default=str, skipkeys=True)
        plain = json.loads(text)
        bounded = plain if len(text) <= min(TEXT_CHARS, _JSON_LIMIT) else within(plain, _JSON_LIMIT)
        return tuple(bounded) if name in _LISTS else bounded
    if name == "idempotency_key":
        return clean_key(value)
    if isinstance(value, str):
        return encodable(_redacted(value, _LIMITS[name]) if name in _LIMITS else value)
    return value


def clean_key(key: str) -> str:
    """Return the digest of a key. It identifies the key without revealing it."""
    return _DIGEST + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _redacted(text: str, limit: int) -> str:
    """Return at most `limit` characters, redacted before the cut: a half secret would not be recognised."""
    if len(text) <= limit:
        return redact(text)
    begin = redact(text[: limit + _LONGEST_SECRET])
    return begin[: min(limit, len(begin) - _LONGEST_SECRET)] + "…"


# --- to and from columns ---------------------------------------------------------------------------------------------


def columns_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a task as columns of the table."""
    columns: dict[str, Any] = {}
    for name, value in values.items():
        if name == "metadata":
            continue  # of a fleet's task
        if name == "usage":
            columns.update({column: None if value is None else getattr(value, column) for column in _USAGE})
        elif name == "used_before":
            columns[name] = json.dumps(structs.astuple(value)) if value != Usage() else None
        elif name == "owner":
            columns["owner_pid"] = None if value is None else value.pid
            columns["owner_started"] = None if value is None else value.started
        elif value is None:
            columns[name] = None
        elif name in _TIMES:
            columns[name] = microseconds(value)
        else:
            is_empty = not value and name in (*_LISTS, *_NEVER_NULL)
            columns[name] = None if is_empty else json.dumps(value) if name in _JSON else value
    return columns


def task_of(row: Any) -> Task:
    """Return the task in a row. Unknown columns come from a newer Helmsman, which has the file open too."""
    values: dict[str, Any] = {name: row[name] for name in _PLAIN}
    pid, (*tokens, cost) = row["owner_pid"], (row[name] for name in _USAGE)
    values["owner"] = None if pid is None else Process(pid, row["owner_started"] or "")
    is_known = cost is not None or any(count is not None for count in tokens)
    values["usage"] = replace(Usage(*(count or 0 for count in tokens)), cost_usd=cost) if is_known else None
    values["used_before"] = Usage(*json.loads(values["used_before"] or "[]"))
    for name in _TIMES:
        values[name] = None if values[name] is None else from_microseconds(values[name])
    for name in _OBJECTS:
        values[name] = json_object(values[name])
    for name in _LISTS:
        values[name] = tuple(json.loads(values[name] or "[]"))
    for name in _NEVER_NULL:
        values[name] = values[name] or {}
    values["untouched"] = None if values["untouched"] is None else bool(values["untouched"])
    values["input_required"] = bool(values["input_required"])
    values["result_compacted"] = bool(values["result_compacted"])
    values["status"] = values["status"] if values["status"] in get_args(TaskStatus) else "unknown"
    values["origin"] = values["origin"] if values["origin"] in get_args(TaskOrigin) else "local"
    return Task(**values)
