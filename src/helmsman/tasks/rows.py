"""Tasks as rows of the store.

Everything that is stored passes `clean`: secrets are redacted, texts are bounded, other data becomes plain JSON; an
idempotency key, which is only ever compared, is stored as its digest. Reading is tolerant: content that makes no sense
counts as absent.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final, get_args

from helmsman.base.json_values import json_object, mapping
from helmsman.base.processes import Process
from helmsman.base.redaction import redact, redact_value
from helmsman.base.structs import pack, unpack, unpack_if_valid
from helmsman.base.truncate import TEXT_CHARS, within
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
# A secret at the cut is recognised only if all of it is looked at.
_LONGEST_SECRET: Final = 8192

_PLAIN: Final = (
    *(
        "id",
        "origin",
        "agent",
        "alias",
        "status",
        "directory",
        "session_id",
        "turn_id",
        "opened_session",
        "model",
        "job",
    ),
    *("idempotency_key", "result_compacted", "revision"),
)
_TIMES: Final = ("created_at", "updated_at", "completed_at", "expires_at")
_USAGES: Final = ("usage", "used_before")
_COLUMNS: Final = frozenset((*_PLAIN, *_TIMES, *_USAGES))
"""Fields with their own column, because statements use them. The others are in one of two columns, as JSON."""
_EXPIRING: Final = frozenset(
    (
        *("result", "progress", "stored_options", "policy", "timed_out", "granted", "reviewed", "tree_before"),
        *("job_sessions", "chosen", "uncounted", "url", "spec"),
    )
)
"""Fields that are deleted when the result expires."""
_NAMES: Final = dict(zip(Task.__struct_fields__, Task.__struct_encode_fields__, strict=True))


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
    if isinstance(value, dict | list | tuple) and not isinstance(value, Process):
        text = json.dumps(redact_value(value), default=str, skipkeys=True)
        plain = json.loads(text)
        bounded = plain if len(text) <= min(TEXT_CHARS, _JSON_LIMIT) else within(plain, _JSON_LIMIT)
        if isinstance(value, tuple):
            return tuple(tuple(one) if isinstance(one, list) else one for one in bounded)
        return bounded
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


def columns_of(task: Task, before: Any = None) -> dict[str, Any]:
    """Return a task as columns of the table. Fields that only a newer Helmsman knows are kept from the row `before`."""
    columns = {name: getattr(task, name) for name in _PLAIN}
    columns["result_compacted"] = int(task.result_compacted)
    for name in _TIMES:
        time = getattr(task, name)
        columns[name] = None if time is None else microseconds(time)
    packed = pack(task)
    for name in _USAGES:
        usage = packed.get(_NAMES[name])
        columns[name] = None if usage is None else json.dumps(usage)
    for name in ("body", "expiring"):
        known = {} if before is None else json_object(before[name]) or {}
        fields = {key: value for key, value in known.items() if key not in _NAMES.values()}
        for field, key in _NAMES.items():
            if key in packed and field not in _COLUMNS and (field in _EXPIRING) == (name == "expiring"):
                fields[key] = packed[key]
        columns[name] = json.dumps(fields) if fields else None
    return columns


def changed_columns(changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return cleaned changes of a task: its columns, and fields in the JSON of `body` and `expiring`; None removes one."""
    columns: dict[str, Any] = {}
    body: dict[str, Any] = {}
    expiring: dict[str, Any] = {}
    for name, value in changes.items():
        if name in _USAGES:
            columns[name] = None if value is None else json.dumps(pack(value))
        elif name in _TIMES:
            columns[name] = None if value is None else microseconds(value)
        elif name in _PLAIN:
            columns[name] = value
        else:
            (expiring if name in _EXPIRING else body)[_NAMES[name]] = pack(value)
    return columns, body, expiring


def task_of(row: Any) -> Task:
    """Return the task in a row."""
    columns = {_NAMES[name]: row[name] for name in _PLAIN}
    columns["resultCompacted"] = bool(row["result_compacted"])
    # A later version may have written another one.
    columns["status"] = row["status"] if row["status"] in get_args(TaskStatus) else "unknown"
    columns["origin"] = row["origin"] if row["origin"] in get_args(TaskOrigin) else "local"
    for name in _TIMES:
        columns[_NAMES[name]] = None if row[name] is None else from_microseconds(row[name])
    usages = {_NAMES[name]: json_object(row[name]) for name in _USAGES if row[name] is not None}
    content = {**(json_object(row["body"]) or {}), **(json_object(row["expiring"]) or {}), **usages}
    # Damaged content must not hide the task.
    return unpack_if_valid({**content, **columns}, Task) or unpack({"instruction": "", **columns}, Task)
