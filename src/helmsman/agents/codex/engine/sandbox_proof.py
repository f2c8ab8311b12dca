"""Whether a yes to a command stays in Codex's sandbox. The question does not say, so it has to be proved, or is not so.

A yes may run a command outside in three ways: because the model asked for that, which the question does not tell; because
the sandbox refused it, and Codex runs it again without (under every approval policy but `on-request` and `never`, unasked;
seen from 0.93 to 0.166); or because it was never in a sandbox. Codex's own file of the session tells all of it: the policy
in force for the turn (`turn_context`), and the call as the model made it, with the question's `itemId` as its `call_id`.

So a command stays inside if the file says that the turn runs under `on-request` in a sandbox, and the call is one of a shell
we know, for this very command, with nothing in it that we do not know. Whatever is missing, unknown, too long or there twice
proves nothing. In code mode no call has the question's id: there every command counts as outside.
"""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.codex.storage.rollout_head import OWN_ID
from helmsman.base.json_values import json_object, mapping

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.model.questions import WhereItRuns

_TAILS: Final = (128 * 1024, 4 * 1024 * 1024)
"""How much of a file's end is read: the call is nearly always in its last lines. A turn that wrote more proves nothing."""

_COMMAND_KEYS: Final = {"exec_command": "cmd", "shell_command": "command", "shell": "command"}
"""The shells that Codex has offered to models, and where the command is in their arguments."""
_HARMLESS_KEYS: Final = frozenset(
    ["workdir", "shell", "login", "tty", "timeout_ms", "yield_time_ms", "max_output_tokens", "justification"]
)
_HARMLESS_VALUES: Final = {"sandbox_permissions": ("use_default",), "with_escalated_permissions": (False,)}
_SANDBOXES: Final = ("read-only", "workspace-write")


def prove(sessions: Path, params: Mapping[str, Any]) -> WhereItRuns | None:
    """What a yes to a `commandExecution/requestApproval` lets happen; None if the session's file may only be late.

    Args:
        sessions: Where this Codex keeps the files of its sessions.
        params: The request's parameters.
    """
    thread_id, call_id = params.get("threadId"), params.get("itemId")
    extra = (params.get(key) for key in ("additionalPermissions", "networkApprovalContext", "approvalId"))
    if not isinstance(thread_id, str) or not isinstance(call_id, str) or any(value is not None for value in extra):
        return "outside"
    if params.get("kind", "command") != "command" or params.get("environmentId", "local") != "local":
        return "outside"
    turn = _running_turn(sessions, thread_id, call_id)
    if turn is None or turn.policy not in ("on-request", "untrusted"):
        return "outside"
    if turn.names_turn and turn.id != params.get("turnId"):
        return None if not turn.calls else "outside"
    if not turn.calls:
        return None if not call_id.startswith("exec-") else "outside"
    if any(call != turn.calls[0] for call in turn.calls) or not _stays_inside(turn.calls[0], params.get("command")):
        return "outside"
    return "inside" if turn.policy == "on-request" else "inside-then-outside"


@dataclass(slots=True)
class _Turn:
    """The end of a session's file, back to where it says under which policy the turn runs."""

    id: str | None = None
    names_turn: bool = False
    policy: str | None = None
    """The approval policy; None where there is no sandbox, or none that we know."""
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The calls with the id that was looked for."""


def _running_turn(sessions: Path, thread_id: str, call_id: str) -> _Turn | None:
    path = _file(sessions, thread_id)
    tails = (_read_tail(path, size, call_id) for size in _TAILS if path is not None)
    return next((turn for turn in tails if turn is not None), None)


def _file(sessions: Path, thread_id: str) -> Path | None:
    """The file of a thread; of several, the one that was written to last. They lie under the day on which it began, which
    is in its id."""
    found: list[tuple[float, Path]] = []
    for day in _days_around(thread_id):
        folder = sessions / f"{day:%Y}" / f"{day:%m}" / f"{day:%d}"
        try:
            with os.scandir(folder) as entries:
                mine = (entry for entry in entries if thread_id in entry.name and entry.name.endswith(".jsonl"))
                found += [(entry.stat().st_mtime, Path(entry.path)) for entry in mine]
        except OSError:
            continue
    return max(found)[1] if found else None


def _days_around(thread_id: str) -> list[datetime]:
    """The day on which a thread began, and its neighbours: the folder's name is local time."""
    if not OWN_ID.fullmatch(thread_id):
        return []
    try:
        began = datetime.fromtimestamp(int(thread_id.replace("-", "")[:12], 16) / 1000, UTC)
        return [began + timedelta(days=offset) for offset in (-1, 0, 1)]
    except (ValueError, OverflowError, OSError):
        return []  # no year that there is


def _read_tail(path: Path, size: int, call_id: str) -> _Turn | None:
    try:
        with path.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - size))
            lines = file.read(size).split(b"\n")
    except OSError:
        return None
    if length > size:
        del lines[0]  # it begins in the middle of a line
    turn = _Turn()
    wanted = json.dumps(call_id).encode()
    settings: list[Mapping[str, Any]] = []
    for line in reversed(lines):
        if wanted in line:
            payload = _payload(line, "response_item")
            if (
                payload.get("call_id") == call_id
            ):  # the output of one, too: that call is over, so it is not the one asked about
                turn.calls.append({key: payload.get(key) for key in ("type", "name", "namespace", "arguments")})
        elif b'"thread_settings_applied"' in line[:200]:
            settings.append(mapping(_payload(line, "event_msg").get("thread_settings")))
        elif b'"turn_context"' in line[:200] and (context := _payload(line, "turn_context")):
            turn.names_turn = "turn_id" in context
            turn.id = context.get("turn_id")
            policies = {_policy(one) for one in (context, *settings)}
            turn.policy = policies.pop() if len(policies) == 1 else None
            return turn
    return None


def _payload(line: bytes, kind: str) -> Mapping[str, Any]:
    entry = json_object(line)
    return mapping(entry.get("payload")) if entry is not None and entry.get("type") == kind else {}


def _policy(context: Mapping[str, Any]) -> str | None:
    """The approval policy of what is certainly sandboxed, and asked of the user."""
    policy = context.get("approval_policy")
    profile, sandbox = context.get("permission_profile"), context.get("sandbox_policy")
    managed = mapping(profile).get("type") == "managed"
    restricted = mapping(mapping(profile).get("file_system")).get("type") == "restricted"
    sandboxed = mapping(sandbox).get("type") in _SANDBOXES if sandbox is not None else profile is not None
    if not sandboxed or (profile is not None and not (managed and restricted)):
        return None
    if context.get("approvals_reviewer", "user") != "user":
        return None
    return policy if isinstance(policy, str) else None


def _stays_inside(call: Mapping[str, Any], asked: object) -> bool:
    """Whether it is the call of a shell, for the command that is asked about, with nothing more in it."""
    key = _COMMAND_KEYS.get(str(call["name"]))
    if call["type"] != "function_call" or key is None or call["namespace"] is not None:
        return False
    arguments = _arguments(call["arguments"])
    command = arguments.pop(key, None)
    for name, value in arguments.items():
        if name not in _HARMLESS_KEYS and name not in _HARMLESS_VALUES:
            return False
        if value is not None and name in _HARMLESS_VALUES and value not in _HARMLESS_VALUES[name]:
            return False
    try:
        words = shlex.split(asked) if isinstance(asked, str) else []
    except ValueError:
        return False
    if isinstance(command, list):
        return words == command
    return len(words) == 3 and words[1] in ("-lc", "-c") and words[2] == command


def _arguments(text: object) -> dict[str, Any]:
    """The arguments of a call. What is said twice is not taken, whichever of the two Codex may have taken."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) != len(pairs):
            raise ValueError("a key is there twice")
        return dict(pairs)

    try:
        arguments = json.loads(text, object_pairs_hook=once) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {"": None}  # a key that nobody knows
    return arguments if isinstance(arguments, dict) else {"": None}
