"""Translation of session events to the `codex/event` notifications of the removed `codex mcp-server`.

A pure translation of events to messages, in the types, order and spelling of Codex 0.145.0 (older versions differ in
details). Each item is sent twice, as by the original: as an item, and in the older form that most clients read
(`agent_message`, `exec_command_begin`, …). Data that Helmsman's events lack is taken from the app-server's message
(`Event.raw`). Fields that Codex does not report are omitted, not invented; `docs/appendix/compat.md` lists them.
"""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from helmsman.base.json_values import integer, mapping, optional_text, present, snake_case, text
from helmsman.base.redaction import redact
from helmsman.mcp.compat_items import CompatMessage, Raw, began, ended, shown
from helmsman.mcp.compat_questions import asked
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    DiffUpdated,
    EngineGone,
    Failure,
    FileChange,
    ItemDelta,
    ItemEnded,
    ItemStarted,
    ItemUpdated,
    Notice,
    ProcessStateChanged,
    QuestionAsked,
    QuestionClosed,
    SettingsApplied,
    TodoList,
    TurnEnded,
    TurnStarted,
    Untranslated,
    UsageReported,
    UserMessage,
)
from helmsman.model.questions import REFUSALS

if TYPE_CHECKING:
    from collections.abc import Callable

    from helmsman.model.events import Event, Item, RateLimitsReported


_FACTS: Final = {
    "modelProvider": "model_provider_id",
    "approvalsReviewer": "approvals_reviewer",
    "activePermissionProfile": "active_permission_profile",
    "reasoningEffort": "reasoning_effort",
    "path": "rollout_path",
}
"""Field names of the app-server's thread, mapped to those of the original."""
_OF_NO_TURN: Final = ("session_configured", "mcp_startup_")
_NOTHING: Final[Raw] = {}


@dataclass(frozen=True, slots=True)
class CodexEvent:
    """Notification: the id of its turn (empty if it concerns the whole session), and the message."""

    id: str
    message: CompatMessage


class Translation:
    """Translation of one turn.

    `turn_name` replaces Codex's id of the turn: the original named a session's first turn after its call.
    """

    def __init__(
        self,
        thread_id: str,
        *,
        directory: str | None,
        turn_name: str | None = None,
        is_new: bool = True,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._thread_id = thread_id
        self._directory = directory
        self._turn_name = turn_name
        # A reply to an existing thread had no announcement.
        self._configured = not is_new
        self._now = now
        self._turn_id = turn_name or ""
        self._began_at: float | None = None
        self._wrote_at: float | None = None
        """Time of the model's first output."""
        self._last_message: str | None = None
        self.approvals: dict[str, CompatMessage] = {}
        """Open approvals by question id, as announced to the client."""
        self._waiting: dict[str, tuple[CommandExecution, Raw]] = {}
        """Commands that Codex has announced and may not run yet: the original spoke of them only when they ran."""
        self._patches: dict[str, FileChange] = {}
        self._reasoning_parts: dict[str, int] = {}
        self._warning: CompatMessage | None = None
        self._servers: dict[str, tuple[str, str | None]] = {}

    def translate(self, event: Event) -> list[CodexEvent]:
        """Return the notifications that the original would have sent. Never raises."""
        if isinstance(event, QuestionAsked):
            self._ask(event)
        # The original reported neither sub-agents nor states. A state comes between a warning and the end of its turn.
        if event.agent_id is not None or isinstance(event, ProcessStateChanged):
            return []
        # The first output counts, not the first message: reasoning comes before it.
        if self._wrote_at is None and _is_written(event):
            self._wrote_at = self._now()
        messages = self._messages(event)
        # Held back for one event: only the next one tells whether it repeats the warning.
        held, self._warning = self._warning, None
        if messages and messages[-1]["type"] == "warning":
            # The last attempt's error comes as a warning first; the end of the turn then says it again.
            self._warning = messages.pop()
        if held is not None and not _repeats(event, held):
            messages.insert(0, held)
        # Messages about the session or its servers belong to no turn.
        return [
            CodexEvent("" if message["type"].startswith(_OF_NO_TURN) else self._turn_id, message)
            for message in messages
        ]

    def _messages(self, event: Event) -> list[CompatMessage]:
        raw = mapping(event.raw)
        match event:
            # Later settings of the same session are not announced again.
            case SettingsApplied() if not self._configured:
                self._configured = True
                return [self._session_configured(event, raw)]
            case TurnStarted() if self._began_at is None:
                return [self._task_started(event.turn_id)]
            case TurnEnded(failure=Failure() as failure) | EngineGone(failure=failure):
                error = mapping(mapping(raw.get("turn")).get("error"))
                return [{"type": "error", "message": failure.message, "codex_error_info": _cause(error, failure.code)}]
            case TurnEnded():
                return [self._end(event)]
            case ItemStarted():
                return self._start(event.item, mapping(raw.get("item")))
            case ItemEnded():
                return self._finish(event.item, mapping(raw.get("item")))
            case ItemUpdated(item=TodoList() as plan):
                return [_plan(plan)]
            case ItemDelta():
                return self._delta(event, raw)
            case DiffUpdated():
                return [{"type": "turn_diff", "unified_diff": event.diff}]
            case UsageReported():
                return [_token_count(event, mapping(raw.get("tokenUsage")))]
            case QuestionAsked() if event.question.id in self.approvals:
                message = self.approvals[event.question.id]
                return [{**message, "turn_id": self._turn_id, "started_at_ms": self._ms()}]
            case QuestionClosed():
                return self._closed(event)
            case Untranslated() | Notice() if "status" in raw:
                return self._server(text(raw.get("name")), text(raw["status"]), optional_text(raw.get("error")))
            case Notice(kind="warning"):
                return [{"type": "warning", "message": event.message}]
            case Notice():
                return [_stream_error(event, mapping(raw.get("error")))]
            case _:
                return []

    # --- the session -------------------------------------------------------------------------------------------------

    def _session_configured(self, event: SettingsApplied, raw: Raw) -> CompatMessage:
        facts = present({told: raw.get(name) for name, told in _FACTS.items()})
        return {
            "type": "session_configured",
            "session_id": self._thread_id,
            "thread_id": self._thread_id,
            "model": event.model,
            "approval_policy": event.approval_policy,
            "cwd": self._directory,
            **{told: present(fact) if isinstance(fact, dict) else fact for told, fact in facts.items()},
        }

    # --- Codex's own MCP servers -------------------------------------------------------------------------------------

    def _server(self, server: str, state: str, error: str | None = None) -> list[CompatMessage]:
        """Return the status of one server, and the summary of all once every starting server has finished."""
        self._servers[server] = (state, error)
        status = {"state": state} if error is None else {"state": state, "error": error}
        update: CompatMessage = {"type": "mcp_startup_update", "server": server, "status": status}
        # The summary comes once, after the last server that was starting.
        if any(one == "starting" for one, _ in self._servers.values()):
            return [update]
        ended = {
            state: [name for name, (one, _) in self._servers.items() if one == state]
            for state in ("ready", "cancelled")
        }
        failed = [{"server": name, "error": why or ""} for name, (one, why) in self._servers.items() if one == "failed"]
        return [update, {"type": "mcp_startup_complete", **ended, "failed": failed}]

    # --- turns -------------------------------------------------------------------------------------------------------

    def _task_started(self, turn_id: str | None) -> CompatMessage:
        self._turn_id = self._turn_name or turn_id or ""
        self._began_at = self._now()
        return {
            "type": "task_started",
            "turn_id": self._turn_id,
            "started_at": int(self._began_at),
            "collaboration_mode_kind": "default",  # neither tool can ask for another
        }

    def _end(self, event: TurnEnded) -> CompatMessage:
        now = self._now()
        began = self._began_at if self._began_at is not None else now
        times = {
            "turn_id": self._turn_id,
            # The original reported whole seconds for times and milliseconds for durations.
            "started_at": int(began),
            "completed_at": int(now),
            "duration_ms": round((now - began) * 1000),
        }
        if event.outcome == "interrupted":
            return {"type": "turn_aborted", "reason": "interrupted", **times}
        first = {} if self._wrote_at is None else {"time_to_first_token_ms": round((self._wrote_at - began) * 1000)}
        return {"type": "task_complete", "last_agent_message": self._last_message, **times, **first}

    # --- items -------------------------------------------------------------------------------------------------------

    def _start(self, item: Item, raw: Raw) -> list[CompatMessage]:
        # Codex announces a command before it asks for permission. The original spoke of it only when it ran.
        if isinstance(item, CommandExecution) and item.announced:
            self._waiting[item.id] = item, raw
            return []
        if isinstance(item, FileChange):
            # The approval that may follow shows the patch, which its own message lacks.
            self._patches[item.id] = item
        return self._started(item, raw)

    def _started(self, item: Item, raw: Raw) -> list[CompatMessage]:
        item_form = shown(item, raw, ended=False)
        if item_form is None:
            return []
        message = {"type": "item_started", **self._where(), "item": item_form, "started_at_ms": self._ms()}
        return [message, *(self._timed(one, "started_at_ms") for one in began(item, raw))]

    def _finish(self, item: Item, raw: Raw) -> list[CompatMessage]:
        if isinstance(item, AgentMessage):
            self._last_message = item.text
        if isinstance(item, TodoList):
            return [_plan(item)]
        if isinstance(item, CommandExecution) and item.declined:
            self._waiting.pop(item.id, None)
            return []  # a command that was not allowed never began
        item_form = shown(item, raw, ended=True)
        if item_form is None:
            return []
        message = {"type": "item_completed", **self._where(), "item": item_form, "completed_at_ms": self._ms()}
        older = [self._timed(one, "completed_at_ms") for one in ended(item, raw)]
        return [*self._begin_waiting(item.id, raw), message, *older]

    def _begin_waiting(self, item_id: str | None, as_ended: Raw = _NOTHING) -> list[CompatMessage]:
        """Return the start of a command that was only announced before.

        Codex names the source and the process of a command only at its end, not in the announcement.
        """
        if item_id is None or item_id not in self._waiting:
            return []
        item, raw = self._waiting.pop(item_id)
        return self._started(item, {**raw, **{name: as_ended.get(name) for name in ("processId", "source")}})

    def _ask(self, event: QuestionAsked) -> None:
        question = event.question
        message = asked(question, self._patches.get(question.item_id or ""), mapping(event.raw))
        if message is not None:
            self.approvals[question.id] = message

    def _closed(self, event: QuestionClosed) -> list[CompatMessage]:
        message = self.approvals.pop(event.question_id, None)
        approved = event.answer is not None and event.answer not in REFUSALS
        # Approved: the command runs now, so its start is reported now.
        return self._begin_waiting(message["call_id"]) if message is not None and approved else []

    def _delta(self, event: ItemDelta, raw: Raw) -> list[CompatMessage]:
        where = {**self._where(), "item_id": event.item_id}
        match event.item_type:
            case AgentMessage.type:
                return [{"type": "agent_message_content_delta", **where, "delta": event.text}]
            case "reasoning":
                return self._reasoning_delta(event, raw)
            case "plan":
                return [{"type": "plan_delta", **where, "delta": event.text}]
            case CommandExecution.type:
                # Output may hold lone surrogates of undecodable bytes, and the original sent bytes in base64.
                chunk = base64.b64encode(event.text.encode("utf-8", "surrogatepass")).decode("ascii")
                output = {
                    "type": "exec_command_output_delta",
                    "call_id": event.item_id,
                    "stream": "stdout",
                    "chunk": chunk,
                }
                # Output proves that the command runs, also without an approval.
                return [*self._begin_waiting(event.item_id), output]
            case _:
                return []

    def _reasoning_delta(self, event: ItemDelta, raw: Raw) -> list[CompatMessage]:
        """Return deltas of raw reasoning or of a summary. Each part of a summary starts with a section break."""
        about = {"item_id": event.item_id, "delta": event.text}
        if "contentIndex" in raw:
            index = {"content_index": integer(raw["contentIndex"]) or 0}
            return [{"type": "reasoning_raw_content_delta", **self._where(), **about, **index}]
        messages: list[CompatMessage] = []
        part = {"summary_index": integer(raw.get("summaryIndex")) or 0}
        if self._reasoning_parts.get(event.item_id) != part["summary_index"]:
            self._reasoning_parts[event.item_id] = part["summary_index"]
            messages.append({"type": "agent_reasoning_section_break", "item_id": event.item_id, **part})
        if "delta" in raw:  # without one it says only that another part begins
            messages.append({"type": "reasoning_content_delta", **self._where(), **about, **part})
        return messages

    def _where(self) -> CompatMessage:
        return {"thread_id": self._thread_id, "turn_id": self._turn_id}

    def _timed(self, message: CompatMessage, name: str) -> CompatMessage:
        """Add the turn to older messages about commands and changes, and the time to those about commands."""
        # The original put the turn's id into these types only.
        if message["type"].startswith(("exec_command", "patch_apply")):
            message = {**message, "turn_id": self._turn_id}
        return {**message, name: self._ms()} if message["type"].startswith("exec_command") else message

    def _ms(self) -> int:
        return round(self._now() * 1000)


def _is_written(event: Event) -> bool:
    """Return whether the event is output of the model."""
    if isinstance(event, ItemStarted | ItemEnded):
        # The first token is the model's, and the user's message precedes it.
        return not isinstance(event.item, UserMessage)
    return isinstance(event, ItemDelta | ItemUpdated)


def _repeats(event: Event, warning: CompatMessage) -> bool:
    return isinstance(event, TurnEnded) and event.failure is not None and event.failure.message == warning["message"]


def _plan(plan: TodoList) -> CompatMessage:
    steps = [{"step": step.text, "status": step.status} for step in plan.steps]
    return {"type": "plan_update", "explanation": plan.explanation, "plan": steps}


def _token_count(event: UsageReported, raw: Raw) -> CompatMessage:
    """Return the token counts. With `--engine exec` only the session's total is known."""
    total, spent = None, event.total
    if spent is not None:
        total = {**structs.asdict(spent), "total_tokens": spent.input_tokens + spent.output_tokens}
    info = {
        "total_token_usage": _snake(raw.get("total", total)),
        "last_token_usage": _snake(raw.get("last")),
        "model_context_window": raw.get("modelContextWindow"),
    }
    return {"type": "token_count", "info": info}


def rate_limits(reported: RateLimitsReported | None) -> CompatMessage | None:
    """Return the account's limits in the format of `token_count`; None if unknown."""
    if reported is None or reported.raw is None:
        return None
    snapshot: CompatMessage = _snake(reported.raw.get("rateLimits"))
    for name in ("primary", "secondary"):
        if isinstance(window := snapshot.get(name), dict):
            # The app-server renamed this field.
            window["window_minutes"] = window.pop("window_duration_mins", None)
            window["used_percent"] = float(window.get("used_percent") or 0)
    return snapshot


def _stream_error(event: Notice, raw: Raw) -> CompatMessage:
    message: CompatMessage = {"type": "stream_error", "message": redact(text(raw.get("message"))) or event.message}
    if raw:
        details = optional_text(raw.get("additionalDetails"))
        message["codex_error_info"] = _cause(raw, None)
        message["additional_details"] = None if details is None else redact(details)
    return message


def _cause(error: Raw, code: str | None) -> Any:
    """Return the cause of a failure as the original named it: a word, or a word with details."""
    info = error.get("codexErrorInfo")
    # A cause is a plain word or an object with details, as Rust serializes an enum.
    return _snake(info) if isinstance(info, dict) else snake_case(text(info)) or code


def _snake(value: Any) -> Any:
    """Convert the names in an object to snake case, as in the original."""
    return {snake_case(name): _snake(inner) for name, inner in value.items()} if isinstance(value, dict) else value
