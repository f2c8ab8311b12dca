"""Audit log of all decisions on questions.

Each decision is one line of JSON in `audit.jsonl` in the state directory, readable by the user only, with secrets
redacted:

    {"time": "2026-01-31T12:00:00.000Z", "session": "…", "question": "q_1", "type": "command_approval",
     "what": {"command": "git push"}, "directory": "/src/repo", "decision": "deny", "by": "person", "via": "dashboard",
     "reason": "not today"}

`by` names the decider (`helmsman.model.answered_by`): `person`, `agent: <client>`, `command line`, `program`,
`handler`, `rule: <the rule>`, `deadline`, `turn ended`, `trouble`. `via` names the client that was used.

A decision is recorded before the agent gets it. A hub that is killed in between records the same decision again, which
is left out.

Several processes append to the file, with one write per line, so lines never mix. A full file is rotated to
`audit.jsonl.1` and so on; the oldest is deleted. Failed writes are logged, and hold up no decision.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.files import file_lock
from helmsman.base.json_values import present
from helmsman.base.redaction import redact_value
from helmsman.base.truncate import shortened
from helmsman.errors import HelmsmanError
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from helmsman.model.answered_by import AnsweredBy
    from helmsman.model.questions import Question, QuestionType

log = logging.getLogger(__name__)

AUDIT_NAME: Final = "audit.jsonl"
_MAX_BYTES: Final = 10 * 1024 * 1024
_FILES_KEPT: Final = 5
_LOOKED_BACK_BYTES: Final = 64 * 1024
_MAX_TEXT: Final = 4000
"""Maximum length of one text; a command can be a megabyte long."""
_OPEN_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)

_SUBJECTS: Final[dict[QuestionType, tuple[str, ...]]] = {
    "command_approval": ("command", "additionalPermissions", "networkContext"),
    "patch_approval": ("paths", "grantRoot"),
    "permission_approval": ("permissions",),
    "mcp_elicitation": ("server", "tool", "url"),
    "user_input": (),
}
"""Details that identify the subject of a question."""


class AuditLog:
    """Writer for the audit log of a state directory."""

    def __init__(self, state_dir: Path, *, max_bytes: int = _MAX_BYTES, files_kept: int = _FILES_KEPT) -> None:
        self.state_dir = state_dir
        self._max_bytes = max_bytes
        self._files_kept = files_kept

    @property
    def path(self) -> Path:
        return self.state_dir / AUDIT_NAME

    def record(self, question: Question, *, decision: str, by: AnsweredBy, reason: str | None = None) -> None:
        """Record a decision. Never raises.

        Args:
            question: The question.
            decision: The answer, such as `approve` or `deny`.
            by: Who gave it.
            reason: The reason, if one was given.
        """
        try:
            entry = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "session": question.session_id,
                "agent": question.agent_id,
                "question": question.id,
                "type": question.type,
                "what": _what(question),
                "directory": question.details.get("directory"),
                "decision": decision,
                "by": str(by),
                "via": by.through,
                "reason": reason,
            }
            said = present(entry)
            shown, _ = shortened(redact_value(said), _MAX_TEXT)
            # A hub that was killed repeats the decision, and a restart must not record it twice.
            if question.id and self._has(shown):
                return
            # ASCII only: escape sequences in a hostile command must not reach a terminal that shows the log.
            self._append((json.dumps(shown, default=str) + "\n").encode("ascii"))
        except (OSError, HelmsmanError) as error:
            log.warning("the audit log %s cannot be written: %s", self.path, error)
        except Exception:
            log.exception("a decision could not be written to the audit log")

    def _append(self, line: bytes) -> None:
        ensure_state_dir(self.state_dir)
        self._rotate_if_full()
        # With `O_NOFOLLOW`, since a link would let another file be appended to.
        descriptor = os.open(self.path, _OPEN_FLAGS, 0o600)
        try:
            if _ends_in_mid_line(descriptor):  # after a full disk or a killed writer
                line = b"\n" + line
            # One write: lines of several processes must not mix.
            written = os.write(descriptor, line)
        finally:
            os.close(descriptor)
        if written < len(line):
            log.warning("the audit log %s was cut short: only %s of %s bytes written", self.path, written, len(line))

    def _has(self, entry: Mapping[str, Any]) -> bool:
        """Return whether one of the last lines records the same decision, at another time. Ids of questions are unique."""
        recorded = json.dumps({**entry, "time": ""}, default=str).encode()
        # All fields but the time have to be equal.
        same = recorded.partition(b'"time": ""')[2]
        return any(line.endswith(same) for line in self._last_lines())

    def _last_lines(self) -> list[bytes]:
        try:
            with self.path.open("rb") as file:
                # Repetitions come soon after the first record, so the end of the file is enough.
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOOKED_BACK_BYTES))
                return file.read().splitlines()
        except FileNotFoundError:
            return []

    def _rotate_if_full(self) -> None:
        if not self._is_full():
            return
        # Without waiting: the holder of the lock is rotating the file.
        with suppress(TimeoutError), file_lock(self.state_dir / "audit.lock", timeout=0):
            if not self._is_full():
                return  # another process was faster
            for number in range(self._files_kept - 1, 0, -1):
                older = self._numbered(number)
                if older.exists():
                    older.replace(self._numbered(number + 1))
            self.path.replace(self._numbered(1))
            self._numbered(self._files_kept).unlink(missing_ok=True)

    def _is_full(self) -> bool:
        try:
            return self.path.stat().st_size >= self._max_bytes
        except FileNotFoundError:
            return False

    def _numbered(self, number: int) -> Path:
        return self.state_dir / f"{AUDIT_NAME}.{number}"


def _what(question: Question) -> dict[str, Any]:
    """Return the subject of a question. Answers are left out because they may be secrets."""
    details = question.details
    what = {key: details[key] for key in _SUBJECTS[question.type] if details.get(key) is not None}
    return what or {"questions": [prompt.text for prompt in question.prompts]}


def _ends_in_mid_line(descriptor: int) -> bool:
    if os.lseek(descriptor, 0, os.SEEK_END) == 0:
        return False
    os.lseek(descriptor, -1, os.SEEK_END)
    return os.read(descriptor, 1) != b"\n"
